"""What end-to-end tests of Swap do: submit, run cells in JupyterLab, see how far a training is."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import httpx
from playwright.sync_api import Page, expect

from scheduling.management.stack import until
from tests.e2e.conftest import PAGE_LIMIT_MS
from tests.e2e.stack import Stack

CUDA = """
import ctypes as c
l = c.CDLL("libcuda.so.1")
def start():
    x = c.c_void_p()
    return l.cuInit(0) or l.cuDevicePrimaryCtxRetain(c.byref(x), 0) or l.cuCtxSetCurrent(x)
def alloc(n):
    p = c.c_uint64()
    return l.cuMemAlloc_v2(c.byref(p), c.c_size_t(n))
"""
# Adds numbers up to its argument, a CUDA call for each; told to stop it saves, and goes on from
# there.
TRAINING = f"""{CUDA}
import os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["ALLOT_CHECKPOINT_DIR"])
saved = sorted(folder.glob("step-*"))
step, total = map(int, saved[-1].read_text().split()) if saved else (0, 0)
def save(*_):
    hidden = folder / ".saving"
    hidden.write_text(f"{{step}} {{total}}"); hidden.rename(folder / f"step-{{step:06d}}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
assert start() == 0 and alloc(6 << 30) == 0
while step < int(sys.argv[1]):
    assert alloc(512) == 0
    step += 1; total += step
    print("step", step, flush=True)
    time.sleep(0.05)
print("the sum is", total, flush=True)
"""
WORKLOAD: Final[dict[str, object]] = {
    "cpu_milli": 500,
    "node_types": ["t4"],
    "num_devices": 1,
}


def submit(client: httpx.Client, **values: object) -> str:
    answer = client.post(
        "/api/v1/workloads", json=values, headers={"Idempotency-Key": str(uuid.uuid4())}
    )
    assert answer.status_code == httpx.codes.CREATED, answer.text
    return str(answer.json()["id"])


def submit_training(stack: Stack, num_steps: int) -> str:
    """A training of a whole T4 that may be stopped, of a project that has none of its own."""
    with stack.client("lena") as client:
        return submit(
            client,
            kind="training",
            project="language",
            name="borrower",
            gpu_milli=1000,
            memory_mib=1024,
            command=["python", "-c", TRAINING, str(num_steps)],
            is_preemptible=True,
            priority="medium",
            checkpoint_mode="signal",
            checkpoint_signal="SIGUSR1",
            checkpoint_path="checkpoints",
            grace_s=30,
            backoff_limit=3,
            **WORKLOAD,
        )


def count(stack: Stack, query: str, *values: object) -> int:
    ((found,),) = stack.rows(query, *values)
    return int(str(found))


def wait_until_running(stack: Stack, sessions: Iterable[str]) -> None:
    query = "SELECT count(*) FROM scheduling_workload WHERE phase = 'running' AND id = ANY(%s)"
    wanted = list(sessions)
    until(
        lambda: count(stack, query.replace("ANY(%s)", "ANY(%s::uuid[])"), wanted) == len(wanted),
        f"{len(wanted)} sessions run",
        240,
    )


def open_notebook(page: Page, session: str) -> None:
    page.goto(f"/s/{session}/lab")
    page.locator(".jp-LauncherCard[data-category='Notebook']").first.click()
    page.locator(".jp-Notebook .jp-Cell .cm-content").first.wait_for()
    expect(page.get_by_role("button", name=re.compile("Idle"))).to_be_visible(timeout=PAGE_LIMIT_MS)


def run_cell(page: Page, code: str) -> int:
    """Run a cell and go on to the next, as Shift+Enter does; which cell it was."""
    cells = page.locator(".jp-Notebook .jp-Cell.jp-CodeCell")
    number = cells.count() - 1
    # Not by the keyboard alone: a dialog of JupyterLab's that comes in between takes the keys,
    # and only what is done to an element has the dialog closed before.
    content = cells.nth(number).locator(".cm-content")
    content.fill(code)
    content.press("Shift+Enter")
    expect(cells).to_have_count(number + 2, timeout=PAGE_LIMIT_MS)
    return number


def expect_output(page: Page, number: int, text: str) -> None:
    cell = page.locator(".jp-Notebook .jp-Cell.jp-CodeCell").nth(number)
    expect(cell.locator(".jp-OutputArea")).to_contain_text(text, timeout=PAGE_LIMIT_MS)


def step_of(stack: Stack, training: str) -> int:
    """How far the training says that it is."""
    attempts = {
        str(row[0])
        for row in stack.rows("SELECT id FROM scheduling_attempt WHERE workload_id = %s", training)
    }
    steps = [0]
    for log in stack.var.glob("agent/*/*/log"):
        # It may just be moving to those that have ended.
        with suppress(FileNotFoundError):
            if log.parent.name in attempts:
                steps += [int(each) for each in re.findall(r"^step (\d+)$", log.read_text(), re.M)]
    return max(steps)
