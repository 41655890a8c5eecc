"""The agent as a process: it registers, starts, reports, survives its own death, and stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from scheduling.agent import node
from scheduling.agent.check import check
from scheduling.agent.folders import Folders
from scheduling.agent.homes import Person, make_home
from scheduling.agent.protocol import (
    AroundShare,
    AttemptPhase,
    AttemptReport,
    CheckAnswer,
    CheckRequest,
    ExitCause,
    GrantedDevice,
    SampleBatch,
    WatchRequest,
    decode,
    encode,
)
from scheduling.agent.site import Site
from tests import needs
from tests.agent.conftest import end
from tests.agent.driver import FINAL, PYTHON, Driver, example, spec
from tests.agent.orchestrator import TOKEN, Orchestrator

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, logging, sys
from pathlib import Path
from scheduling.agent.controller import Options, main
logging.basicConfig(level="INFO")
given = json.loads(sys.argv[1])
paths = {name: Path(given.pop(name)) for name in ("token_file", "var", "run", "workload_python")}
main(Options(**given, **paths))
"""


class Agent:
    """An agent's process."""

    def __init__(self, folders: Folders, server: str) -> None:
        token_file = folders.var / "agent-token"
        token_file.write_text(TOKEN)
        token_file.chmod(0o600)
        options = {
            "zone": "local",
            "server": server,
            "token_file": str(token_file),
            "var": str(folders.var),
            "run": str(folders.run),
            "workload_python": str(PYTHON),
            "simulated": "demo",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(options)], cwd=REPOSITORY
        )

    def end(self, signum: signal.Signals) -> int:
        """Send a signal and wait."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signum)
        return self.process.wait()


@pytest.fixture
def orchestrator() -> Iterator[Orchestrator]:
    serving = Orchestrator()
    yield serving
    serving.close()


@pytest.fixture
def agent(folders: Folders, site: Site, orchestrator: Orchestrator) -> Iterator[Agent]:
    needs.root()
    running = Agent(folders, orchestrator.url)
    yield running
    running.end(signal.SIGKILL)
    end(Driver(site))


def test_a_persons_first_two_workloads_may_start_together(driver: Driver) -> None:
    both = spec("true"), spec("true")
    driver.want(*both)
    for wanted in both:
        assert driver.until_phase(wanted, *FINAL).exit_code == 0


WATCHED = "sim-t4-1"


def ask_relay(
    folders: Folders,
    orchestrator: Orchestrator,
    path: str,
    *,
    posts: bool = False,
    body: bytes | None = None,
) -> httpx.Response:
    secret = orchestrator.reports[-1].relay_secret
    transport = httpx.HTTPTransport(uds=str(folders.run / "relay.sock"))
    with httpx.Client(transport=transport, base_url="http://relay") as client:
        headers = {"Authorization": f"Bearer {secret}"}
        method = "POST" if posts or body is not None else "GET"
        return client.request(method, path, headers=headers, content=body)


def test_the_demonstrations_nodes_are_registered(agent: Agent, orchestrator: Orchestrator) -> None:
    orchestrator.until(lambda: orchestrator.reports)
    nodes = orchestrator.reports[0].nodes
    kinds = [(each.labels[node.NODE_TYPE_LABEL], len(each.devices)) for each in nodes]
    assert kinds == [("t4", 4), ("t4", 4), ("v100", 4), ("a100", 2), ("cpu", 0)]
    assert all(each.is_simulated and each.is_isolated for each in nodes)
    uuids = [device.uuid for each in nodes for device in each.devices]
    assert len(set(uuids)) == 14
    assert {device.memory_mib for device in nodes[0].devices} == {14_917}


def test_a_woken_agent_starts_what_is_wanted_and_tells_its_end(
    agent: Agent, orchestrator: Orchestrator, folders: Folders
) -> None:
    orchestrator.until(lambda: orchestrator.reports)
    wanted = spec("echo", "hello")
    orchestrator.want(wanted)
    assert ask_relay(folders, orchestrator, "/wake", posts=True).status_code < 300
    orchestrator.until(
        lambda: (seen := orchestrator.seen(wanted)) and seen.phase == AttemptPhase.EXITED
    )
    log = ask_relay(folders, orchestrator, f"/attempts/{wanted.attempt_id}/log")
    assert log.text == "hello\n"
    orchestrator.wanted.clear()
    orchestrator.settled.append(wanted.attempt_id)
    orchestrator.until(lambda: orchestrator.seen(wanted) is None)
    log = ask_relay(folders, orchestrator, f"/attempts/{wanted.attempt_id}/log")
    assert log.text == "hello\n"


def test_what_is_on_a_screen_is_measured_every_second_until_nobody_asks_any_more(
    agent: Agent, orchestrator: Orchestrator, folders: Folders
) -> None:
    orchestrator.until(lambda: orchestrator.reports)
    wanted = spec("bash", "-c", "while :; do :; done", node=WATCHED, cpu_milli=500)
    orchestrator.want(wanted)
    orchestrator.until(lambda: (seen := orchestrator.seen(wanted)) and seen.pid)
    wish = WatchRequest([WATCHED, "nowhere"], 4.0)
    ask_relay(folders, orchestrator, "/watch", body=encode(wish))
    asked_at = time.time()
    orchestrator.until(lambda: measured(orchestrator.batches, WATCHED)[-1:] > [asked_at + 9.5])
    times = [at for at in measured(orchestrator.batches, WATCHED) if at > asked_at]
    others = [at for at in measured(orchestrator.batches, "sim-v100-1") if at > asked_at]
    watched = [at for at in times if at <= asked_at + 4.1]
    assert 3 <= len(watched) <= 5
    assert all(0.5 < later - at < 1.9 for at, later in pairwise(watched))
    # The wish was not renewed, as when the web dies.
    assert len([at for at in times if at > asked_at + 5.0]) <= 2
    assert len(others) <= 3
    # Rates are right at both distances: half a core, which is its limit.
    cores = [
        sample.values["cpu_cores"]
        for batch in orchestrator.batches
        for sample in batch.samples
        if sample.subject == f"workload:{wanted.workload_id}" and sample.at > asked_at
    ]
    assert all(value is not None and 0.2 < value < 0.8 for value in cores[1:])
    assert len(cores) >= len(times) - 1


def measured(batches: list[SampleBatch], node_name: str) -> list[float]:
    """When a node was measured, in order."""
    return sorted({batch.samples[0].at for batch in batches if batch.node == node_name})


def test_killed_with_work_running_the_next_agent_takes_it_over(
    agent: Agent, orchestrator: Orchestrator, folders: Folders
) -> None:
    wanted = spec("bash", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 7")
    orchestrator.want(wanted)
    orchestrator.until(lambda: (seen := orchestrator.seen(wanted)) and seen.pid)
    before = orchestrator.seen(wanted)
    agent.end(signal.SIGKILL)
    orchestrator.reports.clear()
    following = Agent(folders, orchestrator.url)
    try:
        orchestrator.until(lambda: orchestrator.seen(wanted))
        after = orchestrator.seen(wanted)
        assert before is not None
        assert after is not None
        assert (after.pid, after.started_at) == (before.pid, before.started_at)
        (folders.home("vision", "ann") / "go").touch()
        orchestrator.until(
            lambda: (seen := orchestrator.seen(wanted)) and seen.phase == AttemptPhase.EXITED
        )
        last = orchestrator.seen(wanted)
        assert last is not None
        assert (last.exit_code, last.exit_cause) == (7, ExitCause.OWN)
    finally:
        following.end(signal.SIGKILL)


def test_an_exit_while_no_agent_lives_is_told_by_the_next_one(
    agent: Agent, orchestrator: Orchestrator, folders: Folders
) -> None:
    wanted = spec("bash", "-c", "echo up; while [ ! -e go ]; do sleep 0.05; done; exit 7")
    orchestrator.want(wanted)
    orchestrator.until(lambda: (seen := orchestrator.seen(wanted)) and seen.pid)
    agent.end(signal.SIGKILL)
    (folders.home("vision", "ann") / "go").touch()
    following = Agent(folders, orchestrator.url)
    try:
        orchestrator.until(lambda: (seen := orchestrator.seen(wanted)) and seen.exit_code == 7)
    finally:
        following.end(signal.SIGKILL)


def test_sigterm_leaves_workloads_running(agent: Agent, orchestrator: Orchestrator) -> None:
    wanted = spec("sleep", "1000")
    orchestrator.want(wanted)
    orchestrator.until(lambda: (seen := orchestrator.seen(wanted)) and seen.pid)
    assert agent.end(signal.SIGTERM) == 0
    seen = orchestrator.seen(wanted)
    assert seen is not None
    assert seen.pid is not None
    os.kill(seen.pid, 0)


def test_sigint_has_trainings_save_and_reports_their_end(
    agent: Agent, orchestrator: Orchestrator
) -> None:
    training = example("--steps", "100000", "--checkpoint-every", "100000", "--step-delay", "0.01")
    session = spec("sleep", "1000", kind="interactive")
    orchestrator.want(training, session)
    orchestrator.until(lambda: (seen := orchestrator.seen(training)) and seen.pid)
    orchestrator.until(lambda: (seen := orchestrator.seen(session)) and seen.pid)
    orchestrator.until(lambda: orchestrator.batches)
    assert agent.end(signal.SIGINT) == 0
    last = orchestrator.reports[-1]
    assert last.is_stopping
    assert {each.exit_cause for each in last.attempts} == {ExitCause.NODE_SHUTDOWN}
    saved = orchestrator.seen(training)
    assert saved is not None
    assert any(each.step for each in saved.checkpoints)


def test_work_goes_on_while_the_orchestrator_is_away(
    agent: Agent, orchestrator: Orchestrator
) -> None:
    wanted = spec("sleep", "1000")
    orchestrator.want(wanted)
    orchestrator.until(lambda: (seen := orchestrator.seen(wanted)) and seen.pid)
    before = apart_from_idleness(orchestrator.seen(wanted))
    orchestrator.is_away = True
    num_reports = len(orchestrator.reports)
    orchestrator.until(lambda: len(orchestrator.reports) > num_reports)
    orchestrator.is_away = False
    num_reports = len(orchestrator.reports)
    orchestrator.until(lambda: len(orchestrator.reports) > num_reports)
    assert apart_from_idleness(orchestrator.seen(wanted)) == before


def apart_from_idleness(report: AttemptReport | None) -> AttemptReport:
    """What does not come with the first samples."""
    assert report is not None
    return replace(report, idle=None)


def test_two_agents_never_work_in_one_folder(
    agent: Agent, orchestrator: Orchestrator, folders: Folders
) -> None:
    orchestrator.until(lambda: orchestrator.reports)
    second = Agent(folders, orchestrator.url)
    assert second.process.wait() != 0
    assert agent.process.poll() is None


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"command": ["nothing-of-that-name"]}, [("command", "not_found")]),
        ({"command": ["/etc/passwd"]}, [("command", "not_executable")]),
        ({"command": ["./train.py"], "working_dir": "examples"}, [("command", "not_executable")]),
        ({"working_dir": "nowhere"}, [("working_dir", "not_found")]),
        ({"working_dir": "locked"}, [("working_dir", "not_readable")]),
        ({"working_dir": "/root"}, [("working_dir", "not_readable")]),
        ({"working_dir": "/proc/1"}, [("working_dir", "not_readable")]),
        ({"checkpoint_subfolder": "../other"}, [("checkpoint_subfolder", "outside")]),
    ],
)
def test_a_command_is_checked_as_its_owner_would_find_it(
    site: Site, changes: dict[str, object], problems: list[tuple[str, str]]
) -> None:
    needs.root()
    site.folders.prepare(is_open=False)
    who = Person("vision", "ann", 200_001, 300_001)
    (make_home(site, who) / "locked").mkdir(mode=0o700)
    question = replace(CheckRequest("vision", 1, "ann", 1, ["python", "x"]), **changes)  # type: ignore[arg-type]
    answer = asyncio.run(check(site, decode(encode(question), CheckRequest)))
    assert isinstance(answer, CheckAnswer)
    assert [(each.field, each.code) for each in answer.problems] == problems


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.02, 0.04, 0.08, 0.15])
def test_killed_at_any_moment_of_a_start_each_workload_runs_exactly_once(
    agent: Agent, orchestrator: Orchestrator, folders: Folders, delay_s: float
) -> None:
    orchestrator.until(lambda: orchestrator.reports)
    wanted = spec("bash", "-c", "echo ran >> times; sleep 0.5")
    orchestrator.want(wanted)
    ask_relay(folders, orchestrator, "/wake", posts=True)
    time.sleep(delay_s)
    agent.end(signal.SIGKILL)
    following = Agent(folders, orchestrator.url)
    try:
        orchestrator.until(
            lambda: (seen := orchestrator.seen(wanted)) and seen.phase == AttemptPhase.EXITED
        )
        last = orchestrator.seen(wanted)
        assert last is not None
        assert (last.exit_code, last.exit_cause) == (0, ExitCause.OWN)
        assert (folders.home("vision", "ann") / "times").read_text() == "ran\n"
    finally:
        following.end(signal.SIGKILL)


AROUND = """
import ctypes as c, time
l = c.CDLL("/run/allot/libcuda.real")
x, p = c.c_void_p(), c.c_uint64()
print(l.cuInit(0), l.cuDevicePrimaryCtxRetain(c.byref(x), 0), l.cuCtxSetCurrent(x),
      l.cuMemAlloc_v2(c.byref(p), c.c_size_t(6 << 30)), flush=True)
time.sleep(1000)
"""


def test_a_program_around_the_library_is_reported(agent: Agent, orchestrator: Orchestrator) -> None:
    orchestrator.until(lambda: orchestrator.reports)
    (offered, *_) = orchestrator.reports[0].nodes
    devices = [
        GrantedDevice(each.uuid, each.index, each.model, 333, 4967, is_simulated=True)
        for each in offered.devices[:2]
    ]
    honest, other = (
        spec("python", "-c", code, node=offered.name, devices=[device])
        for code, device in zip((AROUND.replace(".real", ".so.1"), AROUND), devices, strict=True)
    )
    honest = replace(honest, command=[each.replace("/run/allot/", "") for each in honest.command])
    orchestrator.want(honest, other)
    orchestrator.until(lambda: (seen := orchestrator.seen(other)) and seen.around_share)
    report = orchestrator.seen(other)
    assert report is not None
    assert report.around_share == AroundShare(devices[1].uuid, 6 * 1024, 4967, 6 * 1024)
    seen = orchestrator.seen(honest)
    assert seen is not None
    assert seen.around_share is None
