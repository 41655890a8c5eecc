"""What must hold after every plan, whatever the case is about."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from scheduling.core.decisions import Evict, Hold, Lend, Move, Plan, Recall, Start
from scheduling.core.rooms import Ask
from scheduling.core.scenario import follow
from scheduling.core.types import (
    CPU,
    MEMORY,
    Kind,
    NodeName,
    Placement,
    ProjectId,
    Replica,
    ReplicaId,
    ReplicaState,
    ResourceKey,
    Snapshot,
    Workload,
)


def check_plan(snapshot: Snapshot, decided: Plan, now_s: float = 0.0) -> Snapshot:
    """Check a plan against the snapshot that it was made from; what it leads to."""
    after = follow(snapshot, decided, now_s)
    _check_decisions(snapshot, decided)
    _check_nodes(after, (place for w in after.workloads for place in _promised(w)), "promised")
    _check_nodes(after, _present(snapshot, decided), "present")
    _check_loans(snapshot, decided, after)
    _check_projects(snapshot, after)
    _check_gangs(snapshot, after)
    return after


def _check_decisions(snapshot: Snapshot, decided: Plan) -> None:
    workloads = {w.id: w for w in snapshot.workloads}
    waiting = {
        w.id
        for w in snapshot.workloads
        if any(r.state is ReplicaState.PENDING for r in w.replicas)
        and not any(r.state is ReplicaState.LENT for r in w.replicas)
    }
    answers = Counter(d.workload for d in decided.decisions if isinstance(d, Start | Hold | Lend))
    assert set(answers) >= waiting, "a waiting workload got no answer"
    assert set(answers.values()) <= {1}, "a workload got two answers"
    for decision in decided.decisions:
        assert decision.reason.code
        assert decision.reason.message
        if isinstance(decision, Evict | Move | Recall | Lend):
            victim = workloads[decision.workload]
            assert victim.is_preemptible, f"{victim.id} must never be stopped"
            assert victim.kind is Kind.TRAINING


def _promised(workload: Workload) -> Iterator[tuple[Workload, Placement]]:
    """Places of what runs and of what capacity is kept for."""
    for replica in workload.replicas:
        place = replica.placement if replica.state is ReplicaState.RUNNING else replica.held
        if place is not None:
            yield workload, place


def _present(snapshot: Snapshot, decided: Plan) -> Iterator[tuple[Workload, Placement]]:
    """Places of what is on the nodes when the plan begins to be carried out: victims as well, and
    borrowers, for which their lenders are swapped out.
    """
    begun: dict[ReplicaId, Placement] = {}
    swapped = {loan.lender for loan in snapshot.loans}
    for decision in decided.decisions:
        if isinstance(decision, Start | Lend):
            begun.update(decision.placements)
        if isinstance(decision, Lend):
            swapped.update(name for names in decision.lenders.values() for name in names)
    for workload in snapshot.workloads:
        for replica in workload.replicas:
            place = begun.get(replica.id, replica.placement)
            is_parked = replica.state is ReplicaState.PARKED and replica.id not in begun
            if place is not None and (is_parked or replica.id in swapped):
                place = replace(place, devices=())
            if place is not None:
                yield workload, place


def _check_nodes(
    snapshot: Snapshot, places: Iterable[tuple[Workload, Placement]], side: str
) -> None:
    """No device, CPU, memory or number of replicas over what a node has."""
    nodes = {node.name: node for node in snapshot.nodes}
    devices: dict[tuple[NodeName, int], int] = defaultdict(int)
    milli: dict[tuple[NodeName, int], int] = defaultdict(int)
    cpu: dict[NodeName, int] = defaultdict(int)
    memory: dict[NodeName, int] = defaultdict(int)
    replicas: dict[NodeName, int] = defaultdict(int)
    for workload, place in places:
        node = nodes[place.node]
        ask = Ask(workload.gpu, workload.cpu_milli, workload.memory_mib)
        assert len(set(place.devices)) in (workload.gpu.num_devices, 0)
        for device in place.devices:
            assert device < node.num_devices
            devices[node.name, device] += ask.units_per_device(node.gpu_memory_mib)
            milli[node.name, device] += place.milli_per_device
        cpu[node.name] += workload.cpu_milli
        memory[node.name] += workload.memory_mib
        replicas[node.name] += 1
        if workload.node_types is not None:
            assert node.node_type in workload.node_types
        assert workload.required_labels.items() <= node.labels.items(), f"labels of {workload.id}"
    for (name, device), units in devices.items():
        assert units <= 1000 * nodes[name].gpu_memory_mib, f"{side}: device {device} of {name}"
        assert milli[name, device] <= 1000, f"{side}: thousandths of device {device} of {name}"
    for name in replicas:
        node = nodes[name]
        assert cpu[name] <= node.cpu_milli, f"{side}: CPU of {name}"
        assert memory[name] <= node.memory_mib, f"{side}: memory of {name}"
        assert node.max_replicas is None or replicas[name] <= node.max_replicas


def _check_loans(before: Snapshot, decided: Plan, after: Snapshot) -> None:
    """Only idle sessions lend, to one at a time; every borrower lies on what its lenders hold and
    on what nobody holds.
    """
    place_of = {r.id: r.placement for w in after.workloads for r in w.replicas}
    state_of = {r.id: r.state for w in after.workloads for r in w.replicas}
    owner = {r.id: w for w in after.workloads for r in w.replicas}
    lenders = [loan.lender for loan in after.loans]
    assert len(set(lenders)) == len(lenders), "a session lends twice"
    old = {(loan.lender, loan.borrower) for loan in before.loans}
    for loan in after.loans:
        lender, borrower = owner[loan.lender], owner[loan.borrower]
        assert lender.kind is Kind.INTERACTIVE
        assert borrower.is_preemptible
        assert state_of[loan.lender] is ReplicaState.RUNNING
        assert state_of[loan.borrower] is ReplicaState.LENT
        theirs, mine = place_of[loan.lender], place_of[loan.borrower]
        assert theirs is not None
        assert mine is not None
        assert theirs.node == mine.node
        assert set(theirs.devices) <= set(mine.devices), "a lender for nothing"
        assert lender.idle is not None
        assert lender.idle.since_s is not None, f"{lender.id} is in use and lends"
        if (loan.lender, loan.borrower) not in old:
            assert not lender.idle.obstacle
    num_lenders = Counter(loan.borrower for loan in after.loans)
    borrowers = [name for name, state in state_of.items() if state is ReplicaState.LENT]
    assert all(num_lenders[name] for name in borrowers if state_of[name] is ReplicaState.LENT)
    for name in decided.not_lent:
        workload = next(w for w in before.workloads if w.id == name)
        assert workload.idle is not None


def sums(
    snapshot: Snapshot, *, only_steady: bool = False, with_loans: bool = False
) -> dict[tuple[ProjectId, ResourceKey], int]:
    """What every project and department holds, summed up anew from what runs."""
    nodes = {node.name: node for node in snapshot.nodes}
    parents = {project.id: project.parent for project in snapshot.projects}
    totals: dict[tuple[ProjectId, ResourceKey], int] = defaultdict(int)
    for workload in snapshot.workloads:
        if only_steady and workload.is_preemptible:
            continue
        places = [place for _, place in _promised(workload)]
        if with_loans:
            places += [
                r.placement
                for r in workload.replicas
                if r.state is ReplicaState.LENT and r.placement is not None
            ]
        for place in places:
            project: ProjectId | None = workload.project
            while project is not None:
                totals[project, CPU] += workload.cpu_milli
                totals[project, MEMORY] += workload.memory_mib
                gpu = place.milli_per_device * len(place.devices)
                totals[project, nodes[place.node].gpu_key] += gpu
                project = parents[project]
    return totals


def _check_projects(before: Snapshot, after: Snapshot) -> None:
    """Nobody is brought over a limit, nor work that is never stopped over a quota."""
    was, now = sums(before, with_loans=True), sums(after, with_loans=True)
    was_steady, now_steady = sums(before, only_steady=True), sums(after, only_steady=True)
    for project in after.projects:
        for key, share in project.shares.items():
            place = (project.id, key)
            if share.limit is not None:
                assert now[place] <= max(share.limit, was[place]), f"limit of {place}"
            if share.quota is not None:
                assert now_steady[place] <= max(share.quota, was_steady[place]), f"quota of {place}"


def _num_placed(replicas: Iterable[Replica]) -> int:
    return sum(
        1
        for r in replicas
        if r.state in (ReplicaState.RUNNING, ReplicaState.SUCCEEDED) or r.held is not None
    )


def _check_gangs(before: Snapshot, after: Snapshot) -> None:
    """No gang runs in part, unless it came like that."""
    for old, new in zip(before.workloads, after.workloads, strict=True):
        placed = _num_placed(new.replicas)
        assert placed == 0 or placed >= min(new.min_replicas, _num_placed(old.replicas) or 99), (
            f"{new.id} runs in part"
        )
        if not new.is_preemptible:
            for was, now in zip(old.replicas, new.replicas, strict=True):
                if was.state is ReplicaState.RUNNING:
                    assert now == was, f"{new.id} was touched"
