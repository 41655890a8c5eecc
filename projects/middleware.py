"""Show times in the zone of the person who reads."""

from __future__ import annotations

from collections.abc import Callable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.http import HttpRequest, HttpResponse
from django.utils import timezone


class ViewerTimeZoneMiddleware:
    """Activates `User.time_zone`, the organisation's zone where it is empty.

    Needs the authentication middleware before it.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        name = getattr(request.user, "time_zone", "") if _has_session(request) else ""
        try:
            zone = ZoneInfo(name) if name else None
        except (ZoneInfoNotFoundError, ValueError):
            zone = None
        with timezone.override(zone):
            return self.get_response(request)


def _has_session(request: HttpRequest) -> bool:
    """Nobody is asked for where no session cookie came: probes must not cost a query."""
    return bool(request.session.session_key)
