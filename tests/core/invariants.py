"""What must hold after every plan, whatever the case is about."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from scheduling.core.decisions import Evict, Hold, Move, Plan, Start
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
    _check_projects(snapshot, after)
    _check_gangs(snapshot, after)
    return after


def _check_decisions(snapshot: Snapshot, decided: Plan) -> None:
    workloads = {w.id: w for w in snapshot.workloads}
    waiting = {
        w.id for w in snapshot.workloads if any(r.state is ReplicaState.PENDING for r in w.replicas)
    }
    answers = Counter(d.workload for d in decided.decisions if isinstance(d, Start | Hold))
    assert set(answers) >= waiting, "a waiting workload got no answer"
    assert set(answers.values()) <= {1}, "a workload got two answers"
    for decision in decided.decisions:
        assert decision.reason.code
        assert decision.reason.message
        if isinstance(decision, Evict | Move):
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
    """Places of what is on the nodes when the plan begins to be carried out: victims as well."""
    started = {
        name: place
        for decision in decided.decisions
        if isinstance(decision, Start)
        for name, place in decision.placements.items()
    }
    for workload in snapshot.workloads:
        for replica in workload.replicas:
            place = started.get(replica.id, replica.placement)
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
        assert len(set(place.devices)) == workload.gpu.num_devices
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


def sums(
    snapshot: Snapshot, *, only_steady: bool = False
) -> dict[tuple[ProjectId, ResourceKey], int]:
    """What every project and department holds, summed up anew from what runs."""
    nodes = {node.name: node for node in snapshot.nodes}
    parents = {project.id: project.parent for project in snapshot.projects}
    totals: dict[tuple[ProjectId, ResourceKey], int] = defaultdict(int)
    for workload in snapshot.workloads:
        if only_steady and workload.is_preemptible:
            continue
        for _, place in _promised(workload):
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
    was, now = sums(before), sums(after)
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
