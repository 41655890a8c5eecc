"""The small process that holds one attempt: it starts it, limits it, stops it and keeps its exit.

It outlives the agent, and is the first process of the workload's PID namespace: whoever kills it
ends the whole attempt, so a training never runs without somebody who watches its lease. It holds a
lock on the attempt's folder (`lock`) for as long as it lives; the agent asks for things by
`request.json` and SIGUSR1, and reads `state.json` and `exit.json`.

    python -S -m scheduling.agent.shim FOLDER

Standard library only, without `site`, so that it starts in some 30 ms and stays small.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from scheduling.agent import folders, namespaces, processes, program
from scheduling.agent.cgroups import Cgroup, Hierarchy, Limits
from scheduling.agent.fraction import driver_limits
from scheduling.agent.renames import Renames
from scheduling.agent.stopping import Stop, Workload

# How often lease, log size and requests are looked at when nobody wakes the shim.
_TICK_S = 0.5
_TICK_WHILE_STOPPING_S = 0.1
# Somebody waits for the device: a look at one folder.
_TICK_WHILE_SAVING_S = 0.02
_LOCK_TRIES, _LOCK_PAUSE_S = 40, 0.05
_RECORD_TRIES, _RECORD_PAUSE_S = 600, 1.0
_AWAITED = program.BLOCKED_BEFORE
_EXPIRED = "lease_expired"
# Out of the kernel's reach when memory runs out: its death would end the attempt without a record.
_OOM_SCORE = "-900"


class Shim:
    """One attempt, from its start to its exit record."""

    def __init__(self, folder_fd: int, launch: dict[str, Any]) -> None:
        # JSON of the agent's own launch.json, hence Any.
        self.folder_fd = folder_fd
        self.launch = launch
        self.cgroup = _cgroup(launch)
        self.log_fd = os.open(
            folders.LOG, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600, dir_fd=folder_fd
        )
        self.checkpoint_fd = _checkpoint_folder(folder_fd, launch)
        self.renames = None if self.checkpoint_fd is None else Renames(self.checkpoint_fd)
        self.control_fd = os.open("control", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder_fd)
        self.has_namespace = bool(launch["use_namespaces"])
        self.main_pid = 0
        self.main_status: int | None = None
        self.state: dict[str, Any] = {}
        self.stop: Stop | None = None
        self.request_stamp = 0
        self.num_saves_asked = 0
        self.lease_stamp = 0
        self.lease_seen_s = time.monotonic()
        self.peak_mib = 0.0
        self.is_over_memory = False

    # ------------------------------------------------------------------ start

    def prepare(self) -> None:
        """Make the cgroup; from the state that is written here on, the attempt is begun."""
        limits = Limits(self.launch["cpu_milli"], self.launch["memory_mib"])
        if self.cgroup is not None:
            self.cgroup.create(limits)
            if wanted := self.launch["driver_limits"]:
                # Before anything runs in it; what the driver refuses is not started without.
                driver_limits.apply(
                    str(self.cgroup.folders[0]), wanted["num_bytes"], wanted["library"]
                )
        self.state = {"phase": "starting"}
        folders.write_json(folders.STATE, self.state, dir_fd=self.folder_fd)

    def note(self, **changes: object) -> None:
        """Record what changed for the agent; a full disk must not end the attempt."""
        self.state.update(changes)
        with suppress(OSError):
            folders.write_json(folders.STATE, self.state, dir_fd=self.folder_fd)

    def run(self) -> None:
        """Start the workload, wait for it, record its exit."""
        started_at = time.time()
        # Both before the machine's /proc is hidden.
        host_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self.note(shim_pid=int(os.readlink("self", dir_fd=host_proc)))
        try:
            if self.has_namespace:
                namespaces.enter(namespaces.view_from(self.launch["view"]))
            else:
                namespaces.prctl(namespaces.PR_SET_CHILD_SUBREAPER, 1)
            pid_on_host = self.start(host_proc)
        except (OSError, program.CannotStartError) as error:
            self.finish(started_at, refusal=error)
            return
        self.note(phase="running", pid=pid_on_host, started_at=started_at)
        while self.main_status is None:
            caught = signal.sigtimedwait(_AWAITED, self.pause_s())
            self.reap()
            if self.main_status is None:
                self.tick(caught.si_signo if caught else 0)
        self.finish(started_at)

    def start(self, host_proc: int) -> int:
        """Start the workload's program; its pid as the machine numbers it.

        Raises:
            CannotStartError: a folder or program that the person named cannot be used.
        """
        read_end, write_end = os.pipe()
        self.main_pid = os.fork()
        if self.main_pid == 0:
            os.close(read_end)
            self.become(self.launch["argv"], write_end, host_proc)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            pid_on_host, _, failure = pipe.read().partition(b"\n")
        os.close(host_proc)
        if failure:
            os.waitpid(self.main_pid, 0)
            raise program.failure(failure, self.launch)
        return int(pid_on_host)

    def become(self, argv: list[str], write_end: int, host_proc: int | None = None) -> None:
        """In a child: turn into a program of the workload. Never returns."""
        program.become(
            self.launch, argv, program.Ends(self.log_fd, write_end, host_proc), self.cgroup
        )

    # ------------------------------------------------------------------ while it runs

    def pause_s(self) -> float:
        """Until the next look, unless a signal comes before."""
        if self.stop is None:
            return _TICK_S
        return _TICK_WHILE_SAVING_S if self.stop.phase == "saving" else _TICK_WHILE_STOPPING_S

    def reap(self) -> None:
        """Take the exit of every process that ended, orphans of the workload included."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.main_pid:
                    self.main_status = status

    def tick(self, signum: int) -> None:
        """Look at everything that may have changed."""
        if signum == signal.SIGTERM or self.is_forgotten():
            self.kill()
            return
        if self.renames is not None:
            # The kernel keeps only so many for us.
            self.renames.heard()
        self.read_request()
        self.watch_lease()
        self.watch_memory()
        self.cap_log()
        if self.stop is not None and self.stop.step(time.monotonic()):
            self.note(phase=self.stop.phase, is_terminated=self.stop.is_terminated)

    def is_forgotten(self) -> bool:
        """Whether somebody deleted the attempt's folder, so that no agent will ever find us."""
        return os.fstat(self.folder_fd).st_nlink == 0

    def read_request(self) -> None:
        """Take up what the agent asks for; a file that did not change was taken up already."""
        try:
            stamp = os.stat(folders.REQUEST, dir_fd=self.folder_fd).st_mtime_ns
        except FileNotFoundError:
            return
        if stamp == self.request_stamp:
            return
        self.request_stamp = stamp
        request = folders.read_json(folders.REQUEST, dir_fd=self.folder_fd) or {}
        if request.get("cause"):
            self.begin_stop(
                str(request["cause"]),
                float(request["grace_s"]),
                is_awaiting_leader=bool(request.get("is_awaiting_leader")),
            )
        elif request.get("num_saves", 0) > self.num_saves_asked:
            self.num_saves_asked = int(request["num_saves"])
            self.workload().ask_to_save()

    def workload(self) -> Workload:
        """What a stop needs to know of the workload."""
        return Workload(
            root_pid=os.getpid(),
            main_pid=self.main_pid,
            checkpoint_mode=self.launch["checkpoint"]["mode"],
            signum=self.launch["checkpoint"]["signum"],
            # An attempt that an older agent has launched does not say it.
            is_server=self.launch["checkpoint"].get("is_server", False),
            folder_fd=self.checkpoint_fd,
            attempt_fd=self.folder_fd,
            control_fd=self.control_fd,
            run_command=self.run_checkpoint_command,
            kill=self.kill,
            arrived=tuple if self.renames is None else self.renames.heard,
        )

    def begin_stop(self, cause: str, grace_s: float, *, is_awaiting_leader: bool = False) -> None:
        """Save, then end. A stop that is under way keeps its end, and takes the new cause."""
        if self.stop is not None:
            self.stop.cause = cause
            self.stop.is_awaiting_leader = is_awaiting_leader
            return
        self.stop = Stop(
            self.workload(),
            cause,
            grace_s,
            time.monotonic(),
            is_leader=bool(self.launch["is_leader"]),
            is_awaiting_leader=is_awaiting_leader,
        )
        self.note(phase=self.stop.phase, cause=cause, is_terminated=False)

    def run_checkpoint_command(self) -> None:
        """Run the person's own command that saves, as the workload itself runs."""
        if os.fork() == 0:
            null = os.open("/dev/null", os.O_WRONLY)
            self.become(["/bin/sh", "-c", self.launch["checkpoint"]["command"]], null)

    def watch_lease(self) -> None:
        """Stop a training whose agent is gone for longer than the lease.

        The lease is the file's time as it changes, measured by our own steady clock: a step of the
        wall clock must not end a training.
        """
        lease_s = self.launch["lease_s"]
        if not lease_s or self.stop is not None:
            return
        now_s = time.monotonic()
        with suppress(FileNotFoundError):
            stamp = os.stat(folders.LEASE, dir_fd=self.folder_fd).st_mtime_ns
            if stamp != self.lease_stamp:
                self.lease_stamp, self.lease_seen_s = stamp, now_s
        if now_s - self.lease_seen_s > lease_s:
            self.say(f"the node's agent has been away for more than {lease_s:g} s: stopping")
            self.begin_stop(_EXPIRED, self.launch["grace_s"])

    def watch_memory(self) -> None:
        """Without a cgroup: measure, and kill what exceeds its memory."""
        if self.cgroup is not None:
            return
        used_mib = sum(processes.rss_mib(pid) for pid in processes.descendants(os.getpid()))
        self.peak_mib = max(self.peak_mib, used_mib)
        if used_mib > self.launch["memory_mib"]:
            self.is_over_memory = True
            self.kill()

    def cap_log(self) -> None:
        """Drop the older part of a log that has grown too long, and say so where it was."""
        size = os.fstat(self.log_fd).st_size
        limit = self.launch["log_limit_bytes"]
        if size <= limit:
            return
        kept = os.pread(self.log_fd, limit // 4, size - limit // 4)
        kept = kept[kept.find(b"\n") + 1 :]
        os.ftruncate(self.log_fd, 0)
        dropped_mib = (size - len(kept)) / 2**20
        self.say(
            f"the log had reached its limit of {limit / 2**20:g} MiB: "
            f"the older {dropped_mib:.1f} MiB were dropped here"
        )
        os.write(self.log_fd, kept)

    def say(self, line: str) -> None:
        """Write a line of ours into the attempt's log."""
        with suppress(OSError):
            os.write(self.log_fd, f"[allot] {line}\n".encode())

    # ------------------------------------------------------------------ end

    def kill(self) -> None:
        """Kill every process of the workload.

        Only the first process of a namespace may say "all": elsewhere that is the whole machine.
        """
        if self.has_namespace and os.getpid() == 1:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            return
        for pid in processes.descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def finish(self, started_at: float, refusal: Exception | None = None) -> None:
        """End what is left, read the cgroup for the last time, and record the exit."""
        self.kill()
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        record = self.usage() | {"started_at": started_at, "ended_at": time.time()}
        if refusal is not None:
            record["refusal"] = str(refusal)
            record["field"] = refusal.field if isinstance(refusal, program.CannotStartError) else ""
        else:
            code = os.waitstatus_to_exitcode(self.main_status or 0)
            if self.stop is not None:
                self.stop.close()
            record["code"] = 128 - code if code < 0 else code
            record["cause"] = self.stop.cause if self.stop else None
            record["is_terminated"] = bool(self.stop and self.stop.is_terminated)
            record["has_saved"] = bool(self.stop and self.stop.has_saved)
        # Else the agent lifts the driver's limits first: before us its library is the proxy.
        if self.cgroup is not None and not self.launch["driver_limits"]:
            self.cgroup.remove()
        self.record_exit(record)

    def record_exit(self, record: dict[str, Any]) -> None:
        """Write the exit record, waiting for room on a full disk."""
        for _ in range(_RECORD_TRIES):
            if self.is_forgotten():
                return
            with suppress(OSError):
                folders.write_json(folders.EXIT, record, dir_fd=self.folder_fd)
                return
            time.sleep(_RECORD_PAUSE_S)

    def usage(self) -> dict[str, Any]:
        """What the attempt used, and the limits that were in force."""
        if self.cgroup is None:
            return {
                "is_out_of_memory": self.is_over_memory,
                "peak_mib": int(self.peak_mib),
                "memory_limit_mib": self.launch["memory_mib"],
                "cpu_limit_milli": None,
            }
        return {
            "is_out_of_memory": self.cgroup.num_oom_kills() > 0,
            "peak_mib": self.cgroup.peak_mib(),
            "memory_limit_mib": self.cgroup.memory_limit_mib(),
            "cpu_limit_milli": self.cgroup.cpu_limit_milli(),
        }


def _cgroup(launch: dict[str, Any]) -> Cgroup | None:
    described = launch["cgroup"]
    if described is None:
        return None
    parents = tuple(Path(parent) for parent in described["parents"])
    return Hierarchy(described["version"], parents).cgroup(described["name"])


def _checkpoint_folder(folder_fd: int, launch: dict[str, Any]) -> int | None:
    subfolder = launch["checkpoint"]["subfolder"]
    return folders.open_below(folder_fd, f"{folders.WORK}/{subfolder}") if subfolder else None


def _take_lock(folder_fd: int) -> bool:
    """Lock the attempt's folder; the agent's own look at the lock passes in no time."""
    lock_fd = os.open(folders.LOCK, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=folder_fd)
    for _ in range(_LOCK_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOCK_PAUSE_S)
    return False


def _is_begun(folder_fd: int) -> bool:
    return any(
        folders.read_json(name, dir_fd=folder_fd) is not None
        for name in (folders.STATE, folders.EXIT)
    )


def main(folder: str) -> None:
    """Detach from the agent, then hold the attempt until it ends."""
    # At once: from the first record on, the agent may signal us.
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.umask(0o022)
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    launch = folders.read_json(folders.LAUNCH, dir_fd=folder_fd)
    if launch is None or not _take_lock(folder_fd) or _is_begun(folder_fd):
        os._exit(0)
    shim = Shim(folder_fd, launch)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    try:
        shim.prepare()
        if shim.has_namespace:
            namespaces.unshare(namespaces.CLONE_NEWPID)
            if os.fork():
                os._exit(0)
    except OSError as error:
        shim.finish(time.time(), refusal=error)
        return
    shim.run()


if __name__ == "__main__":
    main(sys.argv[1])
