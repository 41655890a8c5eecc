"""Which values a device, a workload and a node have, and within what bounds they are believable.

One list, read by sampling (what to measure), by the tables (one column each), by ingestion (what
to refuse) and by charts (unit). Without Django: nodes read it too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a sample is about: the part of its subject before the colon."""

    DEVICE = "device"
    WORKLOAD = "workload"
    NODE = "node"


class Fold(StrEnum):
    """What stands for many samples of a metric in a roll-up."""

    MEAN = "mean"
    """The mean over time, with the seconds for which there is data."""
    PEAK = "peak"
    """The mean, and the highest value beside it."""
    LAST = "last"
    """The highest value only: counters that only grow, and codes, have no mean."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One value of a subject.

    Attributes:
        name: Also its column; ends in its unit.
        highest: Above this, a value is a fault of the sensor and is refused; below 0 likewise.
    """

    name: str
    highest: float
    fold: Fold = Fold.MEAN


_PERCENT = 100.0
# A grant may be exceeded where compute is not divided: ten thousand per cent is a 1 % fraction
# that has a whole device to itself.
_PERCENT_OF_GRANT = 10_000.0
_MEMORY_MIB = 64.0 * 1024 * 1024  # 64 TiB
_DISK_MIB = 1024.0 * _MEMORY_MIB
_CORES = 65_536.0
_BYTES_PER_S = 1e12  # 8 Tbit/s
_COUNT = 1e12
_XID = 1000.0

METRICS: dict[Kind, tuple[Metric, ...]] = {
    Kind.DEVICE: (
        Metric("gpu_util_percent", _PERCENT),
        Metric("memory_util_percent", _PERCENT),
        Metric("memory_used_mib", _MEMORY_MIB, Fold.PEAK),
        Metric("power_w", 100_000.0, Fold.PEAK),
        Metric("temperature_c", 300.0, Fold.PEAK),
        Metric("sm_clock_mhz", 100_000.0),
        Metric("memory_clock_mhz", 100_000.0),
        Metric("encoder_util_percent", _PERCENT),
        Metric("decoder_util_percent", _PERCENT),
        Metric("memory_temperature_c", 300.0, Fold.PEAK),
        Metric("throttled_percent", _PERCENT),
        Metric("pcie_rx_bytes_per_s", _BYTES_PER_S),
        Metric("pcie_tx_bytes_per_s", _BYTES_PER_S),
        Metric("pcie_replays", _COUNT, Fold.LAST),
        Metric("ecc_corrected", _COUNT, Fold.LAST),
        Metric("ecc_uncorrected", _COUNT, Fold.LAST),
        Metric("remapped_rows_corrected", _COUNT, Fold.LAST),
        Metric("remapped_rows_uncorrected", _COUNT, Fold.LAST),
        Metric("xid", _XID, Fold.LAST),
    ),
    Kind.WORKLOAD: (
        Metric("cpu_cores", _CORES),
        Metric("cpu_throttled_s_per_s", _CORES),
        Metric("memory_mib", _MEMORY_MIB, Fold.PEAK),
        Metric("net_rx_bytes_per_s", _BYTES_PER_S),
        Metric("net_tx_bytes_per_s", _BYTES_PER_S),
        Metric("gpu_util_percent", _PERCENT_OF_GRANT),
        Metric("gpu_memory_mib", _MEMORY_MIB, Fold.PEAK),
    ),
    Kind.NODE: (
        Metric("cpu_cores", _CORES),
        Metric("memory_mib", _MEMORY_MIB, Fold.PEAK),
        Metric("net_rx_bytes_per_s", _BYTES_PER_S),
        Metric("net_tx_bytes_per_s", _BYTES_PER_S),
        Metric("disk_read_bytes_per_s", _BYTES_PER_S),
        Metric("disk_write_bytes_per_s", _BYTES_PER_S),
        Metric("disk_used_mib", _DISK_MIB, Fold.PEAK),
        Metric("disk_free_mib", _DISK_MIB),
    ),
}


def metric_names(kind: Kind) -> tuple[str, ...]:
    """Names of a kind's metrics, in the order of its table's columns."""
    return tuple(metric.name for metric in METRICS[kind])


_PREFIXES = frozenset(kind.value for kind in Kind)

# Device UUIDs, node names and workload ids; nothing that a page or PostgreSQL could stumble over.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")


def split_subject(subject: str) -> tuple[Kind, str]:
    """Take a subject apart.

    Raises:
        ValueError: it is not `device:`, `workload:` or `node:` followed by a name of at most 100
            letters, digits and `._:/-`.
    """
    prefix, _, name = subject.partition(":")
    if prefix not in _PREFIXES or not _NAME.fullmatch(name):
        raise ValueError(
            f"subject is {subject[:120]!r}: it must be device:<uuid>, workload:<id> or "
            "node:<name>, the name of at most 100 letters, digits and ._:/-"
        )
    return Kind(prefix), name
