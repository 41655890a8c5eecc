"""Rows → `core.Snapshot`, in a fixed number of queries, and the policy that goes with it.

Departments have no quota of their own: in the core's tree each carries the sum of its projects'
    quotas and weights, so
that the division between departments equals what their projects were promised together.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Max
from django.utils import timezone

from projects.models import GpuQuota, NodeType, Project
from scheduling.core import types as core
from scheduling.models import (
    Attempt,
    AttemptGoal,
    AttemptPhase,
    Checkpoint,
    DeviceHold,
    Node,
    NodeState,
    Workload,
)

SESSION_PRIORITY = 100
"""Sessions have no priority of their own: inside quota they come before every training of their
project (at most 90), which gives way to them."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot and what is needed to apply a plan to the rows that it was made from.

    Attributes:
        rows: Of the unfinished workloads, as they were read; a plan that touches one whose
            generation has changed since is stale.
    """

    snapshot: core.Snapshot
    policy: core.Policy
    rows: Mapping[core.WorkloadId, Workload]


def gpu_key(node_type: str | None) -> core.ResourceKey:
    """The resource that the GPUs of a node type count towards."""
    return core.ResourceKey(f"gpu:{node_type}" if node_type else "gpu")


def take_snapshot() -> Taken:
    """Read everything that the planner must know. Call it inside the cycle's advisory lock."""
    workloads = list(_unfinished())
    return Taken(
        snapshot=core.Snapshot(
            nodes=tuple(_nodes()),
            projects=tuple(_projects()),
            workloads=tuple(_workloads(workloads)),
        ),
        policy=_policy(),
        rows={workload_id(row): row for row in workloads},
    )


def workload_id(row: Workload) -> core.WorkloadId:
    return core.WorkloadId(str(row.pk))


def replica_id(row: Workload) -> core.ReplicaId:
    """A workload has one replica until gangs arrive in the forms."""
    return core.ReplicaId(f"{row.pk}/0")


def _policy() -> core.Policy:
    runtimes = NodeType.objects.filter(min_runtime_s__gt=0).values_list("name", "min_runtime_s")
    return core.Policy(
        min_runtime_s={core.NodeTypeName(name): float(seconds) for name, seconds in runtimes}
    )


def _nodes() -> Iterable[core.Node]:
    for node in Node.objects.select_related("node_type", "zone").prefetch_related("devices"):
        devices = node.devices.all()
        name = node.node_type.name if node.node_type else None
        yield core.Node(
            name=core.NodeName(node.name),
            num_devices=len(devices),
            gpu_memory_mib=min((device.memory_mib for device in devices), default=0),
            cpu_milli=node.cpu_milli,
            memory_mib=node.memory_mib,
            gpu_key=gpu_key(name),
            node_type=core.NodeTypeName(name) if name else None,
            labels=node.labels,
            is_ready=node.state == NodeState.READY
            and not node.zone.is_stopping
            and all(device.is_healthy for device in devices),
        )


def _projects() -> Iterable[core.Project]:
    projects = list(Project.objects.select_related("department").order_by("created_at", "pk"))
    shares: dict[int, dict[core.ResourceKey, core.Share]] = defaultdict(dict)
    for quota in GpuQuota.objects.select_related("node_type"):
        shares[quota.project_id][gpu_key(quota.node_type.name)] = core.Share(
            quota=quota.quota_milli, limit=quota.limit_milli, weight=quota.weight
        )
    departments: dict[core.ProjectId, list[core.Project]] = defaultdict(list)
    for order, row in enumerate(projects):
        own = shares[row.pk]
        own[core.CPU] = core.Share(row.cpu_quota_milli, row.cpu_limit_milli)
        own[core.MEMORY] = core.Share(row.memory_quota_mib, row.memory_limit_mib)
        parent = core.ProjectId(f"department:{row.department.name}") if row.department else None
        project = core.Project(core.ProjectId(row.name), parent, row.priority, order, own)
        if parent is not None:
            departments[parent].append(project)
        yield project
    for name, children in departments.items():
        yield core.Project(
            id=name,
            parent=None,
            priority=max(child.priority for child in children),
            created=min(child.created for child in children),
            shares=_summed(children),
        )


def _summed(children: Iterable[core.Project]) -> dict[core.ResourceKey, core.Share]:
    """Add up its projects' quotas and weights; a department has no ceiling of its own."""
    totals: dict[core.ResourceKey, core.Share] = {}
    for child in children:
        for key, share in child.shares.items():
            before = totals.get(key, core.Share(quota=0, limit=None, weight=0))
            unlimited = before.quota is None or share.quota is None
            totals[key] = core.Share(
                quota=None if unlimited else (before.quota or 0) + (share.quota or 0),
                limit=None,
                weight=before.weight + share.weight,
            )
    return totals


def _unfinished() -> Iterable[Workload]:
    return (
        Workload.objects.unfinished()
        .select_related("project", "current__allocation__node", "hold__node")
        .prefetch_related("current__allocation__devices__device")
    )


def _workloads(rows: Sequence[Workload]) -> Iterable[core.Workload]:
    saved = _last_saved(rows)
    now = timezone.now()
    for row in rows:
        workload = core_workload(row, (_replica(row),))
        yield replace(workload, eviction_cost=_eviction_cost(row, saved, now))


def _last_saved(rows: Sequence[Workload]) -> Mapping[uuid.UUID, datetime]:
    """When each running attempt last saved."""
    ids = [row.current_id for row in rows if row.is_preemptible and row.current_id]
    found = (
        Checkpoint.objects.filter(attempt__in=ids).values_list("attempt").annotate(Max("saved_at"))
    )
    return dict(found)


def _eviction_cost(
    row: Workload, saved: Mapping[uuid.UUID, datetime], now: datetime
) -> core.EvictionCost | None:
    """What stopping a running training now would waste, from what was seen of this attempt.

    It may still save when asked, so the lost progress is an upper bound; the time to save is not
    known before it has.
    """
    attempt = row.current
    if not row.is_preemptible or attempt is None or attempt.phase == AttemptPhase.ENDED:
        return None
    if attempt.started_at is None:
        return None
    ready_at = attempt.ready_at or attempt.started_at
    since = max(saved.get(attempt.pk, attempt.started_at), attempt.started_at)
    return core.EvictionCost(
        save_s=0.0,
        restore_s=max((ready_at - attempt.placed_at).total_seconds(), 0.0),
        lost_progress_s=max((now - since).total_seconds(), 0.0),
    )


def core_workload(row: Workload, replicas: tuple[core.Replica, ...]) -> core.Workload:
    """A row as the core sees it; also for a row that is not saved yet (a form's preview)."""
    return core.Workload(
        id=workload_id(row),
        project=core.ProjectId(row.project.name),
        kind=core.Kind(row.kind),
        priority=SESSION_PRIORITY if row.is_session else row.priority,
        is_preemptible=row.is_preemptible,
        submitted=row.submitted_at.timestamp(),
        gpu=core.GpuRequest(row.num_devices, row.gpu_milli, row.gpu_memory_mib),
        cpu_milli=row.cpu_milli,
        memory_mib=row.memory_mib,
        min_replicas=1,
        replicas=replicas,
        node_types=tuple(core.NodeTypeName(name) for name in row.node_types) or None,
        not_before_s=_seconds(row.not_before),
        failures=row.num_failures,
        last_error=str(row.reason.get("last_error", "")),
    )


def _replica(row: Workload) -> core.Replica:
    attempt = row.current
    if attempt is None or attempt.phase == AttemptPhase.ENDED:
        return core.Replica(replica_id(row), core.ReplicaState.PENDING, held=held_by(row))
    releasing = attempt.goal in (AttemptGoal.EVICT, AttemptGoal.STOP)
    return core.Replica(
        id=replica_id(row),
        state=core.ReplicaState.RELEASING if releasing else core.ReplicaState.RUNNING,
        placement=_placement(attempt),
        held=held_by(row) if releasing else None,
        started_s=_seconds(attempt.started_at or attempt.placed_at) or 0.0,
    )


def _placement(attempt: Attempt) -> core.Placement:
    devices = sorted(attempt.allocation.devices.all(), key=lambda part: part.device.index)
    return core.Placement(
        node=core.NodeName(attempt.allocation.node.name),
        devices=tuple(part.device.index for part in devices),
        milli_per_device=devices[0].gpu_milli if devices else 0,
    )


def held_by(row: Workload) -> core.Placement | None:
    """The capacity kept for a workload while others leave it."""
    try:
        hold = row.hold
    except DeviceHold.DoesNotExist:
        return None
    return core.Placement(
        node=core.NodeName(hold.node.name),
        devices=tuple(hold.device_indices),
        milli_per_device=hold.milli_per_device,
    )


def _seconds(at: datetime | None) -> float | None:
    return at.timestamp() if at is not None else None
