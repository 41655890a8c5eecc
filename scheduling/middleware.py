"""Refuse addresses that no page can mean."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext as _

from scheduling.api.problems import CONTENT_TYPE, Problem


class NoNulMiddleware:
    """Answers 400 to an address with a NUL in it, which PostgreSQL cannot even compare with."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "\0" not in unquote(request.get_full_path()):
            return self.get_response(request)
        if not request.path.startswith("/api/"):
            raise BadRequest("NUL in the address")
        problem = Problem(400, "nul_in_address", _("An address cannot contain a NUL character."))
        return JsonResponse(problem.body(), status=problem.status, content_type=CONTENT_TYPE)
