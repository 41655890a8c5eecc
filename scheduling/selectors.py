"""Answers for pages that are not rows: sums per node type, what a project holds, who waits how
long.

Each function costs a fixed number of queries, however many rows there are.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.db.models import Count, Q, QuerySet, Sum
from django.utils.translation import gettext as _

from projects import access
from projects.models import NodeType, Project, User
from scheduling import formats
from scheduling.bars import Bar
from scheduling.lent import lent_now
from scheduling.models import (
    ACTIVE_PHASES,
    WAITS,
    Allocation,
    Device,
    Node,
    NodeState,
    PlannerStatus,
    ProjectUsage,
    Wait,
    Workload,
    WorkloadQuerySet,
)

GPU_KEY = "gpu:"
DEVICE_MILLI = 1000


def visible_workloads(user: User) -> WorkloadQuerySet:
    """Workloads that the person may see by name."""
    if user.is_superuser:
        return Workload.objects.all()
    return Workload.objects.filter(project__in=access.visible_projects(user))


# ---------------------------------------------------------------- node types


@dataclass(frozen=True, slots=True)
class TypeSummary:
    """One node type: how much there is, how much is held, and where it is free.

    Attributes:
        free_by_node: (wholly free GPUs on a node, number of ready nodes with so many), most first.
        allocated_cpu_milli: Of all its nodes.
    """

    node_type: NodeType
    num_nodes: int
    num_ready: int
    is_simulated: bool
    num_devices: int
    allocated_milli: int
    cpu_milli: int
    allocated_cpu_milli: int
    memory_mib: int
    allocated_memory_mib: int
    lent_milli: int = 0
    beside_milli: int = 0
    free_by_node: tuple[tuple[int, int], ...] = field(default=())

    @property
    def total_milli(self) -> int:
        return self.num_devices * DEVICE_MILLI

    @property
    def has_gpu(self) -> bool:
        return self.num_devices > 0

    @property
    def bar(self) -> Bar:
        """GPUs, or cores where there are none."""
        if self.has_gpu:
            return gpu_bar(
                self.total_milli, self.allocated_milli, self.lent_milli, self.beside_milli
            )
        label = _("%(allocated)s of %(total)s cores allocated") % {
            "allocated": formats.cores(self.allocated_cpu_milli),
            "total": formats.cores(self.cpu_milli),
        }
        return Bar(self.cpu_milli, self.allocated_cpu_milli, label)

    @property
    def bar_text(self) -> str:
        return self.bar.label


def gpu_bar(
    total_milli: int, allocated_milli: int, lent_milli: int = 0, beside_milli: int = 0
) -> Bar:
    label = _("%(allocated)s of %(total)s GPU allocated") % {
        "allocated": formats.gpus(allocated_milli),
        "total": formats.gpus(total_milli),
    }
    label = _with_lent(label, lent_milli)
    if beside_milli:
        label = _("%(held)s, %(part)s used beside what is lent") % {
            "held": label,
            "part": formats.gpus(beside_milli),
        }
    return Bar(total_milli, allocated_milli, label, lent=lent_milli, beside=beside_milli)


def _with_lent(text: str, lent_milli: int) -> str:
    if not lent_milli:
        return text
    return _("%(held)s, %(lent)s lent") % {"held": text, "lent": formats.gpus(lent_milli)}


@dataclass(frozen=True, slots=True)
class OnNode:
    """Devices of a node, and what is held there.

    Attributes:
        num_free: Healthy devices of which nothing is held, or used beside what is lent.
    """

    num_devices: int = 0
    allocated_milli: int = 0
    num_free: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    lent_milli: int = 0
    beside_milli: int = 0


NOTHING_THERE = OnNode()


def on_nodes() -> dict[int, OnNode]:
    """By node; five queries. A node without devices and allocations is absent."""
    found: dict[int, OnNode] = {}
    lent = lent_now()
    unused = Q(allocated_milli=0, is_healthy=True) & ~Q(pk__in=list(lent.beside_by_device))
    devices = Device.objects.values_list("node").annotate(
        count=Count("uuid"),
        allocated=Sum("allocated_milli"),
        free=Count("uuid", filter=unused),
    )
    for node, *counts in devices.order_by():
        found[node] = OnNode(*counts)
    held = Allocation.objects.filter(ended_at__isnull=True).values_list("node")
    for node, cpu, memory in held.annotate(
        cpu=Sum("cpu_milli"), memory=Sum("memory_mib")
    ).order_by():
        there = found.get(node, NOTHING_THERE)
        found[node] = replace(there, cpu_milli=cpu, memory_mib=memory)
    for node in {*lent.by_node, *lent.beside_by_node}:
        found[node] = replace(
            found[node], lent_milli=lent.by_node[node], beside_milli=lent.beside_by_node[node]
        )
    return found


def type_summaries() -> list[TypeSummary]:
    """Every node type that has nodes, in the organisation's order; four queries."""
    there = on_nodes()
    by_type: dict[NodeType, list[Node]] = defaultdict(list)
    nodes = Node.objects.filter(node_type__isnull=False).select_related("node_type")
    for node in nodes.order_by("node_type__rank", "node_type__name", "name"):
        if node.node_type is not None:
            by_type[node.node_type].append(node)
    return [
        _summary(node_type, [(node, there.get(node.pk, NOTHING_THERE)) for node in nodes_of_type])
        for node_type, nodes_of_type in by_type.items()
    ]


def _summary(node_type: NodeType, nodes: Sequence[tuple[Node, OnNode]]) -> TypeSummary:
    ready = [there for node, there in nodes if node.state == NodeState.READY]
    free = Counter(there.num_free for there in ready if there.num_devices)
    return TypeSummary(
        node_type=node_type,
        num_nodes=len(nodes),
        num_ready=len(ready),
        is_simulated=any(node.is_simulated for node, _there in nodes),
        num_devices=sum(there.num_devices for _node, there in nodes),
        allocated_milli=sum(there.allocated_milli for _node, there in nodes),
        cpu_milli=sum(node.cpu_milli for node, _there in nodes),
        allocated_cpu_milli=sum(there.cpu_milli for _node, there in nodes),
        memory_mib=sum(node.memory_mib for node, _there in nodes),
        allocated_memory_mib=sum(there.memory_mib for _node, there in nodes),
        lent_milli=sum(there.lent_milli for _node, there in nodes),
        beside_milli=sum(there.beside_milli for _node, there in nodes),
        free_by_node=tuple(sorted(free.items(), reverse=True)),
    )


# ---------------------------------------------------------------- projects


@dataclass(frozen=True, slots=True)
class Holding:
    """What a project holds of one node type's GPUs, with what it is promised."""

    title: str
    name: str
    quota: int
    limit: int | None
    fair_share: int
    requested: int
    allocated: int
    total: int
    lent: int = 0

    @property
    def borrowed(self) -> int:
        return max(self.allocated - self.quota, 0)

    @property
    def bar(self) -> Bar:
        return Bar(
            self.total,
            self.allocated,
            self.text,
            lent=self.lent,
            quota=self.quota,
            fair_share=self.fair_share,
        )

    @property
    def text(self) -> str:
        return _with_lent(self._held_text, self.lent)

    @property
    def _held_text(self) -> str:
        values = {
            "allocated": formats.gpus(self.allocated),
            "quota": formats.gpus(self.quota),
            "borrowed": formats.gpus(self.borrowed),
        }
        if self.borrowed:
            return _("%(allocated)s GPU held, quota %(quota)s, %(borrowed)s borrowed") % values
        return _("%(allocated)s of %(quota)s GPU of quota held") % values

    @property
    def share_text(self) -> str:
        """How the fair share comes about: quota and a part of the rest."""
        surplus = max(self.fair_share - self.quota, 0)
        values = {
            "share": formats.gpus(self.fair_share),
            "quota": formats.gpus(min(self.quota, self.fair_share)),
            "surplus": formats.gpus(surplus),
        }
        if surplus:
            return _("fair share now %(share)s: quota %(quota)s + %(surplus)s of the rest") % values
        return _("fair share now %(share)s") % values


def holdings(projects: Iterable[Project]) -> dict[int, list[Holding]]:
    """Per project, one entry per node type of which it has quota or holds something.

    Cost: five queries.
    """
    ids = [project.pk for project in projects]
    types = {item.name: item for item in NodeType.objects.all()}
    usage: dict[tuple[int, str], ProjectUsage] = {
        (row.project_id, row.resource.removeprefix(GPU_KEY)): row
        for row in ProjectUsage.objects.filter(project__in=ids, resource__startswith=GPU_KEY)
    }
    quotas: dict[tuple[int, str], tuple[int, int | None]] = {
        (project, name): (quota, limit)
        for project, name, quota, limit in Project.objects.filter(
            pk__in=ids, gpu_quotas__isnull=False
        ).values_list(
            "pk",
            "gpu_quotas__node_type__name",
            "gpu_quotas__quota_milli",
            "gpu_quotas__limit_milli",
        )
    }
    totals = _device_totals()
    lent = lent_now().by_project
    found: dict[int, list[Holding]] = defaultdict(list)
    for name, node_type in types.items():
        for project_id in ids:
            holding = _holding(
                node_type,
                quotas.get((project_id, name)),
                usage.get((project_id, name)),
                totals.get(name, 0),
            )
            if holding is not None:
                found[project_id].append(replace(holding, lent=lent[project_id, name]))
    return found


def _device_totals() -> dict[str, int]:
    rows = Device.objects.values_list("node__node_type__name").annotate(count=Count("uuid"))
    return {name: count * DEVICE_MILLI for name, count in rows if name}


def _holding(
    node_type: NodeType,
    quota: tuple[int, int | None] | None,
    usage: ProjectUsage | None,
    total: int,
) -> Holding | None:
    promised, limit = quota or (0, None)
    allocated = usage.allocated if usage else 0
    requested = usage.requested if usage else 0
    if not (promised or allocated or requested):
        return None
    return Holding(
        title=node_type.title,
        name=node_type.name,
        quota=promised,
        limit=limit,
        fair_share=usage.fair_share if usage else 0,
        requested=requested,
        allocated=allocated,
        total=total,
    )


def managed_project_ids(user: User) -> frozenset[int] | None:
    """Projects that the person manages; None stands for all of them (an admin)."""
    if user.is_superuser:
        return None
    return frozenset(access.managed_projects(user).values_list("pk", flat=True))


# ---------------------------------------------------------------- workloads


@dataclass(frozen=True, slots=True)
class Counts:
    num_running: int
    num_waiting: int


def workload_counts(workloads: QuerySet[Workload]) -> Counts:
    """How many hold something, and how many wait."""
    sums = workloads.aggregate(
        running=Count("pk", filter=PHASE_GROUPS["active"]),
        waiting=Count("pk", filter=PHASE_GROUPS["waiting"]),
    )
    return Counts(sums["running"], sums["waiting"])


def examined_at(workload: Workload) -> datetime | None:
    """When the planner last looked at it: a reason that still holds is not written again."""
    moments = [workload.reason_at]
    if workload.is_waiting:
        moments += PlannerStatus.objects.values_list("finished_at", flat=True)
    return max((moment for moment in moments if moment is not None), default=None)


def longest_wait() -> Wait | None:
    """The open wait that began first, whoever's it is."""
    return (
        Wait.objects.filter(ended_at__isnull=True)
        .select_related("workload__project", "workload__claimant__project")
        .order_by("started_at", "pk")
        .first()
    )


@dataclass(frozen=True, slots=True)
class Waited:
    """Time in the queue.

    Attributes:
        since: When the present wait began; None when it does not wait.
        total_s: Seconds of all waits together.
    """

    since: datetime | None
    total_s: float
    num_waits: int


Span = tuple[datetime, datetime | None]


def waited(workload_ids: Iterable[uuid.UUID], now: datetime) -> dict[uuid.UUID, Waited]:
    """How long each has waited; one query."""
    spans: dict[uuid.UUID, list[Span]] = defaultdict(list)
    rows = Wait.objects.filter(workload__in=list(workload_ids)).values_list(
        "workload", "started_at", "ended_at"
    )
    for workload, started_at, ended_at in rows:
        spans[workload].append((started_at, ended_at))
    return {workload: summed(found, now) for workload, found in spans.items()}


def summed(spans: Sequence[Span], now: datetime) -> Waited:
    """Add up waits; at most one of them is open."""
    still_open = [started_at for started_at, ended_at in spans if ended_at is None]
    return Waited(
        since=still_open[-1] if still_open else None,
        total_s=sum(formats.seconds_since(begin, end or now) for begin, end in spans),
        num_waits=len(spans),
    )


NOTHING_WAITED = Waited(None, 0.0, 0)

PHASE_GROUPS: dict[str, Q] = {
    "waiting": WAITS,
    "active": Q(phase__in=ACTIVE_PHASES) & ~WAITS,
}
