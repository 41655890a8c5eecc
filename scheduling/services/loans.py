"""Loans that a plan makes: whose devices a borrower gets, and when they become its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec
from django.db.models import F

from scheduling.core.decisions import Lend, Plan, Reason, Start
from scheduling.core.types import Placement, ReplicaId, WorkloadId
from scheduling.live import announce, workload_topic
from scheduling.models import (
    Attempt,
    AttemptGoal,
    AttemptPhase,
    Device,
    DeviceAllocation,
    Loan,
    SwapState,
    Workload,
)
from scheduling.replicas import by_index, index_of
from scheduling.snapshot import Taken
from scheduling.unfinished import children


class LenderChangedError(Exception):
    """A session that was to lend has changed since the snapshot."""


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
        attempt = next(iter(children(row, "attempts")), None)
        if attempt is None:
            continue
        reason = plan.not_lent.get(key)
        code = reason.code if reason else None
        if code != attempt.not_lent.get("code"):
            Attempt.objects.filter(pk=attempt.pk).update(not_lent=_json(reason))
            announce(workload_topic(row.pk))


def _json(reason: Reason | None) -> dict[str, object]:
    return {} if reason is None else msgspec.to_builtins(reason)
