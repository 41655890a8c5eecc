"""One attempt's machine over the fake driver, for tests; also as a program that dies half-way.

    python -m tests.agent.swapping PREFIX FOLDER UUID PIDS OPERATION POINT

does OPERATION (`out` or `in`) and kills itself at the POINT-th moment: each call of the driver has
one before and one after it, each record on disk one after it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scheduling.agent.fraction.region import Region, State
from scheduling.agent.swap.machine import Machine
from scheduling.agent.swap.memory import DeviceMemory, DeviceUse, Libraries, Mover, ProcessState
from scheduling.agent.swap.record import REPORTED, Phase


class HeldBody:
    """An attempt whose processes a test has started by itself."""

    def __init__(self, folder: Path, prefix: Path, uuid: str, pids: list[int]) -> None:
        self.folder = folder
        self.uuids = [uuid]
        self.held_pids = pids
        self.region = Region(prefix / "region")
        self.reserved_mib: list[int] = []
        self.has_room = True
        self.why_not = ""
        self.lines: list[str] = []

    def pids(self) -> list[int]:
        return self.held_pids

    def device_uuids(self) -> list[str]:
        return self.uuids

    def used_bytes(self) -> int:
        return sum(self.region.read().used_bytes)

    def obstacle(self) -> str:
        return self.why_not

    def reserve(self, extra_mib: int) -> bool:
        self.reserved_mib.append(extra_mib)
        return self.has_room

    def close_gate(self, phase: Phase) -> None:
        self.region.set_state(State[REPORTED[phase].name])

    def last_call_s(self) -> float | None:
        return self.region.last_call_s()

    def say(self, line: str) -> None:
        self.lines.append(line)


def mover(prefix: Path) -> Mover:
    """The way to the fake driver of a test's machine."""
    libraries = Libraries(prefix / "libcuda.real", prefix / "libnvidia-ml.real")
    return Mover(libraries, prefix / "swap.lock")


class Dying:
    """The driver, in a process that is killed at a moment."""

    def __init__(self, memory: DeviceMemory, point: int) -> None:
        self._memory = memory
        self._left = point

    def moment(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def _around(self, call: Callable[..., Any], *arguments: object) -> Any:
        self.moment()
        answer = call(*arguments)
        self.moment()
        return answer

    def state(self, pid: int) -> ProcessState | None:
        return self._memory.state(pid)

    def use(self, device_uuid: str) -> DeviceUse | None:
        return self._memory.use(device_uuid)

    def lock(self, pid: int, timeout_s: float) -> None:
        self._around(self._memory.lock, pid, timeout_s)

    def checkpoint(self, pid: int) -> None:
        self._around(self._memory.checkpoint, pid)

    def restore(self, pid: int) -> None:
        self._around(self._memory.restore, pid)

    def unlock(self, pid: int) -> None:
        self._around(self._memory.unlock, pid)


def main(prefix: str, folder: str, uuid: str, pids: str, operation: str, point: str) -> None:
    memory = Dying(mover(Path(prefix)), int(point))
    body = HeldBody(Path(folder), Path(prefix), uuid, [int(pid) for pid in pids.split(",")])
    machine = Machine(body, memory)
    write = machine._write

    def written() -> None:
        write()
        memory.moment()

    machine._write = written  # type: ignore[method-assign]
    if operation == "out":
        machine.swap_out(lambda: True)
    else:
        machine.want()
        machine.restore()


if __name__ == "__main__":
    main(*sys.argv[1:])
