"""Running a scenario: plan, carry out, plan again, and compare the end with the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduling.core.cycle import plan
from scheduling.core.decisions import Evict, Move, Plan, Reason, Recall
from scheduling.core.scenario.following import follow
from scheduling.core.scenario.reading import Expected, ExpectedLoan, Scenario
from scheduling.core.scenario.swapping import LoanRecord, SwappingZone
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
        reasons: For every workload with a replica that waits, borrows, or was stopped.
        loans: What was lent during the scenario's activity.
    """

    id: str
    passed: bool | None
    is_stable: bool
    differences: tuple[str, ...]
    replicas: Mapping[ReplicaId, Outcome]
    reasons: Mapping[WorkloadId, Reason]
    fair_share_milli: Mapping[ProjectId, int]
    end: Snapshot
    loans: Sequence[LoanRecord] = ()


def run_scenario(scenario: Scenario) -> Result:
    """Run all cycles, or the activity, then the stable cycles, which must change nothing."""
    snapshot, now_s = scenario.snapshot, scenario.now_s
    plans: list[Plan] = []
    loans: Sequence[LoanRecord] = ()
    if scenario.activity is not None:
        zone = SwappingZone(snapshot, scenario.policy, scenario.activity, now_s)
        zone.run(plans.append)
        snapshot, now_s, loans = zone.snapshot, zone.now_s, zone.records()
    else:
        for _ in range(scenario.cycles):
            plans.append(plan(snapshot, scenario.policy, now_s))
            snapshot = follow(snapshot, plans[-1], now_s)
    end = snapshot
    places = _places(end)
    change = ""
    for number in range(scenario.stable_cycles):
        plans.append(plan(snapshot, scenario.policy, now_s))
        snapshot = follow(snapshot, plans[-1], now_s)
        change = change or _change(places, _places(snapshot), number + 1)
    replicas = _outcomes(scenario.snapshot, end)
    differences = [
        *_differences(scenario.expected or {}, replicas),
        *_loan_differences(scenario.expected_loans, loans),
        *([change] if change else []),
    ]
    return Result(
        id=scenario.id,
        passed=None if scenario.expects_nothing else not differences,
        is_stable=not change,
        differences=tuple(differences),
        replicas=replicas,
        reasons=_reasons(scenario.snapshot, replicas, plans),
        fair_share_milli=_fair_shares(plans[-1]),
        end=end,
        loans=loans,
    )


def _place(replica: Replica) -> Placement | None:
    """Where a replica is, or will be as soon as victims have gone."""
    is_there = replica.state in (ReplicaState.RUNNING, ReplicaState.LENT)
    return replica.placement if is_there else replica.held


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
    """What ended meanwhile ran to its end: it was kept, or placed."""
    after = {replica.id: replica for w in end.workloads for replica in w.replicas}
    outcomes = {}
    for workload in start.workloads:
        for replica in workload.replicas:
            last = after.get(replica.id)
            if last is None:
                is_old = replica.state in (ReplicaState.RUNNING, ReplicaState.SUCCEEDED)
                outcomes[replica.id] = Outcome("kept" if is_old else "placed", None)
            else:
                outcomes[replica.id] = Outcome(_outcome(replica, last), _place(last))
    return outcomes


def _outcome(start: Replica, end: Replica) -> str:
    place = _place(end)
    if end.state is ReplicaState.LENT:
        return "kept" if start.state is ReplicaState.LENT else "lent"
    if start.state is ReplicaState.LENT and place is None:
        return "recalled"
    if start.state is ReplicaState.SUCCEEDED:
        return "kept"
    if start.state in (ReplicaState.RUNNING, ReplicaState.LENT) and start.placement is not None:
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


def _loan_differences(
    expected: Sequence[ExpectedLoan] | None, loans: Sequence[LoanRecord]
) -> list[str]:
    if expected is None:
        return []
    got = [ExpectedLoan(r.lender, r.borrower, r.from_s, r.to_s, r.ended_by) for r in loans]
    return [f"loan {one} expected" for one in expected if one not in got] + [
        f"loan {one} not expected" for one in got if one not in expected
    ]


def _reasons(
    start: Snapshot, replicas: Mapping[ReplicaId, Outcome], plans: list[Plan]
) -> dict[WorkloadId, Reason]:
    """Why each workload waits or was evicted: the latest word on it."""
    latest: dict[WorkloadId, Reason] = {}
    evicted: dict[WorkloadId, Reason] = {}
    for decided in plans:
        for decision in decided.decisions:
            if isinstance(decision, Evict | Move | Recall):
                evicted[decision.workload] = decision.reason
            else:
                latest[decision.workload] = decision.reason
    result = {}
    for workload in start.workloads:
        outcomes = {replicas[replica.id].outcome for replica in workload.replicas}
        if outcomes & {"evicted", "recalled"} and workload.id in evicted:
            result[workload.id] = evicted[workload.id]
        elif outcomes & {"waits", "evicted", "recalled", "lent"}:
            result[workload.id] = latest[workload.id]
    return result


def _fair_shares(decided: Plan) -> dict[ProjectId, int]:
    """GPUs of each project's fair share, all types together."""
    return {
        project: sum(n.fair_share for key, n in numbers.items() if key not in (CPU, MEMORY))
        for project, numbers in decided.numbers.items()
    }
