"""How fast the planner decides: a full cycle, one arrival, one reclaim."""

from __future__ import annotations

import gc
import math
import time
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from random import Random
from typing import Any

from scheduling.core.cycle import plan
from scheduling.core.decisions import Evict, Hold, Plan, Start
from scheduling.core.incremental import WarmPlanner
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
from scheduling.management.benches.cluster import Maker, Size, build
from scheduling.management.benches.figures import (
    Bench,
    Report,
    at_least,
    figure,
    peak_rss_mib,
    phases,
    repeat,
)

SETTLING_CYCLES = 4
MAX_SETTLING_CYCLES = 40
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
    """One new workload on that cluster, on a warm planner; every kind that the cluster has.

    Where an increment leaves something to a full cycle, that cycle is run before the next arrival
    and not counted; where only a full cycle can decide, its time is counted.
    """
    snapshot = _settled(size)
    planner = WarmPlanner(snapshot, Policy(), 0.0)
    arrivals = newcomers(size, snapshot, warmup + runs)
    times: list[float] = []
    cpu: list[float] = []
    full = after = 0
    with frozen():
        for newcomer in arrivals:
            began, cpu_began = time.monotonic(), time.process_time()
            increment = planner.arrive(newcomer, 1.0)
            if increment is None:
                grown = replace(snapshot, workloads=(*snapshot.workloads, newcomer))
                plan(grown, Policy(), 1.0)
                full += 1
            times.append(time.monotonic() - began)
            cpu.append(time.process_time() - cpu_began)
            if not planner.is_warm:
                after += increment is not None
                planner.close()
                planner = WarmPlanner(snapshot, Policy(), 0.0)
    return Report(
        params=_params(size, snapshot),
        figures={
            "decide_s": figure(times[warmup:], "s", 0.1),
            "decide_cpu_s": figure(cpu[warmup:], "s"),
            "decided_by_full_cycle": figure([float(full)], "arrivals"),
            "followed_by_full_cycle": figure([float(after)], "arrivals"),
            "peak_rss_mib": figure([peak_rss_mib()], "MiB", 1024),
        },
        phases={},
    )


def reclaim(size: Size, runs: int, warmup: int) -> Report:
    """One GPU claimed back from borrowers that hold the whole cluster: on a warm planner, and by a
    full cycle."""
    snapshot, claim = _borrowed(size)
    grown = replace(snapshot, workloads=(*snapshot.workloads, claim))
    decided = plan(grown, Policy(), 0.0)
    check(grown, decided)
    evictions = [d for d in decided.decisions if isinstance(d, Evict)]
    times: list[float] = []
    for _ in range(warmup + runs):
        planner = WarmPlanner(snapshot, Policy(), 0.0)
        began = time.monotonic()
        increment = planner.arrive(claim, 0.0)
        times.append(time.monotonic() - began)
        planner.close()
        found = [] if increment is None else increment.decisions
        if len(evictions) != 1 or [d for d in found if isinstance(d, Evict)] != evictions:
            raise AssertionError("one victim is needed, the same in both ways")
    result = repeat(lambda done: plan(grown, Policy(), 0.0, None, done), runs, warmup)
    return Report(
        params=_params(size, grown),
        figures={
            "decide_s": figure(times[warmup:], "s", 0.02),
            "full_cycle_s": figure(result.wall_s, "s"),
            "peak_rss_mib": figure([peak_rss_mib()], "MiB", 1024),
        },
        phases=phases(result),
    )


def newcomers(size: Size, snapshot: Snapshot, count: int) -> list[Workload]:
    """More of what the cluster is made of, submitted after all that is there."""
    teams = [f"team-{i:03}" for i in range(size.projects)]
    weights = [1.0 / (i + 1) ** 0.6 for i in range(size.projects)]
    maker = Maker(Random(size.seed + 1), teams, weights)
    first = 2 * (size.running + size.pending)
    return [maker.workload(first + i) for i in range(count)]


def _settled(size: Size) -> Snapshot:
    """That cluster once a full cycle changes nothing any more."""
    snapshot = build(size)
    for _ in range(MAX_SETTLING_CYCLES):
        planner = WarmPlanner(snapshot, Policy(), 0.0)
        if planner.is_warm:
            planner.close()
            return snapshot
        snapshot = follow(snapshot, planner.plan, 0.0)
    raise AssertionError("the cluster does not settle")


@contextmanager
def frozen() -> Iterator[None]:
    """What is there is here to stay, as in the process that keeps a planner warm."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _add_arguments(parser: ArgumentParser) -> None:
    default = Size()
    for name in SIZES:
        flag = f"--{name.replace('_', '-')}"
        least = 1 if name in ("nodes", "gpus_per_node", "projects") else 0
        parser.add_argument(flag, type=at_least(least), default=getattr(default, name))
    parser.add_argument(
        "--database", action="store_true", help="read from and record in a PostgreSQL of its own"
    )
    parser.add_argument(
        "--growth", action="store_true", help="beside it a tenth of the cluster: how cost grows"
    )


Measure = Callable[[Size, int, int], Report]


def growth(measure: Measure, size: Size, runs: int, warmup: int) -> Report:
    """The same on a tenth of the cluster first; 1 is linear growth, 2 quadratic."""
    tenth = replace(
        size,
        nodes=max(1, size.nodes // 10),
        running=size.running // 10,
        pending=size.pending // 10,
    )
    small, large = measure(tenth, runs, warmup), measure(size, runs, warmup)
    figures = dict(large.figures)
    for name, values in large.figures.items():
        before, after = small.figures[name]["median"], values["median"]
        if values["unit"] == "s" and isinstance(before, float) and isinstance(after, float):
            figures[f"tenth_{name}"] = small.figures[name]
            exponent = math.log10(after / before) if before > 0 < after else 0.0
            figures[f"growth_{name.removesuffix('_s')}_exponent"] = figure([exponent], "")
    return Report(large.params, figures, large.phases)


def _bench(about: str, measure: Measure, recorded: Measure, runs: int = 9) -> Bench:
    def with_options(options: Mapping[str, Any]) -> Report:
        size = Size(**{name: options[name] for name in SIZES})
        chosen = recorded if options["database"] else measure
        if options["growth"]:
            chosen = partial(growth, chosen)
        return chosen(size, options["runs"], options["warmup"])

    return Bench(about, _add_arguments, with_options, runs)


SIZES = ("nodes", "gpus_per_node", "running", "pending", "projects", "seed")


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


def _borrowed(size: Size) -> tuple[Snapshot, Workload]:
    """Every GPU taken by single-GPU trainings of all projects but one, and that one's claim."""
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
    claim = replace(_training("w9", "owner", 1e9), kind=Kind.INTERACTIVE, is_preemptible=False)
    return full, claim


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


def _cycle_recorded(size: Size, runs: int, warmup: int) -> Report:
    # Only here: what needs Django's models.
    from scheduling.management.benches.recorded import cycle_recorded

    return cycle_recorded(size, _busy(size), runs, warmup)


def _incremental_recorded(size: Size, runs: int, warmup: int) -> Report:
    from scheduling.management.benches.recorded import arrivals_recorded

    snapshot = _settled(size)
    arrivals = newcomers(size, snapshot, warmup + runs)
    return arrivals_recorded(size, snapshot, arrivals, warmup)


def _reclaim_recorded(size: Size, runs: int, warmup: int) -> Report:
    from scheduling.management.benches.recorded import reclaims_recorded

    snapshot, claim = _borrowed(size)
    return reclaims_recorded(size, snapshot, claim, runs, warmup)


BENCHES = {
    "cycle": _bench("a full cycle of the planner", cycle, _cycle_recorded),
    "incremental": _bench(
        "one new workload on that cluster", incremental, _incremental_recorded, runs=100
    ),
    "reclaim": _bench("one GPU claimed back from borrowers", reclaim, _reclaim_recorded),
}
