"""What a reader chooses for their own eyes: colours and time zone (Django has the language)."""

from __future__ import annotations

from zoneinfo import ZoneInfo, available_timezones

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from projects.models import validate_time_zone
from scheduling.views.pages import PageRequest, page

THEMES = ("system", "light", "dark")
YEAR_S = 365 * 24 * 3600


def safe_next(request: HttpRequest, default: str = "/") -> str:
    """Where to go afterwards: an address of ours only."""
    address = request.POST.get("next") or request.GET.get("next") or ""
    is_ours = url_has_allowed_host_and_scheme(
        address, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return address if is_ours else default


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Remember the colours in a cookie; the page's script does the same without a request."""
    response = redirect(safe_next(request))
    chosen = request.POST.get("theme", "")
    if chosen in THEMES:
        response.set_cookie(
            "allot_theme",
            chosen,
            max_age=YEAR_S,
            samesite="Lax",
            secure=settings.SESSION_COOKIE_SECURE,
        )
    return response


@login_required
@require_http_methods(["GET", "POST"])
def preferences(request: PageRequest) -> HttpResponse:
    """Choose the zone in which times are shown; empty is the organisation's."""
    problem = ""
    if request.method == "POST":
        chosen = request.POST.get("time_zone", "").strip()
        try:
            validate_time_zone(chosen)
        except ValidationError as error:
            problem = " ".join(error.messages)
        else:
            request.user.time_zone = chosen
            request.user.save(update_fields=["time_zone"])
            timezone.activate(ZoneInfo(chosen or settings.TIME_ZONE))
            messages.success(request, _("Saved."))
            return redirect("scheduling:preferences")
    context = {
        "zones": sorted(available_timezones()),
        "organisation_zone": settings.TIME_ZONE,
        "problem": problem,
        "chosen": request.POST.get("time_zone", request.user.time_zone),
        "now": timezone.now(),
    }
    return page(request, "scheduling/preferences.html", context, status=422 if problem else 200)
