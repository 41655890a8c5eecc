"""Live charts of a workload and of a node: which lines, and where a page gets their data again."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from django.urls import reverse

from scheduling.models import Device, Node, Workload
from telemetry.charts import Chart, View, devices_chart, figure_for


def workload_charts(workload: Workload, zone: str) -> list[Chart]:
    """GPU (where it has one), CPU and memory of a workload that has ever run."""
    if workload.current is None:
        return []
    subject = f"workload:{workload.pk}"
    is_simulated = workload.node is not None and workload.node.is_simulated
    metrics = ["cpu_cores", "memory_mib"]
    if workload.num_devices:
        metrics.insert(0, "gpu_util_percent")
    address = reverse("scheduling:workload-series", args=[workload.pk])
    return [
        figure_for(
            subject,
            [metric],
            zone=zone,
            is_simulated=is_simulated,
            source=f"{address}?{urlencode({'metric': metric, 'zone': zone})}",
        )
        for metric in metrics
    ]


def node_charts(node: Node, devices: Sequence[Device], zone: str) -> list[Chart]:
    """Use of each device in one chart, then the node's CPU and memory."""
    view = View(zone=zone, is_simulated=node.is_simulated)
    lines = {device.uuid: f"GPU {device.index}" for device in devices}
    charts = [devices_chart(lines, view=view)] if lines else []
    subject = f"node:{node.name}"
    address = reverse("telemetry:series")
    for metric in ("cpu_cores", "memory_mib"):
        query = urlencode({"subject": subject, "metric": metric, "zone": zone})
        charts.append(figure_for(subject, [metric], zone=zone, source=f"{address}?{query}"))
    return charts
