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
_MB_PER_S = Unit(gettext_lazy("MB/s"), scale=1e-6)
_COUNT = Unit(gettext_lazy("errors"))

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
        "encoder_util_percent": MetricWords(
            gettext_lazy("Video encoder"),
            gettext_lazy("Share of time in which the video encoder was busy."),
            _PERCENT_OF_DEVICE,
        ),
        "decoder_util_percent": MetricWords(
            gettext_lazy("Video decoder"),
            gettext_lazy("Share of time in which the video decoder was busy."),
            _PERCENT_OF_DEVICE,
        ),
        "memory_temperature_c": MetricWords(
            gettext_lazy("Memory temperature"),
            gettext_lazy("Temperature of the device's memory."),
            Unit("°C"),
        ),
        "throttled_percent": MetricWords(
            gettext_lazy("Throttled"),
            gettext_lazy("Share of time in which heat or a lack of power slowed the device down."),
            _PERCENT_OF_DEVICE,
        ),
        "pcie_rx_bytes_per_s": MetricWords(
            gettext_lazy("PCIe received"),
            gettext_lazy("Traffic from the host to the device."),
            _MB_PER_S,
        ),
        "pcie_tx_bytes_per_s": MetricWords(
            gettext_lazy("PCIe sent"),
            gettext_lazy("Traffic from the device to the host."),
            _MB_PER_S,
        ),
        "pcie_replays": MetricWords(
            gettext_lazy("PCIe replays"),
            gettext_lazy("Packets that had to be sent again, since the driver was loaded."),
            _COUNT,
        ),
        "ecc_corrected": MetricWords(
            gettext_lazy("Corrected memory errors"),
            gettext_lazy("Memory errors that were corrected, since the driver was loaded."),
            _COUNT,
        ),
        "ecc_uncorrected": MetricWords(
            gettext_lazy("Uncorrected memory errors"),
            gettext_lazy("Memory errors that could not be corrected, since the driver was loaded."),
            _COUNT,
        ),
        "remapped_rows_corrected": MetricWords(
            gettext_lazy("Rows remapped after corrected errors"),
            gettext_lazy("Rows of memory replaced by spare ones because of corrected errors."),
            _COUNT,
        ),
        "remapped_rows_uncorrected": MetricWords(
            gettext_lazy("Rows remapped after uncorrected errors"),
            gettext_lazy("Rows of memory replaced by spare ones because of uncorrected errors."),
            _COUNT,
        ),
        "xid": MetricWords(
            gettext_lazy("Last Xid"),
            gettext_lazy("Code of the last error that the driver reported; 0 is none."),
            Unit(gettext_lazy("code")),
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
        "disk_read_bytes_per_s": MetricWords(
            gettext_lazy("Disk reads"), gettext_lazy("Read from the node's disks."), _MB_PER_S
        ),
        "disk_write_bytes_per_s": MetricWords(
            gettext_lazy("Disk writes"), gettext_lazy("Written to the node's disks."), _MB_PER_S
        ),
        "disk_used_mib": MetricWords(
            gettext_lazy("Disk used"),
            gettext_lazy("In use on the disk that holds the workloads' folders."),
            _GIB,
        ),
        "disk_free_mib": MetricWords(
            gettext_lazy("Disk free"),
            gettext_lazy("Free on the disk that holds the workloads' folders."),
            _GIB,
        ),
    },
}
