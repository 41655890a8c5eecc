"""Keeps when nodes and their devices were ready: what capacity is summed over.

A node is up while its agent reports. A short silence that nobody noticed (our own restart) counts
as up; once the node was marked lost, or after a longer silence, it was down from its last report.
Cordoned nodes count: what runs there goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import QuerySet

from scheduling.models import CapacityInterval, Device, Node, NodeState

WHOLE_GPU_MILLI = 1000


@dataclass(frozen=True, slots=True)
class _Part:
    """A node or device, and what it offers."""

    node_id: int
    device: str
    node_type_id: int | None
    gpu_milli: int
    cpu_milli: int
    memory_mib: int


def seen(nodes: Mapping[str, datetime | None], now: datetime, *, bridged_s: float) -> None:
    """Note that these nodes are up now, with what they offer.

    Args:
        nodes: Names, each with the time of its report before this one (None: the first).
        now: When they reported.
        bridged_s: A silence up to here counts as up.
    """
    rows = {row.name: row for row in Node.objects.filter(name__in=list(nodes))}
    wanted = {part for row in rows.values() for part in _parts(row)}
    wanted |= _device_parts(rows.values())
    for name, last in nodes.items():
        if last is not None and now - last > timedelta(seconds=bridged_s) and name in rows:
            _close(CapacityInterval.objects.filter(node=rows[name]), last)
    known = {
        _Part(
            row.node_id, row.device, row.node_type_id, row.gpu_milli, row.cpu_milli, row.memory_mib
        ): row.pk
        for row in CapacityInterval.objects.filter(node__in=rows.values(), ended_at__isnull=True)
    }
    gone = [pk for part, pk in known.items() if part not in wanted]
    if gone:
        _close(CapacityInterval.objects.filter(pk__in=gone), now)
    CapacityInterval.objects.bulk_create(
        CapacityInterval(
            node_id=part.node_id,
            device=part.device,
            node_type_id=part.node_type_id,
            gpu_milli=part.gpu_milli,
            cpu_milli=part.cpu_milli,
            memory_mib=part.memory_mib,
            started_at=now,
        )
        for part in sorted(wanted - known.keys(), key=lambda part: (part.node_id, part.device))
    )


def lost(nodes: Iterable[Node]) -> None:
    """Note that these nodes are down since their last report."""
    for node in nodes:
        if node.last_report_at is not None:
            _close(CapacityInterval.objects.filter(node=node), node.last_report_at)


def _parts(node: Node) -> Iterable[_Part]:
    if node.state != NodeState.LOST:
        yield _Part(node.pk, "", node.node_type_id, 0, node.cpu_milli, node.memory_mib)


def _device_parts(nodes: Iterable[Node]) -> set[_Part]:
    types = {node.pk: node.node_type_id for node in nodes if node.state != NodeState.LOST}
    return {
        _Part(device.node_id, device.uuid, types[device.node_id], WHOLE_GPU_MILLI, 0, 0)
        for device in Device.objects.filter(node__in=types, is_healthy=True)
    }


def _close(rows: QuerySet[CapacityInterval], at: datetime) -> None:
    """End open intervals; one that began later than that was never seen up, and goes."""
    rows.filter(ended_at__isnull=True, started_at__gte=at).delete()
    rows.filter(ended_at__isnull=True).update(ended_at=at)
