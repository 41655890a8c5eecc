"""Who holds a GPU now and does nothing with it: the list behind *Idle now*, with costs and names.

Who is idle is said by `scheduling.idle_now`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from projects.access import may_see_cost, visible_projects
from projects.models import User
from scheduling.analytics import facts
from scheduling.idle_now import found
from scheduling.models import Allocation, Workload


@dataclass(frozen=True, slots=True)
class Holding:
    """An idle workload with what it holds.

    Attributes:
        workload: None where the viewer may only see that there is one.
        gpu_milli: Of all its devices.
        idle_since: At the latest; `idle_now.LOOK_BACK` ago stands for longer.
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


def now(viewer: User, at: datetime) -> list[Holding]:
    """Everybody who is idle now, longest first; a fixed number of queries."""
    idle = found(at)
    named = set(visible_projects(viewer).values_list("pk", flat=True))
    rows = Allocation.objects.filter(pk__in=idle).select_related(
        "workload__project",
        "workload__owner",
        "workload__current__allocation__node__node_type",
        "node__node_type",
    )
    costs = _costs({row.workload_id: idle[row.pk][0] for row in rows}, at)
    holdings = [_holding(row, viewer, named, *idle[row.pk], costs[row.workload_id]) for row in rows]
    return sorted(holdings, key=lambda one: (one.idle_since, _order(one)))


def _costs(since: dict[uuid.UUID, datetime], at: datetime) -> dict[uuid.UUID, Decimal]:
    """What workloads cost since they idle, as all costs are reckoned: a borrower pays what is lent.

    Args:
        since: When each fell idle.
        at: Now.
    """
    costs = dict.fromkeys(since, 0.0)
    if since:
        held = facts.held_by(facts.Holders(workloads=list(since)), min(since.values()), at)
        for piece in (*held.held, *held.lent):
            workload = uuid.UUID(piece.workload)
            seconds = piece.end - max(piece.start, since[workload].timestamp())
            costs[workload] += piece.per_hour * max(seconds, 0.0) / 3600
    return {workload: Decimal(f"{cost:.9f}") for workload, cost in costs.items()}


def _order(holding: Holding) -> uuid.UUID:
    return holding.workload.pk if holding.workload else uuid.UUID(int=0)


def _holding(
    row: Allocation,
    viewer: User,
    named: set[int],
    since: datetime,
    memory_mib: float | None,
    cost: Decimal,
) -> Holding:
    is_named = row.project_id in named
    node_type = row.node.node_type
    may_see = viewer.is_superuser or may_see_cost(viewer, row.workload)
    return Holding(
        workload=row.workload if is_named else None,
        node=row.node.name,
        node_type=str(node_type) if node_type else "",
        gpu_milli=row.gpu_milli,
        idle_since=since,
        memory_mib=memory_mib,
        cost=cost if may_see else None,
    )
