"""Readings of real NVIDIA devices through NVML.

Each value stands alone: a device that lacks one counter still yields the others, and what a
device cannot say is None, never 0. Runs on nodes, without Django.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process on a device; `memory_mib` is None where the driver keeps it to itself."""

    pid: int
    memory_mib: float | None


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One look at one device.

    Attributes:
        values: By the metric names of a device.
        processes: Those with a context on it; None where the driver does not tell.
        util_percent_by_pid: Recent use of the multiprocessors by process; None where the driver
            does not tell. Who did nothing is absent.
    """

    values: dict[str, float | None]
    processes: tuple[ProcessReading, ...] | None = None
    util_percent_by_pid: dict[int, float] | None = field(default=None)


# `Any`: pynvml has no types.
def _ask(query: Callable[..., Any], *args: Any) -> Any | None:
    """Ask NVML one thing; None where it cannot or does not answer."""
    try:
        return query(*args)
    except pynvml.NVMLError:
        return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


class NvmlReader:
    """Reads devices by UUID. Without a driver there is no reading, and the next one tries again."""

    def __init__(self) -> None:
        self._is_ready = False
        self._seen_until: dict[str, int] = {}
        self._xids: dict[str, _XidWatch] = {}

    def read(self, uuid: str) -> DeviceReading | None:
        """Read one device; None when it, or NVML itself, cannot be reached."""
        handle = self._handle(uuid)
        if handle is None:
            return None
        xids = self._xids.get(uuid) or self._xids.setdefault(uuid, _XidWatch(handle))
        return DeviceReading(
            values=_values(handle) | {"xid": xids.last()},
            processes=_processes(handle),
            util_percent_by_pid=self._util_by_pid(uuid, handle),
        )

    def processes(self, uuid: str) -> tuple[ProcessReading, ...] | None:
        """Those with a context on a device; None where the driver does not tell."""
        handle = self._handle(uuid)
        return None if handle is None else _processes(handle)

    def _handle(self, uuid: str) -> Any | None:
        if not self._is_ready:
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError:
                return None
            self._is_ready = True
        return _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)

    def _util_by_pid(self, uuid: str, handle: Any) -> dict[int, float] | None:
        """Newest utilisation of each process since the last look.

        "Not found" is an answer: since then no process did anything.
        """
        since = self._seen_until.get(uuid, 0)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
        except pynvml.NVMLError_NotFound:
            return {}
        except pynvml.NVMLError:
            return None
        newest = sorted(samples, key=lambda sample: int(sample.timeStamp))
        if newest:
            self._seen_until[uuid] = int(newest[-1].timeStamp)
        return {int(sample.pid): float(sample.smUtil) for sample in newest}


class _XidWatch:
    """The last Xid that the driver reported of a device since this watch began; 0 is none."""

    def __init__(self, handle: Any) -> None:
        self._last: float | None = None
        self._events: Any | None = None
        supported = _ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle) or 0
        if not supported & pynvml.nvmlEventTypeXidCriticalError:
            return
        self._events = _ask(pynvml.nvmlEventSetCreate)
        try:
            pynvml.nvmlDeviceRegisterEvents(
                handle, pynvml.nvmlEventTypeXidCriticalError, self._events
            )
        except pynvml.NVMLError:
            self._events = None
        else:
            self._last = 0.0

    def last(self) -> float | None:
        """Take what has come since the last look; None where the device cannot tell."""
        for _ in range(_MAX_EVENTS):
            event = (
                None if self._events is None else _ask(pynvml.nvmlEventSetWait_v2, self._events, 0)
            )
            if event is None:
                break
            self._last = float(event.eventData)
        return self._last


# A device in trouble may report faster than anybody reads.
_MAX_EVENTS = 100


def _values(handle: Any) -> dict[str, float | None]:
    util = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    clock, temperature = pynvml.nvmlDeviceGetClockInfo, pynvml.nvmlDeviceGetTemperature
    return {
        "gpu_util_percent": None if util is None else float(util.gpu),
        "memory_util_percent": None if util is None else float(util.memory),
        "memory_used_mib": None if memory is None else memory.used / MIB,
        "power_w": _scaled(_ask(pynvml.nvmlDeviceGetPowerUsage, handle), 1e-3),
        "temperature_c": _scaled(_ask(temperature, handle, pynvml.NVML_TEMPERATURE_GPU), 1.0),
        "sm_clock_mhz": _scaled(_ask(clock, handle, pynvml.NVML_CLOCK_SM), 1.0),
        "memory_clock_mhz": _scaled(_ask(clock, handle, pynvml.NVML_CLOCK_MEM), 1.0),
        "encoder_util_percent": _first(_ask(pynvml.nvmlDeviceGetEncoderUtilization, handle)),
        "decoder_util_percent": _first(_ask(pynvml.nvmlDeviceGetDecoderUtilization, handle)),
        "memory_temperature_c": _memory_temperature(handle),
        "throttled_percent": _throttled(handle),
        **_pcie(handle),
        **_errors(handle),
    }


def _first(values: Sequence[Any] | None) -> float | None:
    return None if values is None else float(values[0])


def _memory_temperature(handle: Any) -> float | None:
    fields = _ask(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
    if fields is None or fields[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return float(fields[0].value.uiVal)


# Heat, and a lack of power that is a fault; a power limit that is merely reached is none.
_SLOWED_DOWN = (
    pynvml.nvmlClocksEventReasonHwSlowdown
    | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    | pynvml.nvmlClocksEventReasonSwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
)


def _throttled(handle: Any) -> float | None:
    """100 while heat or a lack of power slows the device down, so that means are shares of time."""
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:
        # The name in drivers before 535.
        reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return None if reasons is None else 100.0 * bool(reasons & _SLOWED_DOWN)


def _pcie(handle: Any) -> dict[str, float | None]:
    """Traffic over the last 20 ms, for which the driver waits; and packets sent again."""
    throughput = pynvml.nvmlDeviceGetPcieThroughput
    received = _ask(throughput, handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    sent = _ask(throughput, handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    return {
        "pcie_rx_bytes_per_s": _scaled(received, 1024.0),
        "pcie_tx_bytes_per_s": _scaled(sent, 1024.0),
        "pcie_replays": _scaled(_ask(pynvml.nvmlDeviceGetPcieReplayCounter, handle), 1.0),
    }


def _errors(handle: Any) -> dict[str, float | None]:
    """Memory errors since the driver was loaded, and rows replaced because of them."""
    total, volatile = pynvml.nvmlDeviceGetTotalEccErrors, pynvml.NVML_VOLATILE_ECC
    corrected = _ask(total, handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile)
    uncorrected = _ask(total, handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile)
    rows = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    return {
        "ecc_corrected": _scaled(corrected, 1.0),
        "ecc_uncorrected": _scaled(uncorrected, 1.0),
        "remapped_rows_corrected": None if rows is None else float(rows[0]),
        "remapped_rows_uncorrected": None if rows is None else float(rows[1]),
    }


def _processes(handle: Any) -> tuple[ProcessReading, ...] | None:
    found = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if found is None:
        return None
    return tuple(
        ProcessReading(
            pid=int(process.pid),
            memory_mib=None
            if process.usedGpuMemory is None
            else float(process.usedGpuMemory) / MIB,
        )
        for process in found
    )


def are_all_known(reading: DeviceReading, pids: Collection[int]) -> bool:
    """Whether every process on the device is one of these, so that absence means zero.

    A foreign process may be one of ours under another PID (a container's agent sees other numbers
    than the driver), so then nothing can be said about who is absent.
    """
    return reading.processes is not None and all(p.pid in pids for p in reading.processes)
