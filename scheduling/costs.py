"""What workloads cost so far: what they held, at the prices in force at each moment."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from scheduling import formats
from scheduling.analytics import facts
from scheduling.models import ACTIVE_PHASES, Attempt, Workload
from telemetry.cost import CostNow, cost_per_hour
from telemetry.live import topic_for


def costs_so_far(workload_ids: Iterable[uuid.UUID], now: datetime) -> dict[uuid.UUID, Decimal]:
    """Cost of what each workload held until now; without any: absent.

    By the rules of analytics, so that a page and a report never differ: what lies on a node that is
    down is held by nobody.

    A lent GPU is charged to its borrower; the session that lends pays for the host memory that
    keeps what was swapped out.

    Cost: four queries.
    """
    return {workload: cost.amount for workload, cost in spent(workload_ids, now).items()}


@dataclass(frozen=True, slots=True)
class Spent:
    """What a workload has cost.

    Attributes:
        per_hour: The rate at which it grows now: of what it holds, without what it lends, with
            what it borrows.
    """

    amount: Decimal
    per_hour: Decimal


NOTHING = Spent(Decimal(0), Decimal(0))


def spent(workload_ids: Iterable[uuid.UUID], now: datetime) -> dict[uuid.UUID, Spent]:
    """As `costs_so_far`, with the rates."""
    held = facts.held_by(facts.Holders(workloads=list(workload_ids)), None, now)
    # What has just begun costs nothing yet, but has a cost.
    amounts = dict.fromkeys(held.requests, 0.0)
    rates = amounts.copy()
    for piece in held.charged:
        amounts[piece.workload] += piece.cost
        if piece.end >= now.timestamp():
            rates[piece.workload] += piece.per_hour
    return {
        uuid.UUID(workload): Spent(_money(amount), _money(rates[workload]))
        for workload, amount in amounts.items()
    }


def _money(amount: float) -> Decimal:
    """Far finer than what is shown, without the noise of a float's last digits."""
    return Decimal(amount).quantize(Decimal("1e-9"))


def cost_now(workload: Workload, cost: Spent, now: datetime) -> CostNow:
    """What a workload has cost, for its page: while it holds something the amount grows there."""
    grows = workload.phase in ACTIVE_PHASES and cost.per_hour > 0
    return CostNow(
        text=formats.money(cost.amount),
        amount=cost.amount,
        per_hour=cost.per_hour if grows else Decimal(0),
        at=now,
        topic=topic_for(f"workload:{workload.pk}") if grows else "",
    )


def rate_now(workload: Workload, cost: Spent) -> Decimal | None:
    """Cost per hour of what it holds; while that is nothing, of what it asks for."""
    return cost.per_hour if workload.phase in ACTIVE_PHASES else rate_per_hour(workload)


def rate_per_hour(workload: Workload) -> Decimal | None:
    """Cost per hour of what it asks for, by its node type; None while that is unknown."""
    if workload.node_type is None:
        return None
    milli = workload.gpu_total_milli
    if workload.gpu_memory_mib and workload.node_type.gpu_memory_mib:
        part = -(-1000 * workload.gpu_memory_mib // workload.node_type.gpu_memory_mib)
        milli = workload.num_devices * part
    count = _num_replicas(workload)
    return count * cost_per_hour(milli, workload.cpu_milli, workload.memory_mib, workload.node_type)


def _num_replicas(workload: Workload) -> int:
    """How many have a place; the least that it needs, where none has."""
    if workload.max_replicas == 1:
        return 1
    return Attempt.objects.of(workload).open().count() or workload.min_replicas
