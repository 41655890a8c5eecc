"""Random small clusters, made from a seed so that a failure can be looked at again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from scheduling.core.types import (
    CPU,
    MEMORY,
    UNCOUNTED,
    GpuRequest,
    Idleness,
    Kind,
    Node,
    NodeName,
    NodeTypeName,
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

TYPES = ("a100", "t4")


def cluster(random: Random, *, fits: bool = True) -> Snapshot:
    """Nodes and a tree of projects; quotas within capacity if `fits`."""
    nodes = [_node(random, i) for i in range(random.randint(1, 5))]
    capacity = {
        key: sum(n.num_devices * 1000 for n in nodes if n.gpu_key == key)
        for key in {n.gpu_key for n in nodes}
    }
    left = {key: total * (1 if fits else 2) for key, total in capacity.items()}
    projects: list[Project] = []
    for d in range(random.randint(1, 3)):
        department = ProjectId(f"dept-{d}")
        children = [
            _project(random, f"team-{d}-{c}", department, 10 * d + c, left)
            for c in range(random.randint(1, 3))
        ]
        projects += [_department(department, d, children, capacity), *children]
    return Snapshot(tuple(nodes), tuple(projects), ())


def _node(random: Random, number: int) -> Node:
    node_type = NodeTypeName(random.choice(TYPES))
    return Node(
        name=NodeName(f"node-{number}"),
        num_devices=random.choice((0, 1, 2, 3, 4, 4)),
        gpu_memory_mib=16384 if node_type == "t4" else 40960,
        cpu_milli=random.choice((16000, 64000)),
        memory_mib=131072,
        gpu_key=ResourceKey(f"gpu:{node_type}"),
        node_type=node_type,
    )


def _project(
    random: Random,
    name: str,
    parent: ProjectId,
    created: int,
    left: dict[ResourceKey, int],
) -> Project:
    shares = {CPU: UNCOUNTED, MEMORY: UNCOUNTED}
    for key in sorted(left):
        quota = random.choice((0, 333, 500, 1000, 1500, 2000, 3000))
        quota = min(quota, left[key])
        left[key] -= quota
        limit = random.choice((None, None, None, quota + 1000))
        shares[key] = Share(quota, limit, random.choice((0, 1, 1, 2)))
    return Project(ProjectId(name), parent, random.choice((100, 100, 200)), created, shares)


def _department(
    name: ProjectId, created: int, children: list[Project], keys: dict[ResourceKey, int]
) -> Project:
    shares = {CPU: UNCOUNTED, MEMORY: UNCOUNTED}
    for key in keys:
        shares[key] = Share(
            sum(child.shares[key].quota or 0 for child in children),
            None,
            sum(child.shares[key].weight for child in children),
        )
    return Project(name, None, 100, created, shares)


def workload(random: Random, snapshot: Snapshot, number: int) -> Workload:
    """A new arrival for one of the projects."""
    parents = {project.parent for project in snapshot.projects}
    teams = [project.id for project in snapshot.projects if project.id not in parents]
    kind = Kind.INTERACTIVE if random.random() < 0.3 else Kind.TRAINING
    is_preemptible = kind is Kind.TRAINING and random.random() < 0.85
    minimum = random.choice((1, 1, 1, 2, 3)) if kind is Kind.TRAINING else 1
    extra = random.choice((0, 0, 0, 2)) if kind is Kind.TRAINING else 0
    name = WorkloadId(f"w{number:03}")
    return Workload(
        id=name,
        project=random.choice(teams),
        kind=kind,
        priority=100 if kind is Kind.INTERACTIVE else random.choice((25, 50, 50, 75)),
        is_preemptible=is_preemptible,
        submitted=float(number),
        gpu=_gpu(random, kind),
        cpu_milli=random.choice((500, 2000, 4000)),
        memory_mib=random.choice((512, 4096)),
        min_replicas=minimum,
        replicas=tuple(
            Replica(ReplicaId(f"{name}-{i}"), ReplicaState.PENDING) for i in range(minimum + extra)
        ),
        node_types=random.choice(
            (None, None, (NodeTypeName("t4"),), tuple(map(NodeTypeName, TYPES)))
        ),
        expected_end_s=random.choice((None, None, 60.0 * number)),
        expected_run_s=random.choice((None, 30.0, 900.0)),
    )


def _gpu(random: Random, kind: Kind) -> GpuRequest:
    if random.random() < 0.1:
        return GpuRequest()
    if random.random() < 0.15:
        return GpuRequest(random.choice((1, 1, 2)), None, random.choice((4000, 5461, 9000)))
    if kind is Kind.INTERACTIVE or random.random() < 0.3:
        return GpuRequest(random.choice((1, 1, 1, 2)), random.choice((200, 250, 333, 500)), None)
    return GpuRequest(random.choice((1, 1, 2, 4)), 1000, None)


def arrive(snapshot: Snapshot, *workloads: Workload) -> Snapshot:
    return replace(snapshot, workloads=(*snapshot.workloads, *workloads))


def leave(random: Random, snapshot: Snapshot, fraction: float) -> Snapshot:
    """Some workloads end."""
    return replace(
        snapshot, workloads=tuple(w for w in snapshot.workloads if random.random() > fraction)
    )


def shuffled(random: Random, snapshot: Snapshot) -> Snapshot:
    """The same picture in another order."""
    nodes, projects = list(snapshot.nodes), list(snapshot.projects)
    workloads = [
        replace(w, replicas=tuple(random.sample(w.replicas, len(w.replicas))))
        for w in snapshot.workloads
    ]
    for part in (nodes, projects, workloads):
        random.shuffle(part)
    loans = list(snapshot.loans)
    random.shuffle(loans)
    return Snapshot(tuple(nodes), tuple(projects), tuple(workloads), tuple(loans))


def rest(random: Random, snapshot: Snapshot, now_s: float) -> Snapshot:
    """Some sessions fall idle, some are used again: their borrowers have yielded by now."""
    woken: set[ReplicaId] = set()

    def after(workload: Workload) -> Workload:
        if workload.kind is not Kind.INTERACTIVE:
            return workload
        idle = None
        if any(r.state is ReplicaState.RUNNING for r in workload.replicas):
            if random.random() < 0.6:
                idle = Idleness(
                    since_s=now_s - random.choice((10.0, 500.0, 500.0)),
                    expected_left_s=random.choice((5.0, 300.0, 4000.0)),
                    memory_mib=random.choice((0, 2000, 9000)),
                    obstacle=random.choice(("", "", "", "uses_managed_memory")),
                )
            else:
                idle = Idleness(None)
                woken.update(r.id for r in workload.replicas)
        if workload.idle is not None and any(
            loan.lender in {r.id for r in workload.replicas} - woken for loan in snapshot.loans
        ):
            return workload
        return replace(workload, idle=idle)

    workloads = [after(workload) for workload in snapshot.workloads]
    yielded = {loan.borrower for loan in snapshot.loans if loan.lender in woken}
    is_parked = random.random() < 0.5

    def back(workload: Workload) -> Workload:
        if not yielded & {r.id for r in workload.replicas}:
            return workload
        return replace(
            workload,
            replicas=tuple(
                r
                if r.state is not ReplicaState.LENT
                else replace(r, state=ReplicaState.PARKED)
                if is_parked
                else Replica(r.id, ReplicaState.PENDING)
                for r in workload.replicas
            ),
        )

    workloads = [back(workload) for workload in workloads]
    on_loan = {r.id for w in workloads for r in w.replicas if r.state is ReplicaState.LENT}
    return replace(
        snapshot,
        workloads=tuple(workloads),
        loans=tuple(loan for loan in snapshot.loans if loan.borrower in on_loan),
    )


def close_loans(snapshot: Snapshot) -> Snapshot:
    """Once workloads have left: loans of which one side is gone are over."""
    there = {r.id for w in snapshot.workloads for r in w.replicas}
    return replace(
        snapshot,
        loans=tuple(loan for loan in snapshot.loans if {loan.lender, loan.borrower} <= there),
    )
