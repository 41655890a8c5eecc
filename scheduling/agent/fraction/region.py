"""The accounting region of a session as the agent sees it: made, read, and its state word set.

The layout is `native/region.h`'s; change both, and the version. The workload writes into the file
as it likes (it may even cut it short), so whatever is read here is a statement of the workload's,
and nothing is mapped: a mapping of a file that shrinks would kill the agent. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path

from scheduling.agent.fraction.limits import GpuLimit, uuid_bytes

MAGIC = b"ALLOTRG1"
VERSION = 3
# Whole regions without what is counted for contexts: sessions that have run since before an agent
# was upgraded keep the libraries, and the region, that they began with.
_WITHOUT_CONTEXTS = 2
MAX_GPUS, MAX_SLOTS = 16, 1024
_LOCK_SLOTS = 1 << 20
# Offsets in bytes; see the C structure.
_VERSION, _GENERATION, _STATE, _LAST_CALL, _HIGH, _HELD, _WAKES = 8, 12, 16, 24, 32, 36, 40
_GPUS, _GPU_SIZE = 64, 64
_PROCESSES, _PROCESS_SIZE = _GPUS + MAX_GPUS * _GPU_SIZE, 64
_NAMESPACE, _GPU_NS, _CONTEXTS, _PROCESS_FLAGS = 8, 24, 32, 40
_USED = _PROCESSES + MAX_SLOTS * _PROCESS_SIZE
_PENDING = _USED + MAX_GPUS * MAX_SLOTS * 8
_SAVED = _PENDING + MAX_GPUS * MAX_SLOTS * 8
_CONTEXT = _SAVED + MAX_GPUS * MAX_SLOTS * 8
_MEASURED = _CONTEXT + MAX_GPUS * MAX_SLOTS * 8
SIZE = _MEASURED + MAX_GPUS * MAX_SLOTS * 8
# Of one process on one device. The workload may write anything; the sum of all of them is still a
# number that rows and messages hold.
_MOST_BYTES = 2**48
# struct flock on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_F_OFD_GETLK = 36


class RegionError(Exception):
    """The file is no region, or the workload destroyed it."""


class State(IntEnum):
    """The state word. Anything but RUNNING holds the session's CUDA calls back; FAILED ends them
    with error 401."""

    RUNNING = 0
    LOCKING = 1
    SWAPPING_OUT = 2
    SWAPPED_OUT = 3
    WAITING = 4
    SWAPPING_IN = 5
    FAILED = 6


class Flag(IntFlag):
    """What a living process of the session did that may rule Swap out."""

    MANAGED = 1
    IPC = 2
    EXPORTABLE = 4
    SEVERAL_GPUS = 8


_OF_A_PROCESS = Flag.MANAGED | Flag.IPC | Flag.EXPORTABLE


@dataclass(frozen=True, slots=True)
class Process:
    """A living process of the session that used CUDA.

    Attributes:
        pid: As the process sees itself.
        pid_namespace: Inode of the PID namespace in which it does.
        used_bytes: Per device, in the order of the limits.
        context_bytes: What of it is charged for contexts.
        gpu_ns: GPU time that was charged to it, over all devices.
        contexts: Devices on which it has a context, a bit each.
    """

    slot: int
    pid: int
    pid_namespace: int
    used_bytes: tuple[int, ...]
    context_bytes: tuple[int, ...]
    saved_bytes: tuple[int, ...]
    gpu_ns: int
    contexts: int
    flags: Flag

    @property
    def key(self) -> tuple[int, int]:
        """Names it among all processes of the machine, as `comparison.key_of` does."""
        return self.pid_namespace, self.pid


@dataclass(frozen=True, slots=True)
class Reading:
    """What a region says at one moment.

    Attributes:
        is_current: It is of the form that this version's libraries write.
        flags: Those of all living processes; several devices are also those of several processes.
        device_uuids: 16 bytes each.
        used_bytes: Per device, of living processes.
        last_call_s: `time.monotonic()` of the last CUDA call; None before the first.
        num_held: Calls that wait at the gate now.
        num_wakes: Datagrams sent so far.
    """

    is_current: bool
    state: State
    flags: Flag
    generation: int
    device_uuids: tuple[bytes, ...]
    limit_bytes: tuple[int, ...]
    used_bytes: tuple[int, ...]
    last_call_s: float | None
    num_held: int
    num_wakes: int
    processes: tuple[Process, ...]

    def place_of(self, device_uuid: str) -> int | None:
        """A device's place in the order of the limits."""
        wanted = uuid_bytes(device_uuid)
        return self.device_uuids.index(wanted) if wanted in self.device_uuids else None


class Region:
    """One session's region, by its path on the machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, limits: Iterable[GpuLimit], mode: int = 0o666) -> Region:
        """Make an empty region, or take the one that is there.

        Args:
            path: Of the file; it gets its name when it is whole.
            limits: Devices, in the order of the limits file.
            mode: The session's processes write to it as whatever user they run.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        region = cls(path)
        if path.exists():
            return region
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with open(temporary, "wb") as file:
            # Not a file of holes: a process that writes to one on a full disk dies of it (SIGBUS).
            os.posix_fallocate(file.fileno(), 0, SIZE)
            file.write(struct.pack("<8sII", MAGIC, VERSION, 1))
            for place, limit in enumerate(limits):
                file.seek(_GPUS + place * _GPU_SIZE)
                file.write(struct.pack("<16sQ", uuid_bytes(limit.device_uuid), limit.num_bytes))
            os.fchmod(file.fileno(), mode)
        temporary.rename(path)
        return region

    def read(self) -> Reading:
        """What it says now.

        Raises:
            RegionError: see there.
        """
        with self._opened(os.O_RDWR) as fd:
            head = os.pread(fd, _GPUS, 0)
            if len(head) != _GPUS or not head.startswith(MAGIC):
                raise RegionError(f"{self.path}: not a region")
            version, generation, state = struct.unpack_from("<III", head, 8)
            if version not in (VERSION, _WITHOUT_CONTEXTS):
                raise RegionError(f"{self.path}: version {version}")
            last_call_ns, high, num_held, num_wakes = struct.unpack_from("<QIIQ", head, _LAST_CALL)
            gpus = _gpus(_exactly(fd, MAX_GPUS * _GPU_SIZE, _GPUS))
            is_current = version == VERSION
            processes = tuple(
                _processes(fd, min(high, MAX_SLOTS), len(gpus), counts_contexts=is_current)
            )
        return Reading(
            is_current=is_current,
            state=State(state) if state in State._value2member_map_ else State.FAILED,
            flags=_flags(processes),
            generation=generation,
            device_uuids=tuple(uuid for uuid, _ in gpus),
            limit_bytes=tuple(limit for _, limit in gpus),
            used_bytes=tuple(
                sum(process.used_bytes[place] for process in processes)
                for place in range(len(gpus))
            ),
            last_call_s=last_call_ns / 1e9 if last_call_ns else None,
            num_held=num_held,
            num_wakes=num_wakes,
            processes=processes,
        )

    def last_call_s(self) -> float | None:
        """When a CUDA call was last made, by `time.monotonic()`; None before the first."""
        ns = self._word(_LAST_CALL, "<Q")
        return ns / 1e9 if ns else None

    def state(self) -> State:
        """The state word."""
        number = self._word(_STATE, "<I")
        return State(number) if number in State._value2member_map_ else State.FAILED

    def set_state(self, state: State) -> None:
        """Hold CUDA calls back, or let them go on; waiting calls see it within 2 ms."""
        with self._opened(os.O_RDWR) as fd:
            os.pwrite(fd, struct.pack("<I", state), _STATE)

    def limits_changed(self) -> None:
        """Have every process read the limits file again before its next allocation."""
        with self._opened(os.O_RDWR) as fd:
            (generation,) = struct.unpack("<I", _exactly(fd, 4, _GENERATION))
            os.pwrite(fd, struct.pack("<I", (generation + 1) & 0xFFFFFFFF), _GENERATION)

    def set_utilisation(self, place: int, percent: int) -> None:
        """What the session's own NVML shows as the utilisation of its device."""
        with self._opened(os.O_RDWR) as fd:
            os.pwrite(fd, struct.pack("<I", percent), _GPUS + place * _GPU_SIZE + 24)

    def set_measured(self, process: Process, place: int, num_bytes: int) -> None:
        """Have a process count so much for its contexts on a device, from its next call on.

        Nothing if it has ended, or is of before regions had a place for it; who takes its slot in
        just this moment is put right later.
        """
        with self._opened(os.O_RDWR) as fd:
            if _exactly(fd, 4, _VERSION) != struct.pack("<I", VERSION):
                return
            own = _exactly(fd, 4, _PROCESSES + process.slot * _PROCESS_SIZE)
            if is_locked(fd, process.slot) and own == struct.pack("<I", process.pid):
                cell = _MEASURED + (place * MAX_SLOTS + process.slot) * 8
                os.pwrite(fd, struct.pack("<Q", num_bytes), cell)

    def _word(self, offset: int, form: str) -> int:
        with self._opened(os.O_RDONLY) as fd:
            number: int = struct.unpack(form, _exactly(fd, struct.calcsize(form), offset))[0]
            return number

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        try:
            fd = os.open(self.path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise RegionError(f"{self.path}: {error.strerror}") from error
        try:
            yield fd
        finally:
            os.close(fd)


def _exactly(fd: int, size: int, offset: int) -> bytes:
    data = os.pread(fd, size, offset)
    if len(data) != size:
        raise RegionError("the workload cut its region short")
    return data


def _gpus(data: bytes) -> list[tuple[bytes, int]]:
    found = []
    for place in range(MAX_GPUS):
        uuid, limit = struct.unpack_from("<16sQ", data, place * _GPU_SIZE)
        if limit == 0:
            break
        found.append((uuid, limit))
    return found


def _processes(fd: int, high: int, num_gpus: int, *, counts_contexts: bool) -> Iterator[Process]:
    pids = _exactly(fd, high * _PROCESS_SIZE, _PROCESSES)
    used = _columns(fd, _USED, high, num_gpus)
    nothing = [(0,) * high] * num_gpus
    contexts_of = _columns(fd, _CONTEXT, high, num_gpus) if counts_contexts else nothing
    saved = _columns(fd, _SAVED, high, num_gpus)
    for slot in range(high):
        if is_locked(fd, slot):
            (pid,) = struct.unpack_from("<I", pids, slot * _PROCESS_SIZE)
            own = slot * _PROCESS_SIZE
            (namespace,) = struct.unpack_from("<Q", pids, own + _NAMESPACE)
            (gpu_ns,) = struct.unpack_from("<Q", pids, own + _GPU_NS)
            (contexts,) = struct.unpack_from("<I", pids, own + _CONTEXTS)
            (flags,) = struct.unpack_from("<I", pids, own + _PROCESS_FLAGS)
            yield Process(
                slot,
                pid,
                namespace,
                tuple(column[slot] for column in used),
                tuple(column[slot] for column in contexts_of),
                tuple(column[slot] for column in saved),
                gpu_ns,
                contexts,
                Flag(flags & _OF_A_PROCESS),
            )


def _flags(processes: Iterable[Process]) -> Flag:
    flags, contexts = Flag(0), 0
    for process in processes:
        flags |= process.flags
        contexts |= process.contexts
    return flags | Flag.SEVERAL_GPUS if contexts & (contexts - 1) else flags


def _columns(fd: int, start: int, high: int, num_gpus: int) -> list[tuple[int, ...]]:
    found = (
        struct.unpack(f"<{high}Q", _exactly(fd, high * 8, start + place * MAX_SLOTS * 8))
        for place in range(num_gpus)
    )
    return [tuple(min(num_bytes, _MOST_BYTES) for num_bytes in column) for column in found]


def is_locked(fd: int, slot: int) -> bool:
    """Whether the slot's process lives: the kernel drops its lock when it dies."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _LOCK_SLOTS + slot, 1, 0)
    found = fcntl.fcntl(fd, _F_OFD_GETLK, asked)
    kind: int = _FLOCK.unpack(found)[0]
    return kind != fcntl.F_UNLCK
