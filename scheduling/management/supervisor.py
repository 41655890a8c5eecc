"""Keeps a set of programs running: starts them in order, restarts what dies, stops in reverse.

Written for ``manage.py up``. A program's next start waits longer each time it dies soon after the
last, and at once after a quiet while. No Django here.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from scheduling.management.processes import (
    POLL_S,
    Program,
    describe_exit,
    kill_session,
    last_lines,
    set_aside_large_log,
)
from scheduling.management.processes import start as start_process

# The wait before a restart doubles from the first to the last of these.
FIRST_BACK_OFF_S = 0.2
LAST_BACK_OFF_S = 30.0
# A program that ran this long has recovered: its next death counts as the first.
QUIET_S = 30.0
# What a stopping program gets after the second Ctrl-C.
HURRIED_LIMIT_S = 1.0
# How often a program that is not ready is asked again while others are watched.
READY_POLL_S = 0.1
# How often the sizes of logs are looked at.
LOG_LOOK_S = 10.0

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StartError(Exception):
    """A program did not come up at the first start; holds the end of its log."""


class StopRequestedError(Exception):
    """Somebody asked us to stop while we were starting."""


@dataclass(slots=True)
class _Child:
    """A program and its present process."""

    program: Program
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    is_ready: bool = False
    num_deaths: int = 0
    # When to start it again; meaningful while there is no process.
    restart_at: float = 0.0

    def back_off_s(self) -> float:
        """Return the wait before the next start, by the deaths in a row."""
        return min(LAST_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0 ** min(self.num_deaths - 1, 16))


@dataclass(slots=True)
class Supervisor:
    """Runs programs until it is asked to stop.

    Invariant: every process it started is its child and gets a death signal from the kernel when
    the supervisor is killed, so nothing is left behind.
    """

    log_dir: Path
    # Told what happened: a program's name and a short line.
    say: Callable[[str, str], None]
    _children: list[_Child] = field(default_factory=list)
    _num_stop_requests: int = 0
    _wake_read: int = -1

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Let Ctrl-C, SIGTERM and SIGHUP ask for a stop, and SIGCHLD end a wait."""
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(wake_write, False)
        before = {number: signal.getsignal(number) for number in (*_STOP_SIGNALS, signal.SIGCHLD)}
        old_wake = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            signal.signal(number, self._request_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_wake)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake_read)
            os.close(wake_write)
            self._wake_read = -1

    def start(self, *programs: Program) -> None:
        """Start programs together and wait until all of them work.

        Raises:
            StartError: one ended or was not ready in time.
            StopRequestedError: a stop was asked for meanwhile.
        """
        started = [_Child(program, self.log_dir / f"{program.name}.log") for program in programs]
        self._children += started
        for child in started:
            self._launch(child)
        while waiting := [child for child in started if not child.is_ready]:
            self.check_stop()
            for child in waiting:
                self._note_ready(child)
                if not child.is_ready:
                    self._expect_alive(child)
            self._keep_alive(self._children[: -len(started)])
            self._sleep(POLL_S)

    def watch(self) -> None:
        """Restart what dies, until a stop is asked for."""
        logs_due_at = 0.0
        while not self._num_stop_requests:
            self._keep_alive(self._children)
            if time.monotonic() > logs_due_at:
                self._set_large_logs_aside()
                logs_due_at = time.monotonic() + LOG_LOOK_S
            self._sleep(self._next_look_s())

    def stop(self) -> None:
        """Stop everything in reverse order, each by its own signal and within its limit."""
        for child in reversed(self._children):
            if child.process is None or child.process.poll() is not None:
                continue
            self._stop_one(child, child.process)
        self._children.clear()

    def check_stop(self) -> None:
        """Raise when a stop was asked for.

        Raises:
            StopRequestedError: it was.
        """
        if self._num_stop_requests:
            raise StopRequestedError

    def pids(self) -> dict[str, int]:
        """Return the process of each program that has one."""
        return {child.program.name: child.process.pid for child in self._children if child.process}

    def _request_stop(self, number: int, _frame: FrameType | None) -> None:
        self._num_stop_requests += 1

    def _launch(self, child: _Child) -> None:
        child.started_at = time.monotonic()
        child.is_ready = False
        child.process = start_process(child.program, child.log)

    def _expect_alive(self, child: _Child) -> None:
        if child.process is not None and child.process.poll() is not None:
            ended = f"ended while starting ({describe_exit(child.process.returncode)})"
        elif time.monotonic() - child.started_at > child.program.start_limit_s:
            ended = f"was not ready after {child.program.start_limit_s:.0f} s"
        else:
            return
        raise StartError(
            f"{child.program.name} {ended}; the end of {child.log}:\n{last_lines(child.log)}"
        )

    def _note_ready(self, child: _Child) -> None:
        if child.is_ready or not child.program.is_ready():
            return
        child.is_ready = True
        took_s = time.monotonic() - child.started_at
        again = " again" if child.num_deaths else ""
        self.say(child.program.name, f"ready{again} after {took_s:.1f} s")

    def _keep_alive(self, children: Sequence[_Child]) -> None:
        """Look at each program once: bury it, start it again, or see that it works."""
        now = time.monotonic()
        for child in children:
            if child.process is None:
                if now >= child.restart_at:
                    self._launch(child)
            elif child.process.poll() is not None:
                self._bury(child, describe_exit(child.process.returncode))
            elif not child.is_ready:
                self._note_ready(child)
                if not child.is_ready and now - child.started_at > child.program.start_limit_s:
                    kill_session(child.process)
                    child.process.wait()
                    self._bury(child, f"not ready after {child.program.start_limit_s:.0f} s")

    def _bury(self, child: _Child, why: str) -> None:
        now = time.monotonic()
        if child.is_ready and now - child.started_at > QUIET_S:
            child.num_deaths = 0
        child.num_deaths += 1
        child.process = None
        wait_s = child.back_off_s()
        child.restart_at = now + wait_s
        self.say(child.program.name, f"ended ({why}); starts again in {wait_s:.1f} s")

    def _set_large_logs_aside(self) -> None:
        for child in self._children:
            set_aside_large_log(child.log)

    def _next_look_s(self) -> float:
        """Return how long nothing can be due; a death ends the sleep sooner."""
        now = time.monotonic()
        looks = [1.0]
        for child in self._children:
            if child.process is None:
                looks.append(max(0.0, child.restart_at - now))
            elif not child.is_ready:
                looks.append(READY_POLL_S)
        return min(looks)

    def _stop_one(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        program = child.program
        asked_at = time.monotonic()
        hurried_at = 0.0
        requests_before = self._num_stop_requests
        process.send_signal(program.stop_signal)
        while process.poll() is None:
            now = time.monotonic()
            if not hurried_at and self._num_stop_requests > requests_before:
                hurried_at = now
                self.say(program.name, "hurried")
            is_late = now - asked_at > program.stop_limit_s
            if is_late or (hurried_at and now - hurried_at > HURRIED_LIMIT_S):
                kill_session(process)
                process.wait()
                self.say(program.name, f"killed after {now - asked_at:.1f} s")
                return
            self._sleep(POLL_S)
        self.say(program.name, f"stopped after {time.monotonic() - asked_at:.1f} s")

    def _sleep(self, duration_s: float) -> None:
        """Sleep, but not past a signal."""
        if self._wake_read < 0:
            time.sleep(min(duration_s, POLL_S))
            return
        if select.select([self._wake_read], [], [], duration_s)[0]:
            try:
                while os.read(self._wake_read, 4096):
                    pass
            except BlockingIOError:
                return
