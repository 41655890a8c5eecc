"""A cgroup per attempt: exact CPU and memory limits, and what was used of them.

Version 2 is what production has; version 1 is used where only that is mounted with controllers.
Where neither can be written `detect` answers None and the shim falls back to a watchdog.
Standard library only, since the shim starts with nothing else.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Of the kernel's scheduler; quota / period = cores.
_PERIOD_US = 100_000
_MIB = 2**20
# No workload needs more; a fork bomb stops here.
MAX_PIDS = 8192
_V1_CONTROLLERS = ("cpu", "cpuacct", "memory", "pids")
_V2_CONTROLLERS = ("cpu", "memory", "pids")
# Enabled where the kernel has it: memory of devices, which the driver limits by cgroup.
_V2_DEVICE_MEMORY = "dmem"
# A killed process leaves its cgroup a little later.
_REMOVAL_TRIES, _REMOVAL_PAUSE_S = 50, 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """What an attempt may use."""

    cpu_milli: int
    memory_mib: int
    num_pids: int = MAX_PIDS


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _keyed(path: Path, key: str) -> int:
    """The number after a key in a file of `key number` lines; 0 if it is not there."""
    for line in _read(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdigit():
            return int(value)
    return 0


class Cgroup(ABC):
    """The cgroup of one attempt. Reading one that is gone gives zeros."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self.folders = folders

    @abstractmethod
    def limit(self, limits: Limits) -> None:
        """Write the limits; `OSError` if the kernel refuses."""

    @abstractmethod
    def limit_memory(self, memory_mib: int) -> None:
        """Change the memory limit alone; `OSError` while more than that is in use."""

    @abstractmethod
    def cpu_usage_s(self) -> float:
        """CPU time used so far."""

    @abstractmethod
    def throttled_s(self) -> float:
        """Time that its processes waited for the next period at the CPU limit."""

    @abstractmethod
    def memory_mib(self) -> float:
        """Memory in use that could not simply be dropped (caches of files left out)."""

    @abstractmethod
    def peak_mib(self) -> int | None:
        """Highest use seen; None where the kernel does not say."""

    @abstractmethod
    def num_oom_kills(self) -> int:
        """How often the kernel killed a process of it at the memory limit."""

    @abstractmethod
    def cpu_limit_milli(self) -> int | None:
        """The CPU limit in force."""

    @abstractmethod
    def memory_limit_mib(self) -> int | None:
        """The memory limit in force."""

    def create(self, limits: Limits) -> None:
        """Make the cgroup with its parent, or take the one that is there, and limit it."""
        for folder in self.folders:
            folder.mkdir(parents=True, exist_ok=True)
        self.limit(limits)

    def join(self) -> None:
        """Move the calling process in; `0` means the writer, in any PID namespace."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text("0")

    def exists(self) -> bool:
        """Whether any part of it is there."""
        return any(folder.is_dir() for folder in self.folders)

    def pids(self) -> list[int]:
        """Its processes, as the caller's namespace numbers them."""
        return [int(pid) for pid in _read(self.folders[0] / "cgroup.procs").split() if pid != "0"]

    def kill(self) -> None:
        """Kill every process in it."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Kill what is left in it and remove it; False if the kernel still holds it."""
        for _ in range(_REMOVAL_TRIES):
            self.kill()
            for folder in self.folders:
                with suppress(OSError):
                    folder.rmdir()
            if not self.exists():
                return True
            time.sleep(_REMOVAL_PAUSE_S)
        return False


class CgroupV1(Cgroup):
    """Version 1: a folder per controller."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        super().__init__(folders)
        self.cpu, self.cpuacct, self.memory, self.processes = folders

    def limit(self, limits: Limits) -> None:
        (self.cpu / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (self.cpu / "cpu.cfs_quota_us").write_text(str(limits.cpu_milli * _PERIOD_US // 1000))
        (self.cpu / "cpu.shares").write_text(str(max(2, limits.cpu_milli * 1024 // 1000)))
        size = str(limits.memory_mib * _MIB)
        (self.memory / "memory.limit_in_bytes").write_text(size)
        # Absent where the kernel does not account for swap; never below the limit before it.
        with suppress(FileNotFoundError, PermissionError):
            (self.memory / "memory.memsw.limit_in_bytes").write_text(size)
        (self.processes / "pids.max").write_text(str(limits.num_pids))

    def limit_memory(self, memory_mib: int) -> None:
        names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        if memory_mib > (self.memory_limit_mib() or 0):
            # The limit with swap is never below the one without.
            names.reverse()
        for name in names:
            with suppress(FileNotFoundError, PermissionError):
                (self.memory / name).write_text(str(memory_mib * _MIB))

    def cpu_usage_s(self) -> float:
        return (_number(self.cpuacct / "cpuacct.usage") or 0) / 1e9

    def throttled_s(self) -> float:
        return _keyed(self.cpu / "cpu.stat", "throttled_time") / 1e9

    def memory_mib(self) -> float:
        used = _number(self.memory / "memory.usage_in_bytes") or 0
        cached = _keyed(self.memory / "memory.stat", "total_inactive_file")
        return max(0, used - cached) / _MIB

    def peak_mib(self) -> int | None:
        peak = _number(self.memory / "memory.max_usage_in_bytes")
        return None if peak is None else peak // _MIB

    def num_oom_kills(self) -> int:
        return _keyed(self.memory / "memory.oom_control", "oom_kill")

    def cpu_limit_milli(self) -> int | None:
        quota = _number(self.cpu / "cpu.cfs_quota_us")
        period = _number(self.cpu / "cpu.cfs_period_us")
        return quota * 1000 // period if quota and period else None

    def memory_limit_mib(self) -> int | None:
        limit = _number(self.memory / "memory.limit_in_bytes")
        return None if limit is None else limit // _MIB


class CgroupV2(Cgroup):
    """Version 2: one folder."""

    @property
    def folder(self) -> Path:
        """Its only folder."""
        return self.folders[0]

    def limit(self, limits: Limits) -> None:
        quota = limits.cpu_milli * _PERIOD_US // 1000
        (self.folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        with suppress(OSError):
            weight = min(10_000, max(1, limits.cpu_milli // 10))
            (self.folder / "cpu.weight").write_text(str(weight))
        (self.folder / "memory.max").write_text(str(limits.memory_mib * _MIB))
        with suppress(OSError):
            (self.folder / "memory.swap.max").write_text("0")
        (self.folder / "pids.max").write_text(str(limits.num_pids))

    def limit_memory(self, memory_mib: int) -> None:
        used = _number(self.folder / "memory.current") or 0
        if used > memory_mib * _MIB:
            # The kernel would kill instead of refusing.
            raise OSError(f"{used} bytes are in use, the limit is to be {memory_mib} MiB")
        (self.folder / "memory.max").write_text(str(memory_mib * _MIB))

    def cpu_usage_s(self) -> float:
        return _keyed(self.folder / "cpu.stat", "usage_usec") / 1e6

    def throttled_s(self) -> float:
        return _keyed(self.folder / "cpu.stat", "throttled_usec") / 1e6

    def memory_mib(self) -> float:
        used = _number(self.folder / "memory.current") or 0
        return max(0, used - _keyed(self.folder / "memory.stat", "inactive_file")) / _MIB

    def peak_mib(self) -> int | None:
        peak = _number(self.folder / "memory.peak")
        return None if peak is None else peak // _MIB

    def num_oom_kills(self) -> int:
        return _keyed(self.folder / "memory.events", "oom_kill")

    def cpu_limit_milli(self) -> int | None:
        quota, _, period = _read(self.folder / "cpu.max").strip().partition(" ")
        return int(quota) * 1000 // int(period) if quota.isdigit() and period else None

    def memory_limit_mib(self) -> int | None:
        limit = _number(self.folder / "memory.max")
        return None if limit is None else limit // _MIB

    def kill(self) -> None:
        try:
            (self.folder / "cgroup.kill").write_text("1")
        except OSError:
            super().kill()


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where this agent's cgroups lie: one parent folder, or one per controller in version 1."""

    version: int
    parents: tuple[Path, ...]

    def cgroup(self, name: str) -> Cgroup:
        """The cgroup of an attempt, made or not."""
        folders = tuple(parent / name for parent in self.parents)
        return CgroupV2(folders) if self.version == 2 else CgroupV1(folders)

    def leave(self) -> None:
        """Remove the parent folders if nothing is in them any more."""
        for parent in self.parents:
            with suppress(OSError):
                parent.rmdir()

    def names(self) -> set[str]:
        """Cgroups that are there."""
        found: set[str] = set()
        for parent in self.parents:
            with suppress(OSError):
                found.update(entry.name for entry in os.scandir(parent) if entry.is_dir())
        return found


def detect(name: str, mounts: Path = Path("/proc/self/mounts")) -> Hierarchy | None:
    """Find cgroups that can be written, and make this agent's parent in them.

    Args:
        name: Of the parent folder, the agent's own, so that agents leave each other's alone.
        mounts: The kernel's list of mounts.

    Returns:
        None if no cgroup limits can be set here.
    """
    v1, v2 = _mounted(mounts)
    with suppress(OSError):
        if hierarchy := _prepare_v2(v2, name):
            return hierarchy
    with suppress(OSError):
        return _prepare_v1(v1, name)
    return None


def _mounted(mounts: Path) -> tuple[dict[str, Path], Path | None]:
    v1: dict[str, Path] = {}
    v2 = None
    for line in _read(mounts).splitlines():
        _, target, kind, options, *_ = line.split()
        if kind == "cgroup2":
            v2 = Path(target)
        elif kind == "cgroup":
            v1.update(dict.fromkeys(options.split(","), Path(target)))
    return v1, v2


def _prepare_v2(mount: Path | None, name: str) -> Hierarchy | None:
    if mount is None:
        return None
    offered = _read(mount / "cgroup.controllers").split()
    if not set(_V2_CONTROLLERS) <= set(offered):
        return None
    parent = mount / name
    _enable(mount)
    parent.mkdir(exist_ok=True)
    _enable(parent)
    with suppress(OSError):
        (parent / "cpu.weight").write_text(str(min(10_000, 100 * (os.cpu_count() or 1))))
    return Hierarchy(2, (parent,))


def _enable(folder: Path) -> None:
    """Offer the controllers to the cgroups below; in a container its processes must move first."""
    offered = _read(folder / "cgroup.controllers").split()
    controllers = (*_V2_CONTROLLERS, *{_V2_DEVICE_MEMORY}.intersection(offered))
    wanted = " ".join(f"+{controller}" for controller in controllers)
    control = folder / "cgroup.subtree_control"
    if set(controllers) <= set(_read(control).split()):
        return
    try:
        control.write_text(wanted)
    except OSError:
        leaf = folder / "rest"
        leaf.mkdir(exist_ok=True)
        for pid in _read(folder / "cgroup.procs").split():
            with suppress(OSError):
                (leaf / "cgroup.procs").write_text(pid)
        control.write_text(wanted)


def _prepare_v1(mounts: dict[str, Path], name: str) -> Hierarchy | None:
    if not set(_V1_CONTROLLERS) <= set(mounts):
        return None
    parents = tuple(mounts[controller] / name for controller in _V1_CONTROLLERS)
    for parent in parents:
        parent.mkdir(exist_ok=True)
    # All workloads together would else weigh no more than one process of the machine's own.
    (parents[0] / "cpu.shares").write_text(str(1024 * (os.cpu_count() or 1)))
    return Hierarchy(1, parents)
