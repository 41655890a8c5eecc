"""Readings of real NVIDIA devices through NVML.

Each value stands alone: a device that lacks one counter still yields the others, and what a
device cannot say is None, never 0. Runs on nodes, without Django.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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

    def read(self, uuid: str) -> DeviceReading | None:
        """Read one device; None when it, or NVML itself, cannot be reached."""
        handle = self._handle(uuid)
        if handle is None:
            return None
        return DeviceReading(
            values=_values(handle),
            processes=_processes(handle),
            util_percent_by_pid=self._util_by_pid(uuid, handle),
        )

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
