"""How an attempt saves and ends: request, SIGTERM, SIGKILL, within one grace period.

Standard library only: the shim does this, so that a stop goes on when the agent dies meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scheduling.agent import folders, processes
from scheduling.agent.saved import Entry, entries

# Of the grace period, left for SIGTERM when a program does not answer the request to save.
_TERM_SHARE, _TERM_MAX_S = 1 / 3, 10.0
# In the folder that the client reads: when Allot last asked for a checkpoint.
CONTROL = "control.json"


@dataclass(frozen=True, slots=True)
class Workload:
    """The running workload, as far as saving and stopping need it.

    Attributes:
        root_pid: The shim; everything below it is the workload.
        main_pid: The program that was started.
        checkpoint_mode: `none`, `signal` or `command`.
        signum: Asks for a checkpoint in mode `signal`.
        folder_fd: Where it saves; None for what never saves.
        is_server: The main program is a server of ours whose children are asked to save, such as
            kernels: JupyterLab's catches the signal itself, and merely prints its state then.
        arrived: What came into the checkpoint folder by rename (`renames`).
        attempt_fd: The attempt's folder.
        control_fd: Folder in which the client reads requests.
        run_command: Starts the command of mode `command`.
        kill: Kills all of it.
    """

    root_pid: int
    main_pid: int
    checkpoint_mode: str
    signum: int
    folder_fd: int | None
    attempt_fd: int
    control_fd: int
    run_command: Callable[[], None]
    kill: Callable[[], None]
    arrived: Callable[[], Collection[tuple[str, int]]] = tuple
    is_server: bool = False

    def ask_to_save(self) -> bool:
        """Ask for a checkpoint as the workload understands it; False if it understands none."""
        if self.checkpoint_mode == "none" or self.folder_fd is None:
            return False
        folders.write_json(CONTROL, {"checkpoint_asked_at": time.time()}, dir_fd=self.control_fd)
        with suppress(OSError):
            os.chmod(CONTROL, 0o644, dir_fd=self.control_fd)
        if self.checkpoint_mode == "command":
            self.run_command()
            return True
        top = self.main_pid if self.is_server else self.root_pid
        catchers = processes.topmost_catchers(top, self.signum)
        _send(catchers, self.signum)
        return bool(catchers) or self.has_client()

    def has_client(self) -> bool:
        """Whether the program uses the client, which hears of requests by itself."""
        mark = Path(folders.WORK, folders.PROGRESS, folders.CLIENT_MARK)
        try:
            os.stat(mark, dir_fd=self.attempt_fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def saved(self, *, is_over: bool = False) -> set[Entry]:
        """Whole checkpoints that lie in its folder now."""
        if self.folder_fd is None:
            return set()
        arrived = self.arrived()
        return set(entries(self.folder_fd, time.time_ns(), is_over=is_over, arrived=arrived))


def _send(pids: list[int], signum: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


@dataclass(slots=True)
class Stop:
    """One stop under way; `step` it until the workload has ended.

    Attributes:
        cause: Why, for the exit record.
        phase: `saving` until a new checkpoint is whole, then `stopping`.
        is_terminated: SIGTERM was sent: an exit from then on is no longer the program's own.
        has_saved: A checkpoint became whole after the request.
        is_leader: It is asked to save; other replicas are not, since only its checkpoints count.
        is_awaiting_leader: They go on until the leader has saved, which may need them for that.
    """

    workload: Workload
    cause: str
    grace_s: float
    began_s: float
    phase: str = "saving"
    is_terminated: bool = False
    has_saved: bool = False
    is_leader: bool = True
    is_awaiting_leader: bool = False
    _known: set[Entry] = field(default_factory=set)
    _told: set[tuple[int, int | None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._known = self.workload.saved()
        goes_on = self.workload.ask_to_save() if self.is_leader else self.is_awaiting_leader
        if not goes_on:
            self._terminate()

    def step(self, now_s: float) -> bool:
        """Do what is due.

        Returns:
            Whether phase or `is_terminated` changed.
        """
        before = (self.phase, self.is_terminated)
        if now_s - self.began_s >= self.grace_s:
            self.workload.kill()
        elif self.phase == "saving":
            self.has_saved = bool(self.workload.saved() - self._known)
            is_done = self.has_saved if self.is_leader else not self.is_awaiting_leader
            reserve_s = min(_TERM_MAX_S, self.grace_s * _TERM_SHARE)
            if is_done or now_s - self.began_s >= self.grace_s - reserve_s:
                self._terminate()
        else:
            self._terminate()
        return (self.phase, self.is_terminated) != before

    def close(self) -> None:
        """Look for a new checkpoint for the last time: the workload has ended."""
        self.has_saved = self.has_saved or bool(self.workload.saved(is_over=True) - self._known)

    def _terminate(self) -> None:
        """Send SIGTERM to whoever handles it; to the main program once nobody is left who does.

        Each process is told once: many programs take a second SIGTERM as an order to hurry.
        """
        self.phase, self.is_terminated = "stopping", True
        catchers = processes.topmost_catchers(self.workload.root_pid, signal.SIGTERM)
        targets = catchers or [self.workload.main_pid]
        fresh = [pid for pid in targets if (pid, processes.start_ticks(pid)) not in self._told]
        self._told.update((pid, processes.start_ticks(pid)) for pid in fresh)
        _send(fresh, signal.SIGTERM)
