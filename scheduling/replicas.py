"""Rows of attempts, holds and loans → replicas of `core`, and the names that these go by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduling.core import types as core
from scheduling.models import LEADER, Attempt, Loan, LoanState, Phase, SwapState, Workload
from scheduling.unfinished import children

LEAVING_PHASES = (Phase.CHECKPOINTING, Phase.STOPPING)
IN_MEMORY = (SwapState.SWAPPING_OUT, SwapState.SWAPPED_OUT, SwapState.WAITING)
"""What a borrower is that has left its devices, and can go on."""


def workload_id(row: Workload) -> core.WorkloadId:
    return core.WorkloadId(str(row.pk))


def replica_id(row: Workload, index: int) -> core.ReplicaId:
    return core.ReplicaId(f"{row.pk}/{index}")


def index_of(replica: core.ReplicaId) -> int:
    """Which replica of its workload it is; 0 is the leader."""
    return int(replica.rpartition("/")[2])


def by_index(
    placements: Mapping[core.ReplicaId, core.Placement],
) -> dict[int, core.Placement]:
    """Places by number of the replica, the leader's first."""
    return dict(sorted((index_of(name), place) for name, place in placements.items()))


# ---------------------------------------------------------------- replicas


def pending_replicas(row: Workload, count: int) -> tuple[core.Replica, ...]:
    """A workload's first replicas, none of which has a place."""
    return tuple(
        core.Replica(replica_id(row, index), core.ReplicaState.PENDING) for index in range(count)
    )


def replicas_of(row: Workload, open_attempts: Iterable[Attempt]) -> Iterable[core.Replica]:
    """Its replicas as `unfinished` left them.

    While a workload leaves as a whole, a replica that has left does not start again. Once one has
    succeeded, no more are started than the minimum lacks (`core.replicas`).
    """
    attempts = {attempt.replica: attempt for attempt in open_attempts}
    held = holds_of(row)
    succeeded = set(row.succeeded_replicas)
    is_leaving = row.phase in LEAVING_PHASES or (
        bool(attempts) and all(attempt.is_leaving for attempt in attempts.values())
    )
    num_missing = row.min_replicas - len(attempts) - len(succeeded - attempts.keys())
    for index in range(row.max_replicas):
        name = replica_id(row, index)
        attempt = attempts.get(index)
        if attempt is not None:
            yield _placed(name, attempt, held.get(index), attempts)
        elif index in succeeded:
            yield core.Replica(name, core.ReplicaState.SUCCEEDED)
        elif is_leaving:
            yield core.Replica(name, core.ReplicaState.RELEASING, held=held.get(index))
        elif not succeeded or num_missing > 0:
            num_missing -= 1
            yield core.Replica(name, core.ReplicaState.PENDING, held=held.get(index))


def _placed(
    name: core.ReplicaId,
    attempt: Attempt,
    held: core.Placement | None,
    others: Mapping[int, Attempt],
) -> core.Replica:
    # Of those placed together the last in number leaves first, the leader last of all.
    starts = others.values() if attempt.replica == LEADER else (attempt,)
    return core.Replica(
        id=name,
        state=_state_of(attempt),
        placement=_placement(attempt),
        held=held if attempt.is_leaving else None,
        started_s=min(each.placed_at.timestamp() for each in starts)
        if len(others) > 1
        else (attempt.started_at or attempt.placed_at).timestamp(),
    )


def _state_of(attempt: Attempt) -> core.ReplicaState:
    """Of a borrower: on loan while a loan goes on; in memory once a lender was woken, whether or
    not its node has already said so; on loan from nobody where its lender has ended or refused, or
    was woken before the borrower had begun. What is in memory when a loan is refused waits there
    for the next.
    """
    if attempt.is_leaving:
        return core.ReplicaState.RELEASING
    if not attempt.allocation.is_lent:
        return core.ReplicaState.RUNNING
    if any(is_kept_up(loan) for loan in children(attempt, "loans_taken")):
        return core.ReplicaState.LENT
    last_state = getattr(attempt, "last_loan_state", None)
    last_end = getattr(attempt, "last_loan_end", "")
    is_refused = last_state == LoanState.REFUSED and attempt.swap_state not in IN_MEMORY
    is_nobodys = last_state is None or is_refused or last_end == "lender_ended"
    is_left_alone = is_nobodys or attempt.started_at is None
    return core.ReplicaState.LENT if is_left_alone else core.ReplicaState.PARKED


def all_parked(attempts: Iterable[Attempt]) -> bool:
    """Whether all of a borrower wait in memory.

    Args:
        attempts: A workload's open ones, as the snapshot reads them.
    """
    states = {_state_of(attempt) for attempt in attempts}
    return states == {core.ReplicaState.PARKED}


def _placement(attempt: Attempt) -> core.Placement:
    devices = children(attempt.allocation, "devices")
    return core.Placement(
        node=core.NodeName(attempt.allocation.node.name),
        devices=tuple(part.device.index for part in devices),
        milli_per_device=devices[0].gpu_milli if devices else 0,
    )


def holds_of(row: Workload) -> Mapping[int, core.Placement]:
    """The capacity kept for a workload's replicas while others leave it."""
    return {
        hold.replica: core.Placement(
            node=core.NodeName(hold.node.name),
            devices=tuple(hold.device_indices),
            milli_per_device=hold.milli_per_device,
        )
        for hold in children(row, "holds")
    }


def is_kept_up(loan: Loan) -> bool:
    """Whether an open loan goes on: its lender has not been woken, nobody has ended it."""
    return loan.is_wanted and loan.state != LoanState.WAKING
