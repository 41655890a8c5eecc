"""Record a plan: one transaction that the schema, the generations and the locks keep honest.

What cannot be recorded any more (a workload changed since the snapshot) makes the whole plan stale;
the caller plans anew. Each decision leaves a row that says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime

from django.db import transaction
from django.db.models import F, Prefetch
from django.utils import timezone

from scheduling.core import lifecycle
from scheduling.core.decisions import (
    Decision,
    Evict,
    Hold,
    Lend,
    Move,
    Plan,
    Reason,
    Recall,
    Start,
)
from scheduling.core.reasons.lending import lender_woke
from scheduling.core.types import Placement, ReplicaId, WorkloadId
from scheduling.live import announce
from scheduling.models import (
    LEADER,
    WAITING_PHASES,
    Allocation,
    Attempt,
    Checkpoint,
    Device,
    DeviceAllocation,
    DeviceHold,
    Loan,
    Node,
    PlannerStatus,
    Workload,
)
from scheduling.outbox import owe
from scheduling.replicas import by_index, index_of
from scheduling.services import waiting
from scheduling.services.events import announce_workload, close_wait, record_event, topics_of
from scheduling.services.loans import (
    LenderChangedError,
    move_body,
    open_loans,
    record_not_lent,
    settle_body,
)
from scheduling.services.nodes import close_failing
from scheduling.services.replicas import (
    ask_to_leave,
    grown,
    new_attempts,
    note_completeness,
    open_attempts_of,
    shrunk,
)
from scheduling.services.submission import reason_json
from scheduling.services.transitions import advance
from scheduling.services.usage import record_usage
from scheduling.snapshot import Taken

# Ends of a loan by which its lender is in use again, as its agent says them.
_WAKES = ("cell", "cuda_call", "button", "activity")


class StalePlanError(Exception):
    """A workload that the plan touches has changed since the snapshot."""


@transaction.atomic
def apply_plan(taken: Taken, plan: Plan, *, is_partial: bool = False) -> None:
    """Record all decisions of a plan, or none.

    Args:
        taken: What it was made from.
        plan: The decisions.
        is_partial: It says nothing of workloads, projects and sessions that it does not name.

    Raises:
        StalePlanError: plan again from a new snapshot.
    """
    news = [item for item in plan.decisions if not waiting.is_known(item, plan, taken)]
    rows = _lock_touched(taken, news)
    nodes = _nodes_of(plan, is_partial=is_partial)
    now = timezone.now()
    told: list[Workload] = []
    for decision in news:
        row = rows[decision.workload]
        match decision:
            case Start() if decision.is_settled:
                _settle(row, decision, taken, now)
            case Start():
                _start(row, decision, taken, nodes, now)
            case Lend():
                _lend(row, decision, taken, nodes, now)
            case Recall():
                _recall(row, decision, now)
            case Evict() | Move():
                _evict(row, decision, nodes, taken, now)
            case Hold():
                waiting.hold(row, decision, plan, taken, nodes, now)
                told.append(row)
    waiting.save(told)
    for cordon in plan.cordons:
        close_failing(nodes[cordon.node], reason_json(cordon.reason, taken.titles), now)
    announce(*{topic for row in told for topic in topics_of(row)})
    if not is_partial:
        record_not_lent(plan, taken)
    record_usage(plan.numbers, is_partial=is_partial)
    PlannerStatus.objects.update_or_create(
        pk=PlannerStatus.ONLY, defaults={"finished_at": now, "failed_at": None, "error": ""}
    )


def _nodes_of(plan: Plan, *, is_partial: bool) -> dict[str, Node]:
    """Nodes by name; for a few decisions only those that they name."""
    nodes = Node.objects.select_related("zone", "node_type")
    if is_partial:
        named = {
            placement.node
            for decision in plan.decisions
            for places in (getattr(decision, "placements", {}), getattr(decision, "held", {}))
            for placement in places.values()
        }
        nodes = nodes.filter(name__in=named)
    return {node.name: node for node in nodes}


def _lock_touched(taken: Taken, decisions: Sequence[Decision]) -> dict[WorkloadId, Workload]:
    """Rows of these decisions, locked in the order of their ids.

    What only waits is as the snapshot read it, which the generation proves, and a copy of it, since
    the next snapshot may rest on the same row; what starts or stops is read whole.

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
        "project", "owner", "current__node__zone", "claimant__project"
    ).prefetch_related(Prefetch("holds", DeviceHold.objects.select_related("node")))
    return {
        **{key: copy(taken.rows[key]) for key in ids - acting},
        **{WorkloadId(str(row.pk)): row for row in whole.filter(pk__in=acting)},
    }


def _lend(
    row: Workload, decision: Lend, taken: Taken, nodes: Mapping[str, Node], now: datetime
) -> None:
    """Let a training run on devices of idle sessions: from the queue, or on from memory."""
    placements = by_index(decision.placements)
    if row.phase in WAITING_PHASES:
        start = Start(decision.workload, decision.placements, decision.reason, is_borrowed=False)
        _start(row, start, taken, nodes, now, is_lent=True)
        attempts = {attempt.replica: attempt for attempt in open_attempts_of(row)}
    else:
        attempts = {attempt.replica: attempt for attempt in open_attempts_of(row)}
        if not placements.keys() <= attempts.keys():
            raise StalePlanError(str(row.pk))
        for replica, placement in placements.items():
            attempt = attempts[replica]
            move_body(attempt, placement, row, is_lent=True)
            attempt.allocation.save()
            owe(attempt.node.zone, "wake", workload=row, key=f"{attempt.pk}:lend:{now}")
        details = {**decision.reason.details, "node": attempts[min(placements)].node.name}
        _note_in_phase(row, attempts[min(placements)], decision.reason, "lent", details, now)
    try:
        open_loans(attempts, decision, taken, now)
    except LenderChangedError as error:
        raise StalePlanError(str(error)) from error


def _settle(row: Workload, decision: Start, taken: Taken, now: datetime) -> None:
    """What a training had on loan becomes its own, without a restart."""
    placements = by_index(decision.placements)
    attempts = {attempt.replica: attempt for attempt in open_attempts_of(row)}
    if not placements.keys() <= attempts.keys():
        raise StalePlanError(str(row.pk))
    for replica in placements:
        settle_body(attempts[replica], row, decision, now)
        zone = attempts[replica].node.zone
        owe(zone, "wake", workload=row, key=f"{attempts[replica].pk}:settle")
    row.is_borrowing = decision.is_borrowed
    details = {**decision.reason.details, "node": attempts[min(placements)].node.name}
    _note_in_phase(row, attempts[min(placements)], decision.reason, "settled", details, now)


def _note_in_phase(
    row: Workload,
    attempt: Attempt,
    reason: Reason,
    code: str,
    details: Mapping[str, object],
    now: datetime,
) -> None:
    """Something was decided about a workload whose phase stays as it is."""
    row.reason, row.reason_at = reason_json(reason), now
    row.queue_position = row.queue_length = None
    row.eta = {}
    row.generation += 1
    row.save()
    record_event(row, code, at=now, attempt=attempt, details=details)
    announce_workload(row)


def _recall(row: Workload, decision: Recall, now: datetime) -> None:
    """End what a training borrows: it saves, stops, and returns to the queue at its place."""
    named = _named(decision.replicas)
    leaving = [attempt for attempt in open_attempts_of(row) if attempt.replica in named]
    if not leaving:
        raise StalePlanError(str(row.pk))
    reason = _as_its_agent_said(decision.reason, leaving)
    ask_to_leave(row, leaving, reason.code, now)
    row.claimant = None
    row.reason, row.reason_at = reason_json(reason), now
    details = dict(reason.details)
    advance(row, lifecycle.EvictAsked(), code="loan_recalled", at=now, details=details)


def _as_its_agent_said(reason: Reason, leaving: Sequence[Attempt]) -> Reason:
    """A lender that was used again before the borrower had begun is not gone."""
    if reason.code != "lender_gone":
        return reason
    newest = Loan.objects.filter(borrower__in=leaving).select_related("lender")
    last = newest.order_by("-started_at").first()
    # As its agent says it: refused, or woken on its way out.
    if last is None or not (last.error == "not_idle" or last.ended_by in _WAKES):
        return reason
    return lender_woke(str(last.lender.workload_id), reason.details)


def _start(
    row: Workload,
    decision: Start,
    taken: Taken,
    nodes: Mapping[str, Node],
    now: datetime,
    *,
    is_lent: bool = False,
) -> None:
    """Give replicas their places: all that a workload begins with, or more of one that runs."""
    is_growth = row.phase not in WAITING_PHASES
    resumed_from = Checkpoint.objects.filter(workload=row, is_kept=True).first()
    placements = by_index(decision.placements)
    attempts = new_attempts(row, {i: nodes[p.node] for i, p in placements.items()}, now)
    for attempt in attempts:
        attempt.resumed_from = resumed_from
        attempt.save(force_insert=True)
        placement = placements[attempt.replica]
        _allocate(row, attempt, placement, now, is_borrowed=decision.is_borrowed, is_lent=is_lent)
        owe(attempt.node.zone, "wake", workload=row, key=f"{attempt.pk}:run")
    held = by_index(decision.held)
    gone = waiting.kept_for_pending(taken, decision.workload).keys() | placements.keys()
    DeviceHold.objects.filter(workload=row, replica__in=gone - held.keys()).delete()
    waiting.keep(row, held, nodes, taken, now)
    first = attempts[0]
    if first.replica == LEADER or not is_growth:
        row.current = first
        row.node = first.node
        row.node_type = first.node.node_type
    row.queue_position = row.queue_length = None
    row.eta = {}
    details = {
        **decision.reason.details,
        "code": decision.reason.code,
        "node": first.node.name,
        "replicas": list(placements),
        "num_replicas": first.num_replicas,
        "max_replicas": row.max_replicas,
        "step": resumed_from.step if resumed_from else None,
    }
    if is_growth:
        row.is_borrowing = row.is_borrowing or decision.is_borrowed
        note_completeness(row, now)
        grown(row, first, now, details)
        return
    close_wait(row, now)
    row.is_borrowing = decision.is_borrowed
    row.claimant = None
    row.reason = reason_json(decision.reason, taken.titles)
    row.reason_at = now
    code = "resumed" if first.number > 1 else "started"
    advance(row, lifecycle.Placed(), code=code, at=now, details=details)


def _allocate(
    row: Workload,
    attempt: Attempt,
    placement: Placement,
    now: datetime,
    *,
    is_borrowed: bool,
    is_lent: bool,
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
        is_lent=is_lent,
        started_at=now,
    )
    devices = Device.objects.filter(node=attempt.node, index__in=placement.devices)
    for device in devices.order_by("uuid"):
        if not is_lent:
            Device.objects.filter(pk=device.pk).update(
                allocated_milli=F("allocated_milli") + placement.milli_per_device
            )
        DeviceAllocation.objects.create(
            allocation=allocation,
            device=device,
            gpu_milli=placement.milli_per_device,
            is_lent=is_lent,
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
    """Ask for a checkpoint and the stop: of all, which brings the workload back into the queue once
    its processes have ended, or of some replicas that it can do without.
    """
    open_attempts = {attempt.replica: attempt for attempt in open_attempts_of(row)}
    moved = by_index(decision.placements) if isinstance(decision, Move) else {}
    named = set(moved) if isinstance(decision, Move) else _named(decision.replicas)
    if moved and row.is_gang:
        # Its members work together: all stop, and what need not move starts where it was.
        stays = open_attempts.keys() - moved.keys()
        moved |= {i: place for i, place in _places_of(row, taken).items() if i in stays}
        named = set(moved)
    leaving = [attempt for i, attempt in open_attempts.items() if i in named]
    if not leaving:
        raise StalePlanError(str(row.pk))
    claimant = taken.rows.get(decision.claimant) if decision.claimant else None
    last = Checkpoint.objects.filter(workload=row, is_kept=True).first()
    told = reason_json(decision.reason, taken.titles)["details"]
    assert isinstance(told, dict)
    details = {
        **told,
        "claimant_id": str(claimant.pk) if claimant else None,
        "claimant_project": str(claimant.project) if claimant else None,
        "checkpoint_age_s": (now - last.saved_at).total_seconds() if last else None,
        "checkpoint_step": last.step if last else None,
    }
    gains = f": its place goes to project {claimant.project.name}" if claimant else ""
    ask_to_leave(row, leaving, f"{decision.reason.code}{gains}", now)
    if moved:
        waiting.keep(row, moved, nodes, taken, now)
    staying = [a for i, a in open_attempts.items() if i not in named and not a.is_leaving]
    if staying:
        details |= {"replicas": sorted(named), "num_replicas": len(staying)}
        shrunk(row, leaving[0], decision.reason.code, now, details)
        return
    row.claimant = claimant
    row.reason = {**reason_json(decision.reason, taken.titles), "details": details}
    row.reason_at = now
    row.num_preemptions += 1
    advance(row, lifecycle.EvictAsked(), code=decision.reason.code, at=now, details=details)


def _named(replicas: Sequence[ReplicaId]) -> set[int]:
    return {index_of(name) for name in replicas}


def _places_of(row: Workload, taken: Taken) -> dict[int, Placement]:
    """Where its replicas are now."""
    (seen,) = (w for w in taken.snapshot.workloads if w.id == str(row.pk))
    return {
        index_of(replica.id): replica.placement
        for replica in seen.replicas
        if replica.placement is not None
    }
