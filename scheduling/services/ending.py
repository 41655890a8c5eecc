"""Warn of, and carry out, the ending of what idles, by each project's own rule.

`core.ending` says what is due; here it is seen on the rows and done on them. Every step is taken
with the rows locked, and what was said is kept in them: a periodic task that dies, comes twice or
was away for hours neither forgets a warning nor ends anything without both. Only what agents have
reported just now counts.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import F, FloatField, Q, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.utils import timezone
from django.utils.translation import gettext as _

from projects import audit
from projects.models import Project, User
from scheduling import formats
from scheduling.core import lifecycle
from scheduling.core.ending import Course, End, EndingRule, Step, Wait, Warn, Withdraw, next_step
from scheduling.idle_signals import idle_since
from scheduling.models import (
    LEADER,
    Attempt,
    AttemptGoal,
    AttemptPhase,
    Event,
    Phase,
    SwapState,
    Workload,
)
from scheduling.services.actions import ActionRefusedError, ask_for, locked_for
from scheduling.services.claims import LOST_AFTER_S
from scheduling.services.events import announce_workload, record_event
from scheduling.services.notices import owe_mail
from scheduling.services.transitions import advance, lock

WARNINGS = ("idle_warned_at", "idle_last_warned_at", "idle_end_at")


def rule_of(project: Project) -> EndingRule:
    """A project's rule, as the core takes it."""
    stop_after_s = project.idle_stop_after_s
    return EndingRule(
        stop_after_s=None if stop_after_s is None else float(stop_after_s),
        first_warning_s=float(project.idle_first_warning_s),
        last_warning_s=float(project.idle_last_warning_s),
    )


def course_of(workload: Workload, crew: Sequence[Attempt], now: datetime) -> Course | None:
    """How far it is with a workload; None while nobody knows what it does.

    Args:
        workload: With its project.
        crew: Its open attempts with their nodes, the leader first.
        now: Reports that are older than a few seconds tell nothing.
    """
    silent = now - timedelta(seconds=LOST_AFTER_S)
    reports = [attempt.node.last_report_at for attempt in crew]
    if not crew or crew[0].replica != LEADER:
        return None
    if any(at is None or at < silent for at in reports):
        return None
    leader = crew[0]
    return Course(
        idle_since_s=_seconds(_idle_since(workload, crew)),
        kept_until_s=_seconds(leader.idle_kept_until),
        first_warned_s=_seconds(leader.idle_warned_at),
        last_warned_s=_seconds(leader.idle_last_warned_at),
        told_s=_seconds(leader.idle_end_at),
    )


def _idle_since(workload: Workload, crew: Iterable[Attempt]) -> datetime | None:
    """Since when all of it has been idle, and nobody has asked for it."""
    times: list[datetime] = []
    for attempt in crew:
        since = idle_since(
            attempt.idle_signals,
            may_lack_network=workload.project.idle_may_lack_network,
            is_session=workload.is_session,
        )
        # A borrower that waits in memory has no device that it could use.
        has_device = workload.is_session or attempt.swap_state == SwapState.RUNNING
        is_at_rest = attempt.phase == AttemptPhase.RUNNING and not attempt.is_leaving
        if since is None or not is_at_rest or not has_device:
            return None
        times.append(since)
        if not workload.is_session and attempt.woke_at is not None:
            times.append(attempt.woke_at)
        if attempt.idle_from is not None:
            times.append(attempt.idle_from)
    return max(times)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


# ---------------------------------------------------------------- the periodic watch


def watch_ending(now: datetime) -> int:
    """Take the step that is due for each workload that idles, or was warned.

    Returns:
        How many steps were taken.
    """
    crews: defaultdict[uuid.UUID, list[Attempt]] = defaultdict(list)
    for attempt in _candidates(now):
        crews[attempt.workload_id].append(attempt)
    return sum(_take_step(workload, now) for workload in crews)


def _candidates(now: datetime) -> QuerySet[Attempt]:
    """Attempts that have used little of CPU and GPU for so long that a warning may be due, or were
    warned: many a training needs hardly any CPU for days.

    Their workloads are looked at more closely, each with its rows locked.
    """
    project = "workload__project__idle"
    quiet_from = now.timestamp() - F(f"{project}_stop_after_s") + F(f"{project}_first_warning_s")
    quiet = {
        name: Cast(KeyTextTransform(f"{name}_idle_since", "idle_signals"), FloatField())
        for name in ("cpu", "gpu")
    }
    are_quiet = Q(cpu__lte=quiet_from, gpu__lte=quiet_from)
    return (
        Attempt.objects.open()
        .filter(workload__phase=Phase.RUNNING)
        .annotate(**quiet)
        .filter(are_quiet | Q(idle_warned_at__isnull=False))
        .only("workload_id")
        .order_by("workload_id")
    )


@transaction.atomic
def _take_step(workload: uuid.UUID, now: datetime) -> bool:
    row = lock(workload)
    crew = list(
        Attempt.objects.of(row)
        .open()
        .select_for_update(no_key=True, of=("self",))
        .select_related("node__zone")
        .order_by("replica")
    )
    course = course_of(row, crew, now)
    if row.phase != Phase.RUNNING or course is None:
        return False
    step = next_step(rule_of(row.project), course, now.timestamp())
    _carry_out(step, row, crew, course, now)
    return not isinstance(step, Wait)


def _carry_out(
    step: Step, row: Workload, crew: Sequence[Attempt], course: Course, now: datetime
) -> None:
    leader = crew[0]
    details = _details(row.project, course, now)
    match step:
        case Wait():
            return
        case Withdraw():
            forget_warnings(leader)
            record_event(row, "idle_withdrawn", at=now, attempt=leader, details=details)
        case Warn(end_s, is_last):
            leader.idle_warned_at = leader.idle_warned_at if is_last else now
            leader.idle_last_warned_at = now if is_last else None
            leader.idle_end_at = _moment(end_s)
            leader.save(update_fields=WARNINGS)
            told = {**details, "end_at": leader.idle_end_at.isoformat()}
            owe_mail(record_event(row, "idle_warning", at=now, attempt=leader, details=told))
        case End():
            _end(row, crew, details, now)
            return
    announce_workload(row)


def forget_warnings(leader: Attempt) -> None:
    """What was said of its end holds no longer."""
    leader.idle_warned_at = leader.idle_last_warned_at = leader.idle_end_at = None
    leader.save(update_fields=WARNINGS)


def _details(project: Project, course: Course, now: datetime) -> dict[str, object]:
    idle_s = None if course.idle_since_s is None else now.timestamp() - course.idle_since_s
    return {
        "project": str(project),
        "idle_s": idle_s,
        "stop_after_s": project.idle_stop_after_s,
    }


def _end(
    row: Workload, crew: Sequence[Attempt], details: Mapping[str, object], now: datetime
) -> None:
    """Have it save, where it can, and stop."""
    idle = formats.duration(float(str(details["idle_s"])))
    message = f"idle for {idle}, by the idle rule of project {row.project.name}"
    row.reason = {
        "code": "idle_stopped",
        "message": message,
        "details": dict(details),
        "offers": [],
        "per_node_type": [],
    }
    row.reason_at = now
    advance(row, lifecycle.StopAsked(), code="idle_stopped", at=now, details=details)
    owe_mail(Event.objects.filter(workload=row, code="idle_stopped").latest("pk"))
    for attempt in crew:
        if attempt.goal != AttemptGoal.STOP:
            ask_for(row, attempt, AttemptGoal.STOP, message)


# ---------------------------------------------------------------- what a person does about it


@transaction.atomic
def extend(workload: Workload, *, actor: User, for_s: int, channel: str = "ui") -> Workload:
    """Keep it for so long from now at least, idle or not; as often as one likes.

    Raises:
        ActionRefusedError: it does not run, is never ended for idling, or the project allows less.
    """
    row = locked_for(workload, actor)
    attempt = row.current
    if row.phase != Phase.RUNNING or attempt is None or attempt.is_leaving:
        raise ActionRefusedError("not_running", _("Only what runs can be kept longer."))
    project = row.project
    if project.idle_stop_after_s is None:
        raise ActionRefusedError("never_ended", _("Its project never stops idle work."))
    limit_s = project.idle_max_extension_s
    if for_s > limit_s:
        message = _("%(value)s is too long: project %(project)s allows %(limit)s at most.")
        values = {
            "value": formats.duration(for_s),
            "project": project,
            "limit": formats.duration(limit_s),
        }
        raise ActionRefusedError("too_long", message % values)
    now = timezone.now()
    until, before = now + timedelta(seconds=for_s), attempt.idle_kept_until
    attempt.idle_kept_until = until if before is None else max(before, until)
    attempt.save(update_fields=["idle_kept_until"])
    # Of what comes after it, it is warned anew.
    forget_warnings(attempt)
    details = {"for_s": for_s, "until": attempt.idle_kept_until.isoformat()}
    record_event(row, "idle_extended", at=now, attempt=attempt, actor=actor, details=details)
    audit.record(
        actor,
        action="workload.extended",
        entity=("workload", str(row.pk)),
        before={"idle_kept_until": None if before is None else before.isoformat()},
        after={"idle_kept_until": attempt.idle_kept_until.isoformat()},
        channel=channel,
    )
    announce_workload(row)
    return row
