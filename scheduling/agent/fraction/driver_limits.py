"""Memory limits that the driver itself enforces (615 and newer), per cgroup and device.

Set on the leaf cgroup once it is there and before the workload starts, soft = hard, and read back:
by the attempt's shim. Lifted before the cgroup goes, since ancestors may keep a reservation
otherwise: by the agent, since the shim may have been killed, and sees the proxy by then. ctypes and
nothing else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

UNLIMITED = 2**64 - 1
LIBRARY = "libnvidia-ml.so.1"
_NOT_SUPPORTED = 3


class DriverLimitError(OSError):
    """The driver refused a limit, or does not have the one that was set."""


class _Set(ctypes.Structure):
    """`nvmlSetMemoryLimits_v1_t`."""

    _fields_ = (
        ("name_space", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
    )


class _Get(ctypes.Structure):
    """`nvmlGetMemoryLimits_v1_t`."""

    _fields_ = (*_Set._fields_, ("used", ctypes.c_ulonglong))


@contextmanager
def _nvml(library: str) -> Iterator[Any]:
    """The library, initialised; its functions have no types, hence Any."""
    nvml = ctypes.CDLL(library)
    _check(nvml.nvmlInit_v2(), "nvmlInit_v2")
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _check(result: int, what: str) -> None:
    if result == _NOT_SUPPORTED:
        raise DriverLimitError(
            f"{what}: not supported: the cgroup has no dmem files, or the driver is too old"
        )
    if result:
        raise DriverLimitError(f"{what}: error {result} of NVML")


def _device(nvml: Any, uuid: str) -> ctypes.c_void_p:
    device = ctypes.c_void_p()
    _check(nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)), uuid)
    return device


def _set(nvml: Any, cgroup: str, uuid: str, soft: int, hard: int) -> None:
    wanted = _Set(cgroup.encode(), soft, hard)
    result = nvml.nvmlDeviceSetMemoryLimits_v1(_device(nvml, uuid), ctypes.byref(wanted))
    _check(result, f"memory limit of {uuid}")


def read(cgroup: str, uuid: str, library: str = LIBRARY) -> tuple[int, int]:
    """Soft and hard limit in bytes.

    Raises:
        DriverLimitError: the driver does not tell.
    """
    with _nvml(library) as nvml:
        return _read(nvml, cgroup, uuid)


def _read(nvml: Any, cgroup: str, uuid: str) -> tuple[int, int]:
    found = _Get(cgroup.encode())
    result = nvml.nvmlDeviceGetMemoryLimits_v1(_device(nvml, uuid), ctypes.byref(found))
    _check(result, f"memory limit of {uuid}")
    return int(found.soft), int(found.hard)


def apply(cgroup: str, limits: Mapping[str, int], library: str = LIBRARY) -> None:
    """Limit a cgroup on each device, and see that the driver has it.

    Raises:
        DriverLimitError: see there. Nothing may be started then.
    """
    with _nvml(library) as nvml:
        for uuid, num_bytes in limits.items():
            _set(nvml, cgroup, uuid, num_bytes, num_bytes)
            if _read(nvml, cgroup, uuid) != (num_bytes, num_bytes):
                raise DriverLimitError(f"memory limit of {uuid}: the driver did not keep it")


def lift(cgroup: str, uuids: Iterable[str], library: str = LIBRARY) -> None:
    """Lift what was set, before the cgroup is removed.

    Raises:
        DriverLimitError: see there.
    """
    with _nvml(library) as nvml:
        for uuid in uuids:
            _set(nvml, cgroup, uuid, 0, UNLIMITED)
