"""Steps that every service shares: an event recorded, the planner woken, open pages told."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db import connection

from projects.models import User
from scheduling.live import NODES_TOPIC, QUEUE_TOPIC, announce, project_topic, workload_topic
from scheduling.models import Attempt, Event, Phase, Wait, Workload

WAKE_CHANNEL = "allot_wake"
ARRIVED = "submitted"
"""Why the planner is woken by an arrival, which alone it may answer without a full cycle."""


def wake_planner(cause: str) -> None:
    """NOTIFY is delivered at commit, so the planner never looks before the change is visible."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [WAKE_CHANNEL, cause])


def topics_of(workload: Workload) -> tuple[str, ...]:
    """What shows a workload: its own page, its project's, the queue."""
    return workload_topic(workload.pk), project_topic(workload.project.name), QUEUE_TOPIC


def announce_workload(workload: Workload) -> None:
    """Tell pages of a workload, its project, the queue and the nodes that something changed."""
    announce(*topics_of(workload), NODES_TOPIC)


def record_event(
    workload: Workload,
    code: str,
    *,
    at: datetime,
    attempt: Attempt | None = None,
    actor: User | None = None,
    details: Mapping[str, object] | None = None,
) -> Event:
    return Event.objects.create(
        workload=workload,
        attempt=attempt,
        at=at,
        code=code,
        phase=workload.phase,
        actor=actor,
        details=dict(details or {}),
    )


def enter_phase(workload: Workload, phase: Phase, at: datetime) -> None:
    """Change the phase in memory and raise the generation; the caller saves."""
    if workload.phase != phase:
        workload.phase = phase
        workload.phase_changed_at = at
    workload.generation += 1


def open_wait(
    workload: Workload, cause: str, at: datetime, details: Mapping[str, object] | None = None
) -> None:
    """A wait begins. At most one is open per workload; the schema insists."""
    Wait.objects.create(
        workload=workload,
        started_at=at,
        cause=cause,
        claimant=workload.claimant,
        details=dict(details or {}),
    )


def close_wait(workload: Workload, at: datetime) -> None:
    Wait.objects.filter(workload=workload, ended_at__isnull=True).update(ended_at=at)
