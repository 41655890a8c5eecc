"""Answers for probes: alive, and able to work.

``/healthz`` says that this process answers; ``/readyz`` also asks the servers that it needs, and
names those that are away.
"""

import logging
from collections.abc import Callable

import redis
from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

logger = logging.getLogger(__name__)

# A probe that waits longer has failed anyway.
REDIS_TIMEOUT_S = 2.0


@never_cache
@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """Say that the process is alive."""
    return HttpResponse("ok\n", content_type="text/plain")


@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Say whether database and Redis answer; 503 when one does not."""
    checks = {"database": _failure(_ask_database), "redis": _failure(_ask_redis)}
    is_ready = not any(checks.values())
    return JsonResponse(
        {
            "status": "ready" if is_ready else "not ready",
            "checks": {name: failure or "ok" for name, failure in checks.items()},
        },
        status=200 if is_ready else 503,
    )


def _failure(ask: Callable[[], None]) -> str:
    """Return why a server does not answer, by kind only: probes are public, details are not."""
    try:
        ask()
    except Exception as error:
        logger.warning("not ready: %s", error)
        return f"failed: {type(error).__name__}"
    return ""


def _ask_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _ask_redis() -> None:
    client = redis.Redis.from_url(
        settings.ALLOT.redis_url,
        socket_connect_timeout=REDIS_TIMEOUT_S,
        socket_timeout=REDIS_TIMEOUT_S,
    )
    with client:
        client.ping()
