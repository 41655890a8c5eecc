"""What Prometheus scrapes. Names of projects are in it, so it asks for an admin's token."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from projects import tokens
from scheduling.prometheus import devices, organisation
from scheduling.prometheus.exposition import CONTENT_TYPE, Family, lines


def for_admins(
    view: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Let in who presents an admin's bearer token, or is logged in as one."""

    def checked(request: HttpRequest) -> HttpResponse:
        scheme, _space, secret = request.headers.get("Authorization", "").partition(" ")
        token = tokens.verify(secret.strip()) if scheme.lower() == "bearer" else None
        user = token.user if token else request.user
        if not user.is_authenticated:
            headers = {"WWW-Authenticate": "Bearer"}
            return HttpResponse("an admin's token is needed\n", status=401, headers=headers)
        if not user.is_superuser:
            return HttpResponse("only for admins\n", status=403)
        return view(request)

    return checked


def _answer(families: Iterable[Family]) -> HttpResponse:
    return HttpResponse("".join(lines(families)), content_type=CONTENT_TYPE)


@never_cache
@require_safe
@for_admins
def metrics(_request: HttpRequest) -> HttpResponse:
    """Devices, projects, queue, cost, collectors: as many series as there are of these."""
    now = timezone.now()
    return _answer([*devices.families(now), *organisation.families(now)])


@never_cache
@require_safe
@for_admins
def workloads(_request: HttpRequest) -> HttpResponse:
    """A few series per running workload; these come and go."""
    return _answer(devices.workload_families(timezone.now()))


urlpatterns = [
    path("metrics", metrics, name="prometheus"),
    path("metrics/workloads", workloads, name="prometheus-workloads"),
]
