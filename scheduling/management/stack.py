"""A whole Allot of one's own for a while: `manage.py up` in a temporary folder.

For benches and end-to-end tests, which must neither see nor disturb an Allot that people use.
"""

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
import psycopg

REPOSITORY = Path(__file__).resolve().parents[2]
START_LIMIT_S = 180.0
STOP_LIMIT_S = 120.0

T = TypeVar("T")


class TooLateError(Exception):
    """What was waited for did not happen in time."""


def until(found: Callable[[], T], what: str, limit_s: float = 60.0, every_s: float = 0.2) -> T:
    """Ask until the answer is true, and return it.

    Raises:
        TooLateError: `limit_s` passed.
    """
    deadline = time.monotonic() + limit_s
    while not (answer := found()):
        if time.monotonic() > deadline:
            raise TooLateError(f"not within {limit_s:.0f} s: {what}")
        time.sleep(every_s)
    return answer


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
        return port


@dataclass(slots=True)
class Stack:
    """One `manage.py up`, with the demonstration organisation."""

    var: Path
    run: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.var.parent / "up.log"

    def start(self) -> None:
        """Start, and wait until it answers.

        Raises:
            TooLateError: it does not.
        """
        own = {name: value for name, value in os.environ.items() if not name.startswith("ALLOT_")}
        own.pop("DJANGO_SETTINGS_MODULE", None)
        self.log.write_text("")
        with self.log.open("ab") as log:
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
        until(self._has_started, f"the stack starts, see {self.log}", START_LIMIT_S)

    def _has_started(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise TooLateError(f"the stack ended while starting:\n{self.log.read_text()}")
        return "Allot is ready" in self.log.read_text(errors="replace") and self.is_ready()

    def is_ready(self) -> bool:
        """Whether it answers, with database and Redis."""
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """What Ctrl-C does."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        self.process.wait(STOP_LIMIT_S)

    def password(self, login: str) -> str:
        """The password that the demonstration gave a person.

        Raises:
            LookupError: there is no such person.
        """
        for line in (self.var / "logins.txt").read_text().splitlines():
            words = line.split()
            if words[:1] == [login]:
                return words[1]
        raise LookupError(login)

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Ask the database itself."""
        where = f"host={self.run / 'pg'} dbname=allot user=allot"
        with psycopg.connect(where, autocommit=True) as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def client(self, login: str) -> Iterator[httpx.Client]:
        """The API with a login session of this person."""
        with httpx.Client(base_url=self.url, timeout=30, follow_redirects=True) as client:
            client.get("/accounts/login/")
            cookie = f"allot_csrf_{self.port}"
            client.post(
                "/accounts/login/",
                data={
                    "username": login,
                    "password": self.password(login),
                    "csrfmiddlewaretoken": client.cookies[cookie],
                },
            ).raise_for_status()
            client.headers["X-CSRFToken"] = client.cookies[cookie]
            client.headers["Referer"] = self.url
            yield client


StackType = TypeVar("StackType", bound=Stack)


@contextmanager
def running(kind: type[StackType]) -> Iterator[StackType]:
    """A started stack, stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="allot-stack-"))
    # Workloads run as other users, who must be able to pass.
    folder.chmod(0o711)
    run = Path(tempfile.mkdtemp(prefix="allot-r-"))
    stack = kind(var=folder / "var", run=run)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(run, ignore_errors=True)
