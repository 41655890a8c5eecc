"""Warn of, and carry out, the ending of what idles or has run for as long as it may.

`core.ending` says what is due; here it is seen on the rows and done on them. Every step is taken
with the rows locked, and what was said is kept in them: a periodic task that dies, comes twice or
was away for hours neither forgets a warning nor ends anything without both.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import F, FloatField, Q
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.utils import timezone
from django.utils.translation import gettext as _

from projects import audit
from projects.access import may_administer_project
from projects.idle_rules import MAX_RUN
from projects.models import User
from scheduling import formats, time_limits
from scheduling.core import lifecycle
from scheduling.core.ending import End, Step, Wait, Warn, Withdraw, next_step
from scheduling.models import LEADER, Attempt, AttemptGoal, Event, Phase, Workload
from scheduling.rules import in_force, rule_for
from scheduling.services.actions import ActionRefusedError, ask_for, locked_for
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


# ---------------------------------------------------------------- what a person does about it


@transaction.atomic
def extend(workload: Workload, *, actor: User, for_s: int, channel: str = "ui") -> Workload:
    """Keep it for so long from now at least, idle or not, and put its time limit off as far.

    As often as one likes for idleness; a time limit is put off `time_limits.MAX_EXTENSIONS` times
    by those who do not administer the project.

    Raises:
        ActionRefusedError: it does not run, nothing ends it, the project allows less, or its time
            limit was put off so often.
    """
    row = locked_for(workload, actor)
    attempt = row.current
    if row.phase != Phase.RUNNING or attempt is None or attempt.is_leaving:
        raise ActionRefusedError("not_running", _("Only what runs can be kept longer."))
    rule, has_limit = rule_for(row), time_limits.limit_of(row) is not None
    if rule.idle_stop_after_s is None and not has_limit:
        message = _("Its project never stops idle work, and it has no time limit.")
        raise ActionRefusedError("never_ended", message)
    _check_length(row, for_s, rule.idle_max_extension_s)
    now = timezone.now()
    until, before = now + timedelta(seconds=for_s), _kept(row, attempt)
    is_put_off = has_limit and _put_limit_off(row, attempt, until, actor, now)
    if rule.idle_stop_after_s is not None:
        kept_until = attempt.idle_kept_until
        _write(attempt, {"idle_kept_until": max(kept_until or until, until)})
        # Of what comes after it, it is warned anew.
        forget_warnings(attempt, IDLENESS)
    details = {"for_s": for_s, "until": max(attempt.idle_kept_until or until, until).isoformat()}
    code = "limit_extended" if is_put_off else "idle_extended"
    record_event(row, code, at=now, attempt=attempt, actor=actor, details=details)
    audit.record(
        actor,
        action="workload.extended",
        entity=("workload", str(row.pk)),
        before=before,
        after=_kept(row, attempt),
        channel=channel,
    )
    announce_workload(row)
    return row


def _kept(row: Workload, attempt: Attempt) -> dict[str, object]:
    """What *Extend* changes, for the audit."""
    until = attempt.idle_kept_until
    return {
        "idle_kept_until": None if until is None else until.isoformat(),
        "extended_s": row.extended_s,
    }


def _check_length(row: Workload, for_s: int, limit_s: int) -> None:
    if for_s > limit_s:
        message = _("%(value)s is too long: project %(project)s allows %(limit)s at most.")
        values = {
            "value": formats.duration(for_s),
            "project": row.project,
            "limit": formats.duration(limit_s),
        }
        raise ActionRefusedError("too_long", message % values)


def _put_limit_off(
    row: Workload, attempt: Attempt, until: datetime, actor: User, now: datetime
) -> bool:
    """Lengthen its time limit so that it is over at that moment; whether it was over before."""
    missing_s = time_limits.missing_s(row, attempt, until, now)
    if missing_s <= 0:
        return False
    is_owners = not may_administer_project(actor, row.project_id)
    if is_owners and row.num_extensions >= time_limits.MAX_EXTENSIONS:
        message = _(
            "Its time limit was put off %(limit)s times; only managers of project %(project)s put "
            "it off further."
        )
        values = {"limit": time_limits.MAX_EXTENSIONS, "project": row.project}
        raise ActionRefusedError("extended_often", message % values)
    row.extended_s += missing_s
    row.num_extensions += 1
    row.save(update_fields=["extended_s", "num_extensions"])
    forget_warnings(attempt, TIME_LIMIT)
    return True
