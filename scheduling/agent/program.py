"""Between fork and exec: how a child of the shim becomes a program of the workload.

What goes wrong here is mostly a wrong word in somebody's form, so the child says through a pipe at
which stage it failed, and the shim turns that into an error that names the field.
Standard library only, since the shim starts with nothing else.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from scheduling.agent import namespaces
from scheduling.agent.cgroups import Cgroup

# What the shim waits for; a child must not inherit the block.
BLOCKED_BEFORE = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
# Python ignores these two; a program that is started must find them as a shell gives them.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)

# Stages that a person can make fail, named as the field.
_FIELDS = ("working_dir", "command")
_REASONS = {
    errno.ENOENT: "was not found on this node",
    errno.EACCES: "may not be used by this person (permission denied)",
    errno.EPERM: "may not be used by this person (permission denied)",
    errno.ENOTDIR: "is not a folder",
    errno.ENOEXEC: "is not a program: its first line names no interpreter",
}

Launch = dict[str, Any]
"""JSON of the agent's own launch.json, hence Any."""


class CannotStartError(Exception):
    """The workload's program could not be started, because of a field of its form."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Ends:
    """Descriptors that the child needs.

    Attributes:
        log: Becomes its output.
        pipe: Takes its pid on the machine, a newline, and what went wrong.
        host_proc: The machine's /proc; None if nobody asks for the pid.
    """

    log: int
    pipe: int
    host_proc: int | None


def become(launch: Launch, argv: list[str], ends: Ends, cgroup: Cgroup | None) -> NoReturn:
    """Turn into a program of the workload: limited, as its owner, in its folder."""
    stage = "node"
    try:
        os.setsid()
        if ends.host_proc is not None:
            os.write(ends.pipe, os.readlink("self", dir_fd=ends.host_proc).encode())
        os.write(ends.pipe, b"\n")
        if cgroup is not None:
            cgroup.join()
        else:
            _limit_cpus(launch["cpu_milli"])
        _redirect(ends.log)
        _drop_rights(launch)
        stage = "working_dir"
        os.chdir(launch["cwd"])
        stage = "command"
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_BEFORE)
        for signum in _RESTORED:
            signal.signal(signum, signal.SIG_DFL)
        os.execvpe(argv[0], argv, launch["env"])
    except OSError as error:
        os.write(ends.pipe, f"{stage}:{error.errno or 0}:{error}".encode())
    finally:
        os._exit(127)


def failure(told: bytes, launch: Launch) -> Exception:
    """What a child told of its failure: a field's error, or the node's own."""
    stage, number, text = told.decode(errors="replace").split(":", 2)
    if stage not in _FIELDS:
        return OSError(int(number), text)
    value = launch["cwd_as_given"] if stage == "working_dir" else launch["argv"][0]
    return CannotStartError(stage, f"{stage}: {value!r} {_REASONS.get(int(number), text)}")


def _drop_rights(launch: Launch) -> None:
    """Become the person for whom this runs, with no way back."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if launch["use_identity"]:
        # The shim's own score is inherited and must not protect the workload.
        Path("/proc/self/oom_score_adj").write_text("0")
        os.setgroups([launch["gid"]])
        os.setgid(launch["gid"])
        os.setuid(launch["uid"])
    os.umask(0o027)
    namespaces.prctl(namespaces.PR_SET_NO_NEW_PRIVS, 1)
    if not launch["use_namespaces"]:
        # There the kernel ends the workload with its first process; here this must do.
        namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_cpus(cpu_milli: int) -> None:
    """Without a cgroup: at least bind the workload to as many CPUs as it has cores."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[: max(1, -(-cpu_milli // 1000))])


def _redirect(log_fd: int) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
