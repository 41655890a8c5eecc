"""The driver's checkpoint calls and the few of NVML's that go with them, through ctypes.

ctypes on the driver's own library, since eleven functions with plain arguments need no binding of
24 MB, and the same code loads the fake libraries of a simulated node by their path. Structures
and numbers: `cuda.h` 12.8 and `nvml.h`. Standard library only.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any, Final

_NVML_SUCCESS, _NVML_INSUFFICIENT_SIZE = 0, 7
_NOT_AVAILABLE: Final = 2**64 - 1
_CHECKPOINT_CALLS: Final = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")


class CallError(Exception):
    """A call of a library failed."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text}")
        self.call, self.code, self.text = call, code, text


class _LockArgs(ctypes.Structure):
    """`CUcheckpointLockArgs`; all argument structures have 64 bytes, unused ones 0."""

    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class _NoArgs(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_uint64 * 8),)


class _Memory(ctypes.Structure):
    """`nvmlMemory_v2_t`."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_v2_t`, which version 3 of the call fills too."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Driver:
    """One node's `libcuda` and `libnvidia-ml`, loaded at the first call and kept initialised."""

    def __init__(self, cuda: Path, nvml: Path) -> None:
        self._paths = (cuda, nvml)
        self._mutex = threading.Lock()
        # Foreign functions of any signature, hence Any.
        self._loaded: tuple[Any, Any] | None = None

    def _libraries(self) -> tuple[Any, Any]:
        with self._mutex:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> tuple[Any, Any]:
        try:
            cuda, nvml = (ctypes.CDLL(str(path)) for path in self._paths)
        except OSError as error:
            raise CallError("dlopen", 0, str(error)) from error
        missing = [name for name in _CHECKPOINT_CALLS if not hasattr(cuda, _name(name))]
        if missing:
            raise CallError(_name(missing[0]), 0, "this driver has no such call (570 is the first)")
        # Kept for as long as we live: a restore needs a driver that is loaded.
        self._check("cuInit", cuda.cuInit(0))
        self._check_nvml("nvmlInit_v2", nvml.nvmlInit_v2())
        return cuda, nvml

    def probe(self) -> str:
        """Load everything; empty if that worked."""
        self._libraries()
        return ""

    # ------------------------------------------------------------------ one process

    def state(self, pid: int) -> int | None:
        """Its state; None if the driver knows no such process."""
        cuda, _ = self._libraries()
        found = ctypes.c_int(-1)
        result = cuda.cuCheckpointProcessGetState(pid, ctypes.byref(found))
        return found.value if result == 0 else None

    def lock(self, pid: int, timeout_ms: int) -> None:
        """Let its calls end and hold the next ones back; 600 if they do not end in time."""
        if timeout_ms <= 0:
            raise CallError("lock", 0, "without a timeout it could wait for ever")
        self._move("Lock", pid, _LockArgs(timeout_ms))

    def checkpoint(self, pid: int) -> None:
        """Move its memory to the host."""
        self._move("Checkpoint", pid, _NoArgs())

    def restore(self, pid: int) -> None:
        """Move its memory back to the device that it was on."""
        self._move("Restore", pid, _NoArgs())

    def unlock(self, pid: int) -> None:
        """Let its calls go on."""
        self._move("Unlock", pid, _NoArgs())

    def _move(self, name: str, pid: int, arguments: ctypes.Structure) -> None:
        cuda, _ = self._libraries()
        call = getattr(cuda, _name(name))
        self._check(_name(name), call(ctypes.c_int(pid), ctypes.byref(arguments)))

    # ------------------------------------------------------------------ one device

    def use(self, device_uuid: str) -> list[Any] | None:
        """`[free bytes, [[pid, used bytes], …]]`; None if the device cannot be read."""
        _, nvml = self._libraries()
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByUUID(device_uuid.encode(), ctypes.byref(handle)):
            return None
        memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
        if nvml.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)):
            return None
        processes = self._processes(nvml, handle)
        return None if processes is None else [int(memory.free), processes]

    def _processes(self, nvml: Any, handle: ctypes.c_void_p) -> list[list[int]] | None:
        call = nvml.nvmlDeviceGetComputeRunningProcesses_v3
        size = 64
        while True:
            count, found = ctypes.c_uint(size), (_Process * size)()
            result = call(handle, ctypes.byref(count), found)
            if result == _NVML_SUCCESS:
                return [
                    [process.pid, 0 if process.used == _NOT_AVAILABLE else process.used]
                    for process in found[: count.value]
                ]
            if result != _NVML_INSUFFICIENT_SIZE or size > 2**16:
                return None
            size = max(count.value, size) * 2

    # ------------------------------------------------------------------ errors

    def _check(self, call: str, result: int) -> None:
        if result:
            raise CallError(call, result, f"CUDA error {result}")

    def _check_nvml(self, call: str, result: int) -> None:
        if result:
            raise CallError(call, 0, f"NVML error {result}")


def _name(call: str) -> str:
    return f"cuCheckpointProcess{call}"
