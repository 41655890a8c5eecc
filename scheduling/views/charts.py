"""Live charts of a workload and of a node: which lines, over which range, each with its average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from scheduling import formats
from scheduling.analytics.metrics import Words
from scheduling.models import Device, Node, Workload
from scheduling.views.choices import REFUSED, Choices
from telemetry.charts import Chart, LineSpec, View, chart_of, devices_chart, figure_for

DEFAULT_RANGE = "30m"
MINUTES = {"30m": 30, "3h": 3 * 60, "24h": 24 * 60, "7d": 7 * 24 * 60, "30d": 30 * 24 * 60}
RANGES: dict[str, Words] = {
    "30m": _("30 minutes"),
    "3h": _("3 hours"),
    "24h": _("24 hours"),
    "7d": _("7 days"),
    "30d": _("30 days"),
}
WORKLOAD_METRICS = ("cpu_cores", "cpu_throttled_s_per_s", "memory_mib")
GPU_METRICS = ("gpu_util_percent", "gpu_memory_mib")
NETWORK = ("net_rx_bytes_per_s", "net_tx_bytes_per_s")
DISKS = ("disk_read_bytes_per_s", "disk_write_bytes_per_s")


@dataclass(frozen=True, slots=True)
class Range:
    """How far back all charts of a page reach.

    Attributes:
        problems: Why what the address names is none; then nothing is drawn.
    """

    name: str
    problems: Sequence[str] = ()

    @property
    def minutes(self) -> int:
        return MINUTES.get(self.name, MINUTES[DEFAULT_RANGE])

    @property
    def status(self) -> int:
        """Of the page."""
        return REFUSED if self.problems else 200

    @property
    def choices(self) -> list[tuple[str, Words]]:
        return list(RANGES.items())


def range_of(address: Mapping[str, str]) -> Range:
    """The range of an address."""
    choices = Choices(address)
    name = choices.one_of("range", MINUTES, DEFAULT_RANGE)
    return Range(name, choices.problems.get("range", ()))


@dataclass(frozen=True, slots=True)
class Numbered:
    """A chart with its number.

    Attributes:
        average: Of what was measured in the range; a dash where nothing was.
        is_whole: The number is no average but what has come together so far.
        bands: Which rows show below it who ran when: `devices`, `node` or none.
    """

    chart: Chart
    average: str
    bands: str = ""
    is_whole: bool = False


def numbered(chart: Chart, bands: str = "") -> Numbered:
    """Points have equal widths, so their mean is the mean over the time with data."""
    traces = chart.payload["figure"]["data"]
    values = [value for trace in traces for value in trace["y"] if value is not None]
    if not values:
        return Numbered(chart, "—", bands)
    mean = formats.decimal(sum(values) / len(values), 2)
    return Numbered(chart, f"{mean}{formats.NO_BREAK}{chart.unit}", bands)


def workload_charts(workload: Workload, zone: str, chosen: Range) -> list[Numbered]:
    """GPU (where it has one), CPU, memory and network of a workload that has ever run."""
    if workload.current is None:
        return []
    metrics = [(metric,) for metric in WORKLOAD_METRICS]
    if workload.num_devices:
        metrics[:0] = [(metric,) for metric in GPU_METRICS]
    charts = [_workload_chart(workload, metric, zone, chosen) for metric in metrics]
    network = _workload_chart(workload, NETWORK, zone, chosen)
    return [numbered(chart) for chart in (*charts, *([network] if network.has_data else []))]


def _workload_chart(
    workload: Workload, metrics: tuple[str, ...], zone: str, chosen: Range
) -> Chart:
    query = {"metric": metrics, "zone": zone, "minutes": chosen.minutes}
    address = reverse("scheduling:workload-series", args=[workload.pk])
    return figure_for(
        f"workload:{workload.pk}",
        metrics,
        minutes=chosen.minutes,
        zone=zone,
        is_simulated=workload.node is not None and workload.node.is_simulated,
        source=f"{address}?{urlencode(query, doseq=True)}",
    )


def node_charts(node: Node, devices: Sequence[Device], zone: str, chosen: Range) -> list[Numbered]:
    """Each metric of the devices in one chart, then those of the node itself."""
    view = View(minutes=chosen.minutes, zone=zone, is_simulated=node.is_simulated)
    lines = {device.uuid: f"GPU {device.index}" for device in devices}
    charts = []
    if lines:
        always = ("gpu_util_percent", "memory_used_mib")
        # A simulated device has neither.
        real = () if node.is_simulated else ("power_w", "temperature_c")
        charts = [numbered(devices_chart(lines, name, view), "devices") for name in always + real]
    # Nor has a simulated node a network and disks of its own.
    machine = () if node.is_simulated else (NETWORK, DISKS)
    for metrics in (("cpu_cores",), ("memory_mib",), *machine):
        specs = [LineSpec(f"node:{node.name}", metric) for metric in metrics]
        charts.append(numbered(chart_of(specs, view), "node"))
    return charts
