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

from django.db.models import Max, Prefetch
from django.utils import timezone

from projects.models import GpuQuota, NodeType, Project
from scheduling.core import types as core
from scheduling.models import (
    LEADER,
    Attempt,
    Checkpoint,
    DeviceAllocation,
    DeviceHold,
    Node,
    NodeState,
    Phase,
    Workload,
)

LEAVING_PHASES = (Phase.CHECKPOINTING, Phase.STOPPING)

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


def replica_id(row: Workload, index: int) -> core.ReplicaId:
    return core.ReplicaId(f"{row.pk}/{index}")


def index_of(replica: core.ReplicaId) -> int:
    """Which replica of its workload it is; 0 is the leader."""
    return int(replica.rpartition("/")[2])


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
    parts = DeviceAllocation.objects.select_related("device").order_by("device__index")
    attempts = (
        Attempt.objects.open()
        .select_related("allocation__node")
        .prefetch_related(Prefetch("allocation__devices", parts))
        .order_by("replica")
    )
    return (
        Workload.objects.unfinished()
        .select_related("project")
        .prefetch_related(
            Prefetch("attempts", attempts),
            Prefetch("holds", DeviceHold.objects.select_related("node")),
        )
    )


def _workloads(rows: Sequence[Workload]) -> Iterable[core.Workload]:
    saved = _last_saved(rows)
    now = timezone.now()
    for row in rows:
        workload = core_workload(row, tuple(_replicas(row)))
        yield replace(
            workload,
            incomplete_since_s=_seconds(row.incomplete_since),
            eviction_cost=_eviction_cost(row, saved, now),
        )


def _last_saved(rows: Sequence[Workload]) -> Mapping[uuid.UUID, datetime]:
    """When each running leader last saved."""
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
    attempt = next(iter(row.attempts.all()), None)  # the open ones, the leader first
    if not row.is_preemptible or attempt is None or attempt.started_at is None:
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
        min_replicas=row.min_replicas,
        replicas=replicas,
        node_types=tuple(core.NodeTypeName(name) for name in row.node_types) or None,
        not_before_s=_seconds(row.not_before),
        failures=row.num_failures,
        last_error=str(row.reason.get("last_error", "")),
    )


def pending_replicas(row: Workload, count: int) -> tuple[core.Replica, ...]:
    """A workload's first replicas, none of which has a place."""
    return tuple(
        core.Replica(replica_id(row, index), core.ReplicaState.PENDING) for index in range(count)
    )


def _replicas(row: Workload) -> Iterable[core.Replica]:
    """Its replicas as `_unfinished` read them.

    While a workload leaves as a whole, a replica that has left does not start again. Once one has
    succeeded, no more are started than the minimum lacks (`core.replicas`).
    """
    attempts = {attempt.replica: attempt for attempt in row.attempts.all()}
    held = holds_of(row)
    succeeded = set(row.succeeded_replicas)
    is_leaving = row.phase in LEAVING_PHASES or (
        bool(attempts) and all(attempt.is_leaving for attempt in attempts.values())
    )
    num_missing = row.min_replicas - len(attempts) - len(succeeded - attempts.keys())
    for index in range(row.max_replicas):
        name = replica_id(row, index)
        attempt = attempts.get(index)
        if attempt is not None:
            yield _placed(name, attempt, held.get(index), attempts)
        elif index in succeeded:
            yield core.Replica(name, core.ReplicaState.SUCCEEDED)
        elif is_leaving:
            yield core.Replica(name, core.ReplicaState.RELEASING, held=held.get(index))
        elif not succeeded or num_missing > 0:
            num_missing -= 1
            yield core.Replica(name, core.ReplicaState.PENDING, held=held.get(index))


def _placed(
    name: core.ReplicaId,
    attempt: Attempt,
    held: core.Placement | None,
    others: Mapping[int, Attempt],
) -> core.Replica:
    # Of those placed together the last in number leaves first, the leader last of all.
    starts = others.values() if attempt.replica == LEADER else (attempt,)
    state = core.ReplicaState.RELEASING if attempt.is_leaving else core.ReplicaState.RUNNING
    return core.Replica(
        id=name,
        state=state,
        placement=_placement(attempt),
        held=held if attempt.is_leaving else None,
        started_s=min(each.placed_at.timestamp() for each in starts)
        if len(others) > 1
        else (attempt.started_at or attempt.placed_at).timestamp(),
    )


def _placement(attempt: Attempt) -> core.Placement:
    devices = list(attempt.allocation.devices.all())
    return core.Placement(
        node=core.NodeName(attempt.allocation.node.name),
        devices=tuple(part.device.index for part in devices),
        milli_per_device=devices[0].gpu_milli if devices else 0,
    )


def holds_of(row: Workload) -> Mapping[int, core.Placement]:
    """The capacity kept for a workload's replicas while others leave it."""
    return {
        hold.replica: core.Placement(
            node=core.NodeName(hold.node.name),
            devices=tuple(hold.device_indices),
            milli_per_device=hold.milli_per_device,
        )
        for hold in row.holds.all()
    }


def _seconds(at: datetime | None) -> float | None:
    return at.timestamp() if at is not None else None
