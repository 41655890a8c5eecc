"""What is on loan now, for bars, squares and counts of what is free."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from scheduling.models import DeviceAllocation, Loan

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lent:
    """What is on loan now, in thousandths of a GPU: idle sessions hold it, trainings use it.

    Attributes:
        by_project: By the lender's project and the name of the node type.
        parts: Which attempt lends its part of which device.
        beside: What trainings use beside that.
    """

    by_device: Counter[str] = field(default_factory=Counter)
    by_node: Counter[int] = field(default_factory=Counter)
    by_project: Counter[tuple[int, str]] = field(default_factory=Counter)
    parts: set[tuple[uuid.UUID, str]] = field(default_factory=set)
    beside: list[Beside] = field(default_factory=list)

    @property
    def beside_by_device(self) -> Counter[str]:
        return _sum((one.device, one.milli) for one in self.beside)

    @property
    def beside_by_node(self) -> Counter[int]:
        return _sum((one.node, one.milli) for one in self.beside)


@dataclass(frozen=True, slots=True)
class Beside:
    """Room of a device that nobody holds and a borrower uses beside what it has on loan."""

    device: str
    node: int
    project: int
    workload: uuid.UUID
    milli: int


def _sum(amounts: Iterable[tuple[T, int]]) -> Counter[T]:
    found: Counter[T] = Counter()
    for key, milli in amounts:
        found[key] += milli
    return found


def lent_now() -> Lent:
    """From the moment that a device was free for the borrower until it is back; three queries."""
    lent = Lent()
    loans = Loan.objects.open().filter(lent_at__isnull=False)
    for attempt, device, node, node_type, project, milli in loans.values_list(
        "lender",
        "device",
        "device__node",
        "device__node__node_type__name",
        "lender__workload__project",
        "gpu_milli",
    ):
        lent.parts.add((attempt, device))
        lent.by_device[device] += milli
        lent.by_node[node] += milli
        lent.by_project[project, node_type or ""] += milli
    if lent.parts:
        lent.beside.extend(_beside())
    return lent


def _beside() -> Iterator[Beside]:
    """A borrower runs while all loans that were decided together last (as `facts.LENT` charges)."""
    parts = DeviceAllocation.objects.filter(is_open=True, is_lent=True).values_list(
        "allocation__attempt",
        "device",
        "device__node",
        "allocation__project",
        "allocation__workload",
        "gpu_milli",
    )
    rows = list(parts)
    newest: dict[uuid.UUID, list[Loan]] = {}
    loans = Loan.objects.filter(borrower__in=[row[0] for row in rows]).order_by("started_at")
    for loan in loans:
        decided = newest.setdefault(loan.borrower_id, [])
        if decided and decided[0].started_at != loan.started_at:
            decided.clear()
        decided.append(loan)
    for attempt, device, node, project, workload, milli in rows:
        decided = newest.get(attempt, [])
        if any(loan.lent_at is None or loan.ended_at is not None for loan in decided):
            continue
        room = milli - sum(loan.gpu_milli for loan in decided if loan.device_id == device)
        if decided and room > 0:
            yield Beside(device, node, project, workload, room)
