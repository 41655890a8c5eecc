"""A session whose two processes hold memory of the fake driver's device, for tests of its machine.

Whoever imports the fixtures also imports those of `tests.fraction.conftest` that they need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scheduling.agent.swap.machine import Machine
from scheduling.agent.swap.memory import ProcessState
from tests.agent.swapping import HeldBody, mover
from tests.fraction.world import MIB, UUIDS, World

HOLDER = Path(__file__).with_name("holder.py")
SIZES = (600 * MIB, 300 * MIB)


def always() -> bool:
    return True


class Holder:
    """A process that holds device memory."""

    def __init__(self, world: World, num_bytes: int) -> None:
        self.process = world.start([sys.executable, "-S", HOLDER, str(num_bytes)])
        assert self.read() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> str:
        self.send(line)
        return self.read()

    def end(self) -> None:
        self.process.kill()
        with suppress(BrokenPipeError):
            self.process.communicate()


class Session:
    """A session of two processes on a third of a T4, and its machine."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.holders = [Holder(world, size) for size in SIZES]
        self.mover = mover(world.prefix)
        self.body = HeldBody(folder, world.prefix, UUIDS[0], [each.pid for each in self.holders])
        self.machine = Machine(self.body, self.mover)
        self.resident = self.used()

    def used(self) -> int:
        """Of the device, by all."""
        return sum(self.world.physical.read().used_bytes)

    def states(self) -> list[ProcessState | None]:
        return [self.mover.state(each.pid) for each in self.holders]

    def answers(self) -> list[str]:
        return [each.ask("call").partition(" ")[2] for each in self.holders]

    def next_agent(self) -> Machine:
        """What another agent makes of the records."""
        self.machine = Machine(self.body, self.mover)
        self.machine.recover()
        return self.machine

    def back(self) -> None:
        self.machine.want()
        self.machine.restore()

    def end(self) -> None:
        for holder in self.holders:
            holder.end()
        self.mover.close()


@pytest.fixture
def start(make_world: Callable[..., World], tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Starts the session on a machine that differs from the usual one."""
    started: list[Session] = []

    def start(*extra: str, **changes: object) -> Session:
        started.append(Session(make_world(extra=extra, **changes), tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture
def session(start: Callable[..., Session]) -> Session:
    return start()
