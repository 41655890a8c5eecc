"""Warn of, and carry out, the ending of what idles or has run for as long as it may.

`core.ending` says what is due; here it is seen on the rows and done on them. Every step is taken
with the rows locked, and what was said is kept in them: a periodic task that dies, comes twice or
was away for hours neither forgets a warning nor ends anything without both.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from django.db import transaction
from django.db.models import F, FloatField, Q
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from projects.idle_rules import MAX_RUN
from scheduling import time_limits
from scheduling.core import lifecycle
from scheduling.core.ending import End, Step, Wait, Warn, Withdraw, next_step
from scheduling.models import LEADER, Attempt, AttemptGoal, Event, Phase, Workload
from scheduling.rules import in_force
from scheduling.services.actions import ask_for
from scheduling.services.events import announce_workload, record_event
from scheduling.services.grounds import IDLENESS, TIME_LIMIT, Details, Ground
from scheduling.services.notices import owe_mail
from scheduling.services.transitions import advance, lock

# ---------------------------------------------------------------- the periodic watch


def watch_ending(now: datetime) -> int:
    """Take the step that is due for each workload that idles, runs out of its time, or was warned.

    Returns:
        How many steps were taken.
    """
    idle = [_take_step(workload, IDLENESS, now) for workload in _quiet(now)]
    late = [_take_step(workload, TIME_LIMIT, now) for workload in _running_out(now)]
    return sum(idle) + sum(late)


def _quiet(now: datetime) -> Iterable[uuid.UUID]:
    """Workloads that have used little of CPU and GPU for so long that a warning may be due, or were
    warned: many a training needs hardly any CPU for days.

    They are looked at more closely, each with its rows locked.
    """
    notice_s = in_force("idle_first_warning_s", "workload__")
    quiet_from = now.timestamp() - in_force("idle_stop_after_s", "workload__") + notice_s
    quiet = {
        name: Cast(KeyTextTransform(f"{name}_idle_since", "idle_signals"), FloatField())
        for name in ("cpu", "gpu")
    }
    are_quiet = Q(cpu__lte=F("quiet_from"), gpu__lte=F("quiet_from"))
    return dict.fromkeys(
        Attempt.objects.open()
        .filter(workload__phase=Phase.RUNNING)
        .annotate(quiet_from=quiet_from, **quiet)
        .filter(are_quiet | Q(idle_warned_at__isnull=False))
        .order_by("workload_id")
        .values_list("workload_id", flat=True)
    )


def _running_out(now: datetime) -> Iterable[uuid.UUID]:
    """Workloads that have a time limit and of which a step is due, as they are read without locks;
    two queries."""
    limit_s = {f"{kind}_s": in_force(name, "workload__") for kind, name in MAX_RUN.items()}
    has_limit = Q(workload__max_run_s__isnull=False) | Q(limit_warned_at__isnull=False)
    for kind in MAX_RUN:
        has_limit |= Q(**{"workload__kind": kind, f"{kind}_s__isnull": False})
    leaders = list(
        Attempt.objects.open()
        .filter(workload__phase=Phase.RUNNING, replica=LEADER)
        .annotate(**limit_s)
        .filter(has_limit)
        .select_related("workload__project")
        .order_by("workload_id")
    )
    before = time_limits.ran_before([leader.workload for leader in leaders])
    for leader in leaders:
        row = leader.workload
        course = time_limits.course_of(row, leader, before.get(row.pk, 0.0), now)
        rule = time_limits.ending_rule(row, leader)
        if course is not None and not isinstance(next_step(rule, course, now.timestamp()), Wait):
            yield row.pk


@transaction.atomic
def _take_step(workload: uuid.UUID, ground: Ground, now: datetime) -> bool:
    row = lock(workload)
    crew = list(
        Attempt.objects.of(row)
        .open()
        .select_for_update(no_key=True, of=("self",))
        .select_related("node__zone")
        .order_by("replica")
    )
    course = ground.course_of(row, crew, now)
    if row.phase != Phase.RUNNING or course is None:
        return False
    step = next_step(ground.rule_of(row, crew[0]), course, now.timestamp())
    _carry_out(step, ground, row, crew, ground.details_of(row, course, now), now)
    return not isinstance(step, Wait)


def _carry_out(
    step: Step,
    ground: Ground,
    row: Workload,
    crew: Sequence[Attempt],
    details: Details,
    now: datetime,
) -> None:
    leader = crew[0]
    match step:
        case Wait():
            return
        case Withdraw():
            forget_warnings(leader, ground)
            code = f"{ground.prefix}_withdrawn"
            record_event(row, code, at=now, attempt=leader, details=details)
        case Warn(end_s, is_last):
            end_at = _moment(end_s)
            first, last, end = ground.columns
            values = {last: now if is_last else None, end: end_at}
            _write(leader, values if is_last else {first: now, **values})
            left_s = (end_at - now).total_seconds()
            told = {**details, "end_at": end_at.isoformat(), "left_s": left_s}
            code = f"{ground.prefix}_warning"
            owe_mail(record_event(row, code, at=now, attempt=leader, details=told))
        case End():
            _end(row, crew, ground, details, now)
            return
    announce_workload(row)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def forget_warnings(leader: Attempt, ground: Ground) -> None:
    """What was said of its end holds no longer."""
    _write(leader, dict.fromkeys(ground.columns))


def _write(leader: Attempt, values: Mapping[str, datetime | None]) -> None:
    for name, value in values.items():
        setattr(leader, name, value)
    leader.save(update_fields=list(values))


def _end(
    row: Workload, crew: Sequence[Attempt], ground: Ground, details: Details, now: datetime
) -> None:
    """Have it save, where it can, and stop."""
    message = ground.message_of(row, details)
    row.reason = {
        "code": ground.code,
        "message": message,
        "details": dict(details),
        "offers": [],
        "per_node_type": [],
    }
    row.reason_at = now
    advance(row, lifecycle.StopAsked(), code=ground.code, at=now, details=details)
    owe_mail(Event.objects.filter(workload=row, code=ground.code).latest("pk"))
    for attempt in crew:
        if attempt.goal != AttemptGoal.STOP:
            ask_for(row, attempt, AttemptGoal.STOP, message)
