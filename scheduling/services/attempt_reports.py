"""Record what an agent reports of attempts: what is seen, checkpoints, and their ends.

As with nodes (`node_reports`), recording a report twice changes nothing, and one that says nothing
new costs no query.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from django.db import transaction
from django.utils import timezone

from scheduling.core import lifecycle
from scheduling.live import announce, workload_topic
from scheduling.models import (
    Attempt,
    AttemptGoal,
    AttemptPhase,
    Checkpoint,
    Phase,
    Workload,
    Zone,
)
from scheduling.services.attempt_ends import follow_end
from scheduling.services.events import announce_workload, record_event
from scheduling.services.idleness import (
    copy_swap_facts,
    note_spell,
    swap_facts,
    tell_moved,
    tell_withdrawn,
)
from scheduling.services.replicas import is_whole, num_alive
from scheduling.services.reported import step_of, time_of, uuid_of
from scheduling.services.transitions import advance, advance_by, lock

if TYPE_CHECKING:
    from scheduling.agent import protocol

_OVER = ("exited", "refused")
"""Phases of a report after which no other comes."""


def record_attempts(zone: Zone, reports: Sequence[protocol.AttemptReport]) -> list[str]:
    """Bring each attempt up to what is reported.

    Args:
        zone: Whose agent reports; attempts on other zones' nodes are unknown here.
        reports: One per attempt.

    Returns:
        Ids of attempts recorded as ended (or unknown here): the agent may drop its record of them.
    """
    settled: list[str] = []
    known = {
        str(row.pk): row
        for row in Attempt.objects.filter(
            pk__in=[uuid_of(item.attempt_id) for item in reports], node__zone=zone
        ).select_related("workload")
    }
    kept = _kept_checkpoints(known.values(), reports)
    for report in reports:
        attempt = known.get(report.attempt_id)
        if attempt is None:
            # Not ours (another database, a restored backup): once it has ended nobody needs it.
            if report.phase in _OVER:
                settled.append(report.attempt_id)
            continue
        if _is_as_recorded(attempt, report, kept[attempt.workload_id]):
            continue
        if attempt.phase != AttemptPhase.ENDED:
            _record_attempt(attempt, report)
        elif report.checkpoints:
            _record_checkpoints(attempt, report.checkpoints)
        if report.phase in _OVER:
            settled.append(report.attempt_id)
    return settled


def _kept_checkpoints(
    attempts: Iterable[Attempt], reports: Sequence[protocol.AttemptReport]
) -> Mapping[uuid.UUID, set[str]]:
    """Keys of the checkpoints that are there, by workload, of those that report any."""
    kept: defaultdict[uuid.UUID, set[str]] = defaultdict(set)
    saving = {item.attempt_id for item in reports if item.checkpoints}
    workloads = {attempt.workload_id for attempt in attempts if str(attempt.pk) in saving}
    if workloads:
        rows = Checkpoint.objects.filter(workload__in=workloads, is_kept=True)
        for workload, key in rows.values_list("workload_id", "key"):
            kept[workload].add(key)
    return kept


def _is_as_recorded(
    attempt: Attempt, report: protocol.AttemptReport, kept: Collection[str]
) -> bool:
    """Whether the report of an attempt that goes on says nothing new, so that it costs no query.

    Read without a lock: what changes meanwhile is found by the next report.
    """
    if report.phase in _OVER or attempt.phase != report.phase:
        return False
    if report.checkpoints and {item.key for item in report.checkpoints} != kept:
        return False
    workload = attempt.workload
    # A lost workload is found again, one that starts becomes ready.
    if workload.phase == Phase.LOST or (workload.phase == Phase.STARTING and attempt.is_ready):
        return False
    before = _facts(attempt)
    _copy_facts(attempt, report)
    return _facts(attempt) == before


def _facts(attempt: Attempt) -> tuple[object, ...]:
    """All that `_copy_facts` may change."""
    return (
        *_visible(attempt),
        attempt.peak_memory_mib,
        attempt.memory_limit_mib,
        attempt.cpu_limit_milli,
        *swap_facts(attempt),
    )


@transaction.atomic
def _record_attempt(attempt: Attempt, report: protocol.AttemptReport) -> None:
    workload = lock(attempt.workload_id)
    attempt = Attempt.objects.select_for_update(no_key=True, of=("self",)).get(pk=attempt.pk)
    if attempt.phase == AttemptPhase.ENDED:
        return
    before, idle_since, swap_state = _visible(attempt), attempt.idle_since, attempt.swap_state
    _record_checkpoints(attempt, report.checkpoints)
    was_around, was_asked = bool(attempt.around_share), attempt.lend_asked_at is not None
    _copy_facts(attempt, report)
    tell_moved(workload, attempt, swap_state, timezone.now())
    if was_asked and attempt.lend_asked_at is None:
        tell_withdrawn(workload, attempt, timezone.now())
    if attempt.around_share and not was_around:
        now, details = timezone.now(), attempt.around_share
        record_event(workload, "around_share", at=now, attempt=attempt, details=details)
    if attempt.idle_since is None:
        note_spell(attempt, idle_since, timezone.now())
    if workload.current_id == attempt.pk:
        workload.current = attempt
    if report.phase in _OVER:
        _record_end(workload, attempt, report)
        return
    attempt.save()
    if workload.phase == Phase.LOST and num_alive(workload) >= workload.min_replicas:
        workload.reason = workload.reason.get("before", workload.reason)
        code = "node_back" if workload.max_replicas == 1 else "whole_again"
        advance_by(attempt, workload, lifecycle.NodeBack(), code=code, details={})
    elif workload.phase == Phase.STARTING and attempt.is_ready and is_whole(workload):
        advance(workload, lifecycle.Ready(), code="ready")
    elif _visible(attempt) != before:
        announce_workload(workload)


def _visible(attempt: Attempt) -> tuple[object, ...]:
    return (
        attempt.phase,
        attempt.is_ready,
        attempt.started_at,
        attempt.error,
        attempt.swap_state,
        attempt.swap_obstacle,
        attempt.idle_since is None,
        bool(attempt.around_share),
    )


def _copy_facts(attempt: Attempt, report: protocol.AttemptReport) -> None:
    """What is seen, without consequences."""
    if report.phase not in _OVER:
        attempt.phase = AttemptPhase(report.phase)
    attempt.started_at = attempt.started_at or time_of(report.started_at)
    attempt.peak_memory_mib = report.peak_memory_mib or attempt.peak_memory_mib
    attempt.memory_limit_mib = report.memory_limit_mib or attempt.memory_limit_mib
    attempt.cpu_limit_milli = report.cpu_limit_milli or attempt.cpu_limit_milli
    attempt.error = report.error or attempt.error
    # A training is ready when its process runs; a session when its page answers.
    is_ready = report.is_ready if attempt.workload.is_session else report.phase == "running"
    if is_ready and not attempt.is_ready:
        attempt.ready_at = timezone.now()
    attempt.is_ready = attempt.is_ready or is_ready
    if report.around_share is None:
        attempt.around_share = {}
    elif not attempt.around_share:
        attempt.around_share = msgspec.to_builtins(report.around_share)
    copy_swap_facts(attempt, report, timezone.now())


def _record_end(workload: Workload, attempt: Attempt, report: protocol.AttemptReport) -> None:
    """The attempt is over: keep what is known of its end and let the lifecycle say what follows."""
    now = timezone.now()
    attempt.phase = AttemptPhase.ENDED
    attempt.ended_at = max(time_of(report.ended_at) or now, attempt.placed_at)
    attempt.exit_code = report.exit_code
    attempt.exit_cause = report.exit_cause or ("refused" if report.phase == "refused" else "own")
    attempt.is_retryable = report.is_retryable
    attempt.last_lines = [line.replace("\x00", "\ufffd") for line in report.last_lines[-20:]]
    attempt.lost_progress_s = _lost_progress_s(attempt)
    attempt.save()
    follow_end(workload, attempt, now)


def _lost_progress_s(attempt: Attempt) -> float | None:
    """Seconds from its last checkpoint (or start) to its end; None where it ended by itself."""
    if attempt.exit_cause == "own" or attempt.started_at is None or attempt.ended_at is None:
        return None
    last = Checkpoint.objects.filter(workload=attempt.workload_id).first()
    since = max(last.saved_at, attempt.started_at) if last else attempt.started_at
    return max((attempt.ended_at - since).total_seconds(), 0.0)


def _record_checkpoints(attempt: Attempt, reports: Sequence[protocol.CheckpointReport]) -> None:
    """The store's complete checkpoints of this attempt's workload; what expired there is marked."""
    known = {row.key: row for row in Checkpoint.objects.filter(workload=attempt.workload_id)}
    fresh = [item for item in reports if item.key not in known]
    for item in fresh:
        saved_at = time_of(item.saved_at) or timezone.now()
        Checkpoint.objects.create(
            workload_id=attempt.workload_id,
            attempt=attempt,
            key=item.key,
            step=step_of(item.step),
            saved_at=saved_at,
            size_bytes=item.size_bytes,
            sha256=item.sha256,
        )
        record_event(
            attempt.workload,
            "checkpointed",
            at=timezone.now(),
            attempt=attempt,
            details={"step": step_of(item.step), "size_bytes": item.size_bytes, "key": item.key},
        )
    kept = {item.key for item in reports}
    gone = [row.pk for key, row in known.items() if row.is_kept and key not in kept]
    if reports and gone:
        Checkpoint.objects.filter(pk__in=gone).update(is_kept=False)
    if fresh:
        if attempt.goal == AttemptGoal.CHECKPOINT:
            attempt.goal = AttemptGoal.RUN
            attempt.save(update_fields=["goal"])
        announce(workload_topic(attempt.workload_id))
