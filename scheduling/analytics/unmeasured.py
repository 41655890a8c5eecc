"""Who holds a GPU and cannot be judged: a signal is missing, so it does not count as idle."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from projects.access import visible_projects
from projects.models import User
from scheduling.idle_now import MAX_SILENCE
from scheduling.models import Allocation, Workload

WINDOW = timedelta(minutes=30)
"""Who has held a GPU for less is not judged to be without signals."""


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A holding without the signals that idleness needs.

    Attributes:
        workload: None where the viewer may only see that there is one.
        lacks_gpu, lacks_cpu: Which signal is missing; both where no sample came at all.
    """

    workload: Workload | None
    node: str
    gpu_milli: int
    lacks_gpu: bool
    lacks_cpu: bool


_UNMEASURED = """
SELECT held.id, newest.gpu_util_percent IS NULL, newest.cpu_cores IS NULL
FROM scheduling_allocation held
LEFT JOIN telemetry_subject subject
    ON subject.kind = 'workload' AND subject.name = held.workload_id::text
LEFT JOIN LATERAL (
    SELECT gpu_util_percent, cpu_cores FROM telemetry_workload_minute minute
    WHERE minute.subject_id = subject.id AND at >= %(recent)s ORDER BY at DESC LIMIT 1
) newest ON true
WHERE held.ended_at IS NULL AND held.gpu_milli > 0 AND NOT held.is_lent
    AND held.started_at <= %(begun)s
    AND (newest.gpu_util_percent IS NULL OR newest.cpu_cores IS NULL)
"""


def now(viewer: User, at: datetime) -> list[Unmeasured]:
    """Everybody who has held a GPU for the window and is not measured; three queries."""
    with connection.cursor() as cursor:
        cursor.execute(_UNMEASURED, {"recent": at - MAX_SILENCE, "begun": at - WINDOW})
        lacks = {row[0]: (row[1], row[2]) for row in cursor.fetchall()}
    named = set(visible_projects(viewer).values_list("pk", flat=True))
    rows = Allocation.objects.filter(pk__in=lacks).select_related(
        "workload__project", "workload__owner", "node"
    )
    return [
        Unmeasured(
            row.workload if row.project_id in named else None,
            row.node.name,
            row.gpu_milli,
            *lacks[row.pk],
        )
        for row in rows.order_by("started_at", "pk")
    ]
