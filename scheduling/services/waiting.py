"""What rows say of workloads that wait, and what is kept for them meanwhile.

A long queue says the same from one plan to the next, most of the time: what a row says already is
not written again, and what is new of all of them is written at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from django.db import connection

from scheduling.core.decisions import Decision, Hold, Plan
from scheduling.core.types import Placement, WorkloadId
from scheduling.models import WAITING_PHASES, DeviceHold, Node, Phase, Workload
from scheduling.replicas import LEAVING_PHASES, all_parked, by_index, holds_of
from scheduling.services.estimates import eta_to_tell
from scheduling.services.submission import reason_json
from scheduling.snapshot import Taken
from scheduling.unfinished import children

Told = tuple[dict[str, object], int | None, int | None, dict[str, object]]
"""Reason, position and length of the queue, estimate of the start."""


def _told(row: Workload) -> Told:
    return row.reason, row.queue_position, row.queue_length, row.eta


def _to_tell(row: Workload, decision: Hold, plan: Plan, taken: Taken) -> Told:
    """What a hold says of a workload. One that runs and could grow keeps the reason why it runs,
    one that is leaving the reason why it leaves. One that is parked waits like those in the queue.
    """
    why = reason_json(decision.reason, taken.titles)
    attempts = children(taken.rows[decision.workload], "attempts")
    if row.phase in WAITING_PHASES or (row.phase == Phase.RUNNING and all_parked(attempts)):
        place = plan.queue_positions.get(decision.workload, (None, None))
        return why, *place, eta_to_tell(row.eta, decision.eta) if plan.has_estimates else row.eta
    if row.phase in LEAVING_PHASES:
        return _told(row)
    return {**row.reason, "growth": why}, None, None, {}


def is_known(decision: Decision, plan: Plan, taken: Taken) -> bool:
    """Whether the row says already all that a hold says: most of a long queue, most of the time."""
    if not isinstance(decision, Hold):
        return False
    row = taken.rows[decision.workload]
    is_same = _told(row) == _to_tell(row, decision, plan, taken)
    return is_same and by_index(decision.held) == kept_for_pending(taken, decision.workload)


def kept_for_pending(taken: Taken, workload: WorkloadId) -> dict[int, Placement]:
    """What is kept for replicas without a place. What is kept for one that moves has its own end:
    its start there."""
    row = taken.rows[workload]
    moving = {attempt.replica for attempt in children(row, "attempts")}
    return {replica: held for replica, held in holds_of(row).items() if replica not in moving}


def save(rows: Sequence[Workload]) -> None:
    """Write why these wait, in one statement: a long queue changes as a whole."""
    if not rows:
        return
    told = [
        {
            "id": row.pk,
            "reason": row.reason,
            "at": row.reason_at,
            "position": row.queue_position,
            "length": row.queue_length,
            "eta": row.eta,
        }
        for row in rows
    ]
    with connection.cursor() as cursor:
        # One document: an array of them would have each quote of each escaped one by one.
        cursor.execute(
            "UPDATE scheduling_workload AS row SET reason = told.reason, reason_at = told.at,"
            " queue_position = told.position, queue_length = told.length, eta = told.eta"
            " FROM json_to_recordset(%s) AS told"
            " (id uuid, reason jsonb, at timestamptz, position int, length int, eta jsonb)"
            " WHERE row.id = told.id",
            [msgspec.json.encode(told).decode()],
        )


def hold(
    row: Workload,
    decision: Hold,
    plan: Plan,
    taken: Taken,
    nodes: Mapping[str, Node],
    now: datetime,
) -> None:
    """Say why it waits and what is kept for it; the caller saves it."""
    held = by_index(decision.held)
    if gone := kept_for_pending(taken, decision.workload).keys() - held.keys():
        DeviceHold.objects.filter(workload=row, replica__in=gone).delete()
    keep(row, held, nodes, taken, now)
    row.reason, row.queue_position, row.queue_length, row.eta = _to_tell(row, decision, plan, taken)
    row.reason_at = now


def keep(
    row: Workload,
    held: Mapping[int, Placement],
    nodes: Mapping[str, Node],
    taken: Taken,
    now: datetime,
) -> None:
    """Keep this capacity for a claimant's replicas; a hold that is already there keeps its
    deadline.
    """
    before = holds_of(row)
    deadline = now + timedelta(seconds=taken.policy.hold_deadline_s)
    for replica, placement in held.items():
        if before.get(replica) == placement:
            continue
        values = {
            "node": nodes[placement.node],
            "device_indices": list(placement.devices),
            "milli_per_device": placement.milli_per_device,
        }
        DeviceHold.objects.update_or_create(
            workload=row,
            replica=replica,
            defaults=values,
            create_defaults={**values, "created_at": now, "expires_at": deadline},
        )
