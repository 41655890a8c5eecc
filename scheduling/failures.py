"""What a request that failed is answered with: a program gets a problem, a person a page."""

from __future__ import annotations

import sys

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from scheduling.api.problems import DATABASE_AWAY, Problem, database_away
from scheduling.views import errors


def server_error(request: HttpRequest) -> HttpResponse:
    """500, or 503 when the database does not answer."""
    if not request.path.startswith("/api/"):
        return errors.server_error(request)
    if isinstance(sys.exc_info()[1], DATABASE_AWAY):
        return database_away().plain_response()
    detail = _("Allot failed at this request, and has noted how.")
    return Problem(500, "internal_error", detail).plain_response()
