"""Measures devices, workloads and nodes where they run; the agent calls it every few seconds.

Runs on nodes: neither Django nor the agent's own modules are imported, what the agent hands in is
described by the protocols below. A value that cannot be had is None ("no data"), never 0. Rates
(cores, bytes per second) need two readings, so a subject's first sample has none.

A simulated device has no counters of its own: its utilisation is the real CPU use of the
processes that hold it, its memory what they took of it, or where nothing counts that, their real
resident memory. Nothing is invented.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import psutil

from telemetry.messages import Sample, SampleBatch
from telemetry.nvml import DeviceReading, NvmlReader, are_all_known
from telemetry.processes import MIB, own_network, resident_mib

__all__ = ["AttemptView", "CgroupUsage", "DeviceReader", "Sample", "SampleBatch", "Sampler"]

Values = dict[str, float | None]

GPU_MILLI = 1000


class CgroupUsage(Protocol):
    """What an attempt's cgroup says. Counters only grow; None is no data."""

    def cpu_usage_s(self) -> float | None: ...
    def throttled_s(self) -> float | None: ...
    def memory_mib(self) -> float | None: ...
    def pids(self) -> list[int]: ...


class DeviceGrant(Protocol):
    """A device of an attempt: `memory_mib` is what the attempt may use of it."""

    @property
    def uuid(self) -> str: ...
    @property
    def gpu_milli(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def is_simulated(self) -> bool: ...


class DeviceOffer(Protocol):
    """A device of a node."""

    @property
    def uuid(self) -> str: ...


class NodeOffer(Protocol):
    """A node of this agent: simulated, or the machine itself."""

    @property
    def name(self) -> str: ...
    @property
    def is_simulated(self) -> bool: ...
    @property
    def devices(self) -> Sequence[DeviceOffer]: ...


class DeviceReader(Protocol):
    """Reads real devices; None when one cannot be reached."""

    def read(self, uuid: str) -> DeviceReading | None: ...


@dataclass(frozen=True, slots=True)
class AttemptView:
    """A running attempt, as sampling needs to see it.

    Attributes:
        cpu_milli: Cores that it asked for. Without it a simulated device that the attempt holds has
            no utilisation (it is use over request).
        device_memory_mib: What its processes took of each device, by UUID; None where nothing
            counts it.
    """

    attempt_id: str
    workload_id: str
    node: str
    devices: Sequence[DeviceGrant]
    cgroup: CgroupUsage
    cpu_milli: int | None = None
    device_memory_mib: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class _Usage:
    """What one attempt uses now, on the CPU side."""

    view: AttemptView
    pids: tuple[int, ...]
    values: Values
    resident_mib: float

    @property
    def request_percent(self) -> float | None:
        """Cores used, in per cent of those asked for, at most 100."""
        cores = self.values["cpu_cores"]
        if cores is None or not self.view.cpu_milli:
            return None
        return min(100.0, 100_000.0 * cores / self.view.cpu_milli)


class _Rates:
    """Turns growing counters into rates; forgets owners that are gone."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], tuple[float, float]] = {}
        self._now: dict[tuple[str, str], tuple[float, float]] = {}

    def of(self, owner: str, name: str, counter: float | None, now: float) -> float | None:
        """Growth per second since the last round; None without one, or after a counter's reset."""
        if counter is None:
            return None
        self._now[owner, name] = (counter, now)
        before = self._before.get((owner, name))
        if before is None:
            return None
        growth, seconds = counter - before[0], now - before[1]
        return growth / seconds if growth >= 0 and seconds > 0 else None

    def end_round(self, there: Collection[str]) -> None:
        """Keep what was read last of all owners that are there, read in this round or not."""
        before = self._before | self._now
        self._before = {key: value for key, value in before.items() if key[0] in there}
        self._now = {}


class Sampler:
    """Keeps the last readings of one agent's nodes and attempts."""

    def __init__(
        self,
        nodes: Sequence[NodeOffer],
        device_reader: DeviceReader | None = None,
        *,
        disk: str = "/",
    ) -> None:
        """Set up for nodes; `disk` is any path on the disk whose room is measured."""
        self._nodes = tuple(nodes)
        self._disk = disk
        self._reader: DeviceReader = device_reader or NvmlReader()
        self._rates = _Rates()

    def sample(
        self, attempts: Sequence[AttemptView], now: float, only: Collection[str] | None = None
    ) -> list[Sample]:
        """Measure once.

        Args:
            attempts: All that run now on this agent's nodes.
            now: Unix seconds, the time of all samples returned.
            only: Names of the nodes to measure; None: all.

        Returns:
            One sample per device, workload and node.
        """
        nodes = [node for node in self._nodes if only is None or node.name in only]
        usages = [self._usage(view, now) for view in attempts if only is None or view.node in only]
        # Of a workload with replicas elsewhere, these would be a part of what it uses.
        elsewhere = {view.workload_id for view in attempts if only and view.node not in only}
        readings = {
            device.uuid: self._reader.read(device.uuid)
            for node in nodes
            if not node.is_simulated
            for device in node.devices
        }
        samples = [
            *_devices(nodes, usages, readings, now),
            *(
                Sample(f"workload:{workload_id}", now, values)
                for workload_id, values in _workloads(usages, readings)
                if workload_id not in elsewhere
            ),
        ]
        for node in nodes:
            values = _sums(node, usages) if node.is_simulated else self._machine(node, now)
            samples.append(Sample(f"node:{node.name}", now, values))
        there = {f"attempt:{view.attempt_id}" for view in attempts}
        self._rates.end_round(there | {f"node:{node.name}" for node in self._nodes})
        return samples

    def _usage(self, view: AttemptView, now: float) -> _Usage:
        cgroup, key = view.cgroup, f"attempt:{view.attempt_id}"
        pids = tuple(cgroup.pids())
        network = own_network(pids)
        rx, tx = (network.rx_bytes, network.tx_bytes) if network else (None, None)
        values: Values = {
            "cpu_cores": self._rates.of(key, "cpu", cgroup.cpu_usage_s(), now),
            "cpu_throttled_s_per_s": self._rates.of(key, "throttled", cgroup.throttled_s(), now),
            "memory_mib": cgroup.memory_mib(),
            "net_rx_bytes_per_s": self._rates.of(key, "rx", rx, now),
            "net_tx_bytes_per_s": self._rates.of(key, "tx", tx, now),
        }
        return _Usage(view=view, pids=pids, values=values, resident_mib=resident_mib(pids))

    def _machine(self, node: NodeOffer, now: float) -> Values:
        """CPU, memory, network and disk of the whole machine, whoever uses them."""
        key = f"node:{node.name}"
        times, network = psutil.cpu_times(), psutil.net_io_counters()
        idle = times.idle + getattr(times, "iowait", 0.0)
        # Guest time is contained in user time.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        rx, tx = (network.bytes_recv, network.bytes_sent) if network else (None, None)
        return {
            "cpu_cores": self._rates.of(key, "cpu", total - idle, now),
            "memory_mib": psutil.virtual_memory().used / MIB,
            "net_rx_bytes_per_s": self._rates.of(key, "rx", rx, now),
            "net_tx_bytes_per_s": self._rates.of(key, "tx", tx, now),
            **self._disks(key, now),
        }

    def _disks(self, key: str, now: float) -> Values:
        """Traffic of all disks (some machines do not tell), and the room on ours."""
        traffic = psutil.disk_io_counters()
        read, written = (traffic.read_bytes, traffic.write_bytes) if traffic else (None, None)
        used: float | None = None
        free: float | None = None
        with suppress(OSError):
            room = psutil.disk_usage(self._disk)
            used, free = room.used / MIB, room.free / MIB
        return {
            "disk_read_bytes_per_s": self._rates.of(key, "read", read, now),
            "disk_write_bytes_per_s": self._rates.of(key, "written", written, now),
            "disk_used_mib": used,
            "disk_free_mib": free,
        }


def _devices(
    nodes: Sequence[NodeOffer],
    usages: Sequence[_Usage],
    readings: Mapping[str, DeviceReading | None],
    now: float,
) -> Iterable[Sample]:
    for node in nodes:
        for device in node.devices:
            if node.is_simulated:
                values = _simulated_device(device.uuid, usages)
            else:
                reading = readings[device.uuid]
                values = {} if reading is None else reading.values
            yield Sample(f"device:{device.uuid}", now, values)


def _simulated_device(uuid: str, usages: Sequence[_Usage]) -> Values:
    """What the holders' processes really do, as if the device did it."""
    holders = [
        (usage, grant) for usage in usages for grant in usage.view.devices if grant.uuid == uuid
    ]
    util = _sum(
        _scaled(usage.request_percent, grant.gpu_milli / GPU_MILLI) for usage, grant in holders
    )
    return {
        "gpu_util_percent": None if util is None else min(util, 100.0),
        "memory_used_mib": math.fsum(_simulated_memory_mib(*holder) for holder in holders),
    }


def _simulated_memory_mib(usage: _Usage, grant: DeviceGrant) -> float:
    """What was taken of it, else resident memory, spread evenly over the attempt's devices; at most
    the share, since what was taken is the workload's own statement.
    """
    taken = usage.view.device_memory_mib
    if taken is not None and grant.uuid in taken:
        return min(taken[grant.uuid], float(grant.memory_mib))
    return min(usage.resident_mib / len(usage.view.devices), float(grant.memory_mib))


def _workloads(
    usages: Sequence[_Usage], readings: Mapping[str, DeviceReading | None]
) -> Iterable[tuple[str, Values]]:
    """What each workload uses: of several replicas all of them together."""
    known = {pid for usage in usages for pid in usage.pids}
    replicas: dict[str, list[tuple[int, Values]]] = {}
    for usage in usages:
        values = dict(usage.values)
        granted = sum(grant.gpu_milli for grant in usage.view.devices)
        if usage.view.devices:
            values["gpu_util_percent"] = _grant_util_percent(usage, readings, known)
            values["gpu_memory_mib"] = _sum(
                _grant_memory_mib(usage, grant, readings, known) for grant in usage.view.devices
            )
        replicas.setdefault(usage.view.workload_id, []).append((granted, values))
    for workload_id, parts in replicas.items():
        yield workload_id, _together(parts)


def _together(parts: Sequence[tuple[int, Values]]) -> Values:
    """Sums of what replicas use; of the use of their grants the mean, weighted by what was granted
    (thousandths of a GPU, the first of each pair).
    """
    if len(parts) == 1:
        return parts[0][1]
    total: Values = {name: _sum(values[name] for _, values in parts) for name in parts[0][1]}
    if "gpu_util_percent" in total:
        granted = sum(milli for milli, _ in parts)
        used = _sum(_scaled(values["gpu_util_percent"], milli) for milli, values in parts)
        total["gpu_util_percent"] = None if used is None or not granted else used / granted
    return total


def _grant_util_percent(
    usage: _Usage, readings: Mapping[str, DeviceReading | None], known: set[int]
) -> float | None:
    """Use of all that was granted: over the devices, weighted by fraction."""
    granted = sum(grant.gpu_milli for grant in usage.view.devices)
    used = _sum(
        _scaled(usage.request_percent, grant.gpu_milli)
        if grant.is_simulated
        else _scaled(_device_util_of(usage, grant, readings.get(grant.uuid), known), GPU_MILLI)
        for grant in usage.view.devices
    )
    return None if used is None or not granted else used / granted


def _device_util_of(
    usage: _Usage, grant: DeviceGrant, reading: DeviceReading | None, known: set[int]
) -> float | None:
    """Per cent of a real device that this attempt's processes use.

    Who holds a device alone used what was used. On a shared one the driver must tell processes
    apart; where it cannot, there is no figure, and the device's is never repeated.
    """
    if reading is None:
        return None
    if grant.gpu_milli >= GPU_MILLI:
        return reading.values["gpu_util_percent"]
    by_pid = reading.util_percent_by_pid
    if by_pid is None or not are_all_known(reading, known):
        return None
    return min(100.0, math.fsum(by_pid.get(pid, 0.0) for pid in usage.pids))


def _grant_memory_mib(
    usage: _Usage,
    grant: DeviceGrant,
    readings: Mapping[str, DeviceReading | None],
    known: set[int],
) -> float | None:
    if grant.is_simulated:
        return _simulated_memory_mib(usage, grant)
    reading = readings.get(grant.uuid)
    if reading is None or reading.processes is None or not are_all_known(reading, known):
        return None
    return _sum(p.memory_mib for p in reading.processes if p.pid in usage.pids)


def _sums(node: NodeOffer, usages: Sequence[_Usage]) -> Values:
    """A simulated node does what its workloads do."""
    there = [usage for usage in usages if usage.view.node == node.name]
    return {
        "cpu_cores": _sum(usage.values["cpu_cores"] for usage in there),
        "memory_mib": _sum(usage.values["memory_mib"] for usage in there),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum, or no data where a part has none: a sum of some would look like less use."""
    present: list[float] = []
    for value in values:
        if value is None:
            return None
        present.append(value)
    return math.fsum(present)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
