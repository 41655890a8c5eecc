"""A made cluster as rows of a database, so that what is read and recorded can be measured, too."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from django.db import connection

from projects.models import Department, GpuQuota, NodeType, Project, User
from scheduling.core import types as core
from scheduling.models import (
    Allocation,
    Attempt,
    AttemptPhase,
    Device,
    DeviceAllocation,
    Node,
    Phase,
    Wait,
    Workload,
    Zone,
)

BATCH = 2000
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def store(snapshot: core.Snapshot) -> None:
    """Write nodes, projects and workloads as they would be if they had come about in production."""
    _store_nodes(snapshot)
    _store_projects(snapshot)
    _store_workloads(snapshot)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def pk_of(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, name)


def _store_nodes(snapshot: core.Snapshot) -> None:
    zone = Zone.objects.create(name="bench", token_hash="0" * 64)
    types = {
        name: NodeType.objects.create(
            name=name, title=name, label_value=name, gpu_model=name, gpu_memory_mib=mib
        )
        for name, mib in {n.gpu_key[4:]: n.gpu_memory_mib for n in snapshot.nodes}.items()
    }
    nodes = Node.objects.bulk_create(
        [
            Node(
                name=node.name,
                zone=zone,
                node_type=types[node.gpu_key[4:]],
                cpu_milli=node.cpu_milli,
                memory_mib=node.memory_mib,
                is_simulated=True,
            )
            for node in snapshot.nodes
        ],
        batch_size=BATCH,
    )
    held = _held_milli(snapshot.workloads)
    Device.objects.bulk_create(
        [
            Device(
                uuid=f"GPU-{node.name}-{i}",
                node=row,
                index=i,
                model=node.gpu_key,
                memory_mib=node.gpu_memory_mib,
                allocated_milli=held.get((node.name, i), 0),
            )
            for node, row in zip(snapshot.nodes, nodes, strict=True)
            for i in range(node.num_devices)
        ],
        batch_size=BATCH,
    )


def _placements(workloads: Iterable[core.Workload]) -> Iterator[tuple[str, int, core.Placement]]:
    """Workload, number of the replica, place."""
    for workload in workloads:
        for i, replica in enumerate(workload.replicas):
            if replica.placement is not None:
                yield workload.id, i, replica.placement


def _held_milli(workloads: Iterable[core.Workload]) -> dict[tuple[str, int], int]:
    held: dict[tuple[str, int], int] = {}
    for _, _, place in _placements(workloads):
        for device in place.devices:
            key = (str(place.node), device)
            held[key] = held.get(key, 0) + place.milli_per_device
    return held


def _store_projects(snapshot: core.Snapshot) -> None:
    parents = sorted({p.parent for p in snapshot.projects if p.parent is not None})
    departments = {name: Department.objects.create(name=name, title=name) for name in parents}
    types = {row.name: row for row in NodeType.objects.all()}
    quotas: list[GpuQuota] = []
    for project in sorted(snapshot.projects, key=lambda p: p.created):
        if project.id in departments:
            continue
        row = Project.objects.create(
            name=project.id,
            title=project.id,
            department=departments.get(project.parent) if project.parent else None,
            priority=project.priority,
        )
        quotas += [
            GpuQuota(
                project=row,
                node_type=types[key[4:]],
                quota_milli=share.quota or 0,
                limit_milli=share.limit,
                weight=share.weight,
            )
            for key, share in project.shares.items()
            if key.startswith("gpu:")
        ]
    GpuQuota.objects.bulk_create(quotas)


def _store_workloads(snapshot: core.Snapshot) -> None:
    owner = User.objects.create(username="bench", is_superuser=True)
    projects = {row.name: row for row in Project.objects.all()}
    types = [row.name for row in NodeType.objects.order_by("name")]
    Workload.objects.bulk_create(
        [row_of(workload, projects, owner, types) for workload in snapshot.workloads],
        batch_size=BATCH,
    )
    Wait.objects.bulk_create(
        [
            Wait(workload_id=pk_of(workload.id), started_at=BEGAN, cause="submitted")
            for workload in snapshot.workloads
            if workload.replicas[0].placement is None
        ],
        batch_size=BATCH,
    )
    _store_attempts(snapshot, projects)


def row_of(
    workload: core.Workload, projects: dict[str, Project], owner: User, types: list[str]
) -> Workload:
    gpu, is_running = workload.gpu, workload.replicas[0].placement is not None
    at = BEGAN + timedelta(seconds=workload.submitted)
    return Workload(
        id=pk_of(workload.id),
        name=workload.id,
        project=projects[workload.project],
        owner=owner,
        kind=str(workload.kind),
        num_devices=gpu.num_devices,
        gpu_milli=gpu.milli_per_device,
        gpu_memory_mib=gpu.memory_mib_per_device,
        cpu_milli=workload.cpu_milli,
        memory_mib=workload.memory_mib,
        node_types=list(workload.node_types or types),
        priority=min(workload.priority, 90),
        is_preemptible=workload.is_preemptible,
        min_replicas=workload.min_replicas,
        max_replicas=len(workload.replicas),
        phase=Phase.RUNNING if is_running else Phase.QUEUED,
        phase_changed_at=at,
        submitted_at=at,
    )


def _store_attempts(snapshot: core.Snapshot, projects: dict[str, Project]) -> None:
    nodes = {row.name: row.pk for row in Node.objects.all()}
    workloads = {workload.id: workload for workload in snapshot.workloads}
    attempts: list[Attempt] = []
    allocations: list[Allocation] = []
    parts: list[DeviceAllocation] = []
    for name, replica, place in _placements(snapshot.workloads):
        workload = workloads[core.WorkloadId(name)]
        attempt = Attempt(
            id=pk_of(f"{name}/{replica}"),
            workload_id=pk_of(name),
            replica=replica,
            number=1,
            num_replicas=len(workload.replicas),
            node_id=nodes[place.node],
            phase=AttemptPhase.RUNNING,
            is_ready=True,
            placed_at=BEGAN,
            started_at=BEGAN,
            ready_at=BEGAN,
        )
        attempts.append(attempt)
        allocation = Allocation(
            attempt=attempt,
            workload_id=attempt.workload_id,
            project=projects[workload.project],
            node_id=attempt.node_id,
            gpu_milli=place.milli_per_device * len(place.devices),
            cpu_milli=workload.cpu_milli,
            memory_mib=workload.memory_mib,
            started_at=BEGAN,
        )
        allocations.append(allocation)
        parts += [
            DeviceAllocation(
                allocation=allocation,
                device_id=f"GPU-{place.node}-{device}",
                gpu_milli=place.milli_per_device,
                memory_mib=1,
            )
            for device in place.devices
        ]
    Attempt.objects.bulk_create(attempts, batch_size=BATCH)
    Allocation.objects.bulk_create(allocations, batch_size=BATCH)
    DeviceAllocation.objects.bulk_create(parts, batch_size=BATCH)
    leaders = [attempt for attempt in attempts if attempt.replica == 0]
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE scheduling_workload SET current_id = %s, node_id = %s WHERE id = %s",
            [(one.pk, one.node_id, one.workload_id) for one in leaders],
        )
