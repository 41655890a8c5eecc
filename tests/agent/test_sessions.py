"""A real JupyterLab session: ready when it answers, usable, reachable by its owner alone."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import ClientConnection, unix_connect

from scheduling.agent import jupyter
from scheduling.agent.protocol import AttemptPhase, AttemptSpec, ExitCause, Goal
from tests.agent.driver import FINAL, Driver, a_third, bob, following, spec

BASE_URL = "/s/5b0c/"
TOKEN = "the-secret-of-anns-session"


@pytest.fixture
def session(driver: Driver) -> AttemptSpec:
    """Ann's session on a third of a T4, ready."""
    wanted = spec(
        kind="interactive",
        tool="jupyter",
        base_url=BASE_URL,
        session_secret=TOKEN,
        cpu_milli=2000,
        memory_mib=2048,
        devices=[a_third()],
    )
    driver.want(wanted)
    until_ready(driver, wanted)
    return wanted


def until_ready(driver: Driver, wanted: AttemptSpec) -> None:
    def is_ready() -> bool:
        asyncio.run(driver.runner.look_for_answers())
        return driver.report(wanted).is_ready

    driver.until(is_ready)


def socket_of(driver: Driver, wanted: AttemptSpec) -> Path:
    found = driver.runner.session(wanted.attempt_id)
    assert found is not None
    assert found.token == TOKEN
    return found.socket


def call(driver: Driver, wanted: AttemptSpec, method: str, path: str) -> httpx.Response:
    """A request to the session's server, as the relay makes it."""
    transport = httpx.HTTPTransport(uds=str(socket_of(driver, wanted)))
    with httpx.Client(transport=transport, base_url="http://localhost", timeout=30) as client:
        headers = {"Authorization": f"token {TOKEN}"}
        return client.request(method, BASE_URL + path, headers=headers)


def connect(driver: Driver, wanted: AttemptSpec, path: str) -> ClientConnection:
    """A WebSocket to the session's server."""
    return unix_connect(
        str(socket_of(driver, wanted)),
        uri=f"ws://localhost{BASE_URL}{path}",
        additional_headers={"Authorization": f"token {TOKEN}"},
        open_timeout=30,
    )


def execution(code: str) -> dict[str, object]:
    """Jupyter's message that runs a cell."""
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "s"}
    return {
        "channel": "shell",
        "header": header | {"username": "", "version": "5.3"},
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "silent": False},
    }


def run_cell(driver: Driver, wanted: AttemptSpec, code: str) -> str:
    """What a cell prints in a new kernel."""
    kernel = call(driver, wanted, "POST", "api/kernels").json()["id"]
    printed = ""
    with connect(driver, wanted, f"api/kernels/{kernel}/channels") as channels:
        channels.send(json.dumps(execution(code)))
        while True:
            answer = json.loads(channels.recv(timeout=30))
            if answer["msg_type"] == "stream":
                printed += answer["content"]["text"]
            if answer["msg_type"] == "execute_reply":
                return printed


def type_in_terminal(driver: Driver, wanted: AttemptSpec, line: str, until: str) -> str:
    """What a new terminal shows after a line was typed, up to a text."""
    name = call(driver, wanted, "POST", "api/terminals").json()["name"]
    shown = ""
    with connect(driver, wanted, f"terminals/websocket/{name}") as terminal:
        terminal.send(json.dumps(["stdin", line + "\r"]))
        while until not in shown:
            kind, *content = json.loads(terminal.recv(timeout=30))
            shown += content[0] if kind == "stdout" else ""
    return shown


def test_cells_run_and_terminals_show_the_share(driver: Driver, session: AttemptSpec) -> None:
    printed = run_cell(driver, session, "import os; print(6 * 7, os.getcwd(), os.getuid())")
    assert printed == "42 /home/ann 200001\n"
    shown = type_in_terminal(driver, session, "nvidia-smi; whoami; echo en''d", "end")
    assert "4967MiB" in shown
    assert "ann" in shown


PYNVML = """
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
v1, v2 = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
print(n.nvmlDeviceGetCount(), v1.total, v2.total, v2.total - v2.reserved)
"""


def test_pynvml_shows_exactly_the_share_in_cells_and_terminals(
    driver: Driver, session: AttemptSpec
) -> None:
    share = 14_917 * 2**20 * 333 // 1000
    expected = f"1 {share} {share} {share}"
    assert run_cell(driver, session, PYNVML).strip() == expected
    line = f'python -c \'exec("""{PYNVML.strip()}""")\''.replace("\n", ";")
    shown = type_in_terminal(driver, session, f"{line}; echo en''d", "end")
    assert expected in shown


def test_kernels_talk_over_sockets_that_only_their_owner_reaches(
    driver: Driver, session: AttemptSpec
) -> None:
    code = (
        "import json, ipykernel\n"
        "told = json.load(open(ipykernel.get_connection_file()))\n"
        "print(told['transport'], told['ip'])"
    )
    assert run_cell(driver, session, code).startswith("ipc /run/allot/session/kernel-")
    folder = driver.site.folders.session(session.attempt_id)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.glob("kernel-*-ipc-*"))


def test_a_neighbour_finds_neither_socket_nor_token(driver: Driver, session: AttemptSpec) -> None:
    pinned = socket_of(driver, session)
    real = driver.site.folders.session(session.attempt_id) / jupyter.SOCKET
    connects = (
        "import socket, sys\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        socket.socket(socket.AF_UNIX).connect(path); print('connected')\n"
        "    except OSError as error: print(type(error).__name__)\n"
    )
    tries = bob(spec("python", "-c", connects, str(pinned), str(real), "/run/allot/session/s"))
    output = driver.output(tries)
    assert output.split() == ["FileNotFoundError"] * 3
    output = driver.output(bob(spec("bash", "-c", "cat /proc/*/environ /proc/*/cmdline; ps axe")))
    assert TOKEN not in output
    assert TOKEN not in driver.log(session)


def test_on_the_machine_the_socket_is_its_owners_and_the_agents(
    driver: Driver, session: AttemptSpec
) -> None:
    status = socket_of(driver, session).stat()
    assert (status.st_uid, status.st_mode & 0o777) == (200_001, 0o600)
    assert driver.site.folders.sockets.stat().st_mode & 0o777 == 0o700
    command = Path(f"/proc/{driver.report(session).pid}/cmdline").read_text()
    assert TOKEN not in command


def test_what_is_not_the_owners_socket_is_not_opened(driver: Driver, session: AttemptSpec) -> None:
    folder = driver.site.folders.session(session.attempt_id)
    (folder / jupyter.SOCKET).rename(folder / "away")
    (folder / jupyter.SOCKET).symlink_to("/dev/log")
    assert driver.runner.session(session.attempt_id) is None
    (folder / jupyter.SOCKET).unlink()
    (folder / jupyter.SOCKET).write_text("no socket")
    assert driver.runner.session(session.attempt_id) is None


def test_the_next_agent_takes_a_session_over_with_its_kernels(
    driver: Driver, session: AttemptSpec
) -> None:
    run_cell(driver, session, "1")
    after = driver.restarted()
    assert not after.report(session).is_ready
    until_ready(after, session)
    assert len(call(after, session, "GET", "api/kernels").json()) == 1
    after.runner.close()


def test_a_stopped_session_ends_its_kernels_and_leaves_no_socket(
    driver: Driver, session: AttemptSpec
) -> None:
    run_cell(driver, session, "1")
    pinned = socket_of(driver, session)
    driver.want(replace(session, goal=Goal.STOP))
    report = driver.until_phase(session, *FINAL)
    assert report.exit_cause == ExitCause.STOPPED
    assert driver.runner.session(session.attempt_id) is None
    driver.until(lambda: not pinned.exists())


def test_a_kernel_that_catches_the_signal_saves_before_it_is_stopped(
    driver: Driver, session: AttemptSpec
) -> None:
    """What it saved is there again when the session is started again."""
    code = (
        "import os, signal, pathlib\n"
        "folder, x = pathlib.Path(os.environ['ALLOT_CHECKPOINT_DIR']), 42\n"
        "def save(*_):\n"
        "    (folder / '.saving').write_text(str(x)); (folder / '.saving').rename(folder / 'x')\n"
        "signal.signal(signal.SIGUSR1, save); x += 1"
    )
    run_cell(driver, session, code)
    driver.want(replace(session, goal=Goal.STOP))
    report = driver.until_phase(session, *FINAL)
    assert report.exit_cause == ExitCause.STOPPED
    assert len(report.checkpoints) == 1
    again = following(session)
    driver.want(again)
    until_ready(driver, again)
    assert driver.report(again).resumed_from == report.checkpoints[0].key
    shown = "import os; print(open(os.environ['ALLOT_CHECKPOINT_DIR'] + '/x').read())"
    assert run_cell(driver, again, shown) == "43\n"


def test_what_a_browser_has_saved_outlives_a_stop_and_variables_do_not(
    driver: Driver, session: AttemptSpec
) -> None:
    """JupyterLab saves an open notebook by itself every two minutes, as a browser does here."""
    settings = call(
        driver, session, "GET", "lab/api/settings/@jupyterlab/docmanager-extension:plugin"
    )
    assert settings.json()["schema"]["properties"]["autosave"]["default"] is True
    assert settings.json()["schema"]["properties"]["autosaveInterval"]["default"] == 120
    document = {"type": "file", "format": "text", "content": "typed"}
    path = str(socket_of(driver, session))
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=path), base_url="http://localhost"
    ) as client:
        headers = {"Authorization": f"token {TOKEN}"}
        url = BASE_URL + "api/contents/notes.txt"
        assert client.put(url, headers=headers, json=document).status_code == httpx.codes.CREATED
    run_cell(driver, session, "x = 1")
    driver.want(replace(session, goal=Goal.STOP))
    driver.until_phase(session, *FINAL)
    again = following(session)
    driver.want(again)
    until_ready(driver, again)
    assert call(driver, again, "GET", "api/contents/notes.txt").json()["content"] == "typed"
    assert call(driver, again, "GET", "api/kernels").json() == []


def test_a_kernel_beyond_the_memory_limit_dies_and_the_session_lives(
    driver: Driver, session: AttemptSpec
) -> None:
    kernel = call(driver, session, "POST", "api/kernels").json()["id"]
    with connect(driver, session, f"api/kernels/{kernel}/channels") as channels:
        channels.send(json.dumps(execution("b = bytearray(3 * 10**9)")))
        assert driver.isolation.cgroups is not None
        driver.until(driver.isolation.cgroups.cgroup(session.attempt_id).num_oom_kills)
    assert run_cell(driver, session, "print(1)") == "1\n"
    assert driver.report(session).phase == AttemptPhase.RUNNING
