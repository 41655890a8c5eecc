"""Memory and network of running processes, from the kernel. Runs on nodes, without Django."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class NetworkCounters:
    """Bytes since the network namespace began, the loopback apart."""

    rx_bytes: int
    tx_bytes: int


def resident_mib(pids: Sequence[int]) -> float:
    """Memory that these processes hold resident; those that have just ended hold none."""
    total = 0
    for pid in pids:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            total += psutil.Process(pid).memory_info().rss
    return total / MIB


def own_network(pids: Sequence[int]) -> NetworkCounters | None:
    """Traffic of the processes' network namespace; None when they share this one.

    In a shared namespace traffic cannot be told apart by process, and the machine's is not theirs.
    """
    for pid in pids:
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
                return None
            return parse_net_dev(Path(f"/proc/{pid}/net/dev").read_text())
    return None


def parse_net_dev(text: str) -> NetworkCounters:
    """Add up `/proc/<pid>/net/dev`: two lines of headings, then a line per interface."""
    rx = tx = 0
    for line in text.splitlines()[2:]:
        interface, _, numbers = line.partition(":")
        columns = numbers.split()
        if interface.strip() == "lo" or len(columns) < 9:
            continue
        rx += int(columns[0])
        tx += int(columns[8])
    return NetworkCounters(rx_bytes=rx, tx_bytes=tx)
