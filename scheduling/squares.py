"""Every GPU as a square: who holds which part, whether that idles or is lent, and its use now; and
of nodes without GPUs what is held and used of their cores and memory.

Read whole once a second while anybody looks, then sent as differences (`scheduling.streams`). The
numbers of a square are short because a thousand of them travel at a time.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum

from django.db import connection

from scheduling import idle_now
from scheduling.lent import lent_now
from scheduling.models import Device, DeviceAllocation, Node

DEVICE_MILLI = 1000
FRESH = timedelta(seconds=15)
"""An older sample says nothing about now."""
REMEMBERED = timedelta(days=1)

Use = tuple[int | None, int | None, int | None, int | None]
"""Use in per cent, MiB of memory, degrees Celsius, watts; None is no data."""
Host = tuple[int, int, int | None, int | None]
"""Of a node without GPUs: thousandths of cores and MiB that are held, and as much of them in use;
None is no data."""


class PartState(IntEnum):
    """How a part of a device is held; travels as its number.

    What is lent is not idle: another's training uses it. `BESIDE` is room that this training uses
    beside what it has on loan; nobody holds it.
    """

    HELD = 0
    IDLE = 1
    LENT = 2
    BESIDE = 3


@dataclass(frozen=True, slots=True)
class Part:
    """What one workload has of a device."""

    project: int
    workload: uuid.UUID
    milli: int
    state: PartState


@dataclass(frozen=True, slots=True)
class Square:
    """One GPU.

    Attributes:
        key: Short and stable: the node's number and the device's index there.
    """

    key: str
    node: int
    index: int
    memory_mib: int
    is_healthy: bool
    parts: tuple[Part, ...] = ()
    use: Use = (None, None, None, None)


@dataclass(frozen=True, slots=True)
class Totals:
    """Of the whole cluster, in thousandths of a GPU.

    Attributes:
        held: Idle and lent parts included, room beside what is lent apart.
        used: Of the devices that were measured; None when none was.
    """

    total: int
    held: int
    idle: int
    used: int | None
    lent: int
    beside: int


@dataclass(frozen=True, slots=True)
class Picture:
    """The cluster at one moment.

    Attributes:
        heard: When each node was last measured, Unix seconds.
        hosts: The nodes without GPUs.
    """

    at: datetime
    squares: tuple[Square, ...]
    heard: Mapping[int, float]
    totals: Totals
    hosts: Mapping[int, Host] = field(default_factory=dict)


def picture(at: datetime, idle_allocations: frozenset[int]) -> Picture:
    """Read the cluster as it is; seven queries at most, however large it is."""
    parts = _parts(idle_allocations)
    uses = _uses(at)
    squares = tuple(
        Square(f"{node}.{index}", node, index, memory, healthy, parts.get(device, ()), uses[device])
        for device, node, index, memory, healthy in Device.objects.order_by(
            "node_id", "index"
        ).values_list("uuid", "node_id", "index", "memory_mib", "is_healthy")
    )
    heard, hosts = _nodes(at)
    return Picture(at, squares, heard, totals_of(squares), hosts)


def totals_of(squares: tuple[Square, ...]) -> Totals:
    """Sums over all squares."""
    sums = sums_of(part for square in squares for part in square.parts)
    used = [square.use[0] for square in squares if square.use[0] is not None]
    return Totals(
        total=len(squares) * DEVICE_MILLI,
        held=sum(sums.values()) - sums[PartState.BESIDE],
        idle=sums[PartState.IDLE],
        used=sum(used) * DEVICE_MILLI // 100 if used else None,
        lent=sums[PartState.LENT],
        beside=sums[PartState.BESIDE],
    )


def sums_of(parts: Iterable[Part]) -> Counter[PartState]:
    """Thousandths of a GPU by state."""
    found: Counter[PartState] = Counter()
    for part in parts:
        found[part.state] += part.milli
    return found


def idle_allocations(at: datetime) -> frozenset[int]:
    """Allocations that are idle; slower than the rest, and slow to change."""
    return frozenset(idle_now.found(at))


def _parts(idle_allocations: frozenset[int]) -> dict[str, tuple[Part, ...]]:
    found: dict[str, list[Part]] = defaultdict(list)
    lent = lent_now()
    rows = DeviceAllocation.objects.filter(is_open=True, is_lent=False).order_by("pk")
    for device, milli, allocation, attempt, project, workload in rows.values_list(
        "device_id",
        "gpu_milli",
        "allocation_id",
        "allocation__attempt_id",
        "allocation__project_id",
        "allocation__workload_id",
    ):
        state = PartState.IDLE if allocation in idle_allocations else PartState.HELD
        if (attempt, device) in lent.parts:
            state = PartState.LENT
        found[device].append(Part(project, workload, milli, state))
    for one in lent.beside:
        found[one.device].append(Part(one.project, one.workload, one.milli, PartState.BESIDE))
    return {device: tuple(parts) for device, parts in found.items()}


# One probe of the key for each device: the table has no index by time alone.
_NEWEST = """
SELECT subject.name, newest.* FROM telemetry_subject subject,
LATERAL (SELECT gpu_util_percent, memory_used_mib, temperature_c, power_w
    FROM telemetry_devicesample sample WHERE sample.subject_id = subject.id
    AND at > %(since)s AND at <= %(until)s ORDER BY at DESC LIMIT 1) newest
WHERE subject.kind = 'device'
"""


def _uses(at: datetime) -> defaultdict[str, Use]:
    found: defaultdict[str, Use] = defaultdict(lambda: (None, None, None, None))
    with connection.cursor() as cursor:
        # A node's clock may be a little ahead.
        cursor.execute(_NEWEST, {"since": at - FRESH, "until": at + FRESH})
        for name, *values in cursor.fetchall():
            percent, memory, temperature, power = (
                None if value is None else round(value) for value in values
            )
            found[name] = (percent, memory, temperature, power)
    return found


_NODES = """
SELECT node.id, EXTRACT(EPOCH FROM newest.at)::float8, held.cpu_milli, held.memory_mib,
    CASE WHEN newest.at > %(fresh)s THEN newest.cpu_cores END,
    CASE WHEN newest.at > %(fresh)s THEN newest.memory_mib END
FROM scheduling_node node
LEFT JOIN telemetry_subject subject ON subject.kind = 'node' AND subject.name = node.name
LEFT JOIN LATERAL (SELECT at, cpu_cores, memory_mib FROM telemetry_nodesample sample
    WHERE sample.subject_id = subject.id AND at > %(since)s ORDER BY at DESC LIMIT 1
) newest ON true
LEFT JOIN LATERAL (
    SELECT COALESCE(sum(cpu_milli), 0) AS cpu_milli, COALESCE(sum(memory_mib), 0) AS memory_mib
    FROM scheduling_allocation WHERE node_id = node.id AND ended_at IS NULL
) held ON NOT EXISTS (SELECT FROM scheduling_device device WHERE device.node_id = node.id)
"""


def _nodes(at: datetime) -> tuple[dict[int, float], dict[int, Host]]:
    """When each node was last measured, and what is held and used of those without GPUs."""
    with connection.cursor() as cursor:
        cursor.execute(_NODES, {"since": at - REMEMBERED, "fresh": at - FRESH})
        rows = cursor.fetchall()
    heard = {node: newest for node, newest, *_values in rows if newest is not None}
    hosts = {
        node: (
            cpu_milli,
            memory_mib,
            None if cores is None else round(1000 * cores),
            None if mib is None else round(mib),
        )
        for node, _newest, cpu_milli, memory_mib, cores, mib in rows
        if cpu_milli is not None
    }
    return heard, hosts


def nodes_in_order() -> list[Node]:
    """All nodes, by type; the page draws them in this order."""
    rows = Node.objects.select_related("node_type", "zone")
    return list(rows.order_by("node_type__rank", "node_type__name", "name"))
