"""One attempt's device memory, over the fake driver: out and back, all processes or none."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduling.agent.fraction.region import State
from scheduling.agent.swap import machine as rules
from scheduling.agent.swap.machine import LostError, NoRoomError, NotSwappedError
from scheduling.agent.swap.memory import DriverError, Libraries, Mover, ProcessState
from scheduling.agent.swap.record import SWAP, Phase, Saved
from tests.agent.held_session import HOLDER, SIZES, Session, always, session, start
from tests.fraction.conftest import libraries, make_world, prefix
from tests.fraction.world import MIB, World, until

__all__ = ["libraries", "make_world", "prefix", "session", "start"]


# ---------------------------------------------------------------- out and back


def test_memory_leaves_the_device_and_comes_back(session: Session) -> None:
    assert session.resident >= sum(SIZES)
    session.machine.swap_out(always)
    assert session.machine.phase == Phase.SWAPPED
    assert session.used() == 0
    assert session.machine.record.saved_bytes >= sum(SIZES)
    assert session.machine.report().bytes_on_host == session.machine.record.saved_bytes
    session.back()
    assert session.machine.report().state == "running"
    assert session.used() == session.resident
    assert session.answers() == ["0", "0"]


def test_calls_wait_while_it_is_away_and_go_on_afterwards(session: Session) -> None:
    session.machine.swap_out(always)
    session.holders[0].send("call")
    answer: list[str] = []
    reader = threading.Thread(target=lambda: answer.append(session.holders[0].read()))
    reader.start()
    until(lambda: session.body.region.read().num_held == 1)
    reader.join(0.3)
    assert not answer
    session.back()
    reader.join(5)
    assert answer == ["1 0"]


def test_copying_takes_its_bytes_over_the_bandwidth(start: Callable[..., Session]) -> None:
    session = start("bandwidth 3000")
    session.machine.swap_out(always)
    session.back()
    expected_s = session.machine.record.out_s
    assert expected_s is not None
    assert session.machine.record.in_s is not None
    least_s = sum(SIZES) / (3000 * MIB)
    assert least_s <= expected_s < least_s + 0.5
    assert least_s <= session.machine.record.in_s < least_s + 0.5


def test_host_memory_is_reserved_first_and_given_back(session: Session) -> None:
    session.machine.swap_out(always)
    raised = session.body.reserved_mib[0]
    assert raised * MIB >= sum(SIZES)
    session.back()
    assert session.body.reserved_mib == [raised, 0]
    assert session.machine.record.extra_mib == 0


def test_a_session_without_cuda_processes_leaves_at_once(session: Session) -> None:
    session.body.held_pids = [os.getpid()]
    session.machine.swap_out(always)
    assert session.machine.phase == Phase.SWAPPED
    assert session.machine.record.saved_bytes == 0
    session.back()
    assert session.used() == session.resident


# ---------------------------------------------------------------- it stays


def refused(session: Session) -> str:
    with pytest.raises(NotSwappedError) as error:
        session.machine.swap_out(always)
    assert session.machine.phase == Phase.RUNNING
    assert session.used() == session.resident
    assert session.body.region.state() == State.RUNNING
    assert session.states() == [ProcessState.RUNNING] * len(session.holders)
    return error.value.code


def test_a_process_whose_kernel_runs_is_busy_and_the_others_are_let_go(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_LOCK_TIMEOUT_S", 0.2)
    began_s = time.monotonic()
    session.holders[1].send("launch 1500000000")
    until(lambda: (session.body.last_call_s() or 0.0) > began_s)
    assert refused(session) == "not_idle"
    assert session.holders[1].read() == "1 0"
    assert session.holders[0].ask("call") == "1 0"


def test_one_that_cannot_be_moved_brings_the_others_back(start: Callable[..., Session]) -> None:
    session = start("fail cuCheckpointProcessCheckpoint 999 1 1")
    assert "999" in refused(session)
    assert session.answers() == ["0", "0"]


def test_a_call_that_slips_past_the_gate_takes_everything_back(session: Session) -> None:
    slipping = Slipping(session)
    session.machine.memory = slipping
    assert refused(session) == "not_idle"
    assert slipping.num_calls == 1


class Slipping(Mover):
    """Another process of the session calls CUDA just before it is locked."""

    def __init__(self, session: Session) -> None:
        self.session, self.num_calls = session, 0

    def lock(self, pid: int, timeout_s: float) -> None:
        if self.num_calls == 0:
            self.num_calls = 1
            region = self.session.body.region
            region.set_state(State.RUNNING)
            assert self.session.holders[1].ask("call") == "1 0"
            region.set_state(State.LOCKING)
        self.session.mover.lock(pid, timeout_s)

    def __getattribute__(self, name: str) -> object:
        if name in ("state", "use", "checkpoint", "restore", "unlock"):
            return getattr(self.session.mover, name)
        return super().__getattribute__(name)


def test_wanted_again_before_the_copy_it_stays(session: Session) -> None:
    with pytest.raises(NotSwappedError):
        session.machine.swap_out(lambda: False)
    assert session.answers() == ["0", "0"]


def test_without_room_on_the_host_nothing_is_locked(session: Session) -> None:
    session.body.has_room = False
    assert refused(session) == "no_host_memory"


def test_on_a_full_disk_it_stays_where_it_is(session: Session) -> None:
    record = session.folder / SWAP
    record.mkdir()  # so that no record can be written
    assert "directory" in refused(session)
    assert session.answers() == ["0", "0"]
    session.machine.mark_borrower()
    record.rmdir()
    session.machine.swap_out(always)
    record.unlink()
    record.mkdir()
    session.machine.want()
    with pytest.raises(NoRoomError):
        session.machine.restore()
    assert session.states() == [ProcessState.CHECKPOINTED] * 2
    assert session.machine.is_away
    record.rmdir()
    session.machine.restore()
    assert session.answers() == ["0", "0"]
    assert session.next_agent().record.has_borrowed, "kept with the next record that could be"


def test_once_it_runs_again_a_full_disk_holds_no_call(session: Session) -> None:
    session.machine.swap_out(always)
    record, bring_back = session.folder / SWAP, session.machine._bring_back

    def fill_meanwhile(processes: list[Saved]) -> None:
        bring_back(processes)
        record.unlink()
        record.mkdir()

    session.machine._bring_back = fill_meanwhile  # type: ignore[method-assign]
    session.back()
    assert session.answers() == ["0", "0"]
    assert session.machine.phase == Phase.RUNNING


def test_what_it_does_forbids_it(session: Session) -> None:
    session.body.why_not = "managed_memory"
    assert refused(session) == "managed_memory"
    assert session.machine.report().reason == "managed_memory"


def test_it_stays_where_it_could_not_come_back_to(session: Session) -> None:
    neighbour = fill_device(session, free_mib=600)
    try:
        session.resident = session.used()
        assert refused(session) == "no_room_to_return"
    finally:
        neighbour.kill()
        neighbour.communicate()


def link_driver(world: World) -> Path:
    """A folder in which the driver itself is found, without a proxy before it."""
    folder = world.prefix / "driver"
    folder.mkdir(exist_ok=True)
    links = {"libcuda.so.1": "libcuda.real", "driver.conf": "driver.conf"}
    for name, target in links.items():
        if not (folder / name).exists():
            (folder / name).symlink_to(world.prefix / target)
    return folder


def test_it_stays_resident_for_a_while_after_it_came_back(session: Session) -> None:
    session.machine.swap_out(always)
    session.back()
    assert refused(session) == "resident_too_short"
    session.machine.record.back_at = time.time() - 31
    session.machine.swap_out(always)
    assert session.machine.phase == Phase.SWAPPED


def test_a_borrower_leaves_however_short_it_was_there(session: Session) -> None:
    session.machine.park()
    session.back()
    session.machine.park()
    assert session.machine.phase == Phase.SWAPPED


# ---------------------------------------------------------------- it cannot come back


def fill_device(session: Session, free_mib: int) -> subprocess.Popen[str]:
    """A neighbour that takes all that is left but so much."""
    free = (14_917 - free_mib) * MIB - session.used()
    process = subprocess.Popen(
        [sys.executable, "-S", HOLDER, str(free)],
        env={"LD_LIBRARY_PATH": str(link_driver(session.world))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_with_too_little_memory_free_the_restore_is_never_called(session: Session) -> None:
    session.machine.swap_out(always)
    neighbour = fill_device(session, free_mib=1500)
    try:
        session.machine.want()
        for _ in range(3):
            with pytest.raises(NoRoomError):
                session.machine.restore()
        assert session.machine.phase == Phase.WAITING
        assert session.states() == [ProcessState.CHECKPOINTED] * 2
    finally:
        neighbour.kill()
        neighbour.communicate()
    session.machine.restore()
    assert session.answers() == ["0", "0"]


def test_after_a_failed_restore_nothing_is_tried_again(start: Callable[..., Session]) -> None:
    session = start("fail cuCheckpointProcessRestore 2 0 1")
    session.machine.swap_out(always)
    with pytest.raises(LostError):
        session.back()
    assert session.machine.phase == Phase.FAILED
    assert session.machine.report().state == "failed"
    assert "could not be brought back" in session.body.lines[0]
    # The fake driver would let a second one pass.
    session.machine.restore()
    session.next_agent()
    session.machine.restore()
    assert session.machine.phase == Phase.FAILED
    assert session.states() == [ProcessState.CHECKPOINTED] * 2
    # Calls are answered with an error instead of waiting for ever.
    assert session.holders[0].ask("call") == "1 401"
    with pytest.raises(NotSwappedError):
        session.machine.swap_out(always)


def test_a_process_that_was_killed_meanwhile_is_left_out(session: Session) -> None:
    session.machine.swap_out(always)
    session.holders[0].end()
    session.back()
    assert session.machine.phase == Phase.RUNNING
    assert session.holders[1].ask("call") == "1 0"


def test_when_the_mover_dies_the_move_is_tried_again(session: Session) -> None:
    session.machine.swap_out(always)
    session.machine.want()
    process = session.mover._process
    assert process is not None
    process.kill()
    process.wait()
    for _ in range(50):
        try:
            session.machine.restore()
        except NoRoomError:
            time.sleep(0.02)
    assert session.machine.phase == Phase.RUNNING
    assert session.answers() == ["0", "0"]


# ---------------------------------------------------------------- the driver


def test_a_lock_without_a_timeout_is_never_asked_for(session: Session) -> None:
    session.mover.lock(session.holders[0].pid, 0.0)
    assert session.mover.state(session.holders[0].pid) == ProcessState.LOCKED
    session.mover.unlock(session.holders[0].pid)


def test_a_wrong_step_says_which_and_why(session: Session) -> None:
    with pytest.raises(DriverError, match=r"cuCheckpointProcessUnlock.*401"):
        session.mover.unlock(session.holders[0].pid)
    assert session.mover.state(os.getpid()) is None
    assert session.mover.use("GPU-00000000-0000-0000-0000-000000000000") is None


def test_one_mover_that_dies_takes_no_answer_of_the_next_along(
    start: Callable[..., Session],
) -> None:
    """Its end is noticed when the next one is at work already."""
    session = start("bandwidth 300")
    pid = session.holders[0].pid
    session.mover.lock(pid, 1.0)
    first, is_noticed = session.mover._process, threading.Event()
    assert first is not None
    wait = first.wait
    first.wait = lambda timeout=None: is_noticed.wait() and wait(timeout)  # type: ignore[method-assign]
    first.kill()
    until(lambda: first.poll() is not None)
    moving = threading.Thread(target=session.mover.checkpoint, args=(pid,))
    moving.start()
    until(lambda: session.mover._process is not first)
    is_noticed.set()
    moving.join()
    # Had it been refused, the thread's exception would fail the test.
    assert session.mover.state(pid) == ProcessState.CHECKPOINTED


def test_a_driver_without_the_calls_says_so(tmp_path: Path) -> None:
    absent = Mover(Libraries(tmp_path / "libcuda.so", tmp_path / "libnvidia-ml.so"), tmp_path / "l")
    assert "libcuda.so" in absent.is_usable()
    old = Mover(Libraries(Path("libc.so.6"), Path("libc.so.6")), tmp_path / "l2")
    assert "no such call" in old.is_usable()
    for each in (absent, old):
        each.close()
