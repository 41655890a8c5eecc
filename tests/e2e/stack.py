"""The really started stack: `manage.py up` in a data folder of its own, and ways to hurt it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
import psutil
import psycopg

REPOSITORY = Path(__file__).resolve().parents[2]
START_LIMIT_S = 180.0
STOP_LIMIT_S = 120.0

T = TypeVar("T")


def until(found: Callable[[], T], what: str, limit_s: float = 60.0, every_s: float = 0.2) -> T:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + limit_s
    while not (answer := found()):
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {what}"
        time.sleep(every_s)
    return answer


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
        return port


@dataclass(slots=True)
class Stack:
    """One `manage.py up`."""

    var: Path
    run: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("ALLOT_")}
        own.pop("DJANGO_SETTINGS_MODULE", None)
        with (self.var.parent / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up"],
                cwd=REPOSITORY,
                env={
                    **own,
                    "ALLOT_VAR": str(self.var),
                    "ALLOT_RUN": str(self.run),
                    "ALLOT_PORT": str(self.port),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until(self._is_ready, f"the stack answers; it said:\n{self.output()}", START_LIMIT_S)

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the stack ended:\n{self.output()}"
        if "Allot is ready" not in self.output():
            return False
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def output(self) -> str:
        file = self.var.parent / "up.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def stop(self) -> None:
        """What Ctrl-C does."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        self.process.wait(STOP_LIMIT_S)

    def kill_everything(self) -> None:
        """SIGKILL for the supervisor, all that it started, and every workload."""
        assert self.process is not None
        victims = [psutil.Process(self.process.pid), *self.children(), *self.workload_processes()]
        for victim in victims:
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(victims, timeout=10)
        self.process.wait(10)
        (self.var.parent / "up.log").write_text("")

    def children(self) -> list[psutil.Process]:
        if self.process is None or self.process.poll() is not None:
            return []
        return psutil.Process(self.process.pid).children(recursive=True)

    def workload_processes(self) -> list[psutil.Process]:
        """Shims of this data folder and what runs under them."""
        stack = {child.pid for child in self.children()}
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            if "shim" in line and str(self.var) in line and process.pid not in stack:
                found += [process, *process.children(recursive=True)]
        return found

    def pid_of(self, name: str) -> int | None:
        """The pid of web, worker, beat or agent."""
        marks = {
            "web": "config.asgi:application",
            "worker": " worker ",
            "beat": " beat ",
            "agent": "manage.py agent",
        }
        for child in self.children():
            try:
                line = " ".join(child.cmdline()) + " "
            except psutil.Error:
                continue
            if marks[name] in line:
                pid: int = child.pid
                return pid
        return None

    def kill(self, name: str) -> None:
        """SIGKILL one process, and wait until the supervisor has it back."""
        pid = until(lambda: self.pid_of(name), f"{name} runs")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.pid_of(name) not in (None, pid), f"{name} is back", 30)

    def password(self, login: str) -> str:
        for line in (self.var / "logins.txt").read_text().splitlines():
            words = line.split()
            if words[:1] == [login]:
                return words[-1]
        raise AssertionError(f"no login {login}")

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Ask the database itself."""
        where = f"host={self.run / 'pg'} dbname=allot user=allot"
        with psycopg.connect(where, autocommit=True) as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def client(self, login: str) -> Iterator[httpx.Client]:
        """The API with a session of this person."""
        with httpx.Client(base_url=self.url, timeout=30, follow_redirects=True) as client:
            client.get("/accounts/login/")
            cookie = f"allot_csrf_{self.port}"
            answer = client.post(
                "/accounts/login/",
                data={
                    "username": login,
                    "password": self.password(login),
                    "csrfmiddlewaretoken": client.cookies[cookie],
                },
            )
            assert "/accounts/login/" not in str(answer.url), "the login was refused"
            client.headers["X-CSRFToken"] = client.cookies[cookie]
            client.headers["Referer"] = self.url
            yield client


@contextmanager
def running_stack() -> Iterator[Stack]:
    """A started stack, stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="allot-e2e-"))
    folder.chmod(0o711)
    run = Path(tempfile.mkdtemp(prefix="allot-r-"))
    stack = Stack(var=folder / "var", run=run)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(run, ignore_errors=True)
