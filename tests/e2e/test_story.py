"""The story of the README, in real browsers against the really started stack."""

from __future__ import annotations

import os
import re
import subprocess
import time
import uuid
from collections.abc import Sequence

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from scheduling.management.stack import REPOSITORY, until
from tests.e2e.conftest import PAGE_LIMIT_MS, People
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

THIRD_OF_A_T4_MIB = 14917 * 333 // 1000
NUM_STEPS = 1200
STEP_DELAY_S = 0.05
SEED = 7
UNFINISHED = (
    "SELECT id FROM scheduling_workload WHERE phase NOT IN ('stopped', 'completed', 'failed')"
)


def api_submit(stack: Stack, login: str, **values: object) -> dict[str, object]:
    with stack.client(login) as client:
        answer = client.post(
            "/api/v1/workloads", json=values, headers={"Idempotency-Key": str(uuid.uuid4())}
        )
        assert answer.status_code == httpx.codes.CREATED, answer.text
        created: dict[str, object] = answer.json()
        return created


def api_get(stack: Stack, login: str, path: str) -> dict[str, object]:
    with stack.client(login) as client:
        answer = client.get(f"/api/v1/{path}")
        assert answer.status_code == httpx.codes.OK, answer.text
        found: dict[str, object] = answer.json()
        return found


def phase(stack: Stack, workload_id: object) -> str:
    ((found,),) = stack.rows("SELECT phase FROM scheduling_workload WHERE id = %s", workload_id)
    return str(found)


def wait_for_phase(stack: Stack, workload_id: object, *wanted: str, limit_s: float = 60.0) -> str:
    return (
        until(
            lambda: (now := phase(stack, workload_id)) in wanted and now,
            f"workload {workload_id} becomes {' or '.join(wanted)}",
            limit_s,
        )
        or ""
    )


def third_of_a_t4(name: str) -> dict[str, object]:
    return {
        "kind": "interactive",
        "project": "vision",
        "name": name,
        "node_types": ["t4"],
        "num_devices": 1,
        "gpu_milli": 333,
        "cpu_milli": 2000,
        "memory_mib": 2048,
    }


def training(project: str, name: str, arguments: str, gpus: int = 1) -> dict[str, object]:
    return {
        "kind": "training",
        "project": project,
        "name": name,
        "node_types": ["t4"],
        "num_devices": gpus,
        "gpu_milli": 1000,
        "cpu_milli": 500,
        "memory_mib": 768,
        "command": ["python", "train.py", *arguments.split()],
        "working_dir": "examples",
        "is_preemptible": True,
        "priority": "medium",
        "checkpoint_mode": "signal",
        "checkpoint_signal": "SIGUSR1",
        "checkpoint_path": "checkpoints",
        "grace_s": 60,
        "backoff_limit": 3,
    }


def new_session_by_form(page: Page, stack: Stack, name: str) -> str:
    """Fill in the form as a person would; returns the workload's id."""
    page.goto("/sessions/new")
    page.get_by_role("link", name=re.compile("^Jupyter")).click()
    page.get_by_role("button", name="⅓").or_(
        page.get_by_role("button", name="a third")
    ).first.click()
    expect(page.get_by_label("Part of one GPU", exact=True)).to_have_value(re.compile(r"0[.,]333"))
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("CPU, cores").fill("2")
    page.get_by_label("Memory, GiB", exact=True).fill("2")
    pane = page.locator("#form-pane")
    expect(pane).to_contain_text(re.compile("starts now", re.I))
    expect(pane).to_contain_text(re.compile("hour|an hour|/ ?h", re.I))
    page.get_by_role("button", name="Start session").click()
    found = until(
        lambda: stack.rows("SELECT id FROM scheduling_workload WHERE name = %s", name),
        "the session is on record",
    )
    return str(found[0][0])


def run_a_cell(page: Page, code: str, answer: str) -> None:
    """In JupyterLab: a new notebook, one cell, its answer."""
    page.locator(".jp-LauncherCard[data-category='Notebook']").first.click()
    cell = page.locator(".jp-Notebook .jp-Cell .cm-content").first
    cell.wait_for()
    expect(page.get_by_role("button", name=re.compile("Idle"))).to_be_visible()
    cell.click()
    page.keyboard.insert_text(code)
    expect(cell).to_contain_text(code[:20])
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-OutputArea-output").first).to_contain_text(
        answer, timeout=PAGE_LIMIT_MS
    )


def log_text(page: Page) -> str:
    return page.locator("[data-log-url] pre").inner_text()


def undisturbed_loss() -> str:
    """The last line of a run that nobody interrupted, with the same seed."""
    out = subprocess.run(
        [
            REPOSITORY / ".venv-workload/bin/python",
            REPOSITORY / "docs/examples/train.py",
            *("--steps", str(NUM_STEPS), "--seed", str(SEED)),
        ],
        env={**os.environ, "ALLOT_CHECKPOINT_DIR": "/nonexistent", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return out.strip().splitlines()[-1]


def test_the_story(stack: Stack, person: People, browser: Browser) -> None:
    stop_everything(stack)  # Tests run in any order, and what an earlier one left holds devices.
    session = a_session_by_form(stack, person, browser)
    sessions = [session, *three_more_thirds(stack)]
    borrower = a_training_borrows(stack, person)
    claimants = a_guarantee_is_claimed(stack, person, borrower)
    the_waits_are_equal_on_page_api_and_database(stack, person, borrower)
    a_fifth_session_waits_with_numbers_and_offers(stack, person)
    kills_disturb_nobody(stack, sessions, claimants)
    the_borrower_resumes_from_the_same_step(stack, person, borrower, claimants)
    sessions_were_never_touched(stack, sessions)


def a_session_by_form(stack: Stack, person: People, browser: Browser) -> str:
    page = person("vera")
    workload = new_session_by_form(page, stack, "digits")
    page.goto("/sessions")
    card = page.locator("[data-name='digits']")
    expect(card).to_contain_text("Running", timeout=PAGE_LIMIT_MS)
    with page.context.expect_page() as opened:
        card.get_by_role("link", name="Connect").click()
    lab = opened.value
    lab.locator(".jp-Launcher").first.wait_for()
    assert lab.url.startswith(f"{stack.url}/s/{workload}/")
    assert "token" not in lab.url
    run_a_cell(
        lab,
        "print(6 * 7); import subprocess as s; "
        "print(s.run(['bash', '-lc', 'nvidia-smi'], capture_output=True, text=True).stdout)",
        "42",
    )
    output = lab.locator(".jp-OutputArea-output").first
    expect(output).to_contain_text(f"{THIRD_OF_A_T4_MIB}MiB")
    expect(output).to_contain_text(re.compile("simulated", re.I))
    lab.close()

    stranger = person("lena").context.request.get(f"/s/{workload}/lab")
    assert stranger.status == httpx.codes.FORBIDDEN
    nobody = browser.new_context(base_url=stack.url)
    visitor = nobody.new_page()
    visitor.goto(f"/s/{workload}/lab")
    assert "/accounts/login/" in visitor.url
    nobody.close()
    return workload


def three_more_thirds(stack: Stack) -> list[str]:
    ids = [str(api_submit(stack, "vera", **third_of_a_t4(f"third-{n}"))["id"]) for n in (2, 3, 4)]
    for workload in ids:
        wait_for_phase(stack, workload, "running")
    shares = stack.rows(
        "SELECT allocated_milli FROM scheduling_device WHERE allocated_milli > 0 ORDER BY 1"
    )
    assert shares == [(333,), (999,)]
    return ids


def a_training_borrows(stack: Stack, person: People) -> str:
    page = person("lena")
    page.goto("/workloads/new")
    page.get_by_label("Name", exact=True).fill("borrower")
    page.get_by_label("Command", exact=True).fill("python train.py")
    page.get_by_label("Arguments", exact=True).fill(
        f"--steps {NUM_STEPS} --step-delay {STEP_DELAY_S} --seed {SEED}"
    )
    page.get_by_label("Working folder", exact=True).fill("examples")
    page.get_by_text("Whole GPUs", exact=True).click()
    page.get_by_label("GPUs on one node").fill("4")
    page.get_by_label("CPU, cores").fill("1")
    page.get_by_label("Memory, GiB", exact=True).fill("1")
    page.get_by_role("button", name=re.compile("Submit|Start training")).click()
    found = until(
        lambda: stack.rows("SELECT id FROM scheduling_workload WHERE name = 'borrower'"),
        "the training is on record",
    )
    workload = str(found[0][0])
    wait_for_phase(stack, workload, "running")
    page.goto(f"/workloads/{workload}")
    expect(page.locator("main")).to_contain_text("on borrowed GPUs")
    expect(page.locator("[data-log-url] pre")).to_contain_text("starting at step 0")
    expect(page.locator("[data-log-url] pre")).to_contain_text(re.compile(r"step \d+ loss"))
    return workload


def a_guarantee_is_claimed(stack: Stack, person: People, borrower: str) -> list[str]:
    watched = person("lena")  # Her page is open on the borrower and is not reloaded.
    arguments = "--steps 400 --step-delay 0.05"
    claimants = [
        str(api_submit(stack, "sergey", **training("speech", f"claim-{n}", arguments))["id"])
        for n in range(4)
    ]
    expect(watched.locator(".strip").first).to_contain_text("Preempted", timeout=PAGE_LIMIT_MS)
    reason = watched.locator("[data-reason]")
    expect(reason).to_have_attribute("data-reason", re.compile("."))
    expect(watched.locator("main")).to_contain_text("Speech")
    for workload in claimants:
        wait_for_phase(stack, workload, "running")
    assert phase(stack, borrower) == "preempted"
    expect(watched.locator("#checkpoints")).to_contain_text(re.compile(r"\d+"))
    ((place, submitted),) = stack.rows(
        "SELECT queue_position, submitted_at = (SELECT min(at) FROM scheduling_event e"
        " WHERE e.workload_id = w.id) FROM scheduling_workload w WHERE id = %s",
        borrower,
    )
    assert (place, submitted) == (1, True)
    return claimants


def the_waits_are_equal_on_page_api_and_database(
    stack: Stack, person: People, borrower: str
) -> None:
    rows = stack.rows(
        "SELECT cause, started_at, ended_at FROM scheduling_wait"
        " WHERE workload_id = %s ORDER BY started_at",
        borrower,
    )
    assert [row[0] for row in rows] == ["submitted", "reclaimed"]
    page = person("lena")
    shown = page.locator("#waits [data-cause]")
    expect(shown).to_have_count(2)
    # The page has the newest first.
    oldest_first = [shown.nth(n) for n in (1, 0)]
    assert [line.get_attribute("data-cause") for line in oldest_first] == [row[0] for row in rows]
    starts = [line.locator("time").first.get_attribute("datetime") for line in oldest_first]
    found = api_get(stack, "lena", f"workloads/{borrower}/waits")
    results = found["items"]
    assert isinstance(results, list)
    assert [item["cause"] for item in results] == [row[0] for row in rows]
    for row, item, start in zip(rows, results, starts, strict=True):
        moment = row[1].replace(microsecond=0)  # type: ignore[attr-defined]  # a datetime
        assert _second(item["started_at"]) == moment
        assert start is not None
        assert _second(start) == moment


def _second(text: str) -> object:
    from datetime import datetime

    return datetime.fromisoformat(text).replace(microsecond=0)


def a_fifth_session_waits_with_numbers_and_offers(stack: Stack, person: People) -> None:
    fifth = api_submit(stack, "vera", **third_of_a_t4("fifth"))
    page = person("vera")
    page.goto(f"/workloads/{fifth['id']}")
    reason = page.locator("[data-reason='interactive_over_quota']")
    expect(reason).to_contain_text("1.332")
    expect(reason).to_contain_text("1.5")
    assert page.locator(".offers a").count() >= 1
    page.locator(".page-head").get_by_role("link", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Stop")).click()
    wait_for_phase(stack, fifth["id"], "stopped")


def kills_disturb_nobody(stack: Stack, sessions: Sequence[str], trainings: Sequence[str]) -> None:
    workloads = [*sessions, *trainings]
    before = {workload: processes_of(stack, workload) for workload in workloads}
    assert all(before.values())
    for name in ("web", "worker", "beat", "agent"):
        stack.kill(name)
    until(stack.is_ready, "the stack is healthy again")
    time.sleep(4)
    for workload in workloads:
        assert phase(stack, workload) in ("running", "completed"), workload
        ends = stack.rows(
            "SELECT exit_cause FROM scheduling_attempt WHERE workload_id = %s AND phase = 'ended'",
            workload,
        )
        # When one has finished, the planner may move another together with the rest ("evicted").
        assert {cause for (cause,) in ends} <= {"own", "evicted"}, workload
        if not ends:
            assert processes_of(stack, workload) == before[workload]
    assert all(phase(stack, workload) == "running" for workload in sessions)


def processes_of(stack: Stack, workload: str) -> set[int]:
    """The shim of a workload's attempt, known by the attempt's id on its command line."""
    rows = stack.rows("SELECT id FROM scheduling_attempt WHERE workload_id = %s", workload)
    ids = [str(row[0]) for row in rows]
    return {
        process.pid
        for process in stack.workload_processes()
        if any(attempt in " ".join(process.cmdline()) for attempt in ids)
    }


def the_borrower_resumes_from_the_same_step(
    stack: Stack, person: People, borrower: str, claimants: Sequence[str]
) -> None:
    for workload in claimants:
        wait_for_phase(stack, workload, "completed", limit_s=90)
    wait_for_phase(stack, borrower, "running", "completed", limit_s=30)
    wait_for_phase(stack, borrower, "completed", limit_s=120)
    first, second = (stack_log(stack, "lena", borrower, attempt=number) for number in (1, 2))
    saved = re.findall(r"saved step (\d+)", first)[-1]
    assert re.findall(r"starting at step (\d+)", first) == ["0"]
    assert re.findall(r"starting at step (\d+)", second) == [saved]
    assert second.strip().splitlines()[-1].endswith(undisturbed_loss())


def stack_log(stack: Stack, login: str, workload: str, attempt: int) -> str:
    with stack.client(login) as client:
        answer = client.get(
            f"/workloads/{workload}/log", params={"attempt": attempt, "download": 1}
        )
        assert answer.status_code == httpx.codes.OK
        return answer.text


def sessions_were_never_touched(stack: Stack, sessions: Sequence[str]) -> None:
    for workload in sessions:
        codes = [
            row[0]
            for row in stack.rows(
                "SELECT code FROM scheduling_event WHERE workload_id = %s ORDER BY id", workload
            )
        ]
        assert codes == ["submitted", "started", "ready"]


def test_one_project_fills_every_device_that_it_may_use(stack: Stack) -> None:
    stop_everything(stack)
    ids = [
        api_submit(
            stack, "lena", **training("language", f"fill-{n}", "--steps 100000 --step-delay 0.2")
        )["id"]
        for n in range(8)
    ]
    for workload in ids:
        wait_for_phase(stack, workload, "running")
    shares = stack.rows(
        "SELECT d.allocated_milli FROM scheduling_device d"
        " JOIN scheduling_node n ON n.id = d.node_id WHERE n.name LIKE 'sim-t4-%%'"
    )
    assert shares == [(1000,)] * 8
    stop_everything(stack)


def test_cpu_only_work_lands_on_the_node_without_a_gpu_with_its_limits(stack: Stack) -> None:
    values = {
        **training("vision", "cores", ""),
        "node_types": [],
        "cpu_milli": 2000,
        "command": ["python", "-c", "import time; print('here'); time.sleep(1)"],
        "working_dir": "",
        "checkpoint_mode": "none",
    }
    del values["num_devices"], values["gpu_milli"]
    workload = api_submit(stack, "vera", **values)["id"]
    wait_for_phase(stack, workload, "completed")
    assert stack.rows(
        "SELECT n.name, a.cpu_limit_milli FROM scheduling_attempt a"
        " JOIN scheduling_node n ON n.id = a.node_id WHERE a.workload_id = %s",
        workload,
    ) == [("sim-cpu-1", 2000)]


def test_memory_beyond_the_limit_is_killed_and_the_state_says_so(
    stack: Stack, person: People
) -> None:
    values = {
        **training("vision", "hungry", ""),
        "node_types": [],
        "memory_mib": 256,
        "command": ["python", "-c", "x = bytearray(1 << 30); print(len(x))"],
        "working_dir": "",
        "checkpoint_mode": "none",
    }
    del values["num_devices"], values["gpu_milli"]
    workload = api_submit(stack, "vera", **values)["id"]
    wait_for_phase(stack, workload, "failed")
    page = person("vera")
    page.goto(f"/workloads/{workload}")
    reason = page.locator("[data-reason='out_of_memory']")
    expect(reason).to_contain_text("256")


def test_after_a_kill_of_everything_trainings_resume_and_a_clean_stop_leaves_nothing(
    stack: Stack,
) -> None:
    stop_everything(stack)
    arguments = "--steps 100000 --step-delay 0.02 --checkpoint-every 50"
    workload = api_submit(stack, "lena", **training("language", "survivor", arguments))["id"]
    until(
        lambda: stack.rows("SELECT 1 FROM scheduling_checkpoint WHERE workload_id = %s", workload),
        "a checkpoint is on record",
    )
    stack.kill_everything()
    stack.start()
    until(
        lambda: stack.rows(
            "SELECT 1 FROM scheduling_attempt WHERE workload_id = %s AND number = 2"
            " AND phase = 'running' AND resumed_from_id IS NOT NULL",
            workload,
        ),
        "the training resumes from its checkpoint",
        120,
    )
    stack.stop()
    assert not stack.workload_processes()
    stack.start()
    wait_for_phase(stack, workload, "running")
    (row,) = stack.rows(
        "SELECT resumed_from_id IS NOT NULL FROM scheduling_attempt"
        " WHERE workload_id = %s AND number = 3",
        workload,
    )
    assert row == (True,)


def stop_everything(stack: Stack) -> None:
    with stack.client("admin") as client:
        rows = stack.rows(UNFINISHED)
        for (workload,) in rows:
            assert client.post(f"/api/v1/workloads/{workload}/stop").is_success
    until(
        lambda: not stack.rows(UNFINISHED),
        "everything has stopped",
        90,
    )
