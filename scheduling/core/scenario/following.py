"""What a plan leads to, once it was carried out and all victims have gone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import is_

from scheduling.core.decisions import Decision, Evict, Hold, Lend, Move, Plan, Recall, Start
from scheduling.core.failing_nodes import without
from scheduling.core.types import (
    Loan,
    Placement,
    Replica,
    ReplicaId,
    ReplicaState,
    Snapshot,
    Workload,
)


@dataclass(slots=True)
class _Orders:
    """What a plan says of each replica."""

    placed: dict[ReplicaId, Placement] = field(default_factory=dict)
    lent: dict[ReplicaId, Placement] = field(default_factory=dict)
    held: dict[ReplicaId, Placement] = field(default_factory=dict)
    gone: set[ReplicaId] = field(default_factory=set)
    loans: list[Loan] = field(default_factory=list)

    def add(self, decision: Decision, now_s: float) -> None:
        match decision:
            case Start():
                self.placed.update(decision.placements)
                self.held.update(decision.held)
            case Hold():
                self.held.update(decision.held)
            case Evict() | Recall():
                self.gone.update(decision.replicas)
            case Move():
                self.gone.update(decision.placements)
                self.held.update(decision.placements)
            case Lend():
                self.lent.update(decision.placements)
                self.loans += [
                    Loan(lender, borrower, now_s)
                    for borrower, lenders in decision.lenders.items()
                    for lender in lenders
                ]


def follow(snapshot: Snapshot, decided: Plan, now_s: float) -> Snapshot:
    """The snapshot after a plan was carried out and all victims have gone."""
    orders = _Orders()
    for decision in decided.decisions:
        orders.add(decision, now_s)
    over = orders.gone | orders.placed.keys()
    return replace(
        snapshot,
        nodes=without(snapshot.nodes, decided.cordons),
        workloads=tuple(_carried_out(workload, orders, now_s) for workload in snapshot.workloads),
        loans=(
            *(loan for loan in snapshot.loans if loan.borrower not in over),
            *orders.loans,
        ),
    )


_STAYS = (ReplicaState.RUNNING, ReplicaState.LENT, ReplicaState.PARKED)


def _carried_out(workload: Workload, orders: _Orders, now_s: float) -> Workload:
    """A workload after a plan was carried out: the same one where nothing has changed."""
    replicas = tuple([_after(replica, orders, now_s) for replica in workload.replicas])
    if all(map(is_, replicas, workload.replicas)):
        return workload
    return replace(workload, replicas=replicas)


def _after(replica: Replica, orders: _Orders, now_s: float) -> Replica:
    """A replica after a plan was carried out."""
    name = replica.id
    if name in orders.placed:
        started_s = replica.started_s if replica.state is ReplicaState.LENT else now_s
        return Replica(name, ReplicaState.RUNNING, orders.placed[name], started_s=started_s)
    if name in orders.lent:
        return Replica(name, ReplicaState.LENT, orders.lent[name], started_s=now_s)
    stays = replica.state in _STAYS and name not in orders.gone
    if stays or replica.state is ReplicaState.SUCCEEDED:
        return replica
    place = orders.held.get(name)
    if place is None and replica.state is ReplicaState.RELEASING:
        place = replica.held
    is_same = replica.state is ReplicaState.PENDING and replica.placement is None
    if is_same and replica.held == place:
        return replica
    return Replica(name, ReplicaState.PENDING, None, place, replica.started_s)
