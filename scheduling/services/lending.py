"""Loans on the rows: what the planner lends and calls back, what agents report of it, who is idle.

The planner decides loans from marks that the periodic watch (`watch_idle`) leaves on attempts; a
mark that was not renewed lately counts for nothing, so that without worker or beat no new loan
begins. Agents wake sessions on their own: what they report of it is recorded, never asked for.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from projects.models import WorkloadKind
from scheduling.core.decisions import Lend, Plan, Reason, Start
from scheduling.core.types import Placement, ReplicaId, WorkloadId
from scheduling.idle_signals import idle_since
from scheduling.live import announce, workload_topic
from scheduling.models import (
    Attempt,
    AttemptGoal,
    AttemptPhase,
    Device,
    DeviceAllocation,
    IdleSpell,
    Loan,
    LoanState,
    SwapState,
    Workload,
)
from scheduling.services.events import announce_workload, record_event, wake_planner
from scheduling.snapshot import IDLE_MARK_LASTS_S, Taken, by_index, index_of

if TYPE_CHECKING:
    from scheduling.agent import protocol

MIN_SPELL_S = 60.0
"""Shorter pauses say nothing of how long somebody stays away."""
BYTES_STEP = 64 * 1024 * 1024
"""Device memory is recorded in steps: it changes all the time."""
FINAL_STATES = (LoanState.ENDED, LoanState.REFUSED)
RECALLS = ("lending_off", "room_taken", "over_limit", "placed_elsewhere")
"""For what a borrower may be called back: the true cause of the end that its agent saw."""


class LenderChangedError(Exception):
    """A session that was to lend has changed since the snapshot."""


# ---------------------------------------------------------------- recording a plan


def open_loans(
    attempts: Mapping[int, Attempt], decision: Lend, taken: Taken, now: datetime
) -> None:
    """Write the loans that the planner decided.

    Args:
        attempts: The borrower's, by replica, with the devices that they borrow.
        decision: Who lends to which replica.
        taken: The snapshot that it rests on.
        now: When it was decided.

    Raises:
        LenderChangedError: plan again.
    """
    names = {name for lenders in decision.lenders.values() for name in lenders}
    lenders = _lock_lenders(names)
    idle = {w.id: w.idle for w in taken.snapshot.workloads if w.idle is not None}
    parts = {
        part.allocation.attempt_id: part
        for part in DeviceAllocation.objects.filter(
            allocation__attempt__in=[lender.pk for lender in lenders.values()], is_open=True
        ).select_related("allocation", "device")
    }
    rows = []
    for borrower_name, lender_names in decision.lenders.items():
        borrower = attempts[index_of(borrower_name)]
        milli = decision.placements[borrower_name].milli_per_device
        for name in lender_names:
            lender = lenders[name]
            part = parts[lender.pk]
            seen = idle.get(_workload_of(name))
            rows.append(
                Loan(
                    lender=lender,
                    borrower=borrower,
                    device=part.device,
                    gpu_milli=min(part.gpu_milli, milli),
                    expected_left_s=seen.expected_left_s if seen else None,
                    started_at=now,
                )
            )
    Loan.objects.bulk_create(rows)
    # What its owner asked for holds for the loan made for it, until that is answered.
    Attempt.objects.filter(pk__in=[lender.pk for lender in lenders.values()]).update(not_lent={})


def _workload_of(replica: ReplicaId) -> WorkloadId:
    return WorkloadId(replica.rpartition("/")[0])


def _lock_lenders(names: Iterable[ReplicaId]) -> dict[ReplicaId, Attempt]:
    """The lenders' attempts, locked in the order of their ids, if they still are as planned."""
    wanted = {(_workload_of(name), index_of(name)): name for name in names}
    rows = (
        Attempt.objects.open()
        .filter(workload__in=[workload for workload, _ in wanted])
        .select_for_update(no_key=True, of=("self",))
        .order_by("pk")
    )
    found = {}
    for row in rows:
        name = wanted.get((WorkloadId(str(row.workload_id)), row.replica))
        is_still = (
            row.phase == AttemptPhase.RUNNING
            and row.goal in (AttemptGoal.RUN, AttemptGoal.CHECKPOINT)
            and row.swap_state == SwapState.RUNNING
            and row.idle_since is not None
        )
        if name is not None and is_still:
            found[name] = row
    if len(found) < len(wanted) or Loan.objects.open().filter(lender__in=found.values()).exists():
        raise LenderChangedError(", ".join(sorted(wanted.values())))
    return found


def move_body(attempt: Attempt, placement: Placement, row: Workload, *, is_lent: bool) -> None:
    """Let a process that is on its node already use these devices: on loan, or as its own."""
    allocation = attempt.allocation
    old = {part.device.index: part for part in allocation.devices.select_related("device")}
    for index, part in old.items():
        if index not in placement.devices:
            part.delete()  # it was on loan: nothing was held
    devices = Device.objects.filter(node=attempt.node, index__in=placement.devices)
    for device in devices.order_by("uuid"):
        milli = placement.milli_per_device
        memory_mib = row.gpu_memory_mib or device.memory_mib * milli // 1000
        DeviceAllocation.objects.update_or_create(
            allocation=allocation,
            device=device,
            defaults={"gpu_milli": milli, "memory_mib": memory_mib, "is_lent": is_lent},
        )
        if not is_lent:
            Device.objects.filter(pk=device.pk).update(allocated_milli=F("allocated_milli") + milli)
    allocation.gpu_milli = placement.milli_per_device * len(placement.devices)


def settle_body(attempt: Attempt, row: Workload, decision: Start, now: datetime) -> None:
    """What a replica had on loan, or waited for in memory, becomes its own."""
    move_body(attempt, by_index(decision.placements)[attempt.replica], row, is_lent=False)
    allocation = attempt.allocation
    allocation.is_lent = False
    allocation.gpu_from = now
    allocation.is_borrowed = decision.is_borrowed
    allocation.save()
    Loan.objects.wanted().filter(borrower=attempt).update(is_wanted=False)


def record_not_lent(plan: Plan, taken: Taken) -> None:
    """Why idle sessions lend nothing, where that has changed."""
    for key, row in taken.rows.items():
        if not row.is_session:
            continue
        attempt = next(iter(row.attempts.all()), None)
        if attempt is None:
            continue
        reason = plan.not_lent.get(key)
        code = reason.code if reason else None
        if code != attempt.not_lent.get("code"):
            Attempt.objects.filter(pk=attempt.pk).update(not_lent=_json(reason))
            announce(workload_topic(row.pk))


def _json(reason: Reason | None) -> dict[str, object]:
    return {} if reason is None else msgspec.to_builtins(reason)


# ---------------------------------------------------------------- what agents report


def record_loans(zone_id: int, reports: Sequence[protocol.LoanReport]) -> list[str]:
    """Bring each loan up to what is reported.

    Returns:
        Ids of loans recorded as over, or unknown here: the agent may forget them.
    """
    settled: list[str] = []
    ids = [_uuid(report.loan_id) for report in reports]
    known = {
        str(row.pk): row
        for row in Loan.objects.filter(pk__in=ids, lender__node__zone=zone_id).select_related(
            "lender__workload", "borrower__workload"
        )
    }
    for report in reports:
        row = known.get(report.loan_id)
        is_over = report.state.value in FINAL_STATES
        if row is not None and row.ended_at is None and _differs(row, report):
            _record_loan(row.pk, report)
        if is_over:
            settled.append(report.loan_id)
    return settled


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        return uuid.UUID(int=0)


def _time(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None else None


def _differs(row: Loan, report: protocol.LoanReport) -> bool:
    """Of what ended it, only whether anything did: the cause kept may be a nearer one."""
    return (row.state, bool(row.ended_by), row.lent_at is None) != (
        report.state,
        bool(report.ended_by),
        report.lent_at is None,
    )


def _cause_of(row: Loan, seen: str) -> str:
    """What ended a loan: an agent sees that its borrower ended, or that the loan is ordered no
    longer, but not why. That is known here.
    """
    if seen not in ("borrower_ended", "orchestrator"):
        return seen
    borrower = row.borrower
    if borrower.goal == AttemptGoal.EVICT and borrower.goal_detail in RECALLS:
        return borrower.goal_detail
    # Loans that were decided together: once one lender is back, the borrower leaves the others.
    others = Loan.objects.filter(borrower=borrower, started_at=row.started_at).exclude(pk=row.pk)
    is_back = Q(state=LoanState.REFUSED) | ~Q(
        ended_by__in=("", "borrower_ended", "orchestrator", *RECALLS)
    )
    if others.filter(is_back).exists():
        return "other_lender"
    return "borrower_ended" if borrower.phase == AttemptPhase.ENDED else seen


@transaction.atomic
def _record_loan(pk: uuid.UUID, report: protocol.LoanReport) -> None:
    rows = Loan.objects.select_for_update(no_key=True, of=("self",))
    row = rows.select_related("lender__workload", "borrower__workload", "device").get(pk=pk)
    if row.ended_at is not None:
        return
    now = timezone.now()
    before = row.state
    was_lent = row.lent_at is not None
    row.state = LoanState(report.state)
    row.swapped_out_bytes = report.swapped_out_bytes or row.swapped_out_bytes
    row.out_s, row.in_s = report.out_s or row.out_s, report.in_s or row.in_s
    row.wake_s = report.wake_s if report.wake_s is not None else row.wake_s
    row.ended_by = _cause_of(row, report.ended_by)[:20]
    row.error = report.error[:500]
    row.lent_at = row.lent_at or _time(report.lent_at)
    if row.state in FINAL_STATES:
        row.is_wanted = False
        row.ended_at = max(_time(report.ended_at) or now, row.lent_at or row.started_at)
    row.save()
    if _answers_its_lender(row, report.ended_by):
        asked = Attempt.objects.filter(pk=row.lender_id, lend_asked_at__isnull=False)
        asked.update(lend_asked_at=None)
    lender, borrower = row.lender.workload, row.borrower.workload
    if row.lent_at and not was_lent:
        _tell(lender, row.lender, "swapped_out", _numbers(row, borrower), now)
    if row.state in (LoanState.WAKING, *FINAL_STATES) and before not in (LoanState.WAKING,):
        # One of its lenders is back: the borrower has left all of them.
        Loan.objects.wanted().filter(borrower=row.borrower_id).update(is_wanted=False)
    if row.state == LoanState.ENDED and row.lent_at:
        _tell(lender, row.lender, "swapped_in", _numbers(row, borrower), now)
    if row.state == LoanState.REFUSED:
        _tell(borrower, row.borrower, "loan_refused", _numbers(row, lender), now)
    if row.state in (LoanState.WAKING, *FINAL_STATES):
        wake_planner("loan")
    announce_workload(lender)
    announce_workload(borrower)


def _answers_its_lender(row: Loan, seen: str) -> bool:
    """Whether what its lender's owner asked for is done, or cannot be; no if the borrower left.

    Args:
        row: The loan.
        seen: What ended it, as its agent saw it.
    """
    if row.state in FINAL_STATES and seen not in ("borrower_ended", "orchestrator"):
        return True
    return row.lent_at is not None


def _numbers(row: Loan, other: Workload) -> dict[str, object]:
    return {
        "other": other.name,
        "other_project": other.project_id,
        "bytes": row.swapped_out_bytes,
        "out_s": row.out_s,
        "in_s": row.in_s,
        "wake_s": row.wake_s,
        "ended_by": row.ended_by,
        "error": row.error,
    }


def _tell(
    workload: Workload, attempt: Attempt, code: str, details: Mapping[str, object], now: datetime
) -> None:
    record_event(workload, code, at=now, attempt=attempt, details=details)


def copy_swap_facts(attempt: Attempt, report: protocol.AttemptReport, now: datetime) -> None:
    """Where its device memory is, and its idle signals; a busy one counts at once.

    Without a query: whoever saves the attempt also notes the spell that is over (`note_spell`).
    """
    if report.swap is not None:
        if attempt.swap_state != report.swap.state:
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
        is_busy = idle_since(attempt.idle_signals, may_lack_network=True) is None
        if attempt.idle_since is not None and is_busy:
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
    attempt.idle_since = attempt.idle_seen_at = attempt.lend_asked_at = None
    attempt.not_lent = {}


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


def close_loans_of(attempt: Attempt, at: datetime) -> None:
    """An attempt is over: what it lent is the borrower's, what it borrowed goes back."""
    given = Loan.objects.open().filter(lender=attempt)
    for loan in given.select_for_update(no_key=True):
        loan.state, loan.ended_by = LoanState.ENDED, "lender_ended"
        loan.is_wanted, loan.ended_at = False, max(at, loan.lent_at or loan.started_at)
        loan.save()
    Loan.objects.wanted().filter(borrower=attempt).update(is_wanted=False)


# ---------------------------------------------------------------- the periodic watch


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
    may_lack = row.workload.project.idle_may_lack_network
    return idle_since(row.idle_signals, may_lack_network=may_lack)


@transaction.atomic
def _end_spell_of(pk: uuid.UUID, now: datetime) -> None:
    row = Attempt.objects.select_for_update(no_key=True).select_related(None).get(pk=pk)
    end_spell(row, now)
    row.save(update_fields=["idle_since", "idle_seen_at", "lend_asked_at", "not_lent"])
