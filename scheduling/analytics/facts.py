"""What happened in a period, read from rows in a fixed number of queries.

An allocation counts while what it lies on was ready, so that what is allocated never exceeds what
there was: its devices one by one for GPUs, its node for cores and memory.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from django.db import connection
from django.db.models import Q

from projects.models import PriceChange, QuotaChange
from scheduling.models import CapacityInterval

SILENT_AFTER_S = 15.0
"""A node whose last report is older than this is not taken to be up since then."""


@dataclass(frozen=True, slots=True)
class Price:
    """Prices in force, per hour of a GPU, a core and a GiB."""

    gpu: float
    cpu: float
    memory: float


FREE = Price(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Groups:
    """What a piece of work belongs to; keys as `UsageVector.key`."""

    project: int
    user: str
    kind: str
    template: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Resources from one moment to another, at one price. Times are Unix seconds.

    Attributes:
        workload: Its id; empty for capacity.
        node_type: Its id as text; empty for a node of no type.
    """

    start: float
    end: float
    node: str
    node_type: str
    price: Price
    workload: str = ""
    groups: Groups | None = None
    gpu: float = 0.0
    cpu: float = 0.0
    memory_gib: float = 0.0
    is_device: bool = False

    @property
    def per_hour(self) -> float:
        """What it costs an hour."""
        price = self.price
        return self.gpu * price.gpu + self.cpu * price.cpu + self.memory_gib * price.memory

    @property
    def cost(self) -> float:
        """What it cost."""
        return self.per_hour * (self.end - self.start) / 3600


@dataclass(slots=True)
class Facts:
    """A period's pieces.

    Attributes:
        gpu_quotas: (valid from, GPUs) by project and node type, ascending.
        cpu_quotas, memory_quotas: Likewise by project, in cores and GiB; None is not counted.
        requests: Cores that each workload asked for.
        lent: What loans shift: to the borrower the GPU that it uses, also beside what is lent, from
            the lender what is lent, and to it the host memory that holds what was swapped out. For
            cost only: what is held stays as it was.
    """

    since: datetime
    until: datetime
    capacity: list[Piece] = field(default_factory=list)
    held: list[Piece] = field(default_factory=list)
    gpu_quotas: dict[tuple[int, str], list[tuple[float, float]]] = field(default_factory=dict)
    cpu_quotas: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    memory_quotas: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    requests: dict[str, float] = field(default_factory=dict)
    lent: list[Piece] = field(default_factory=list)

    @property
    def charged(self) -> list[Piece]:
        """What is paid for: what was held, shifted by loans."""
        return [*self.held, *self.lent]


class Prices:
    """Price history by node type."""

    def __init__(self, changes: Mapping[str, Sequence[tuple[float, Price]]]) -> None:
        self._times = {key: [at for at, _ in rows] for key, rows in changes.items()}
        self._prices = {key: [price for _, price in rows] for key, rows in changes.items()}

    def stretches(
        self, node_type: str, start: float, end: float
    ) -> Iterator[tuple[float, float, Price]]:
        """The prices in force from `start` to `end`, each with its own part of that time."""
        times = self._times.get(node_type, [])
        number = bisect_right(times, start) - 1
        while start < end:
            price = self._prices[node_type][number] if number >= 0 else FREE
            number += 1
            stop = min(end, times[number]) if number < len(times) else end
            if stop > start:
                yield start, stop, price
            start = stop


def read_prices() -> Prices:
    """All price history: a few rows per node type."""
    changes: dict[str, list[tuple[float, Price]]] = defaultdict(list)
    rows = PriceChange.objects.order_by("valid_from", "pk").values_list(
        "node_type_id",
        "valid_from",
        "gpu_price_per_hour",
        "cpu_price_per_hour",
        "memory_price_per_hour",
    )
    for node_type, at, gpu, cpu, memory in rows:
        changes[str(node_type)].append(
            (at.timestamp(), Price(float(gpu), float(cpu), float(memory)))
        )
    return Prices(changes)


def read(since: datetime, until: datetime, now: datetime) -> Facts:
    """Everything that happened from `since` up to `until`, as far as it is known now."""
    until = min(until, now)
    facts = Facts(since, until)
    if until <= since:
        return facts
    prices = read_prices()
    ups = _read_capacity(facts, prices, now)
    _read_held(facts, prices, ups)
    _read_lent(facts, prices, ups)
    _read_quotas(facts)
    return facts


Ups = dict[str, list[tuple[float, float, str, str]]]
"""By device UUID, or `node:<id>`: (start, end, node, node type) while ready."""


def _read_capacity(
    facts: Facts, prices: Prices, now: datetime, nodes: Collection[int] | None = None
) -> Ups:
    intervals = CapacityInterval.objects.filter(
        Q(ended_at__isnull=True) | Q(ended_at__gt=facts.since), started_at__lt=facts.until
    )
    if nodes is not None:
        intervals = intervals.filter(node__in=nodes)
    rows = intervals.values_list(
        "node_id",
        "node_type_id",
        "device",
        "gpu_milli",
        "cpu_milli",
        "memory_mib",
        "started_at",
        "ended_at",
        "node__last_report_at",
    )
    ups: Ups = defaultdict(list)
    for node, node_type, device, gpu, cpu, memory, started_at, ended_at, last in rows:
        known_until = ended_at or _known_until(last, now)
        start = max(started_at, facts.since).timestamp()
        end = min(known_until, facts.until).timestamp()
        if end <= start:
            continue
        key = "" if node_type is None else str(node_type)
        ups[device or f"node:{node}"].append((start, end, str(node), key))
        for part_start, part_end, price in prices.stretches(key, start, end):
            facts.capacity.append(
                Piece(
                    part_start,
                    part_end,
                    node=str(node),
                    node_type=key,
                    price=price,
                    gpu=gpu / 1000,
                    cpu=cpu / 1000,
                    memory_gib=memory / 1024,
                    is_device=bool(device),
                )
            )
    return ups


def _known_until(last_report_at: datetime | None, now: datetime) -> datetime:
    """Until when an open interval is known to last."""
    if last_report_at is None or now - last_report_at <= timedelta(seconds=SILENT_AFTER_S):
        return now
    return last_report_at


@dataclass(frozen=True, slots=True)
class Holders:
    """Whose pieces are wanted; what is None is no condition.

    Attributes:
        owner: With projects: what is of this person counts too.
    """

    workloads: Collection[uuid.UUID] | None = None
    nodes: Collection[int] | None = None
    projects: Collection[int] | None = None
    owner: int | None = None


def held_by(who: Holders, since: datetime | None, now: datetime) -> Facts:
    """What some workloads, or all on some nodes, held until now, by the same rules.

    Args:
        who: Whose.
        since: From here on; None is from the beginning.
        now: The present.
    """
    since = since or datetime(2000, 1, 1, tzinfo=UTC)
    facts = Facts(since, now)
    conditions = (
        " AND (%(workloads)s::uuid[] IS NULL OR allocation.workload_id = ANY(%(workloads)s))"
        " AND (%(nodes)s::integer[] IS NULL OR allocation.node_id = ANY(%(nodes)s))"
        " AND (%(projects)s::integer[] IS NULL OR workload.owner_id = %(owner)s"
        " OR allocation.project_id = ANY(%(projects)s))"
    )
    values = {
        "since": since,
        "until": now,
        "workloads": None if who.workloads is None else list(who.workloads),
        "nodes": None if who.nodes is None else list(who.nodes),
        "projects": None if who.projects is None else list(who.projects),
        "owner": who.owner,
    }
    with connection.cursor() as cursor:
        cursor.execute(HELD + conditions, values)
        rows = cursor.fetchall()
        cursor.execute(LENT + conditions, values)
        loans = cursor.fetchall()
    if rows:
        # What was ready before the first of them held anything is nobody's concern.
        began = datetime.fromtimestamp(min(row[_STARTED] for row in rows), UTC)
        facts.since = max(since, began)
        prices = read_prices()
        ups = _read_capacity(facts, prices, now, {row[_NODE] for row in rows})
        for row in rows:
            _add_held(facts, prices, ups, row)
        for row in loans:
            _add_lent(facts, prices, ups, row)
    return facts


# Columns of `HELD`.
_NODE, _STARTED = 5, 9

HELD = """
SELECT allocation.workload_id::text, allocation.project_id, workload.owner_id, workload.kind,
    workload.template_name, allocation.node_id, allocation.cpu_milli, allocation.memory_mib,
    workload.cpu_milli, EXTRACT(EPOCH FROM allocation.started_at)::float8,
    EXTRACT(EPOCH FROM allocation.ended_at)::float8,
    ARRAY(SELECT device_id FROM scheduling_deviceallocation part
        WHERE part.allocation_id = allocation.id ORDER BY part.id),
    ARRAY(SELECT gpu_milli FROM scheduling_deviceallocation part
        WHERE part.allocation_id = allocation.id ORDER BY part.id),
    CASE WHEN allocation.is_lent THEN NULL
        ELSE EXTRACT(EPOCH FROM COALESCE(allocation.gpu_from, allocation.started_at))::float8 END
FROM scheduling_allocation allocation
JOIN scheduling_workload workload ON workload.id = allocation.workload_id
WHERE allocation.started_at < %(until)s
    AND (allocation.ended_at IS NULL OR allocation.ended_at > %(since)s)
"""

"""What is on loan is held by nobody but the lender: its devices count from when they are its own.
"""

LENT = """
SELECT allocation.workload_id::text, allocation.project_id, workload.owner_id, workload.kind,
    workload.template_name, shift.device_id, shift.gpu_milli, shift.num_bytes,
    EXTRACT(EPOCH FROM shift.lent_at)::float8, EXTRACT(EPOCH FROM shift.ended_at)::float8
FROM scheduling_allocation allocation
JOIN scheduling_workload workload ON workload.id = allocation.workload_id
CROSS JOIN LATERAL (
    SELECT device_id, gpu_milli, 0 AS num_bytes, lent_at, ended_at
    FROM scheduling_loan WHERE borrower_id = allocation.attempt_id
    UNION ALL
    SELECT device_id, -gpu_milli, swapped_out_bytes, lent_at, ended_at
    FROM scheduling_loan WHERE lender_id = allocation.attempt_id
    UNION ALL
    SELECT part.device_id, part.gpu_milli - lent.gpu_milli, 0, decided.lent_at, decided.ended_at
    FROM (
        SELECT started_at, max(lent_at) AS lent_at, min(ended_at) AS ended_at
        FROM scheduling_loan WHERE borrower_id = allocation.attempt_id
        GROUP BY started_at HAVING bool_and(lent_at IS NOT NULL)
    ) decided
    JOIN scheduling_deviceallocation part ON part.allocation_id = allocation.id
    CROSS JOIN LATERAL (
        SELECT COALESCE(sum(loan.gpu_milli), 0) AS gpu_milli FROM scheduling_loan loan
        WHERE loan.borrower_id = allocation.attempt_id AND loan.device_id = part.device_id
            AND loan.started_at = decided.started_at
    ) lent
    WHERE part.gpu_milli > lent.gpu_milli
) shift
WHERE allocation.started_at < %(until)s
    AND (allocation.ended_at IS NULL OR allocation.ended_at > %(since)s)
    AND shift.lent_at < %(until)s AND (shift.ended_at IS NULL OR shift.ended_at > %(since)s)
"""
"""Of each loan both sides: the borrower's use, and by how much the lender's is less. And of loans
that were decided together what the borrower uses beside them: room that nobody held, for as long as
all of them last.
"""

BYTES_PER_GIB = 1024**3


def _read_held(facts: Facts, prices: Prices, ups: Ups) -> None:
    with connection.cursor() as cursor:
        cursor.execute(HELD, {"since": facts.since, "until": facts.until})
        for row in cursor.fetchall():
            _add_held(facts, prices, ups, row)


# `Any`: a row of `HELD`.
def _add_held(facts: Facts, prices: Prices, ups: Ups, row: tuple[Any, ...]) -> None:
    workload, project, owner, kind, template, node, cpu, memory, asked, start, end = row[:11]
    devices, gpu_parts, gpu_from = row[11:]
    groups = Groups(project, str(owner), kind, template)
    facts.requests[workload] = asked / 1000
    start = max(start, facts.since.timestamp())
    end = min(facts.until.timestamp() if end is None else end, facts.until.timestamp())
    on_node = Piece(start, end, cpu=cpu / 1000, memory_gib=memory / 1024, **_who(workload, groups))
    facts.held += _while_up(on_node, f"node:{node}", prices, ups)
    if gpu_from is None:
        return
    for device, milli in zip(devices, gpu_parts, strict=True):
        piece = Piece(max(start, gpu_from), end, gpu=milli / 1000, **_who(workload, groups))
        facts.held += _while_up(piece, device, prices, ups)


class _Who(TypedDict):
    """Whose a piece is; where it lies is filled in by `_while_up`."""

    workload: str
    groups: Groups
    node: str
    node_type: str
    price: Price


def _who(workload: str, groups: Groups) -> _Who:
    return {"workload": workload, "groups": groups, "node": "", "node_type": "", "price": FREE}


def _while_up(piece: Piece, key: str, prices: Prices, ups: Ups) -> Iterator[Piece]:
    """A piece cut to when what it lies on was up, and where prices change."""
    for up_start, up_end, up_node, node_type in ups.get(key, ()):
        overlap = max(piece.start, up_start), min(piece.end, up_end)
        for part_start, part_end, price in prices.stretches(node_type, *overlap):
            yield replace(
                piece,
                start=part_start,
                end=part_end,
                node=up_node,
                node_type=node_type,
                price=price,
                is_device=not key.startswith("node:"),
            )


def _read_lent(facts: Facts, prices: Prices, ups: Ups) -> None:
    with connection.cursor() as cursor:
        cursor.execute(LENT, {"since": facts.since, "until": facts.until})
        for row in cursor.fetchall():
            _add_lent(facts, prices, ups, row)


# `Any`: a row of `LENT`.
def _add_lent(facts: Facts, prices: Prices, ups: Ups, row: tuple[Any, ...]) -> None:
    workload, project, owner, kind, template, device, milli, num_bytes, start, end = row
    groups = Groups(project, str(owner), kind, template)
    until = facts.until.timestamp()
    piece = Piece(
        max(start, facts.since.timestamp()),
        until if end is None else min(end, until),
        gpu=milli / 1000,
        memory_gib=num_bytes / BYTES_PER_GIB,
        **_who(workload, groups),
    )
    facts.lent += _while_up(piece, device, prices, ups)


def _read_quotas(facts: Facts) -> None:
    gpus: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    cores: dict[int, list[tuple[float, float]]] = defaultdict(list)
    memory: dict[int, list[tuple[float, float]]] = defaultdict(list)
    rows = (
        QuotaChange.objects.filter(valid_from__lt=facts.until)
        .order_by("valid_from", "pk")
        .values_list(
            "project_id", "node_type_id", "valid_from", "gpu_milli", "cpu_milli", "memory_mib"
        )
    )
    for project, node_type, at, gpu_milli, cpu_milli, memory_mib in rows:
        seconds = at.timestamp()
        if node_type is not None:
            gpus[project, str(node_type)].append((seconds, (gpu_milli or 0) / 1000))
        else:
            cores[project].append((seconds, (cpu_milli or 0) / 1000))
            memory[project].append((seconds, (memory_mib or 0) / 1024))
    facts.gpu_quotas, facts.cpu_quotas, facts.memory_quotas = dict(gpus), dict(cores), dict(memory)
