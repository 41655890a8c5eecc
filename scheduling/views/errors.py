"""When a page fails: in words, and without the database, which may be the very thing away."""

from __future__ import annotations

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from psycopg_pool import PoolTimeout

AWAY = (OperationalError, InterfaceError, PoolTimeout)
RETRY_AFTER_S = 5


def server_error(request: HttpRequest) -> HttpResponse:
    """500, or 503 when the database does not answer; that page reloads itself."""
    error = sys.exc_info()[1]
    if isinstance(error, AWAY) or isinstance(getattr(error, "__cause__", None), AWAY):
        response = render(request, "503.html", status=503)
        response["Retry-After"] = str(RETRY_AFTER_S)
        response["Refresh"] = str(RETRY_AFTER_S)
        return response
    return render(request, "500.html", status=500)
