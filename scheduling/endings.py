"""What pages and API say of ends that come by a rule, for idling or by time limit: when, and how
they can be put off."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from projects.access import may_administer_project, may_change_workload
from projects.models import User
from scheduling.core.ending import earliest_end_s
from scheduling.models import Attempt, Event, Phase, Workload
from scheduling.rules import rule_for
from scheduling.services.extending import MIN_GAIN_S
from scheduling.services.grounds import IDLENESS, TIME_LIMIT, course_of, rule_of
from scheduling.time_limits import MAX_EXTENSIONS, Limit, limit_of

CODES = (IDLENESS.code, TIME_LIMIT.code)
"""Of the reason of what was ended by a rule."""
EXTENSIONS_S = (3600, 2 * 3600, 4 * 3600, 8 * 3600)
"""What pages offer, as far as the project allows, and beside it the longest that it allows."""


@dataclass(frozen=True, slots=True)
class Extending:
    """By how much a person may put an end off, or why not.

    Attributes:
        seconds: From now; empty for those who may not.
        is_often: Its owner has put its time limit off as often as may be.
        is_later: It has longer left than `longest_s`, which is what the project allows at once.
    """

    seconds: list[int]
    is_often: bool = False
    is_later: bool = False
    longest_s: int = 0


NO_EXTENDING = Extending([])


@dataclass(frozen=True, slots=True)
class Ending:
    """An end that was warned of.

    Attributes:
        limit: The time limit that is over then; None where it comes for idling.
    """

    end_at: datetime
    limit: Limit | None
    extending: Extending = NO_EXTENDING


def was_ended_by_rule(workload: Workload) -> bool:
    """Whether a rule ended it, or has it ended now."""
    return workload.reason.get("code") in CODES


def told_end(workload: Workload) -> datetime | None:
    """The end for idling that its latest warning named; None where none holds.

    Cost: no query where `current` was read with the workload.
    """
    attempt = _running(workload)
    return None if attempt is None else attempt.idle_end_at


def _running(workload: Workload) -> Attempt | None:
    attempt: Attempt | None = workload.current
    if attempt is None or workload.phase != Phase.RUNNING or attempt.is_leaving:
        return None
    return attempt


def warned(
    workload: Workload, user: User, limit_end_at: datetime | None, now: datetime
) -> list[Ending]:
    """The ends that were warned of, for one person, the next one first; what puts one off puts the
    other off too, so only the first one offers that.

    Args:
        workload: With its project.
        user: Who reads.
        limit_end_at: When its time limit is over; None where it has none, or its clock stands.
        now: The present.
    """
    attempt = _running(workload)
    if attempt is None:
        return []
    found: list[tuple[datetime, Limit | None]] = []
    if attempt.idle_end_at is not None:
        found.append((attempt.idle_end_at, None))
    if attempt.limit_end_at is not None:
        found.append((attempt.limit_end_at, limit_of(workload)))
    if not found:
        return []
    found.sort(key=lambda pair: pair[0])
    (end_at, limit), *later = found
    offered = extending(workload, user, end_at, limit_end_at, now)
    return [Ending(end_at, limit, offered), *(Ending(at, other) for at, other in later)]


def extending(
    workload: Workload,
    user: User,
    end_at: datetime | None,
    limit_end_at: datetime | None,
    now: datetime,
) -> Extending:
    """By how much the person may extend it, as `services.extend` takes it.

    Args:
        workload: With its project.
        user: Who reads.
        end_at: When idleness ends it; None where that is not in sight.
        limit_end_at: When its time limit does.
        now: The present.
    """
    ends = [at for at in (end_at, limit_end_at) if at is not None]
    if not ends or not may_change_workload(user, workload):
        return NO_EXTENDING
    longest_s = rule_for(workload).idle_max_extension_s
    allowed = sorted({*(each for each in EXTENSIONS_S if each < longest_s), longest_s})
    left_s = (min(ends) - now).total_seconds()
    useful = [seconds for seconds in allowed if seconds - left_s >= MIN_GAIN_S]
    if not useful:
        return Extending([], is_later=True, longest_s=longest_s)
    if limit_end_at is None or workload.num_extensions < MAX_EXTENSIONS:
        return Extending(useful)
    if may_administer_project(user, workload.project_id):
        return Extending(useful)
    # Up to its time limit idleness alone is put off.
    limit_left_s = (limit_end_at - now).total_seconds()
    free = [seconds for seconds in useful if seconds <= limit_left_s]
    return Extending(free, is_often=not free)


def end_at(workload: Workload, now: datetime) -> datetime | None:
    """When it is ended at the earliest if it stays idle from now on; None where it does not idle,
    or is never ended for that."""
    crew = Attempt.objects.of(workload).open().select_related("node").order_by("replica")
    course = course_of(workload, list(crew), now)
    if course is None:
        return None
    earliest = earliest_end_s(rule_of(workload), course, now.timestamp())
    return None if earliest is None else datetime.fromtimestamp(earliest, UTC)


def questions(workloads: Sequence[Workload]) -> Mapping[uuid.UUID, Event]:
    """Who last asked whether idle sessions are still needed, until they are used; one query at
    most."""
    idle = {
        row.pk: row.current.idle_since
        for row in workloads
        if row.phase == Phase.RUNNING and row.current is not None and row.current.idle_since
    }
    if not idle:
        return {}
    asked = Event.objects.filter(workload__in=idle, code="idle_notified").select_related("actor")
    return {
        event.workload_id: event
        for event in asked.order_by("at")
        if event.at >= idle[event.workload_id]
    }
