"""*Swap out now*: pressed in a browser, lent at once, woken by a cell, and the training ends right.

Also when the agent is killed while a cell waits for the device. The project's window is a day, so
that nothing but the button can have lent it.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from playwright.sync_api import Page, expect

from scheduling.management.stack import until
from tests.e2e.conftest import PAGE_LIMIT_MS, People
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

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

STEPS = 600
LENT = """SELECT count(*) FROM scheduling_loan l JOIN scheduling_attempt a ON a.id = l.lender_id
 WHERE l.state = 'lent' AND a.workload_id = %s"""


def start_sessions(stack: Stack) -> str:
    """A session on one of the four T4s that are left, and one that keeps the others; the first."""
    with stack.client("admin") as client:
        client.post("/nodes/sim-t4-2/cordon").raise_for_status()
    stack.rows(
        "UPDATE projects_project SET lends_idle = true, lending_window_s = 86400 RETURNING id"
    )
    with stack.client("sergey") as client:
        sessions = [
            submit(
                client,
                kind="interactive",
                project="speech",
                name=f"of-{num_devices}",
                gpu_milli=1000,
                memory_mib=1024,
                **WORKLOAD | {"num_devices": num_devices},
            )
            for num_devices in (1, 3)
        ]
    wait_until_running(stack, sessions)
    return sessions[0]


def press_swap_out_now(page: Page, session: str) -> None:
    """On the session's page; the button is there as soon as the session is seen to be idle."""
    page.goto(f"/workloads/{session}")
    page.get_by_role("button", name="Swap out now").click(timeout=4 * PAGE_LIMIT_MS)
    expect(page.locator("body")).not_to_contain_text("It is in use")


@contextmanager
def nothing_moves(stack: Stack) -> Iterator[None]:
    """Device memory that is to be moved waits meanwhile, as if it were a lot."""
    movers = [
        process.pid
        for process in stack.children()
        if "scheduling.agent.swap.mover" in process.cmdline()
    ]
    assert movers
    try:
        for pid in movers:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in movers:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGCONT)


def test_pressed_the_button_lends_at_once_and_a_cell_takes_the_device_back(
    stack: Stack, person: People
) -> None:
    mine = start_sessions(stack)
    notebook, page = person("sergey"), person("sergey").context.new_page()
    open_notebook(notebook, mine)
    first = run_cell(notebook, f"{CUDA}\nx = 41\nprint(start(), alloc(200 << 20))")
    expect_output(notebook, first, "0 0")
    training = submit_training(stack, STEPS)
    waits = "SELECT count(*) FROM scheduling_workload WHERE id = %s AND phase = 'queued'"
    until(lambda: count(stack, waits, training), "the training waits", 60)

    press_swap_out_now(page, mine)
    until(lambda: step_of(stack, training) > 10, "the training borrows the device", 120)
    until(lambda: count(stack, LENT, mine) == 1, "the loan is told", 30)

    second = run_cell(notebook, "x += 1; print('x is', x, alloc(4096))")
    expect_output(notebook, second, "x is 42 0")
    expect_output(notebook, second, "Your GPU came back after")
    until(lambda: not count(stack, LENT, mine), "the loan has ended", 30)
    reached = step_of(stack, training)

    # It waits in memory, and goes on where it was once it is lent to again.
    press_swap_out_now(page, mine)
    until(lambda: step_of(stack, training) > reached + 10, "the training goes on", 240)

    # JupyterLab says of each server that is away for a moment that it will try again.
    away = notebook.get_by_role("dialog").filter(has_text="Server Connection Error")
    notebook.add_locator_handler(away, lambda dialog: dialog.get_by_role("button").last.click())
    # The agent dies with a cell that it holds: that one did not run, and is said not to have.
    with nothing_moves(stack):
        lost = run_cell(notebook, "x += 1; print('x is', x)")
        expect_output(notebook, lost, "Bringing your GPU back")
        stack.kill("agent")
    expect_output(notebook, lost, "AgentStopped: The cell did not run")
    third = run_cell(notebook, "print('still', x, alloc(4096))")
    expect_output(notebook, third, "still 42 0")
    expect(notebook.get_by_role("button", name=re.compile("Idle"))).to_be_visible()
    until(lambda: not count(stack, LENT, mine), "the loan has ended", 30)
    reached = step_of(stack, training)

    press_swap_out_now(page, mine)
    until(lambda: step_of(stack, training) > reached + 10, "the training goes on", 240)
    ended = "SELECT phase FROM scheduling_workload WHERE id = %s"
    until(lambda: stack.rows(ended, training)[0][0] == "completed", "the training ends", 240)
    logs = "".join(log.read_text() for log in stack.var.glob("agent/*/*/log"))
    assert f"the sum is {STEPS * (STEPS + 1) // 2}" in logs
    attempts = "SELECT count(*) FROM scheduling_attempt WHERE workload_id = %s"
    assert count(stack, attempts, training) == 1, "it never had to begin again"
    fourth = run_cell(notebook, "x += 1; print('then', x, alloc(4096))")
    expect_output(notebook, fourth, "then 43 0")
