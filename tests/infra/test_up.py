"""`manage.py up` as a person starts it: real processes, killed one by one, stopped by Ctrl-C."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from django.conf import settings

LIMIT_S = 120.0
NAMES = ("postgres", "valkey", "web", "worker", "beat")


class Up:
    """One started copy."""

    def __init__(self, var: Path) -> None:
        self.var = var
        self.port = free_port()
        self.output = var.parent / "up.txt"
        self.process = self.start(self.output)

    def start(self, output: Path) -> subprocess.Popen[bytes]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ALLOT_")}
        with output.open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "manage.py", "up", "--no-agent", "--no-demo"],
                cwd=settings.BASE_DIR,
                env={**inherited, "ALLOT_VAR": str(self.var), "ALLOT_PORT": str(self.port)},
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        return self.output.read_text()

    def wait_until_ready(self) -> None:
        self.wait_for(lambda: "Allot is ready" in self.said())

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition() and time.monotonic() < deadline:
            assert self.process.poll() is None, self.said()
            time.sleep(0.05)
        assert condition(), self.said()

    def pid_of(self, name: str) -> int:
        marks = {"web": "uvicorn", "postgres": "/postgres", "valkey": "valkey-server"}
        for child in psutil.Process(self.process.pid).children():
            words = child.cmdline()
            if any(word == name or marks.get(name, "\0") in word for word in words):
                return child.pid
        raise AssertionError(f"{name} does not run: {self.said()}")

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/readyz")
            return bool(json.loads(connection.getresponse().read())["status"] == "ready")
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as tried:
        port: int = tried.getsockname()[1]
        return port


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, so that nothing is left elsewhere."""
    with tempfile.TemporaryDirectory(prefix="allot-up-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with tempfile.TemporaryDirectory(prefix="allot-up-") as folder:
        started = Up(Path(folder) / "var")
        try:
            started.wait_until_ready()
            yield started
        finally:
            started.process.send_signal(signal.SIGINT)
            started.process.wait(LIMIT_S)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_killed_comes_back(up: Up, name: str) -> None:
    num_before = up.said().count(f"{name:<9} ready again")
    os.kill(up.pid_of(name), signal.SIGKILL)
    up.wait_for(lambda: up.said().count(f"{name:<9} ready again") > num_before)
    up.wait_for(up.is_ready)


def test_a_second_start_on_the_same_data_is_refused(up: Up) -> None:
    output = up.var.parent / "second.txt"
    second = up.start(output)
    assert second.wait(LIMIT_S) == 1
    assert f"Allot already runs on {up.var} (process {up.process.pid})" in output.read_text()


def test_secrets_and_logs_are_ours_alone(up: Up) -> None:
    assert {
        name: oct((up.var / name).stat().st_mode & 0o777)
        for name in ("secret-key", "agent-token", "log", ".")
    } == {"secret-key": "0o600", "agent-token": "0o600", "log": "0o700", ".": "0o711"}


def test_ctrl_c_leaves_nothing_and_data_stays(folder: Path) -> None:
    up = Up(folder / "var")
    up.wait_until_ready()
    children = psutil.Process(up.process.pid).children(recursive=True)
    assert len(children) >= len(NAMES)

    up.process.send_signal(signal.SIGINT)

    assert up.process.wait(LIMIT_S) == 0, up.said()
    assert not any(child.is_running() for child in children)
    stopped = [line.split()[0] for line in up.said().splitlines() if "stopped after" in line]
    assert stopped == ["beat", "worker", "web", "valkey", "postgres"]
    assert (up.var / "postgres" / "PG_VERSION").exists()


def test_a_start_after_a_kill_of_everything(folder: Path) -> None:
    up = Up(folder / "var")
    up.wait_until_ready()
    children = psutil.Process(up.process.pid).children(recursive=True)

    up.process.kill()
    up.process.wait()
    for child in children:
        if child.is_running():
            child.kill()
    up.output.unlink()
    up.process = up.start(up.output)

    up.wait_until_ready()
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(LIMIT_S) == 0, up.said()
