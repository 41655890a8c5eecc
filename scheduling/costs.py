"""What workloads cost so far: what they held, at the prices in force at each moment."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal

from projects.models import PriceChange
from scheduling import formats
from scheduling.models import ACTIVE_PHASES, Allocation, Workload
from telemetry.cost import CostNow, Interval, cost_per_hour, running_cost
from telemetry.live import topic_for


def costs_so_far(workload_ids: Iterable[uuid.UUID], now: datetime) -> dict[uuid.UUID, Decimal]:
    """Cost of each workload's allocations until now; two queries. Without any: absent."""
    changes = PriceChange.objects.order_by("valid_from", "pk")
    history: dict[int, list[PriceChange]] = defaultdict(list)
    for change in changes:
        history[change.node_type_id].append(change)
    prices = {str(change.pk): change for rows in history.values() for change in rows}
    held: dict[uuid.UUID, list[Interval]] = defaultdict(list)
    rows = Allocation.objects.filter(
        workload__in=list(workload_ids), node__node_type__isnull=False
    ).values_list(
        "workload",
        "node__node_type",
        "started_at",
        "ended_at",
        "gpu_milli",
        "cpu_milli",
        "memory_mib",
    )
    for workload, node_type, started_at, ended_at, *amounts in rows:
        end = now if ended_at is None else min(ended_at, now)
        held[workload]  # what has just begun costs nothing yet, but has a cost
        for start, stop, price in _stretches(history[node_type], started_at, end):
            held[workload].append(Interval(str(price.pk), start, stop, *amounts))
    return {workload: running_cost(items, prices, now) for workload, items in held.items()}


def _stretches(
    changes: list[PriceChange], start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, PriceChange]]:
    """The prices in force from `start` to `end`, each with its own part of that time."""
    for number, price in enumerate(changes):
        until = changes[number + 1].valid_from if number + 1 < len(changes) else end
        since, stop = max(start, price.valid_from), min(end, until)
        if since < stop:
            yield since, stop, price


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
