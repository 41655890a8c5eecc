"""What /proc tells of processes: who descends from whom, and which signals a process catches.

The shim reads it inside the workload's namespace, the agent outside: the same functions, other
numbers. Standard library only, since the shim starts with nothing else.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: the second, the name, may hold anything."""
    text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    return text[text.rindex(")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; with its pid it names it for ever."""
    try:
        return int(_stat_fields(pid)[19])
    except (OSError, ValueError, IndexError):
        return None


def runs_in_terminal(pid: int) -> bool:
    """Whether a process has a terminal and is not the shell that leads it."""
    try:
        fields = _stat_fields(pid)
        return fields[0] not in "ZX" and int(fields[4]) != 0 and int(fields[3]) != pid
    except (OSError, ValueError, IndexError):
        return False


def cpu_usage_s(pid: int) -> float:
    """CPU time of a process and of its children that were waited for."""
    try:
        fields = _stat_fields(pid)
    except (OSError, ValueError):
        return 0.0
    return sum(int(field) for field in fields[11:15]) / _TICKS_PER_S


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    try:
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * _PAGE_BYTES / 2**20


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def children() -> dict[int, list[int]]:
    """Children of every process that this namespace shows; zombies left out."""
    found: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        try:
            fields = _stat_fields(int(entry))
        except (OSError, ValueError):
            continue
        if fields[0] not in "ZX":
            found[int(fields[1])].append(int(entry))
    return found


def descendants(root: int) -> list[int]:
    """All processes below one, parents first."""
    family = children()
    found = list(family.get(root, ()))
    for pid in found:
        found.extend(family.get(pid, ()))
    return found


def topmost_catchers(root: int, signum: int) -> list[int]:
    """The processes below one that catch a signal and have no ancestor here that does.

    A shell that runs a training does not catch it, the training does; the training's forked helpers
    inherit its handler, and must not save a second time.
    """
    return list(_topmost(root, signum, children()))


def _topmost(root: int, signum: int, family: dict[int, list[int]]) -> Iterator[int]:
    for pid in family.get(root, ()):
        if catches(pid, signum):
            yield pid
        else:
            yield from _topmost(pid, signum, family)


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """What the processes below one use, where no cgroup counts it. Read as a cgroup is."""

    root: int

    def pids(self) -> list[int]:
        """The processes; none once the root is gone."""
        return descendants(self.root) if self.root else []

    def cpu_usage_s(self) -> float | None:
        """CPU time of those that live and of their children that were waited for."""
        return sum(cpu_usage_s(pid) for pid in self.pids())

    def throttled_s(self) -> float | None:
        """Nobody throttles without a cgroup."""
        return None

    def memory_mib(self) -> float | None:
        """Resident memory; shared parts count once per process."""
        return sum(rss_mib(pid) for pid in self.pids())
