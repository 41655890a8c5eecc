"""Who is idle, where a session's device memory is, and for how long it was idle before.

The planner decides loans from marks that the periodic watch (`watch_idle`) leaves on attempts; a
mark that was not renewed lately counts for nothing, so that without worker or beat no new loan
begins.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from django.db import transaction
from django.db.models import Q

from projects.models import WorkloadKind
from scheduling.idle_sessions import IDLE_MARK_LASTS_S
from scheduling.idle_signals import BACKGROUND_SIGNALS, idle_since, unquiet
from scheduling.live import announce, workload_topic
from scheduling.models import Attempt, IdleSpell, SwapState, Workload
from scheduling.rules import rule_for
from scheduling.services.events import record_event, wake_planner

if TYPE_CHECKING:
    from scheduling.agent import protocol

MIN_SPELL_S = 60.0
"""Shorter pauses say nothing of how long somebody stays away."""
BYTES_STEP = 64 * 1024 * 1024
"""Device memory is recorded in steps: it changes all the time."""
_OFF_DEVICES = (SwapState.SWAPPED_OUT, SwapState.WAITING, SwapState.SWAPPING_IN)


def copy_swap_facts(attempt: Attempt, report: protocol.AttemptReport, now: datetime) -> None:
    """Where its device memory is, and its idle signals; a busy one counts at once.

    Without a query: whoever saves the attempt also notes the spell that is over (`note_spell`).
    """
    if report.swap is not None:
        if attempt.swap_state != report.swap.state:
            if attempt.swap_state != SwapState.RUNNING and attempt.swap_since is not None:
                attempt.in_memory_s += (now - attempt.swap_since).total_seconds()
            if report.swap.state.value == SwapState.RUNNING:
                attempt.woke_at = now
            attempt.swap_state = SwapState(report.swap.state)
            attempt.swap_since = now
        attempt.swap_obstacle = report.swap.reason[:40]
        attempt.bytes_on_device = _rounded(report.swap.bytes_on_device, attempt.bytes_on_device)
        attempt.bytes_on_host = _rounded(report.swap.bytes_on_host, attempt.bytes_on_host)
    if report.idle is not None:
        attempt.idle_signals = msgspec.to_builtins(report.idle)
        # Whether the network must be measured is the watch's to ask: that takes the project's row.
        if idle_since(attempt.idle_signals, may_lack_network=True) is None:
            _forget_idleness(attempt)


def swap_facts(attempt: Attempt) -> tuple[object, ...]:
    """All that `copy_swap_facts` may change."""
    return (
        attempt.swap_state,
        attempt.swap_obstacle,
        attempt.bytes_on_device,
        attempt.bytes_on_host,
        attempt.idle_signals,
        attempt.idle_since,
        attempt.lend_asked_at,
    )


def _rounded(num_bytes: int, before: int) -> int:
    """In steps, and as before while it differs by less than one."""
    if num_bytes and abs(num_bytes - before) < BYTES_STEP and before:
        return before
    return -(-num_bytes // BYTES_STEP) * BYTES_STEP


def end_spell(attempt: Attempt, at: datetime, *, is_cut_off: bool = False) -> None:
    """A session is idle no more; the caller saves the attempt."""
    since = attempt.idle_since
    _forget_idleness(attempt)
    note_spell(attempt, since, at, is_cut_off=is_cut_off)


def _forget_idleness(attempt: Attempt) -> None:
    attempt.idle_since = attempt.idle_seen_at = None
    # What its owner asked for waits while only the server works for itself; whoever uses the
    # session withdraws it.
    if not set(unquiet(attempt.idle_signals)) <= BACKGROUND_SIGNALS or attempt.ended_at is not None:
        attempt.lend_asked_at = None
    attempt.not_lent = {}


def tell_withdrawn(workload: Workload, attempt: Attempt, now: datetime) -> None:
    """Say on the session's page that what was asked for will not come, and why: it is used."""
    details = {"signals": unquiet(attempt.idle_signals)}
    record_event(workload, "lend_withdrawn", at=now, attempt=attempt, details=details)


def tell_moved(workload: Workload, attempt: Attempt, before: str, now: datetime) -> None:
    """Say in a training's history that it has left its devices, or is back on them.

    Of a session its loans say it.
    """
    if workload.is_session:
        return
    details = {"replica": attempt.replica} if workload.max_replicas > 1 else {}
    if attempt.swap_state in _OFF_DEVICES and before not in _OFF_DEVICES:
        details["bytes"] = attempt.bytes_on_host
        record_event(workload, "parked", at=now, attempt=attempt, details=details)
    elif attempt.swap_state == SwapState.RUNNING and before in _OFF_DEVICES:
        record_event(workload, "unparked", at=now, attempt=attempt, details=details)


def note_spell(
    attempt: Attempt, since: datetime | None, at: datetime, *, is_cut_off: bool = False
) -> None:
    """Keep how long a session was idle, for what is predicted of its owner."""
    if since is None or (at - since).total_seconds() < MIN_SPELL_S:
        return
    workload = attempt.workload
    IdleSpell.objects.create(
        owner_id=workload.owner_id,
        workload=workload,
        started_at=since,
        ended_at=at,
        is_cut_off=is_cut_off,
    )


def watch_idle(now: datetime) -> int:
    """Mark the sessions whose signals all say idle, and wake the planner for new candidates.

    Returns:
        How many are idle.
    """
    rows = (
        Attempt.objects.open()
        .filter(workload__kind=WorkloadKind.INTERACTIVE)
        .filter(~Q(idle_signals={}) | Q(idle_since__isnull=False))
        .select_related("workload__project")
    )
    num_idle, is_new = 0, False
    stale = now - timedelta(seconds=IDLE_MARK_LASTS_S)
    for row in rows:
        since = _idle_since(row)
        if since is None:
            if row.idle_since is not None:
                _end_spell_of(row.pk, now)
            continue
        num_idle += 1
        until = since + timedelta(seconds=row.workload.project.lending_window_s)
        was_seen = row.idle_seen_at if row.idle_seen_at and row.idle_seen_at > stale else None
        is_new |= until <= now and (was_seen is None or was_seen < until)
        # Only where nothing was reported meanwhile: a busy signal has come in, perhaps.
        same = Attempt.objects.open().filter(pk=row.pk, idle_signals=row.idle_signals)
        same.update(idle_since=since, idle_seen_at=now)
        if row.idle_since is None:
            announce(workload_topic(row.workload_id))
    if is_new:
        wake_planner("idle")
    return num_idle


def _idle_since(row: Attempt) -> datetime | None:
    if not row.is_ready:
        return None
    may_lack = rule_for(row.workload).idle_may_lack_network
    return idle_since(row.idle_signals, may_lack_network=may_lack)


@transaction.atomic
def _end_spell_of(pk: uuid.UUID, now: datetime) -> None:
    row = Attempt.objects.select_for_update(no_key=True).select_related(None).get(pk=pk)
    was_asked = row.lend_asked_at is not None
    end_spell(row, now)
    if was_asked and row.lend_asked_at is None:
        tell_withdrawn(row.workload, row, now)
    row.save(update_fields=["idle_since", "idle_seen_at", "lend_asked_at", "not_lent"])
