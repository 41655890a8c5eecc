"""What everybody should know about the system now, said above each page.

The database is not among it: without a database there is no page, and the error page says so. Redis
is asked at most every few seconds, with a short limit, since a page must not wait for what it can
do without.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

import redis
from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from scheduling import formats
from scheduling.models import Node, PlannerStatus, Zone

# Agents report every second or two; this is several misses in a row.
AGENT_SILENT_AFTER = timedelta(seconds=15)
# Beat asks for a cycle every five seconds.
PLANNER_LATE_AFTER = timedelta(seconds=30)
REDIS_ASKED_EVERY_S = 3.0
REDIS_TIMEOUT_S = 0.3


@dataclass(frozen=True, slots=True)
class Banner:
    """One line; `level` is `info` or `warning`."""

    level: str
    icon: str
    text: str


def banners(now: datetime, *, is_admin: bool = False) -> list[Banner]:
    """Everything worth a line, gravest first; admins read what only they can mend."""
    zones = list(Zone.objects.order_by("name"))
    found = [_silent_agent(zone, now) for zone in zones]
    lines = [line for line in found if line is not None]
    lines += _planner(now)
    if is_admin:
        lines += [_skewed_clock(zone) for zone in zones if zone.is_skewed]
    if not _redis.answers():
        lines.append(
            Banner(
                "warning",
                "warning",
                _("Live updates are away: pages show what was true when they were loaded."),
            )
        )
    num_simulated = Node.objects.filter(is_simulated=True).count()
    if num_simulated:
        lines.append(Banner("info", "info", _simulated(num_simulated)))
    return lines


def _silent_agent(zone: Zone, now: datetime) -> Banner | None:
    if zone.last_report_at is None:
        text = _("The agent of zone %(zone)s has never reported: nothing can start there.")
        return Banner("warning", "warning", text % {"zone": zone.name})
    if now - zone.last_report_at <= AGENT_SILENT_AFTER:
        return None
    text = _(
        "The agent of zone %(zone)s last reported %(ago)s: "
        "what runs there goes on, nothing new starts."
    )
    return Banner(
        "warning",
        "warning",
        text % {"zone": zone.name, "ago": formats.ago(zone.last_report_at, now)},
    )


def _skewed_clock(zone: Zone) -> Banner:
    text = _(
        "The clock of zone %(zone)s differs from Allot’s by %(skew)s: "
        "charts of its nodes are shifted. Set up time synchronisation (NTP) there."
    )
    values = {"zone": zone.name, "skew": formats.skew(zone.clock_skew_s)}
    return Banner("warning", "warning", text % values)


def _planner(now: datetime) -> list[Banner]:
    """Whether what waits is being looked at."""
    status = PlannerStatus.objects.first()
    if status is None:
        return []
    if status.failed_at is not None:
        text = _(
            "The planner fails, so nothing new starts; what runs goes on. Last error: %(error)s"
        )
        return [Banner("warning", "warning", text % {"error": status.error[:200]})]
    if status.finished_at is not None and now - status.finished_at > PLANNER_LATE_AFTER:
        text = _("The planner last looked %(ago)s: nothing new starts until its worker is back.")
        ago = formats.ago(status.finished_at, now)
        return [Banner("warning", "warning", text % {"ago": ago})]
    return []


def _simulated(count: int) -> str:
    return ngettext(
        "%(count)s node is simulated: its devices are declared, everything else is real.",
        "%(count)s nodes are simulated: their devices are declared, everything else is real.",
        count,
    ) % {"count": count}


class _Redis:
    """Remembers for a moment whether Redis answered."""

    def __init__(self) -> None:
        self._asked_at = float("-inf")
        self._answered = True

    def answers(self) -> bool:
        if time.monotonic() - self._asked_at > REDIS_ASKED_EVERY_S:
            self._asked_at = time.monotonic()
            self._answered = self._ask()
        return self._answered

    def _ask(self) -> bool:
        client = redis.Redis.from_url(
            settings.ALLOT.redis_url,
            socket_connect_timeout=REDIS_TIMEOUT_S,
            socket_timeout=REDIS_TIMEOUT_S,
        )
        try:
            with client:
                return bool(client.ping())
        except redis.RedisError:
            return False


_redis = _Redis()
