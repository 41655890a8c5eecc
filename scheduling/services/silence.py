"""Nodes that report no longer: they are lost, and in the end what ran there is given up."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from scheduling.core import lifecycle
from scheduling.live import NODES_TOPIC, announce
from scheduling.models import (
    ACTIVE_PHASES,
    Attempt,
    AttemptGoal,
    AttemptPhase,
    Node,
    NodeState,
    Phase,
    Workload,
)
from scheduling.services import uptime
from scheduling.services.attempt_ends import follow_end
from scheduling.services.claims import GIVEN_UP_AFTER_S, LOST_AFTER_S
from scheduling.services.events import wake_planner
from scheduling.services.replicas import num_alive, open_attempts_of
from scheduling.services.transitions import advance_by, lock


def watch_nodes() -> int:
    """Mark silent zones' nodes lost, and give up trainings that no lease can keep alive any more.

    Returns:
        How many workloads changed state.
    """
    now = timezone.now()
    silent = Node.objects.filter(last_report_at__lt=now - timedelta(seconds=LOST_AFTER_S))
    newly_silent = list(silent.exclude(state=NodeState.LOST))
    if newly_silent:
        with transaction.atomic():
            silent.filter(pk__in=[node.pk for node in newly_silent]).update(state=NodeState.LOST)
            uptime.lost(newly_silent)
        wake_planner("node_lost")
        announce(NODES_TOPIC)
    changed = 0
    lost = Attempt.objects.open().filter(node__state=NodeState.LOST)
    rows = Workload.objects.filter(phase__in=ACTIVE_PHASES, attempts__in=lost).distinct()
    for pk in list(rows.values_list("pk", flat=True)):
        changed += _lose(pk, now)
    return changed


@transaction.atomic
def _lose(pk: uuid.UUID, now: datetime) -> int:
    workload = lock(pk)
    lost = [
        attempt
        for attempt in open_attempts_of(workload)
        if attempt.node.state == NodeState.LOST and attempt.node.last_report_at is not None
    ]
    if workload.phase not in ACTIVE_PHASES or not lost:
        return 0
    if workload.phase != Phase.LOST and num_alive(workload) < workload.min_replicas:
        node = lost[0].node
        silence = _silence_of(node)
        workload.reason = {
            "code": "node_lost",
            "message": f"{node.name} no longer reports",
            "details": silence,
            "before": workload.reason,
        }
        advance_by(lost[0], workload, lifecycle.NodeLost(), code="node_lost", details=silence)
        return 1
    given_up = [attempt for attempt in lost if _is_given_up(workload, attempt, now)]
    for attempt in given_up:
        attempt.phase = AttemptPhase.ENDED
        attempt.ended_at = now
        attempt.exit_cause = "node_lost"
        attempt.save()
        follow_end(workload, attempt, now)
    return int(bool(given_up))


def _silence_of(node: Node) -> dict[str, object]:
    last_report_at = node.last_report_at
    return {
        "node": node.name,
        "last_report_at": last_report_at.isoformat() if last_report_at else None,
    }


def _is_given_up(workload: Workload, attempt: Attempt, now: datetime) -> bool:
    """Whether a training cannot be alive there any more; a session is left alone until stopped."""
    if workload.is_session and attempt.goal != AttemptGoal.STOP:
        return False
    last_report_at = attempt.node.last_report_at
    return last_report_at is None or last_report_at <= now - timedelta(seconds=GIVEN_UP_AFTER_S)
