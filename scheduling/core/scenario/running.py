"""Running a scenario: plan, carry out, plan again, and compare the end with the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scheduling.core.cycle import plan
from scheduling.core.decisions import Evict, Hold, Move, Plan, Reason, Start
from scheduling.core.failing_nodes import without
from scheduling.core.scenario.reading import Expected, Scenario
from scheduling.core.types import (
    CPU,
    MEMORY,
    Placement,
    ProjectId,
    Replica,
    ReplicaId,
    ReplicaState,
    Snapshot,
    WorkloadId,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one replica over all cycles; `placement` is where it is at the end, if
    anywhere.
    """

    outcome: str
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class Result:
    """What a scenario came to.

    Attributes:
        passed: None where nothing is expected.
        differences: A sentence for each replica that fared otherwise, and one if the end is not
            stable.
        reasons: For every workload with a replica that waits or was evicted.
    """

    id: str
    passed: bool | None
    is_stable: bool
    differences: tuple[str, ...]
    replicas: Mapping[ReplicaId, Outcome]
    reasons: Mapping[WorkloadId, Reason]
    fair_share_milli: Mapping[ProjectId, int]
    end: Snapshot


def run_scenario(scenario: Scenario) -> Result:
    """Run all cycles, then the stable ones, which must change nothing."""
    snapshot = scenario.snapshot
    plans: list[Plan] = []
    for _ in range(scenario.cycles):
        plans.append(plan(snapshot, scenario.policy, scenario.now_s))
        snapshot = follow(snapshot, plans[-1], scenario.now_s)
    end = snapshot
    places = _places(end)
    change = ""
    for number in range(scenario.stable_cycles):
        plans.append(plan(snapshot, scenario.policy, scenario.now_s))
        snapshot = follow(snapshot, plans[-1], scenario.now_s)
        change = change or _change(places, _places(snapshot), number + 1)
    replicas = _outcomes(scenario.snapshot, end)
    differences = [*_differences(scenario.expected or {}, replicas), *([change] if change else [])]
    return Result(
        id=scenario.id,
        passed=None if scenario.expected is None else not differences,
        is_stable=not change,
        differences=tuple(differences),
        replicas=replicas,
        reasons=_reasons(scenario.snapshot, replicas, plans),
        fair_share_milli=_fair_shares(plans[-1]),
        end=end,
    )


def follow(snapshot: Snapshot, decided: Plan, now_s: float) -> Snapshot:
    """The snapshot after a plan was carried out and all victims have gone."""
    placed: dict[ReplicaId, Placement] = {}
    held: dict[ReplicaId, Placement] = {}
    gone: set[ReplicaId] = set()
    for decision in decided.decisions:
        match decision:
            case Start():
                placed.update(decision.placements)
                held.update(decision.held)
            case Hold():
                held.update(decision.held)
            case Evict():
                gone.update(decision.replicas)
            case Move():
                gone.update(decision.placements)
                held.update(decision.placements)

    def after(replica: Replica) -> Replica:
        if replica.id in placed:
            return Replica(replica.id, ReplicaState.RUNNING, placed[replica.id], started_s=now_s)
        stays = replica.state is ReplicaState.RUNNING and replica.id not in gone
        if stays or replica.state is ReplicaState.SUCCEEDED:
            return replica
        place = held.get(replica.id)
        if place is None and replica.state is ReplicaState.RELEASING:
            place = replica.held
        return Replica(replica.id, ReplicaState.PENDING, None, place, replica.started_s)

    return replace(
        snapshot,
        nodes=without(snapshot.nodes, decided.cordons),
        workloads=tuple(
            replace(workload, replicas=tuple(after(replica) for replica in workload.replicas))
            for workload in snapshot.workloads
        ),
    )


def _place(replica: Replica) -> Placement | None:
    """Where a replica is, or will be as soon as victims have gone."""
    return replica.placement if replica.state is ReplicaState.RUNNING else replica.held


def _places(snapshot: Snapshot) -> dict[ReplicaId, Placement | None]:
    return {replica.id: _place(replica) for w in snapshot.workloads for replica in w.replicas}


def _change(
    before: Mapping[ReplicaId, Placement | None],
    after: Mapping[ReplicaId, Placement | None],
    number: int,
) -> str:
    changed = sorted(name for name, place in before.items() if after[name] != place)
    if not changed:
        return ""
    return f"not stable: {', '.join(changed)} changed in stable cycle {number}"


def _outcomes(start: Snapshot, end: Snapshot) -> dict[ReplicaId, Outcome]:
    before = {replica.id: replica for w in start.workloads for replica in w.replicas}
    return {
        replica.id: Outcome(_outcome(before[replica.id], replica), _place(replica))
        for w in end.workloads
        for replica in w.replicas
    }


def _outcome(start: Replica, end: Replica) -> str:
    place = _place(end)
    if start.state is ReplicaState.SUCCEEDED:
        return "kept"
    if start.state is ReplicaState.RUNNING and start.placement is not None:
        if place is None:
            return "evicted"
        return "kept" if place.node == start.placement.node else "moved"
    return "waits" if place is None else "placed"


def _differences(
    expected: Mapping[ReplicaId, Expected], replicas: Mapping[ReplicaId, Outcome]
) -> list[str]:
    differences = []
    for name, wanted in sorted(expected.items()):
        got = replicas[name]
        node = None if got.placement is None else got.placement.node
        if got.outcome != wanted.outcome or (wanted.node is not None and node != wanted.node):
            where = f" on {wanted.node}" if wanted.node else ""
            there = f" on {node}" if node else ""
            differences.append(f"{name}: {wanted.outcome}{where} expected, {got.outcome}{there}")
    return differences


def _reasons(
    start: Snapshot, replicas: Mapping[ReplicaId, Outcome], plans: list[Plan]
) -> dict[WorkloadId, Reason]:
    """Why each workload waits or was evicted: the latest word on it."""
    latest: dict[WorkloadId, Reason] = {}
    evicted: dict[WorkloadId, Reason] = {}
    for decided in plans:
        for decision in decided.decisions:
            if isinstance(decision, Evict | Move):
                evicted[decision.workload] = decision.reason
            else:
                latest[decision.workload] = decision.reason
    result = {}
    for workload in start.workloads:
        outcomes = {replicas[replica.id].outcome for replica in workload.replicas}
        if "evicted" in outcomes and workload.id in evicted:
            result[workload.id] = evicted[workload.id]
        elif outcomes & {"waits", "evicted"}:
            result[workload.id] = latest[workload.id]
    return result


def _fair_shares(decided: Plan) -> dict[ProjectId, int]:
    """GPUs of each project's fair share, all types together."""
    return {
        project: sum(n.fair_share for key, n in numbers.items() if key not in (CPU, MEMORY))
        for project, numbers in decided.numbers.items()
    }
