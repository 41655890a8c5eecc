"""Child processes that cannot outlive us: started, watched until ready, stopped within a limit.

Used by the supervisor and by tests alike. No Django here: tests need servers before settings.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1
# Between two looks at a process that is not ready yet, or that has been told to stop.
POLL_S = 0.03
# A log beyond this is set aside; one older generation is kept.
MAX_LOG_BYTES = 10 * 1024 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class ProcessError(Exception):
    """A process ended while it was starting, or did not become ready in time."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to start and how to know that it works."""

    name: str
    command: tuple[str, ...]
    # Whether it does its work; asked again and again while it starts.
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    start_limit_s: float = 60.0
    stop_signal: signal.Signals = signal.SIGTERM
    # After this long it is killed.
    stop_limit_s: float = 10.0
    # What the kernel sends when we are gone without having stopped it.
    death_signal: signal.Signals = signal.SIGKILL
    # Working directory; ours where it is None.
    folder: Path | None = None
    # Called before each start, the first and all later ones.
    prepare: Callable[[], None] = lambda: None


def start(program: Program, log: Path) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, its output appended to a log.

    Must be called in the main thread: the kernel sends the death signal when the *thread* that
    started the process ends.
    """
    program.prepare()
    set_aside_large_log(log)
    parent = os.getpid()
    with log.open("ab") as output:
        return subprocess.Popen(
            program.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **program.environment},
            cwd=program.folder,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(program.death_signal, parent),
        )


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """Ask the kernel for a signal when our parent ends; end at once if it already has."""
    _libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def set_aside_large_log(log: Path) -> None:
    """Keep one older generation of a log that has grown large.

    It is emptied and not replaced: a running process goes on appending to the same file.
    """
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        shutil.copyfile(log, log.with_suffix(log.suffix + ".1"))
        os.truncate(log, 0)


def wait_until_ready(program: Program, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a started program works.

    Raises:
        ProcessError: it ended, or its start limit passed; holds the last lines of its log.
    """
    deadline = time.monotonic() + program.start_limit_s
    while not program.is_ready():
        if process.poll() is not None:
            raise ProcessError(
                f"{program.name} ended while starting ({describe_exit(process.returncode)}):\n"
                + last_lines(log)
            )
        if time.monotonic() > deadline:
            raise ProcessError(
                f"{program.name} was not ready after {program.start_limit_s:.0f} s:\n"
                + last_lines(log)
            )
        time.sleep(POLL_S)


def stop(program: Program, process: subprocess.Popen[bytes]) -> bool:
    """Stop a program with its own signal; kill it when its limit passes.

    Returns:
        Whether it stopped by itself.
    """
    if process.poll() is not None:
        return True
    process.send_signal(program.stop_signal)
    try:
        process.wait(program.stop_limit_s)
    except subprocess.TimeoutExpired:
        kill_session(process)
        process.wait()
        return False
    return True


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it started in its own process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def describe_exit(code: int) -> str:
    """Say in words how a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def last_lines(log: Path, count: int = 15) -> str:
    """Return the end of a log, for a person."""
    with log.open("rb") as lines:
        lines.seek(max(0, log.stat().st_size - 64 * 1024))
        tail = lines.read().decode(errors="replace").splitlines()[-count:]
    return "\n".join(f"    {line}" for line in tail)
