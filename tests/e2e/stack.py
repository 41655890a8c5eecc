"""The really started stack, and ways to hurt it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from scheduling.management import stack
from scheduling.management.stack import until

# Part of the command line of each process that may be killed.
MARKS = {
    "web": "config.asgi:application",
    "worker": " worker ",
    "beat": " beat ",
    "agent": "manage.py agent",
}


class Stack(stack.Stack):
    """One `manage.py up` whose processes can be killed."""

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

    def children(self) -> list[psutil.Process]:
        if self.process is None or self.process.poll() is not None:
            return []
        return psutil.Process(self.process.pid).children(recursive=True)

    def workload_processes(self) -> list[psutil.Process]:
        """Shims of this data folder and what runs under them."""
        ours = {child.pid for child in self.children()}
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            if "shim" in line and str(self.var) in line and process.pid not in ours:
                found += [process, *process.children(recursive=True)]
        return found

    def pid_of(self, name: str) -> int | None:
        """The pid of web, worker, beat or agent."""
        for child in self.children():
            try:
                line = " ".join(child.cmdline()) + " "
            except psutil.Error:
                continue
            if MARKS[name] in line:
                pid: int = child.pid
                return pid
        return None

    @contextmanager
    def standing_still(self, *names: str) -> Iterator[None]:
        """These processes neither work nor are started anew."""
        pids = [pid for name in names if (pid := self.pid_of(name)) is not None]
        assert len(pids) == len(names)
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def kill(self, name: str) -> None:
        """SIGKILL one process, and wait until the supervisor has it back."""
        pid = until(lambda: self.pid_of(name), f"{name} runs")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.pid_of(name) not in (None, pid), f"{name} is back", 30)
