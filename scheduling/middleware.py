"""Say in words what PostgreSQL says of an address that it cannot compare with."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

from django.db import DataError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.translation import gettext as _
from django.views.defaults import bad_request

from scheduling.api.problems import Problem


class NulMiddleware:
    """Answers 400 where a NUL in the address came as far as the database, which knows none."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        """Django's hook: None leaves an error to others."""
        is_nul = isinstance(error, DataError | ValueError)
        if not is_nul or "\0" not in unquote(request.get_full_path()):
            return None
        if not request.path.startswith("/api/"):
            return bad_request(request, error)
        detail = _("An address cannot contain a NUL character.")
        return Problem(400, "nul_in_address", detail).plain_response()
