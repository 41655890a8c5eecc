"""What pages and API say of the ending of an idle workload: when, and how it can be put off."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from projects.access import may_change_workload
from projects.models import User
from scheduling.core.ending import due_s
from scheduling.models import Attempt, Event, Phase, Workload
from scheduling.services.ending import course_of, rule_of

EXTENSIONS_S = (3600, 2 * 3600, 4 * 3600, 8 * 3600)
"""What pages offer, as far as the project allows."""


@dataclass(frozen=True, slots=True)
class Ending:
    """An end that was warned of.

    Attributes:
        extensions: Seconds by which the person may put it off; empty for those who may not.
    """

    end_at: datetime
    extensions: list[int]


def told_end(workload: Workload) -> datetime | None:
    """The end that its latest warning named; None where none holds.

    Cost: no query where `current` was read with the workload.
    """
    attempt: Attempt | None = workload.current
    if attempt is None or workload.phase != Phase.RUNNING or attempt.is_leaving:
        return None
    return attempt.idle_end_at


def warned(workload: Workload, user: User) -> Ending | None:
    """The end that was warned of, for one person."""
    end_at = told_end(workload)
    return None if end_at is None else Ending(end_at, extensions(workload, user))


def extensions(workload: Workload, user: User) -> list[int]:
    """By how many seconds the person may extend it."""
    if workload.project.idle_stop_after_s is None or not may_change_workload(user, workload):
        return []
    limit_s = workload.project.idle_max_extension_s
    return [seconds for seconds in EXTENSIONS_S if seconds <= limit_s]


def end_at(workload: Workload, now: datetime) -> datetime | None:
    """When it is ended at the earliest if it stays idle from now on; None where it does not idle,
    or is never ended for that."""
    crew = Attempt.objects.of(workload).open().select_related("node").order_by("replica")
    course = course_of(workload, list(crew), now)
    rule = rule_of(workload.project)
    due = None if course is None else due_s(rule, course)
    if due is None or course is None:
        return None
    notice_s = rule.first_warning_s if course.first_warned_s is None else 0.0
    earliest = max(due, course.told_s or 0.0, now.timestamp() + notice_s)
    return datetime.fromtimestamp(earliest, UTC)


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
