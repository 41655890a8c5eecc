"""An agent that is killed while device memory moves: whole on one side, whatever was reached."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from config.env import REPOSITORY
from scheduling.agent.swap.machine import Machine
from scheduling.agent.swap.memory import ProcessState
from scheduling.agent.swap.record import Phase
from tests.agent.held_session import Session, always, session, start
from tests.fraction.conftest import libraries, make_world, prefix
from tests.fraction.world import UUIDS

__all__ = ["libraries", "make_world", "prefix", "session", "start"]


def die(session: Session, operation: str, point: int) -> int:
    # Two agents never move memory of one node at a time.
    session.mover.close()
    arguments = [
        str(session.world.prefix),
        str(session.folder),
        UUIDS[0],
        ",".join(str(each.pid) for each in session.holders),
        operation,
        str(point),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.swapping", *arguments],
        cwd=REPOSITORY,
        check=False,
        timeout=60,
    )
    return done.returncode


# Two processes: 2 x (lock, checkpoint) x 2 moments and 4 records out; likewise back.
@pytest.mark.parametrize("point", range(12))
def test_killed_on_the_way_out_it_is_whole_on_one_side(session: Session, point: int) -> None:
    assert die(session, "out", point) == -signal.SIGKILL
    reached = Machine(session.body, session.mover).phase
    machine = session.next_agent()
    if reached == Phase.SWAPPED:
        assert machine.phase == Phase.SWAPPED
        assert session.used() == 0
        session.back()
    assert machine.phase == Phase.RUNNING
    assert session.used() == session.resident
    assert session.states() == [ProcessState.RUNNING] * 2
    assert session.answers() == ["0", "0"]


@pytest.mark.parametrize("point", range(11))
def test_killed_on_the_way_back_the_next_agent_brings_it_back(session: Session, point: int) -> None:
    session.machine.swap_out(always)
    assert die(session, "in", point) == -signal.SIGKILL
    machine = session.next_agent()
    assert machine.phase in (Phase.WAITING, Phase.RESTORING, Phase.RUNNING)
    session.back()
    assert machine.phase == Phase.RUNNING
    assert session.used() == session.resident
    assert session.states() == [ProcessState.RUNNING] * 2
    assert session.answers() == ["0", "0"]


def test_an_agent_that_is_killed_in_a_copy_does_not_break_it(start: Callable[..., Session]) -> None:
    session = start("bandwidth 600")
    arguments = [
        str(session.world.prefix), str(session.folder), UUIDS[0],
        ",".join(str(each.pid) for each in session.holders), "out", "1000",
    ]  # fmt: skip
    agent = subprocess.Popen(
        [sys.executable, "-m", "tests.agent.swapping", *arguments], cwd=REPOSITORY
    )
    deadline = time.monotonic() + 20
    while Machine(session.body, session.mover).phase != Phase.CHECKPOINTING:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    agent.kill()
    agent.wait()
    machine = session.next_agent()
    assert machine.phase == Phase.RUNNING
    assert session.states() == [ProcessState.RUNNING] * 2
    assert session.used() == session.resident
    assert session.answers() == ["0", "0"]
