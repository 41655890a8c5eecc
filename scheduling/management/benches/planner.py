"""How fast the planner decides: a full cycle, one arrival, one reclaim."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from random import Random
from typing import Any

from scheduling.core.cycle import plan, would_start
from scheduling.core.decisions import Evict, Hold, Plan, Start
from scheduling.core.rooms import Ask
from scheduling.core.scenario import follow
from scheduling.core.types import (
    GpuRequest,
    Kind,
    NodeName,
    Policy,
    Project,
    ProjectId,
    Replica,
    ReplicaId,
    ReplicaState,
    ResourceKey,
    Share,
    Snapshot,
    Workload,
    WorkloadId,
)
from scheduling.management.benches.cluster import Size, build
from scheduling.management.benches.figures import (
    Bench,
    Report,
    figure,
    peak_rss_mib,
    phases,
    repeat,
)

SETTLING_CYCLES = 4
CHURN = 0.02  # of what runs ends before the measured cycle, as between two cycles of a busy hour


def cycle(size: Size, runs: int, warmup: int) -> Report:
    """A full cycle on a cluster that has settled, after some of what ran has ended."""
    snapshot = _busy(size)
    decided = plan(snapshot, Policy(), 0.0)
    placed = check(snapshot, decided)
    result = repeat(lambda done: plan(snapshot, Policy(), 0.0, None, done), runs, warmup)
    return Report(
        params=_params(size, snapshot),
        figures={
            "cycle_s": figure(result.wall_s, "s", 0.5),
            "cycle_cpu_s": figure(result.cpu_s, "s"),
            "placements_per_s": figure([placed / wall for wall in result.wall_s], "1/s"),
            "peak_rss_mib": figure([peak_rss_mib()], "MiB", 1024),
        },
        phases=phases(result),
    )


def incremental(size: Size, runs: int, warmup: int) -> Report:
    """One new workload on that cluster: what a form asks before it is submitted."""
    snapshot = _busy(size)
    newcomer = replace(
        next(w for w in snapshot.workloads if w.kind is Kind.INTERACTIVE),
        id=WorkloadId("newcomer"),
        replicas=(Replica(ReplicaId("newcomer-0"), ReplicaState.PENDING),),
        submitted=1e9,
    )
    result = repeat(lambda done: would_start(snapshot, Policy(), 0.0, newcomer), runs, warmup)
    return Report(
        params=_params(size, snapshot),
        figures={"decide_s": figure(result.wall_s, "s", 0.1)},
        phases={},
    )


def reclaim(size: Size, runs: int, warmup: int) -> Report:
    """One GPU claimed back from borrowers that hold the whole cluster."""
    snapshot = _borrowed(size)
    decided = plan(snapshot, Policy(), 0.0)
    evictions = [d for d in decided.decisions if isinstance(d, Evict)]
    if len(evictions) != 1:
        raise AssertionError(f"one victim is needed, not {len(evictions)}")
    check(snapshot, decided)
    result = repeat(lambda done: plan(snapshot, Policy(), 0.0, None, done), runs, warmup)
    return Report(
        params=_params(size, snapshot),
        figures={
            "decide_s": figure(result.wall_s, "s", 0.02),
            "peak_rss_mib": figure([peak_rss_mib()], "MiB", 1024),
        },
        phases=phases(result),
    )


def _add_arguments(parser: ArgumentParser) -> None:
    default = Size()
    for name in SIZES:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=getattr(default, name))


def _bench(about: str, measure: Callable[[Size, int, int], Report]) -> Bench:
    def with_options(options: Mapping[str, Any]) -> Report:
        size = Size(**{name: options[name] for name in SIZES})
        return measure(size, options["runs"], options["warmup"])

    return Bench(about, _add_arguments, with_options)


SIZES = ("nodes", "gpus_per_node", "running", "pending", "projects", "seed")
BENCHES = {
    "cycle": _bench("a full cycle of the planner", cycle),
    "incremental": _bench("one new workload on that cluster", incremental),
    "reclaim": _bench("one GPU claimed back from borrowers", reclaim),
}


def check(snapshot: Snapshot, decided: Plan) -> int:
    """That a plan is right: everybody answered once, nothing over-committed; replicas placed.

    Raises:
        AssertionError: it is not.
    """
    answers = Counter(d.workload for d in decided.decisions if isinstance(d, Start | Hold))
    waiting = {
        w.id for w in snapshot.workloads if any(r.state is ReplicaState.PENDING for r in w.replicas)
    }
    if not set(answers) >= waiting or set(answers.values()) - {1}:
        raise AssertionError("a waiting workload was answered twice or not at all")
    _check_devices(follow(snapshot, decided, 0.0))
    return sum(
        len(d.placements) + len(d.held) if isinstance(d, Start) else len(d.held)
        for d in decided.decisions
        if isinstance(d, Start | Hold)
    )


def _check_devices(snapshot: Snapshot) -> None:
    nodes = {node.name: node for node in snapshot.nodes}
    used: dict[tuple[NodeName, int], int] = defaultdict(int)
    for workload in snapshot.workloads:
        ask = Ask(workload.gpu, workload.cpu_milli, workload.memory_mib)
        for replica in workload.replicas:
            place = replica.placement or replica.held
            if place is not None:
                units = ask.units_per_device(nodes[place.node].gpu_memory_mib)
                for device in place.devices:
                    used[place.node, device] += units
    for (name, device), units in used.items():
        if units > 1000 * nodes[name].gpu_memory_mib:
            raise AssertionError(f"device {device} of {name} is over-committed")


def _busy(size: Size) -> Snapshot:
    snapshot = build(size)
    for _ in range(SETTLING_CYCLES):
        snapshot = follow(snapshot, plan(snapshot, Policy(), 0.0), 0.0)
    random = Random(size.seed)
    kept = [
        workload
        for workload in snapshot.workloads
        if workload.replicas[0].placement is None or random.random() >= CHURN
    ]
    return replace(snapshot, workloads=tuple(kept))


def _borrowed(size: Size) -> Snapshot:
    """Every GPU lent out in single-GPU trainings, to all projects but one, which claims."""
    cluster = build(replace(size, running=0, pending=0))
    key = ResourceKey("gpu:bench")
    nodes = tuple(replace(node, gpu_key=key, node_type=None) for node in cluster.nodes)
    borrowers = [
        Project(ProjectId(f"team-{i:03}"), None, 100, i, {key: Share(0)})
        for i in range(size.projects)
    ]
    owner = Project(ProjectId("owner"), None, 100, size.projects, {key: Share(8000)})
    trainings = [
        _training(f"w{i:06}", f"team-{i % size.projects:03}", float(i))
        for i in range(size.nodes * size.gpus_per_node)
    ]
    full = Snapshot(nodes, (*borrowers, owner), tuple(trainings))
    full = follow(full, plan(full, Policy(), 0.0), 0.0)
    claim = replace(_training("claim", "owner", 1e9), kind=Kind.INTERACTIVE, is_preemptible=False)
    return replace(full, workloads=(*full.workloads, claim))


def _training(name: str, project: str, submitted: float) -> Workload:
    return Workload(
        id=WorkloadId(name),
        project=ProjectId(project),
        kind=Kind.TRAINING,
        priority=50,
        is_preemptible=True,
        submitted=submitted,
        gpu=GpuRequest(1, 1000),
        cpu_milli=1000,
        memory_mib=1024,
        min_replicas=1,
        replicas=(Replica(ReplicaId(f"{name}-0"), ReplicaState.PENDING),),
    )


def _params(size: Size, snapshot: Snapshot) -> dict[str, int]:
    """The size asked for, with what really runs and waits."""
    running = sum(1 for w in snapshot.workloads if any(r.placement for r in w.replicas))
    return {**asdict(size), "running": running, "pending": len(snapshot.workloads) - running}
