"""Sessions on all of four GPUs, a training that borrows one of them, and a cell that wants it back.

Everything is real but the driver: JupyterLab in a browser, a kernel per session, the orchestrator
that decides the loans, the agent that carries them out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

import httpx
import pytest
from websockets.sync.client import connect

from scheduling.management.stack import until
from tests.e2e.conftest import People
from tests.e2e.lending import (
    CUDA,
    WORKLOAD,
    count,
    expect_output,
    open_notebook,
    run_cell,
    step_of,
    submit,
    submit_training,
    wait_until_running,
)
from tests.e2e.stack import Stack
from tests.jupyter import execution

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

NUM_SESSIONS, PER_BATCH = 40, 8
# The shortest that a project may choose.
WINDOW_S = 30
STEPS = 1500


def start_sessions(stack: Stack) -> list[str]:
    """Sessions that fill the four T4s, each with a kernel."""
    started: list[str] = []
    with stack.client("sergey") as client:
        while len(started) < NUM_SESSIONS:
            batch = [
                submit(
                    client,
                    kind="interactive",
                    project="speech",
                    name=f"session-{len(started) + number}",
                    gpu_milli=4000 // NUM_SESSIONS,
                    memory_mib=1024,
                    **WORKLOAD,
                )
                for number in range(min(PER_BATCH, NUM_SESSIONS - len(started)))
            ]
            wait_until_running(stack, batch)
            for session in batch:
                kernel = client.post(f"/s/{session}/api/kernels", headers={"Origin": stack.url})
                assert kernel.status_code == httpx.codes.CREATED, kernel.text
            started += batch
    return started


def one_per_device(stack: Stack, besides: str) -> list[str]:
    """A session on each device but the one of that session."""
    on_device = {
        str(device): str(session)
        for device, session in stack.rows(
            "SELECT d.device_id, a.workload_id FROM scheduling_deviceallocation d"
            " JOIN scheduling_allocation a ON a.id = d.allocation_id ORDER BY (a.workload_id = %s)",
            besides,
        )
    }
    return [session for session in on_device.values() if session != besides]


def keep_busy(stack: Stack, sessions: Iterable[str]) -> None:
    """A cell that does not end, in each of these sessions' kernels."""
    with stack.client("sergey") as client:
        for session in sessions:
            (kernel,) = client.get(f"/s/{session}/api/kernels").json()
            cookies = "; ".join(f"{each.name}={each.value}" for each in client.cookies.jar)
            path = f"/s/{session}/api/kernels/{kernel['id']}/channels"
            with connect(
                f"ws{stack.url.removeprefix('http')}{path}",
                additional_headers={"Cookie": cookies, "Origin": stack.url},
            ) as channels:
                message = execution("import time\nwhile True: time.sleep(0.2)")
                channels.send(json.dumps(message))
                while json.loads(channels.recv(60))["msg_type"] != "execute_input":
                    pass


def test_a_cell_in_a_swapped_session_is_answered_and_the_training_ends_right(
    stack: Stack, person: People
) -> None:
    with stack.client("admin") as client:
        client.post("/nodes/sim-t4-2/cordon").raise_for_status()
    stack.rows(
        "UPDATE projects_project SET lends_idle = true, lending_window_s = %s RETURNING id",
        WINDOW_S,
    )
    sessions = start_sessions(stack)
    used = "SELECT count(DISTINCT device_id) FROM scheduling_deviceallocation"
    assert count(stack, used) == 4

    mine, page = sessions[0], person("sergey")
    open_notebook(page, mine)
    first = run_cell(page, f"{CUDA}\nx = 41\nprint(start(), alloc(200 << 20))")
    expect_output(page, first, "0 0")

    # On each of the other devices somebody works.
    keep_busy(stack, one_per_device(stack, besides=mine))
    training = submit_training(stack, STEPS)
    until(lambda: step_of(stack, training) > 10, "the training borrows a device", 240)
    lent = (
        "SELECT count(*) FROM scheduling_loan l JOIN scheduling_attempt a ON a.id = l.lender_id"
        " WHERE l.state = 'lent' AND a.workload_id = %s"
    )
    num_lent = NUM_SESSIONS // 4
    until(lambda: sum(count(stack, lent, each) for each in sessions) == num_lent, "loans told", 60)
    assert count(stack, lent, mine) == 1

    # The agent wakes alone; nobody lends while worker and beat are away.
    with stack.standing_still("worker", "beat"):
        second = run_cell(page, "x += 1; print('x is', x)")
        third = run_cell(page, "print('then', x + 1)")
        expect_output(page, second, "x is 42")
        expect_output(page, third, "then 43")
        expect_output(page, second, "Your GPU came back after")
        reached = step_of(stack, training)
        time.sleep(WINDOW_S + 10)
        assert step_of(stack, training) <= reached + 1

    # The training has waited in memory, and goes on once the device is lent again.
    until(lambda: step_of(stack, training) > reached + 10, "the training goes on", 240)
    ended = "SELECT phase FROM scheduling_workload WHERE id = %s"
    until(lambda: stack.rows(ended, training)[0][0] == "completed", "the training ends", 240)
    logs = "".join(log.read_text() for log in stack.var.glob("agent/*/*/log"))
    assert f"the sum is {STEPS * (STEPS + 1) // 2}" in logs
    wait_until_running(stack, sessions)
    fourth = run_cell(page, "print('still', x)")
    expect_output(page, fourth, "still 42")
