"""A seeded cluster as large as asked, with the mixture that real ones have.

Three node types; departments and projects of skewed sizes; sessions on fractions, single-GPU
trainings, whole nodes, gangs, elastic trainings, work without GPUs. Quotas add up to capacity per
type, and projects in front borrow from those at the end, so that there is something to decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from scheduling.core.ledger import Ledger
from scheduling.core.rooms import Ask, Pool
from scheduling.core.types import (
    CPU,
    MEMORY,
    UNCOUNTED,
    GpuRequest,
    Kind,
    Node,
    NodeName,
    NodeTypeName,
    Placement,
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

TYPES = (("a100", 40960, 5), ("t4", 15360, 3), ("v100", 16384, 2))
"""Name, memory of a device in MiB, weight of the type among the nodes."""
PROJECTS_PER_DEPARTMENT = 10
SESSION_SIZES = ((2000, 8192), (4000, 16384))
TRAINING_SIZES = ((4000, 32768), (8000, 49152))
"""Millicores and MiB per GPU, as templates offer them."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a cluster is."""

    nodes: int = 1000
    gpus_per_node: int = 8
    running: int = 5000
    pending: int = 10_000
    projects: int = 200
    seed: int = 1


def build(size: Size) -> Snapshot:
    """The cluster, with `running` workloads in place and `pending` in the queue."""
    random = Random(size.seed)
    nodes = tuple(_node(random, i, size.gpus_per_node) for i in range(size.nodes))
    teams = [f"team-{i:03}" for i in range(size.projects)]
    weights = [1.0 / (i + 1) ** 0.6 for i in range(size.projects)]
    projects = _projects(random, nodes, teams, weights)
    makers = Maker(random, teams, weights)
    running = _place(nodes, makers, size.running)
    pending = [makers.workload(size.running + i) for i in range(size.pending)]
    return Snapshot(nodes, projects, (*running, *pending))


def _node(random: Random, number: int, gpus: int) -> Node:
    name, memory_mib, _ = random.choices(TYPES, [weight for _, _, weight in TYPES])[0]
    return Node(
        name=NodeName(f"node-{number:05}"),
        num_devices=gpus,
        gpu_memory_mib=memory_mib,
        cpu_milli=gpus * 12_000,
        memory_mib=gpus * 65_536,
        gpu_key=ResourceKey(f"gpu:{name}"),
        node_type=NodeTypeName(name),
    )


def _projects(
    random: Random, nodes: tuple[Node, ...], teams: list[str], weights: list[float]
) -> tuple[Project, ...]:
    """Quotas by a skew of their own, so that some who ask much are promised little."""
    keys = sorted({node.gpu_key for node in nodes})
    skew = weights.copy()
    random.shuffle(skew)
    quotas: dict[str, dict[ResourceKey, int]] = {team: {} for team in teams}
    for key in keys:
        capacity = sum(node.num_devices * 1000 for node in nodes if node.gpu_key == key)
        for team, part in zip(teams, skew, strict=True):
            quotas[team][key] = int(capacity * part / sum(skew)) // 500 * 500
    projects = []
    for first in range(0, len(teams), PROJECTS_PER_DEPARTMENT):
        children = teams[first : first + PROJECTS_PER_DEPARTMENT]
        department = ProjectId(f"dept-{first // PROJECTS_PER_DEPARTMENT:02}")
        total = {key: sum(quotas[team][key] for team in children) for key in keys}
        projects.append(_project(department, None, first, total, len(children)))
        projects += [
            _project(ProjectId(team), department, first + i, quotas[team], 1 + i % 3)
            for i, team in enumerate(children)
        ]
    return tuple(projects)


def _project(
    name: ProjectId,
    parent: ProjectId | None,
    created: int,
    quotas: dict[ResourceKey, int],
    weight: int,
) -> Project:
    shares = {CPU: UNCOUNTED, MEMORY: UNCOUNTED}
    shares |= {key: Share(quota, None, weight) for key, quota in quotas.items()}
    return Project(name, parent, 100, created, shares)


class Maker:
    """Makes workloads, one after the other."""

    def __init__(self, random: Random, teams: list[str], weights: list[float]) -> None:
        self._random = random
        self._teams = teams
        self._weights = weights

    def workload(self, number: int) -> Workload:
        random = self._random
        name = WorkloadId(f"w{number:06}")
        is_session = random.random() < 0.35
        gpu, minimum, extra = self._session() if is_session else self._training()
        cpu_milli, memory_mib = random.choice(SESSION_SIZES if is_session else TRAINING_SIZES)
        return Workload(
            id=name,
            project=ProjectId(random.choices(self._teams, self._weights)[0]),
            kind=Kind.INTERACTIVE if is_session else Kind.TRAINING,
            priority=100 if is_session else random.choice((25, 50, 50, 50, 75)),
            is_preemptible=not is_session and random.random() < 0.95,
            submitted=float(number),
            gpu=gpu,
            cpu_milli=cpu_milli * max(1, gpu.num_devices),
            memory_mib=memory_mib * max(1, gpu.num_devices),
            min_replicas=minimum,
            replicas=tuple(
                Replica(ReplicaId(f"{name}-{i}"), ReplicaState.PENDING)
                for i in range(minimum + extra)
            ),
            node_types=self._types(),
        )

    def _session(self) -> tuple[GpuRequest, int, int]:
        return GpuRequest(1, self._random.choice((200, 250, 333, 500, 1000))), 1, 0

    def _training(self) -> tuple[GpuRequest, int, int]:
        draw = self._random.random()
        if draw < 0.05:
            return GpuRequest(), 1, 0
        if draw < 0.10:
            return GpuRequest(1, 1000), self._random.choice((4, 8, 16)), 0
        if draw < 0.15:
            return GpuRequest(1, 1000), 1, 3
        if draw < 0.20:
            return GpuRequest(8, 1000), 1, 0
        return GpuRequest(self._random.choice((1, 1, 1, 2, 4)), 1000), 1, 0

    def _types(self) -> tuple[NodeTypeName, ...] | None:
        """Any type, one of them, or a first and a second choice."""
        draw = self._random.random()
        if draw < 0.3:
            return None
        names = [NodeTypeName(name) for name, _, _ in TYPES]
        first = self._random.randrange(len(names))
        return tuple(names[first : first + 1 + (draw > 0.7)])


def _place(nodes: tuple[Node, ...], makers: Maker, count: int) -> list[Workload]:
    """Workloads put wherever they fit, whoever they belong to."""
    ledger = Ledger(nodes, placement={})
    ledger.index()
    running: list[Workload] = []
    misses = 0
    while len(running) < count and misses < count:
        workload = makers.workload(len(running))
        placed = _put(ledger, workload, workload.min_replicas)
        if placed is None:
            misses += 1
        else:
            running.append(placed)
    return running


def _put(ledger: Ledger, workload: Workload, count: int) -> Workload | None:
    ask = Ask(workload.gpu, workload.cpu_milli, workload.memory_mib)
    for node_type in workload.node_types or tuple(NodeTypeName(name) for name, _, _ in TYPES):
        pools = [pool for pool in ledger.pools if pool.node_type == node_type]
        places = _spots(ledger, ask, pools, count)
        if places is not None:
            replicas = [
                Replica(replica.id, ReplicaState.RUNNING, place)
                for replica, place in zip(workload.replicas, places, strict=False)
            ]
            return replace(workload, replicas=(*replicas, *workload.replicas[count:]))
    return None


def _spots(ledger: Ledger, ask: Ask, pools: list[Pool], count: int) -> list[Placement] | None:
    places = []
    with ledger.supposing() as supposition:
        for _ in range(count):
            spot = ledger.find(ask, pools)
            if spot is None:
                return None
            ledger.take(spot, ask)
            places.append(spot.placement())
        supposition.keep()
    return places
