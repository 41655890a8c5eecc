"""Carry out what `core.lifecycle` says on the rows: phase, waits, allocations, end.

Every change of a workload's state goes through `advance`, with the row locked by the caller.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F
from django.utils import timezone

from projects.models import User
from scheduling.core import lifecycle
from scheduling.models import (
    WAITING_PHASES,
    Allocation,
    Attempt,
    AttemptGoal,
    CheckpointMode,
    Device,
    DeviceAllocation,
    DeviceHold,
    Phase,
    Workload,
)
from scheduling.services.events import (
    announce_workload,
    close_wait,
    enter_phase,
    open_wait,
    record_event,
    wake_planner,
)
from scheduling.services.idleness import end_spell
from scheduling.services.loan_reports import close_loans_of

_ON_LOAN = (Phase.STARTING, Phase.RUNNING, Phase.LOST)
"""Phases in which something may still be lent to a workload."""


def lock(workload_id: uuid.UUID) -> Workload:
    """The row, locked until the end of the transaction."""
    return (
        Workload.objects.select_for_update(no_key=True, of=("self",))
        .select_related("project", "owner", "current", "claimant", "decisive")
        .get(pk=workload_id)
    )


def facts_of(
    workload: Workload, attempt: Attempt | None = None, last: Attempt | None = None
) -> lifecycle.Facts:
    """What a transition may depend on; the arguments are those of `advance_by`."""
    about = attempt or workload.current
    last = last or about
    return lifecycle.Facts(
        is_session=workload.is_session,
        can_save=workload.checkpoint_mode != CheckpointMode.NONE,
        is_stop_wanted=last is not None and last.goal == AttemptGoal.STOP,
        has_progress=_has_progress(workload.current, about),
        num_failures=workload.num_failures,
        backoff_limit=workload.backoff_limit,
    )


def _has_progress(leader: Attempt | None, about: Attempt | None) -> bool:
    """Whether the leader has saved; while this replica ran, if it is another one: what the leader
    saves because the other has failed proves nothing."""
    if leader is None:
        return False
    saved = leader.checkpoints.all()
    if about is not None and about.pk != leader.pk:
        saved = saved.filter(
            saved_at__gt=about.placed_at, saved_at__lt=about.ended_at or timezone.now()
        )
    return saved.exists()


@dataclass(frozen=True, slots=True)
class _Note:
    """What is put on record with a transition."""

    code: str
    at: datetime
    actor: User | None
    details: Mapping[str, object] | None


def advance(
    workload: Workload,
    event: lifecycle.Event,
    *,
    code: str,
    at: datetime | None = None,
    actor: User | None = None,
    details: Mapping[str, object] | None = None,
) -> lifecycle.Transition:
    """Apply one event to a locked workload, save it, and put `code` on its record.

    Raises:
        LifecycleError: the event cannot happen in this phase.
    """
    note = _Note(code, at or timezone.now(), actor, details)
    return _advance(workload, event, note, workload.current)


def advance_by(
    attempt: Attempt,
    workload: Workload,
    event: lifecycle.Event,
    *,
    code: str,
    details: Mapping[str, object],
    last: Attempt | None = None,
) -> lifecycle.Transition:
    """The same for what was seen of one replica's attempt, not the leader's perhaps.

    Args:
        attempt: Which.
        workload: Its workload, locked.
        event: What was seen.
        code: Of the event on its record.
        details: With which numbers.
        last: The attempt that ended last, where that is another one: a stop asked of it counts.

    Raises:
        LifecycleError: the event cannot happen in this phase.
    """
    return _advance(workload, event, _Note(code, timezone.now(), None, details), attempt, last)


def _advance(
    workload: Workload,
    event: lifecycle.Event,
    note: _Note,
    attempt: Attempt | None,
    last: Attempt | None = None,
) -> lifecycle.Transition:
    now = note.at
    facts = facts_of(workload, attempt, last)
    step = lifecycle.next_state(lifecycle.Phase(workload.phase), event, facts)
    wait = _wait_of(workload, step)
    enter_phase(workload, Phase(step.phase.value), now)
    workload.num_failures = step.num_failures
    if step.backoff_s:
        workload.not_before = now + timedelta(seconds=step.backoff_s)
    elif step.phase not in lifecycle.HELD or isinstance(event, lifecycle.Placed):
        workload.not_before = None
    if step.releases or step.is_end or wait is not None:
        workload.decisive = None
        workload.incomplete_since = None
    if step.releases and attempt is not None:
        release(attempt, now)
        workload.is_borrowing = False
    if wait is not None:
        cause, wait_details = wait
        open_wait(workload, cause, now, wait_details)
        workload.ended_at = None
        workload.succeeded_replicas = []
    elif step.is_end:
        close_wait(workload, now)
        DeviceHold.objects.filter(workload=workload).delete()
        workload.ended_at = now
        workload.claimant = None
        workload.queue_position = workload.queue_length = None
        if workload.phase == Phase.COMPLETED:
            # Why it once waited explains nothing any more; of a failure something newer is told.
            workload.reason = {}
    _forget_loan(workload)
    workload.save()
    record_event(
        workload, note.code, at=now, attempt=attempt, actor=note.actor, details=note.details
    )
    if step.releases or step.is_end or wait is not None or step.backoff_s:
        wake_planner(note.code)
    announce_workload(workload)
    return step


def _forget_loan(workload: Workload) -> None:
    """One that runs no longer neither waits in memory nor runs on loan."""
    if workload.phase not in (*WAITING_PHASES, Phase.RUNNING):
        workload.queue_position = workload.queue_length = None
    if workload.phase not in _ON_LOAN and workload.reason.get("code") == "lent":
        workload.reason = {}


def _wait_of(
    workload: Workload, step: lifecycle.Transition
) -> tuple[str, Mapping[str, object]] | None:
    """Cause and numbers of the wait that opens; an eviction names the rule that caused it."""
    if step.wait_cause is None:
        return None
    if step.wait_cause == "evicted":
        reason = workload.reason
        return str(reason.get("code", "preempted")), dict(reason.get("details", {}))
    workload.claimant = None
    return step.wait_cause, {}


def release(attempt: Attempt, at: datetime) -> None:
    """Give back what an attempt held, lent and borrowed; harmless twice."""
    close_loans_of(attempt, at)
    if attempt.idle_since is not None:
        end_spell(attempt, at, is_cut_off=True)
        attempt.save(update_fields=["idle_since", "idle_seen_at", "lend_asked_at", "not_lent"])
    closed = Allocation.objects.filter(attempt=attempt, ended_at__isnull=True).update(ended_at=at)
    if not closed:
        return
    parts = DeviceAllocation.objects.filter(allocation__attempt=attempt, is_open=True)
    for part in parts.filter(is_lent=False).order_by("device_id"):
        Device.objects.filter(pk=part.device_id).update(
            allocated_milli=F("allocated_milli") - part.gpu_milli
        )
    parts.update(is_open=False)
