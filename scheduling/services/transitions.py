"""Carry out what `core.lifecycle` says on the rows: phase, waits, allocations, end.

Every change of a workload's state goes through `advance`, with the row locked by the caller.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db.models import F
from django.utils import timezone

from projects.models import User
from scheduling.core import lifecycle
from scheduling.models import (
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


def lock(workload_id: uuid.UUID) -> Workload:
    """The row, locked until the end of the transaction."""
    return (
        Workload.objects.select_for_update(no_key=True, of=("self",))
        .select_related("project", "owner", "current", "claimant")
        .get(pk=workload_id)
    )


def facts_of(workload: Workload) -> lifecycle.Facts:
    attempt = workload.current
    return lifecycle.Facts(
        is_session=workload.is_session,
        can_save=workload.checkpoint_mode != CheckpointMode.NONE,
        is_stop_wanted=attempt is not None and attempt.goal == AttemptGoal.STOP,
        has_progress=attempt is not None and attempt.checkpoints.exists(),
        num_failures=workload.num_failures,
        backoff_limit=workload.backoff_limit,
    )


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
    now = at or timezone.now()
    attempt = workload.current
    step = lifecycle.next_state(lifecycle.Phase(workload.phase), event, facts_of(workload))
    wait = _wait_of(workload, step)
    enter_phase(workload, Phase(step.phase.value), now)
    workload.num_failures = step.num_failures
    workload.not_before = now + timedelta(seconds=step.backoff_s) if step.backoff_s else None
    if step.releases and attempt is not None:
        release(attempt, now)
        workload.is_borrowing = False
    if wait is not None:
        cause, wait_details = wait
        open_wait(workload, cause, now, wait_details)
        workload.ended_at = None
    elif step.is_end:
        close_wait(workload, now)
        DeviceHold.objects.filter(workload=workload).delete()
        workload.ended_at = now
        workload.claimant = None
        workload.queue_position = workload.queue_length = None
    workload.save()
    record_event(workload, code, at=now, attempt=attempt, actor=actor, details=details)
    if step.releases or step.is_end or wait is not None:
        wake_planner(code)
    announce_workload(workload)
    return step


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
    """Give back what an attempt held; harmless twice."""
    closed = Allocation.objects.filter(attempt=attempt, ended_at__isnull=True).update(ended_at=at)
    if not closed:
        return
    parts = DeviceAllocation.objects.filter(allocation__attempt=attempt, is_open=True)
    for part in parts.order_by("device_id"):
        Device.objects.filter(pk=part.device_id).update(
            allocated_milli=F("allocated_milli") - part.gpu_milli
        )
    parts.update(is_open=False)
