"""Record what an agent reports of its zone: nodes and devices as they are.

Reports are level-triggered, so each may be repeated, come late, or be the first after a long
silence; recording one twice changes nothing. The message classes are the agent's
(`agent.protocol`), known here by their shape only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Count
from django.utils import timezone

from projects.models import DEFAULT_LABEL_KEY, SLUG_PATTERN, NodeType
from scheduling.live import NODES_TOPIC, announce
from scheduling.models import Device, Node, NodeState, Zone
from scheduling.services import claims, uptime
from scheduling.services.claims import GIVEN_UP_AFTER_S
from scheduling.services.events import wake_planner

if TYPE_CHECKING:
    from scheduling.agent import protocol


def record_nodes(
    zone: Zone, report: protocol.Report, agent: claims.Identity = claims.UNTOLD
) -> list[str]:
    """Register the zone's nodes and devices, and note that its agent is there.

    Returns:
        Names of nodes that another zone's agent holds; of these nothing is recorded.

    Raises:
        RivalError: another agent holds the zone.
    """
    now = timezone.now()
    claims.claim_zone(zone, agent, now)
    with transaction.atomic():
        Zone.objects.filter(pk=zone.pk).update(
            relay_url=report.relay_url,
            relay_secret=report.relay_secret,
            last_report_at=now,
            clock_skew_s=report.sent_at - now.timestamp(),
            is_stopping=report.is_stopping,
        )
        changed = zone.is_stopping != report.is_stopping
        known = {
            node.name: node
            for node in Node.objects.select_related("zone", "node_type")
            .prefetch_related("devices")
            .filter(name__in=[item.name for item in report.nodes])
        }
        refused = claims.claimed_elsewhere(zone, known.values(), agent.host, now)
        nodes = [item for item in report.nodes if item.name not in refused]
        names = [item.name for item in nodes]
        before = {name: known[name].last_report_at if name in known else None for name in names}
        types = list(NodeType.objects.all())
        for seen in nodes:
            changed |= _record_node(zone, seen, known.get(seen.name), types)
        Node.objects.filter(name__in=names).update(last_report_at=now)
        uptime.seen(before, now, bridged_s=GIVEN_UP_AFTER_S)
        if changed:
            _record_capacity()
            wake_planner("nodes")
            announce(NODES_TOPIC)
    return sorted(refused)


def _record_node(
    zone: Zone, seen: protocol.NodeReport, node: Node | None, types: list[NodeType]
) -> bool:
    """One node; returns whether anything that matters to planning or to pages changed.

    Cost: no query for a node that is as it was.
    """
    node_type = _type_of(seen, types)
    values = {
        "zone": zone,
        "node_type": node_type,
        "labels": dict(seen.labels),
        "cpu_milli": seen.cpu_milli,
        "memory_mib": seen.memory_mib,
        "is_simulated": seen.is_simulated,
        "is_isolated": seen.is_isolated,
        "isolation_note": seen.isolation_note[:500],
        "fraction_mechanism": seen.fraction_mechanism[:200],
        "fraction_note": seen.fraction_note[:40],
        "shares_gpu_time": seen.shares_gpu_time,
        "swap_mechanism": seen.swap_mechanism[:40],
        "swap_note": seen.swap_note[:40],
        "driver": seen.driver[:40],
    }
    if node is None:
        node = Node.objects.create(name=seen.name, **values)
        changed = True
    else:
        changed = any(getattr(node, name) != value for name, value in values.items())
        if node.state == NodeState.LOST:
            values["state"] = NodeState.CORDONED if node.cordon else NodeState.READY
            changed = True
        if changed:
            Node.objects.filter(pk=node.pk).update(**values)
    return _record_devices(node, seen.devices) or changed


def _type_of(seen: protocol.NodeReport, types: list[NodeType]) -> NodeType | None:
    """The node type whose selector its labels match; an unknown kind of GPU becomes a new one,
    appended to `types`.

    A new type has quota 0 in every project until an admin gives some: all of it is borrowed.
    """
    for kind in types:
        if seen.labels.get(kind.label_key) == kind.label_value:
            return kind
    name = seen.labels.get(DEFAULT_LABEL_KEY, "")
    if not seen.devices or not re.fullmatch(SLUG_PATTERN, name):
        return None
    model = seen.devices[0].model
    created = NodeType.objects.create(
        name=name,
        title=model.removeprefix("NVIDIA ").removeprefix("Tesla "),
        label_key=DEFAULT_LABEL_KEY,
        label_value=name,
        gpu_model=model,
        gpu_memory_mib=min(device.memory_mib for device in seen.devices),
    )
    types.append(created)
    return created


def _record_devices(node: Node, seen: Sequence[protocol.DeviceReport]) -> bool:
    known = {device.uuid: device for device in node.devices.all()}
    changed = False
    for report in seen:
        values = {
            "node": node,
            "index": report.index,
            "model": report.model,
            "memory_mib": report.memory_mib,
            "is_healthy": report.is_healthy,
        }
        device = known.pop(report.uuid, None)
        if device is None or any(getattr(device, name) != value for name, value in values.items()):
            Device.objects.update_or_create(uuid=report.uuid, defaults=values)
            changed = True
    for gone in known.values():
        changed |= gone.is_healthy
        Device.objects.filter(pk=gone.pk).update(is_healthy=False)
    return changed


def _record_capacity() -> None:
    """Count what quotas may promise: each node type's devices, their node up or not."""
    for node_type in NodeType.objects.annotate(num_devices=Count("nodes__devices")):
        NodeType.objects.filter(pk=node_type.pk).update(
            capacity_gpu_milli=1000 * node_type.num_devices
        )
