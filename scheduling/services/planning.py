"""Record a plan: one transaction that the schema, the generations and the locks keep honest.

What cannot be recorded any more (a workload changed since the snapshot) makes the whole plan stale;
the caller plans anew. Each decision leaves a row that says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from projects.models import Project
from scheduling.core import lifecycle
from scheduling.core.decisions import Decision, Evict, Hold, Move, Plan, ProjectNumbers, Start
from scheduling.core.types import Placement, ProjectId, ReplicaId, ResourceKey, WorkloadId
from scheduling.live import announce
from scheduling.models import (
    Allocation,
    Attempt,
    AttemptGoal,
    Checkpoint,
    Device,
    DeviceAllocation,
    DeviceHold,
    Node,
    PlannerStatus,
    ProjectUsage,
    Workload,
)
from scheduling.outbox import owe
from scheduling.services.events import close_wait, topics_of
from scheduling.services.submission import reason_json
from scheduling.services.transitions import advance
from scheduling.snapshot import Taken, held_by


class StalePlanError(Exception):
    """A workload that the plan touches has changed since the snapshot."""


@transaction.atomic
def apply_plan(taken: Taken, plan: Plan) -> None:
    """Record all decisions of a plan, or none.

    Raises:
        StalePlanError: plan again from a new snapshot.
    """
    news = [item for item in plan.decisions if not _is_known(item, plan, taken)]
    rows = _lock_touched(taken, news)
    nodes = {node.name: node for node in Node.objects.select_related("zone", "node_type")}
    now = timezone.now()
    waiting: list[Workload] = []
    for decision in news:
        row = rows[decision.workload]
        match decision:
            case Start():
                _start(row, decision, nodes, now)
            case Evict() | Move():
                _evict(row, decision, nodes, taken, now)
            case Hold():
                _hold(row, decision, plan, taken, nodes, now)
                waiting.append(row)
    _save_waiting(waiting)
    announce(*{topic for row in waiting for topic in topics_of(row)})
    _record_numbers(plan.numbers)
    PlannerStatus.objects.update_or_create(
        pk=PlannerStatus.ONLY, defaults={"finished_at": now, "failed_at": None, "error": ""}
    )


def _is_known(decision: Decision, plan: Plan, taken: Taken) -> bool:
    """Whether the row says already all that a hold says: most of a long queue, most of the time."""
    if not isinstance(decision, Hold):
        return False
    row = taken.rows[decision.workload]
    held = next(iter(decision.held.values()), None)
    place = plan.queue_positions.get(decision.workload, (None, None))
    return (
        place == (row.queue_position, row.queue_length)
        and held == held_by(row)
        and row.reason == reason_json(decision.reason)
    )


def _lock_touched(taken: Taken, decisions: Sequence[Decision]) -> dict[WorkloadId, Workload]:
    """Rows of these decisions, locked in the order of their ids.

    What only waits is as the snapshot read it, which the generation proves; what starts or stops
    is read whole.

    Raises:
        StalePlanError: one was changed, or is gone.
    """
    ids = {decision.workload for decision in decisions}
    locked = Workload.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk")
    found = {str(pk): generation for pk, generation in locked.values_list("pk", "generation")}
    stale = [key for key in ids if found.get(key) != taken.rows[key].generation]
    if stale:
        raise StalePlanError(", ".join(sorted(stale)))
    acting = {item.workload for item in decisions if not isinstance(item, Hold)}
    whole = Workload.objects.select_related(
        "project", "owner", "current__node__zone", "claimant__project", "hold__node"
    )
    return {
        **{key: taken.rows[key] for key in ids - acting},
        **{WorkloadId(str(row.pk)): row for row in whole.filter(pk__in=acting)},
    }


def _save_waiting(rows: Sequence[Workload]) -> None:
    """Write why these wait. One prepared statement: a long queue changes as a whole."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE scheduling_workload SET reason = %s::jsonb, reason_at = %s,"
            " queue_position = %s, queue_length = %s WHERE id = %s",
            [
                (
                    json.dumps(row.reason),
                    row.reason_at,
                    row.queue_position,
                    row.queue_length,
                    row.pk,
                )
                for row in rows
            ],
        )


def _start(row: Workload, decision: Start, nodes: Mapping[str, Node], now: datetime) -> None:
    placement = _only(decision.placements)
    node = nodes[placement.node]
    resumed_from = Checkpoint.objects.filter(workload=row, is_kept=True).first()
    attempt = Attempt.objects.create(
        workload=row,
        number=row.attempts.count() + 1,
        node=node,
        placed_at=now,
        resumed_from=resumed_from,
    )
    _allocate(row, attempt, placement, now, is_borrowed=decision.is_borrowed)
    close_wait(row, now)
    DeviceHold.objects.filter(workload=row).delete()
    row.current = attempt
    row.node = node
    row.node_type = node.node_type
    row.is_borrowing = decision.is_borrowed
    row.claimant = None
    row.queue_position = row.queue_length = None
    row.reason = reason_json(decision.reason)
    row.reason_at = now
    code = "resumed" if attempt.number > 1 else "started"
    details = {
        **decision.reason.details,
        "code": decision.reason.code,
        "node": node.name,
        "step": resumed_from.step if resumed_from else None,
    }
    advance(row, lifecycle.Placed(), code=code, at=now, details=details)
    owe(node.zone, "wake", workload=row, key=f"{attempt.pk}:run")


def _allocate(
    row: Workload, attempt: Attempt, placement: Placement, now: datetime, *, is_borrowed: bool
) -> None:
    allocation = Allocation.objects.create(
        attempt=attempt,
        workload=row,
        project=row.project,
        node=attempt.node,
        gpu_milli=placement.milli_per_device * len(placement.devices),
        cpu_milli=row.cpu_milli,
        memory_mib=row.memory_mib,
        is_borrowed=is_borrowed,
        started_at=now,
    )
    devices = Device.objects.filter(node=attempt.node, index__in=placement.devices)
    for device in devices.order_by("uuid"):
        Device.objects.filter(pk=device.pk).update(
            allocated_milli=F("allocated_milli") + placement.milli_per_device
        )
        DeviceAllocation.objects.create(
            allocation=allocation,
            device=device,
            gpu_milli=placement.milli_per_device,
            # Asked for by memory, it gets just that: the thousandths are rounded up.
            memory_mib=row.gpu_memory_mib or device.memory_mib * placement.milli_per_device // 1000,
        )


def _evict(
    row: Workload,
    decision: Evict | Move,
    nodes: Mapping[str, Node],
    taken: Taken,
    now: datetime,
) -> None:
    """Ask for a checkpoint and the stop; back in the queue it is once its process has ended."""
    attempt = row.current
    if attempt is None:
        raise StalePlanError(str(row.pk))
    claimant = taken.rows.get(decision.claimant) if decision.claimant else None
    last = Checkpoint.objects.filter(workload=row, is_kept=True).first()
    details = {
        **decision.reason.details,
        "claimant_id": str(claimant.pk) if claimant else None,
        "claimant_project": str(claimant.project) if claimant else None,
        "checkpoint_age_s": (now - last.saved_at).total_seconds() if last else None,
        "checkpoint_step": last.step if last else None,
    }
    row.claimant = claimant
    row.reason = {**reason_json(decision.reason), "details": details}
    row.reason_at = now
    row.num_preemptions += 1
    attempt.goal = AttemptGoal.EVICT
    gains = f": its place goes to project {claimant.project.name}" if claimant else ""
    attempt.goal_detail = f"{decision.reason.code}{gains}"
    attempt.goal_at = now
    attempt.save(update_fields=["goal", "goal_detail", "goal_at"])
    advance(row, lifecycle.EvictAsked(), code=decision.reason.code, at=now, details=details)
    if isinstance(decision, Move):
        _keep(row, _only(decision.placements), nodes, taken, now)
    owe(attempt.node.zone, "wake", workload=row, key=f"{attempt.pk}:evict")


def _hold(
    row: Workload,
    decision: Hold,
    plan: Plan,
    taken: Taken,
    nodes: Mapping[str, Node],
    now: datetime,
) -> None:
    """Say why it waits and what is kept for it; the caller saves it."""
    if decision.held:
        _keep(row, _only(decision.held), nodes, taken, now)
    elif held_by(row) is not None:
        DeviceHold.objects.filter(workload=row).delete()
    row.reason = reason_json(decision.reason)
    row.reason_at = now
    row.queue_position, row.queue_length = plan.queue_positions.get(decision.workload, (None, None))


def _keep(
    row: Workload,
    placement: Placement,
    nodes: Mapping[str, Node],
    taken: Taken,
    now: datetime,
) -> None:
    """Keep capacity for a claimant; a hold that is already there keeps its deadline."""
    values = {
        "node": nodes[placement.node],
        "device_indices": list(placement.devices),
        "milli_per_device": placement.milli_per_device,
    }
    deadline = now + timedelta(seconds=taken.policy.hold_deadline_s)
    DeviceHold.objects.update_or_create(
        workload=row,
        defaults=values,
        create_defaults={**values, "created_at": now, "expires_at": deadline},
    )


def _only(placements: Mapping[ReplicaId, Placement]) -> Placement:
    """The one replica's placement (forms submit one replica)."""
    (placement,) = placements.values()
    return placement


def _record_numbers(
    numbers: Mapping[ProjectId, Mapping[ResourceKey, ProjectNumbers]],
) -> None:
    """The one table of usage that page and API read; written only where something changed."""
    projects = {project.name: project.pk for project in Project.objects.all()}
    known = {(row.project_id, row.resource): row for row in ProjectUsage.objects.all()}
    changed: list[ProjectUsage] = []
    for name, by_resource in numbers.items():
        project_id = projects.get(name)
        if project_id is None:
            continue
        for resource, values in by_resource.items():
            fresh = _usage(project_id, resource, values)
            old = known.pop((project_id, resource), None)
            if old is None or not _same(old, fresh):
                changed.append(fresh)
    ProjectUsage.objects.bulk_create(
        changed,
        update_conflicts=True,
        unique_fields=["project", "resource"],
        update_fields=list(_USAGE_FIELDS),
    )
    if known:
        ProjectUsage.objects.filter(pk__in=[row.pk for row in known.values()]).delete()


_USAGE_FIELDS = ("quota", "limit", "fair_share", "requested", "allocated", "non_preemptible")


def _usage(project_id: int, resource: str, values: ProjectNumbers) -> ProjectUsage:
    return ProjectUsage(
        project_id=project_id,
        resource=resource,
        **{name: getattr(values, name) for name in _USAGE_FIELDS},
    )


def _same(one: ProjectUsage, other: ProjectUsage) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _USAGE_FIELDS)
