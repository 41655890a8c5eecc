"""The supervisor, over small real programs."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from scheduling.management.processes import MAX_LOG_BYTES, Program, set_aside_large_log
from scheduling.management.supervisor import (
    StartError,
    StopRequestedError,
    Supervisor,
)

# Says that it runs by a file with its number; ends as its signal asks.
WORKING = """
import os, pathlib, signal, sys, time
mark = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
mark.with_suffix(".new").write_text(str(os.getpid()))
mark.with_suffix(".new").rename(mark)
while True:
    time.sleep(60)
"""
STUBBORN = WORKING.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")

LIMIT_S = 30.0


class World:
    """A folder, programs in it, and a supervisor that runs in this thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[tuple[str, str]] = []
        self.supervisor = Supervisor(folder, lambda name, line: self.said.append((name, line)))

    def mark(self, name: str) -> Path:
        return self.folder / f"{name}.pid"

    def program(self, name: str, code: str = WORKING, **options: object) -> Program:
        mark = self.mark(name)
        return Program(
            name=name,
            command=(sys.executable, "-S", "-c", code, str(mark)),
            is_ready=mark.exists,
            prepare=lambda: mark.unlink(missing_ok=True),
            **options,  # type: ignore[arg-type]  # a test's own words
        )

    def watch_until(self, is_enough: Callable[[], bool]) -> None:
        """Watch in this thread; another asks for the stop once enough has happened."""

        def ask_for_stop() -> None:
            wait_for(is_enough)
            os.kill(os.getpid(), signal.SIGTERM)

        asker = threading.Thread(target=ask_for_stop)
        asker.start()
        with self.supervisor.handling_signals():
            self.supervisor.watch()
        asker.join()

    def lines_of(self, name: str) -> list[str]:
        return [line for said_of, line in self.said if said_of == name]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.supervisor.stop()


def test_each_program_is_ready_before_the_next_starts(world: World) -> None:
    world.supervisor.start(world.program("first"))
    world.supervisor.start(world.program("second"))
    assert [name for name, line in world.said if line.startswith("ready")] == ["first", "second"]


def test_programs_stop_in_reverse_order(world: World) -> None:
    for name in ("first", "second", "third"):
        world.supervisor.start(world.program(name))
    world.supervisor.stop()
    stopped = [name for name, line in world.said if line.startswith("stopped")]
    assert stopped == ["third", "second", "first"]


def test_a_killed_program_comes_back(world: World) -> None:
    world.supervisor.start(world.program("web"), world.program("worker"))
    pids = world.supervisor.pids()
    os.kill(pids["web"], signal.SIGKILL)

    world.watch_until(lambda: any("again after" in line for line in world.lines_of("web")))

    assert "ended (SIGKILL); starts again in 0.2 s" in world.lines_of("web")
    after = world.supervisor.pids()
    assert after["web"] != pids["web"]
    assert after["worker"] == pids["worker"]
    assert int(world.mark("web").read_text()) == after["web"]


def test_a_program_that_dies_again_waits_longer(world: World) -> None:
    works_once = "import pathlib, sys; once = pathlib.Path(sys.argv[1] + '.once')\n"
    works_once += "if once.exists(): sys.exit(3)\nonce.touch()\n" + WORKING
    world.supervisor.start(world.program("agent", works_once))
    os.kill(world.supervisor.pids()["agent"], signal.SIGKILL)

    world.watch_until(lambda: len([x for x in world.lines_of("agent") if "ended" in x]) >= 3)

    waits = [line.split()[-2] for line in world.lines_of("agent") if line.startswith("ended")]
    assert waits[:3] == ["0.2", "0.4", "0.8"]


def test_a_first_start_that_fails_shows_the_log(world: World) -> None:
    with pytest.raises(StartError, match=r"exit code 1\).*(?s:.*)the port is taken"):
        world.supervisor.start(world.program("web", "raise SystemExit('the port is taken')"))


def test_a_program_that_is_never_ready_is_reported(world: World) -> None:
    silent = "import time; time.sleep(60)"
    with pytest.raises(StartError, match=r"web was not ready after 0 s"):
        world.supervisor.start(world.program("web", silent, start_limit_s=0.2))


def test_one_that_ignores_its_signal_is_killed_at_its_limit(world: World) -> None:
    world.supervisor.start(world.program("stubborn", STUBBORN, stop_limit_s=0.2))
    pid = world.supervisor.pids()["stubborn"]
    world.supervisor.stop()
    assert any(line.startswith("killed") for line in world.lines_of("stubborn"))
    assert not is_running(pid)


def test_each_program_gets_its_own_signal(world: World) -> None:
    tells = WORKING.replace(
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))",
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(print('interrupted', flush=True)))",
    )
    world.supervisor.start(world.program("agent", tells, stop_signal=signal.SIGINT))
    world.supervisor.stop()
    assert (world.folder / "agent.log").read_text() == "interrupted\n"


def test_a_second_ctrl_c_hurries(world: World) -> None:
    world.supervisor.start(world.program("stubborn", STUBBORN, stop_limit_s=600))
    told = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with world.supervisor.handling_signals():
        told.start()
        world.supervisor.stop()
        told.join()
    assert "hurried" in world.lines_of("stubborn")


def test_a_stop_while_starting_is_heard(world: World) -> None:
    silent = "import time; time.sleep(60)"
    told = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with world.supervisor.handling_signals():
        told.start()
        with pytest.raises(StopRequestedError):
            world.supervisor.start(world.program("web", silent))
        told.join()


def test_children_do_not_hear_the_terminal(world: World) -> None:
    world.supervisor.start(world.program("web"))
    assert os.getsid(world.supervisor.pids()["web"]) != os.getsid(0)


def test_a_log_that_grows_large_is_set_aside(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    log.write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    with log.open("ab") as writer:
        set_aside_large_log(log)
        writer.write(b"goes on")
    assert log.read_bytes() == b"goes on"
    assert (tmp_path / "web.log.1").stat().st_size == MAX_LOG_BYTES + 1


SUPERVISING = """
import pathlib, sys
from tests.infra.test_supervisor import World
world = World(pathlib.Path(sys.argv[1]))
world.supervisor.start(world.program("web"), world.program("worker"))
world.mark("all").write_text("ready")
with world.supervisor.handling_signals():
    world.supervisor.watch()
"""


def test_nothing_outlives_a_killed_supervisor(world: World) -> None:
    supervising = subprocess.Popen([sys.executable, "-c", SUPERVISING, str(world.folder)])
    wait_for(world.mark("all").exists)
    pids = [int(world.mark(name).read_text()) for name in ("web", "worker")]
    assert all(map(is_running, pids))

    supervising.kill()
    supervising.wait()

    wait_for(lambda: not any(map(is_running, pids)))
