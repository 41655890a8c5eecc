"""What nodes offer and what is free of it now, per node type: for forms, pages and the API alike.

Counts only; whether a given workload starts now is the planner's answer (`services.preview`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from django.db.models import Sum

from projects.models import GpuQuota, NodeType, Project, WorkloadKind
from scheduling.models import Allocation, Device, Node, NodeState, ProjectUsage
from scheduling.texts.mechanisms import describe_fraction


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """One node: what it has, and what of it nobody holds.

    Attributes:
        fraction_text: How it holds a fraction, a sentence; empty without a GPU.
        free_gpu_milli: Per healthy device, in order of index.
    """

    name: str
    is_ready: bool
    is_simulated: bool
    fraction_text: str
    num_devices: int
    gpu_memory_mib: int
    cpu_milli: int
    memory_mib: int
    free_cpu_milli: int
    free_memory_mib: int
    free_gpu_milli: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Supply:
    """A node type and its nodes.

    Attributes:
        nodes: All registered ones; what is free counts on ready ones only.
    """

    node_type: NodeType
    nodes: tuple[NodeCapacity, ...] = field(default=())

    @property
    def ready(self) -> tuple[NodeCapacity, ...]:
        return tuple(node for node in self.nodes if node.is_ready)

    @property
    def is_simulated(self) -> bool:
        return any(node.is_simulated for node in self.nodes)

    @property
    def total_gpu_milli(self) -> int:
        return 1000 * sum(node.num_devices for node in self.nodes)

    @property
    def free_gpu_milli(self) -> int:
        return sum(sum(node.free_gpu_milli) for node in self.ready)

    @property
    def most_free_devices(self) -> int:
        """The largest number of wholly free GPUs on one node."""
        return max((node.free_gpu_milli.count(1000) for node in self.ready), default=0)

    @property
    def most_free_fraction_milli(self) -> int:
        """The largest free part of one GPU."""
        return max((part for node in self.ready for part in node.free_gpu_milli), default=0)

    @property
    def free_cpu_milli(self) -> int:
        return sum(node.free_cpu_milli for node in self.ready)

    @property
    def total_cpu_milli(self) -> int:
        return sum(node.cpu_milli for node in self.nodes)

    @property
    def free_memory_mib(self) -> int:
        return sum(node.free_memory_mib for node in self.ready)

    @property
    def fraction_texts(self) -> tuple[str, ...]:
        """How its nodes hold a fraction, in sentences."""
        return tuple(sorted({node.fraction_text for node in self.nodes if node.fraction_text}))


def supplies(node_types: Iterable[NodeType] | None = None) -> list[Supply]:
    """The given node types (all by default) with their nodes, in the given order; four queries."""
    wanted = list(NodeType.objects.all() if node_types is None else node_types)
    held = {
        row["node"]: (row["cpu"], row["memory"])
        for row in Allocation.objects.filter(ended_at__isnull=True)
        .values("node")
        .annotate(cpu=Sum("cpu_milli"), memory=Sum("memory_mib"))
    }
    by_type: dict[int | None, list[NodeCapacity]] = defaultdict(list)
    devices = _devices(wanted)
    for node in Node.objects.filter(node_type__in=wanted).order_by("name"):
        by_type[node.node_type_id].append(
            _capacity(node, devices[node.pk], held.get(node.pk, (0, 0)))
        )
    return [Supply(node_type, tuple(by_type[node_type.pk])) for node_type in wanted]


class _Gpu(NamedTuple):
    """A device's numbers; thousands of them are read, so no model."""

    node_id: int
    memory_mib: int
    allocated_milli: int
    is_healthy: bool


def _devices(node_types: Sequence[NodeType]) -> dict[int, list[_Gpu]]:
    """Per node, its devices in order of index."""
    found: dict[int, list[_Gpu]] = defaultdict(list)
    rows = Device.objects.filter(node__node_type__in=node_types).order_by("node", "index")
    for row in rows.values_list("node_id", "memory_mib", "allocated_milli", "is_healthy"):
        found[row[0]].append(_Gpu(*row))
    return found


def _capacity(node: Node, devices: Sequence[_Gpu], held: tuple[int, int]) -> NodeCapacity:
    held_cpu_milli, held_memory_mib = held
    return NodeCapacity(
        name=node.name,
        is_ready=node.state == NodeState.READY,
        is_simulated=node.is_simulated,
        fraction_text=describe_fraction(
            node.fraction_mechanism, node.fraction_note, shares_time=node.shares_gpu_time
        ),
        num_devices=len(devices),
        gpu_memory_mib=min((device.memory_mib for device in devices), default=0),
        cpu_milli=node.cpu_milli,
        memory_mib=node.memory_mib,
        free_cpu_milli=max(node.cpu_milli - held_cpu_milli, 0),
        free_memory_mib=max(node.memory_mib - held_memory_mib, 0),
        free_gpu_milli=tuple(1000 - d.allocated_milli for d in devices if d.is_healthy),
    )


@dataclass(frozen=True, slots=True)
class QuotaLeft:
    """A project's GPUs of one node type, in thousandths.

    Attributes:
        used_milli: What counts against the kind asked for: sessions share the quota with work that
            is never preempted, trainings with everything.
        left_milli: Negative when the project borrows.
    """

    node_type: NodeType
    quota_milli: int
    limit_milli: int | None
    used_milli: int

    @property
    def left_milli(self) -> int:
        return self.quota_milli - self.used_milli

    @property
    def borrowed_milli(self) -> int:
        return max(-self.left_milli, 0)


def quotas_left(project: Project, kind: str | None = None) -> list[QuotaLeft]:
    """What is left of the project's quota per node type that it has quota of; two queries.

    Args:
        project: Whose quota.
        kind: For a session only non-preemptible work counts as used; otherwise all does.
    """
    held = {
        usage.resource: (
            usage.non_preemptible if kind == WorkloadKind.INTERACTIVE else usage.allocated
        )
        for usage in ProjectUsage.objects.filter(project=project)
    }
    quotas = GpuQuota.objects.filter(project=project).select_related("node_type")
    return [
        QuotaLeft(
            node_type=quota.node_type,
            quota_milli=quota.quota_milli,
            limit_milli=quota.limit_milli,
            used_milli=held.get(f"gpu:{quota.node_type.name}", 0),
        )
        for quota in quotas.order_by("node_type__rank", "node_type__name")
    ]
