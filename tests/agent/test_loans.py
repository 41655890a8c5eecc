"""Loans carried out by a real agent: JupyterLab sessions and trainings over the fake driver."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from websockets.sync.client import unix_connect

from scheduling.agent.protocol import (
    AttemptPhase,
    ExitCause,
    Goal,
    LoanState,
    SwapState,
)
from scheduling.agent.swap.record import SWAP, SwapRecord, read
from tests import needs
from tests.agent.lending_node import (
    GIB,
    Session,
    World,
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    needs.root()
    needs.compiler()
    found = World()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def session(world: World) -> Session:
    """An idle session on a whole T4, of the test's own."""
    return world.take()


# ---------------------------------------------------------------- wakes


def test_a_cell_brings_the_gpu_back_and_the_borrower_goes_on_later(
    world: World, session: Session
) -> None:
    loan, training = world.lent(session)
    report = world.orchestrator.seen_loan(loan)
    assert report is not None
    assert report.swapped_out_bytes >= 2 * GIB
    assert report.out_s is not None
    assert report.out_s >= 2 * 1024 / 12_000
    first = session.send("x += 1; print(x, alloc(4096))")
    second = session.send("print(x + 1)")
    assert session.answer(first) == "42 0\n"
    assert session.answer(second) == "43\n"
    ended = world.until_loan(loan, LoanState.ENDED)
    assert ended.ended_by == "cell"
    assert ended.in_s is not None
    assert ended.wake_s is not None
    assert session.swap == SwapState.RUNNING
    world.until(lambda: world.state_of(training) == SwapState.SWAPPED_OUT)
    reached = world.count(training)
    pid = world.orchestrator.seen(training).pid  # type: ignore[union-attr]
    time.sleep(1.0)
    assert world.count(training) == reached
    # Named on, the loan that the agent has ended is not begun again.
    world.ask("/wake", "POST")
    time.sleep(0.5)
    assert world.until_loan(loan, LoanState.ENDED).ended_by == "cell"
    world.orchestrator.settled_loans.append(loan.loan_id)
    del world.orchestrator.loans[loan.loan_id]
    world.until(lambda: world.orchestrator.seen_loan(loan) is None)
    world.until(lambda: world.is_idle(session))
    again = world.lend(session, training)
    world.until_loan(again, LoanState.LENT)
    world.until_further(training)
    assert world.orchestrator.seen(training).pid == pid  # type: ignore[union-attr]
    world.tell_to_end(training)
    world.until(lambda: world.orchestrator.seen(training).phase == AttemptPhase.EXITED)  # type: ignore[union-attr]
    assert world.orchestrator.seen(training).exit_code == 0  # type: ignore[union-attr]
    assert "ended right after" in world.log(training)
    # Nobody borrows any more: the device is simply returned.
    assert world.until_loan(again, LoanState.ENDED).ended_by == "borrower_ended"
    world.until(lambda: session.swap == SwapState.RUNNING)
    assert session.run("print(x, alloc(4096))") == "42 0\n"


def test_the_first_cuda_call_of_a_thread_brings_the_gpu_back(
    world: World, session: Session
) -> None:
    session.run(
        "import os\n"
        "def later():\n"
        "    while not os.path.exists('go'): time.sleep(0.05)\n"
        "    global done; start(); done = alloc(4096)\n"
        "thread = threading.Thread(target=later); thread.start()"
    )
    world.until(lambda: world.is_idle(session))
    loan, _ = world.lent(session)
    (world.folders.home("vision", "ann") / "go").touch()
    assert world.until_loan(loan, LoanState.ENDED).ended_by == "cuda_call"
    (world.folders.home("vision", "ann") / "go").unlink()
    assert session.run("thread.join(); print(done)") == "0\n"


def test_the_button_works_with_the_orchestrator_away(world: World, session: Session) -> None:
    loan, _ = world.lent(session)
    world.orchestrator.is_away = True
    try:
        assert world.ask(f"/attempts/{session.spec.attempt_id}/wake", "POST").status_code == 204
        # Not away any more, so the cell runs at once; no report has been needed.
        assert session.run("print(x, alloc(4096))") == "41 0\n"
    finally:
        world.orchestrator.is_away = False
    assert world.until_loan(loan, LoanState.ENDED).ended_by == "button"


def test_a_program_in_a_terminal_brings_the_gpu_back(world: World, session: Session) -> None:
    loan, _ = world.lent(session)
    path = f"/attempts/{session.spec.attempt_id}/session{session.spec.base_url}"
    name = world.ask(f"{path}api/terminals", "POST").json()["name"]
    with unix_connect(
        str(world.folders.run / "relay.sock"),
        f"ws://localhost{path}terminals/websocket/{name}",
        additional_headers={"Authorization": f"Bearer {world.secret}"},
    ) as terminal:
        # An open terminal alone does not.
        time.sleep(5)
        assert world.until_loan(loan, LoanState.LENT)
        terminal.send(json.dumps(["stdin", "sleep 20\r"]))
        assert world.until_loan(loan, LoanState.ENDED).ended_by == "activity"
    world.ask(f"{path}api/terminals/{name}", "DELETE")


# ---------------------------------------------------------------- who borrows


def test_a_borrower_that_cannot_wait_in_memory_saves_and_stops(
    world: World, session: Session
) -> None:
    loan, training = world.lent(session, is_swappable=False)
    assert session.run("print(x, alloc(4096))") == "41 0\n"
    assert world.until_loan(loan, LoanState.ENDED).ended_by == "cell"
    world.until(lambda: world.orchestrator.seen(training).phase == AttemptPhase.EXITED)  # type: ignore[union-attr]
    report = world.orchestrator.seen(training)
    assert report is not None
    assert report.exit_cause == ExitCause.EVICTED
    assert report.checkpoints


def test_a_borrower_in_memory_goes_on_without_its_gpu_and_saves_when_it_is_stopped(
    world: World, session: Session
) -> None:
    """It is not frozen: the driver's own thread, which brings its memory back, runs in it."""
    loan, training = world.lent(session, num_calls=1)
    assert session.run("print(x, alloc(4096))") == "41 0\n"
    world.until_loan(loan, LoanState.ENDED)
    world.until(lambda: world.state_of(training) == SwapState.SWAPPED_OUT)
    world.until_further(training)
    reached = world.count(training)
    # Nor by an agent that finds it so.
    world.kill_agent()
    world.next_agent()
    world.until(lambda: world.state_of(training) == SwapState.SWAPPED_OUT)
    world.until_further(training)
    assert world.take_back(training) == ExitCause.EVICTED
    report = world.orchestrator.seen(training)
    assert report is not None
    (saved,) = report.checkpoints
    assert saved.step is not None
    assert saved.step >= reached
    assert report.swap is None


def test_killed_the_borrower_returns_the_device(world: World, session: Session) -> None:
    loan, training = world.lent(session)
    report = world.orchestrator.seen(training)
    assert report is not None
    assert report.pid is not None
    os.kill(report.pid, signal.SIGKILL)
    assert world.until_loan(loan, LoanState.ENDED).ended_by == "borrower_ended"
    assert session.run("print(x, alloc(4096))") == "41 0\n"


def test_a_session_that_is_stopped_leaves_the_device_to_whom_it_is_promised(
    world: World, session: Session
) -> None:
    loan, training = world.lent(session)
    world.orchestrator.want(replace(session.spec, goal=Goal.STOP))
    assert world.until_loan(loan, LoanState.ENDED).ended_by == "lender_ended"
    world.until_further(training)
    swapped = read(world.folders.attempt(training.attempt_id) / SWAP, SwapRecord)
    assert swapped is not None
    assert swapped.out_s is None, "nobody has come for its device yet"
    # The borrower goes on until somebody comes to whom the device is given.
    other = world.training(session)
    world.orchestrator.want(other)
    world.ask("/wake", "POST")
    world.until_further(other)
    world.until(lambda: world.state_of(training) == SwapState.SWAPPED_OUT)
    world.orchestrator.want(replace(other, goal=Goal.STOP))
    world.until_further(training)
    world.orchestrator.want(replace(training, goal=Goal.STOP))
    world.until(lambda: world.orchestrator.seen(training).phase == AttemptPhase.EXITED)  # type: ignore[union-attr]


# ---------------------------------------------------------------- no loan


def test_a_busy_session_lends_nothing_and_its_borrower_never_starts(
    world: World, session: Session
) -> None:
    request = session.send("time.sleep(4); print(x)")
    time.sleep(0.5)
    training = world.training(session)
    loan = world.lend(session, training)
    assert world.until_loan(loan, LoanState.REFUSED).error == "not_idle"
    assert session.answer(request) == "41\n"
    assert world.count(training) == 0
    seen = world.orchestrator.seen(training)
    assert seen is None or seen.phase == AttemptPhase.STARTING
    world.take_back(training)
    world.free.append(session)


def test_a_wake_while_the_memory_leaves_lets_nobody_begin(world: World, session: Session) -> None:
    world.until(lambda: world.is_idle(session))
    training = world.training(session)
    loan = world.lend(session, training)
    world.until(lambda: world.orchestrator.seen_loan(loan))
    assert world.ask(f"/attempts/{session.spec.attempt_id}/wake", "POST").status_code == 204
    ended = world.until_loan(loan, LoanState.ENDED)
    assert ended.ended_by == "button"
    assert ended.lent_at is None, "the device never was the borrower's, who pays nothing"
    assert session.run("print(x, alloc(4096))") == "41 0\n"
    seen = world.orchestrator.seen(training)
    assert seen is None or seen.phase == AttemptPhase.STARTING
    assert world.take_back(training) == ExitCause.EVICTED
    assert world.count(training) == 0
    world.free.append(session)


def test_a_loan_that_the_orchestrator_takes_back_is_undone(world: World, session: Session) -> None:
    loan, training = world.lent(session)
    del world.orchestrator.loans[loan.loan_id]
    world.ask("/wake", "POST")
    assert world.until_loan(loan, LoanState.ENDED).ended_by == "orchestrator"
    assert session.run("print(x, alloc(4096))") == "41 0\n"
    assert world.state_of(training) == SwapState.SWAPPED_OUT


# ---------------------------------------------------------------- agents come and go


def test_killed_with_a_device_lent_the_next_agent_knows_and_wakes(
    world: World, session: Session
) -> None:
    loan, training = world.lent(session)
    world.kill_agent()
    world.until_further(training)
    world.next_agent()
    assert world.until_loan(loan, LoanState.LENT)
    session.connect()
    assert session.run("print(x, alloc(4096))") == "41 0\n"
    assert world.until_loan(loan, LoanState.ENDED).ended_by == "cell"
    world.until(lambda: world.state_of(training) == SwapState.SWAPPED_OUT)
    world.kill_agent()
    world.next_agent()
    assert world.state_of(training) == SwapState.SWAPPED_OUT


def test_killed_while_it_wakes_the_next_agent_brings_the_session_back(
    world: World, session: Session
) -> None:
    loan, _ = world.lent(session)
    world.ask(f"/attempts/{session.spec.attempt_id}/wake", "POST")
    world.kill_agent()
    world.next_agent()
    world.until_loan(loan, LoanState.ENDED)
    session.connect()
    assert session.run("print(x, alloc(4096))") == "41 0\n"


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.25, 0.5])
def test_killed_at_any_moment_of_a_loan_nothing_is_lost(
    world: World, session: Session, after_s: float
) -> None:
    """Between the order and the running borrower; whatever was reached, a cell is answered."""
    world.until(lambda: world.is_idle(session))
    training = world.training(session)
    loan = world.lend(session, training)
    time.sleep(after_s)
    world.kill_agent()
    world.next_agent()
    world.until(
        lambda: (
            (seen := world.orchestrator.seen_loan(loan))
            and seen.state in (LoanState.LENT, LoanState.REFUSED)
        )
    )
    session.connect()
    assert session.run("print(x, alloc(4096))") == "41 0\n"
    world.until(lambda: session.swap == SwapState.RUNNING)


def test_when_the_node_shuts_down_lender_and_borrower_end_as_the_node_did() -> None:
    needs.root()
    needs.compiler()
    world = World()
    try:
        world.start_sessions([world.session_on(*place) for place in world.devices[:2]])
        session, woken = world.take(), world.take()
        _, training = world.lent(session)
        # In memory and held up by a CUDA call, it saves on the device that its lender leaves.
        loan, parked = world.lent(woken)
        assert woken.run("print(x, alloc(4096))") == "41 0\n"
        assert world.until_loan(loan, LoanState.ENDED).ended_by == "cell"
        world.kill_agent(signal.SIGINT)
        ends = {each.attempt_id: each for each in world.orchestrator.reports[-1].attempts}
        for each in (session.spec, woken.spec, training, parked):
            assert ends[each.attempt_id].exit_cause == ExitCause.NODE_SHUTDOWN
        for each in (training, parked):
            assert ends[each.attempt_id].checkpoints
        world.agent = world.start_agent()
    finally:
        world.close()
