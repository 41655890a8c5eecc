"""What workloads cost so far:

each allocation's hours times the prices of the node type on which it lay.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from projects.models import NodeType
from scheduling import formats
from scheduling.models import ACTIVE_PHASES, Allocation, Workload
from telemetry.cost import CostNow, Interval, cost_per_hour, running_cost
from telemetry.live import topic_for


def costs_so_far(workload_ids: Iterable[uuid.UUID], now: datetime) -> dict[uuid.UUID, Decimal]:
    """Cost of each workload's allocations until now; two queries. Without any: absent."""
    prices = {item.name: item for item in NodeType.objects.all()}
    held: dict[uuid.UUID, list[Interval]] = defaultdict(list)
    rows = Allocation.objects.filter(
        workload__in=list(workload_ids), node__node_type__isnull=False
    ).values_list(
        "workload",
        "node__node_type__name",
        "started_at",
        "ended_at",
        "gpu_milli",
        "cpu_milli",
        "memory_mib",
    )
    for workload, node_type, started_at, ended_at, gpu_milli, cpu_milli, memory_mib in rows:
        held[workload].append(
            Interval(str(node_type), started_at, ended_at, gpu_milli, cpu_milli, memory_mib)
        )
    return {workload: running_cost(items, prices, now) for workload, items in held.items()}


def cost_now(workload: Workload, now: datetime) -> CostNow:
    """What a workload has cost, for its page: while it holds something the amount grows there."""
    amount = costs_so_far([workload.pk], now).get(workload.pk, Decimal(0))
    rate = rate_per_hour(workload) if workload.phase in ACTIVE_PHASES else None
    return CostNow(
        text=formats.money(amount),
        amount=amount,
        per_hour=rate or Decimal(0),
        at=now,
        topic=topic_for(f"workload:{workload.pk}") if rate else "",
    )


def rate_per_hour(workload: Workload) -> Decimal | None:
    """Cost per hour where it lies, or would lie, by its node type; None while that is unknown."""
    if workload.node_type is None:
        return None
    milli = workload.gpu_total_milli
    if workload.gpu_memory_mib and workload.node_type.gpu_memory_mib:
        part = -(-1000 * workload.gpu_memory_mib // workload.node_type.gpu_memory_mib)
        milli = workload.num_devices * part
    return cost_per_hour(milli, workload.cpu_milli, workload.memory_mib, workload.node_type)
