"""What each metric is called on pages, in which unit it is shown, and what a chart of it says."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from telemetry.metrics import Kind

Words = str | Promise


@dataclass(frozen=True, slots=True)
class Unit:
    """How a metric is shown: stored value times `scale`."""

    label: Words
    scale: float = 1.0
    ceiling: float | None = None


@dataclass(frozen=True, slots=True)
class MetricWords:
    """A metric on pages.

    Attributes:
        title: What is measured; also the line's name.
        sentence: What the chart shows, for somebody who sees it for the first time.
    """

    title: Words
    sentence: Words
    unit: Unit


_PERCENT = Unit("%")
_PERCENT_OF_DEVICE = Unit("%", ceiling=100.0)
_GIB = Unit(gettext_lazy("GiB"), scale=1 / 1024)
_CORES = Unit(gettext_lazy("cores"))
_MBIT = Unit(gettext_lazy("Mbit/s"), scale=8e-6)
_MHZ = Unit(gettext_lazy("MHz"))

_RECEIVED = MetricWords(
    gettext_lazy("Received"), gettext_lazy("Network traffic received, loopback apart."), _MBIT
)
_SENT = MetricWords(
    gettext_lazy("Sent"), gettext_lazy("Network traffic sent, loopback apart."), _MBIT
)

WORDS: dict[Kind, dict[str, MetricWords]] = {
    Kind.DEVICE: {
        "gpu_util_percent": MetricWords(
            gettext_lazy("GPU use"),
            gettext_lazy("Share of time in which the device computed."),
            _PERCENT_OF_DEVICE,
        ),
        "memory_util_percent": MetricWords(
            gettext_lazy("Memory traffic"),
            gettext_lazy("Share of time in which the device's memory was read or written."),
            _PERCENT_OF_DEVICE,
        ),
        "memory_used_mib": MetricWords(
            gettext_lazy("GPU memory"), gettext_lazy("Memory in use on the device."), _GIB
        ),
        "power_w": MetricWords(
            gettext_lazy("Power"), gettext_lazy("Electrical power drawn."), Unit(gettext_lazy("W"))
        ),
        "temperature_c": MetricWords(
            gettext_lazy("Temperature"), gettext_lazy("Temperature of the device."), Unit("°C")
        ),
        "sm_clock_mhz": MetricWords(
            gettext_lazy("Compute clock"),
            gettext_lazy("Clock of the multiprocessors."),
            _MHZ,
        ),
        "memory_clock_mhz": MetricWords(
            gettext_lazy("Memory clock"), gettext_lazy("Clock of the device's memory."), _MHZ
        ),
    },
    Kind.WORKLOAD: {
        "gpu_util_percent": MetricWords(
            gettext_lazy("Use of the granted GPU"),
            gettext_lazy(
                "100 % is all that was granted; more is possible where a neighbour leaves it."
            ),
            _PERCENT,
        ),
        "gpu_memory_mib": MetricWords(
            gettext_lazy("GPU memory"), gettext_lazy("GPU memory that the workload holds."), _GIB
        ),
        "cpu_cores": MetricWords(
            gettext_lazy("CPU"), gettext_lazy("Cores that the workload keeps busy."), _CORES
        ),
        "cpu_throttled_s_per_s": MetricWords(
            gettext_lazy("CPU throttled"),
            gettext_lazy("Time for which the workload was held back at its CPU limit."),
            Unit(gettext_lazy("s per s")),
        ),
        "memory_mib": MetricWords(
            gettext_lazy("Memory"), gettext_lazy("Main memory that the workload holds."), _GIB
        ),
        "net_rx_bytes_per_s": _RECEIVED,
        "net_tx_bytes_per_s": _SENT,
    },
    Kind.NODE: {
        "cpu_cores": MetricWords(
            gettext_lazy("CPU"), gettext_lazy("Cores of the node that are busy."), _CORES
        ),
        "memory_mib": MetricWords(
            gettext_lazy("Memory"), gettext_lazy("Main memory in use on the node."), _GIB
        ),
        "net_rx_bytes_per_s": _RECEIVED,
        "net_tx_bytes_per_s": _SENT,
    },
}
