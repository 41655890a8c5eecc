"""Who holds a GPU now and does nothing with it: the list behind *Idle now*.

Idle as everywhere: for the whole window GPU, CPU and network below their thresholds. Read from the
newest minutes; a missing signal is not idle, the network apart.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django.db import connection

from projects.access import may_see_cost, visible_projects
from projects.models import User
from scheduling.analytics.usage import (
    IDLE_CPU_OF_REQUEST,
    IDLE_GPU_PERCENT,
    IDLE_NETWORK_BYTES_PER_S,
)
from scheduling.models import Allocation, Workload
from telemetry.cost import cost_of, cost_per_hour

WINDOW = timedelta(minutes=30)
LOOK_BACK = timedelta(hours=24)
"""How long an idleness can be seen; a longer one shows as this."""
MAX_SILENCE = timedelta(minutes=5)
"""Without a newer minute than this nothing is known, so nobody is idle."""
ENOUGH_MINUTES = 24
"""Of the window's thirty so many must be measured: of the newest some are not rolled up yet."""


@dataclass(frozen=True, slots=True)
class Holding:
    """An idle workload with what it holds.

    Attributes:
        workload: None where the viewer may only see that there is one.
        gpu_milli: Of all its devices.
        idle_since: At the latest; `LOOK_BACK` ago stands for longer.
        memory_mib: GPU memory that it keeps meanwhile; None is no data.
        cost: Of the time since; None where the viewer may not see it.
    """

    workload: Workload | None
    node: str
    node_type: str
    gpu_milli: int
    idle_since: datetime
    memory_mib: float | None
    cost: Decimal | None

    def idle_s(self, now: datetime) -> float:
        """For how long it has been idle."""
        return (now - self.idle_since).total_seconds()


_IDLE = """
WITH asked AS (
    SELECT held.id AS allocation, held.started_at, subject.id AS subject, workload.cpu_milli
    FROM scheduling_allocation held
    JOIN scheduling_workload workload ON workload.id = held.workload_id
    JOIN telemetry_subject subject
        ON subject.kind = 'workload' AND subject.name = workload.id::text
    WHERE held.ended_at IS NULL AND held.gpu_milli > 0 AND NOT held.is_lent
)
SELECT allocation, GREATEST(started_at, %(oldest)s, (
        SELECT max(at) + interval '1 minute' FROM telemetry_workload_minute minute
        WHERE minute.subject_id = subject AND at >= %(oldest)s AND NOT COALESCE(
            gpu_util_percent < %(gpu)s AND cpu_cores < %(cpu)s * cpu_milli / 1000.0
            AND COALESCE(net_rx_bytes_per_s + net_tx_bytes_per_s, 0) < %(network)s, false)
    ), (
        SELECT min(at) FROM telemetry_workload_minute minute
        WHERE minute.subject_id = subject AND at >= %(oldest)s
    )), newest.gpu_memory_mib
FROM asked, LATERAL (
    SELECT at, gpu_memory_mib FROM telemetry_workload_minute minute
    WHERE minute.subject_id = subject AND at >= %(recent)s ORDER BY at DESC LIMIT 1
) newest
WHERE (SELECT count(*) FROM telemetry_workload_minute minute
    WHERE minute.subject_id = subject AND at >= %(window)s) >= %(enough)s
"""


def found(at: datetime) -> dict[int, tuple[datetime, float | None]]:
    """Allocations that are idle, with the time since when and the GPU memory held; one query."""
    with connection.cursor() as cursor:
        cursor.execute(
            _IDLE,
            {
                "oldest": at - LOOK_BACK,
                "recent": at - MAX_SILENCE,
                "window": at - WINDOW,
                "enough": ENOUGH_MINUTES,
                "gpu": IDLE_GPU_PERCENT,
                "cpu": IDLE_CPU_OF_REQUEST,
                "network": IDLE_NETWORK_BYTES_PER_S,
            },
        )
        return {row[0]: (row[1], row[2]) for row in cursor.fetchall() if at - row[1] >= WINDOW}


def now(viewer: User, at: datetime) -> list[Holding]:
    """Everybody who is idle now, longest first; a fixed number of queries."""
    idle = found(at)
    named = set(visible_projects(viewer).values_list("pk", flat=True))
    rows = Allocation.objects.filter(pk__in=idle).select_related(
        "workload__project", "workload__owner", "workload__current", "node__node_type"
    )
    holdings = [_holding(row, viewer, named, *idle[row.pk], at) for row in rows]
    return sorted(holdings, key=lambda one: (one.idle_since, _order(one)))


def _order(holding: Holding) -> uuid.UUID:
    return holding.workload.pk if holding.workload else uuid.UUID(int=0)


def _holding(
    row: Allocation,
    viewer: User,
    named: set[int],
    since: datetime,
    memory_mib: float | None,
    at: datetime,
) -> Holding:
    is_named = row.project_id in named
    node_type = row.node.node_type
    cost = None
    if node_type is not None and (viewer.is_superuser or may_see_cost(viewer, row.workload)):
        rate = cost_per_hour(row.gpu_milli, row.cpu_milli, row.memory_mib, node_type)
        cost = cost_of(since, at, rate)
    return Holding(
        workload=row.workload if is_named else None,
        node=row.node.name,
        node_type=str(node_type) if node_type else "",
        gpu_milli=row.gpu_milli,
        idle_since=since,
        memory_mib=memory_mib,
        cost=cost,
    )
