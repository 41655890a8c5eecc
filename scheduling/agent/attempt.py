"""One attempt as the agent sees it: what is wanted of it, what its shim says, what has been saved.

Nothing that matters is only in memory. `spec.json` says what is wanted, `request.json` what the
shim was asked, `state.json` and `exit.json` what came of it: whoever reads them again after a
crash goes on from there. `tick` never blocks; copying and hashing happen in a pool of threads.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from scheduling.agent import crew, folders, launch, outcome
from scheduling.agent.accounting import Accounting
from scheduling.agent.cgroups import Cgroup
from scheduling.agent.checkpoint_folder import CheckpointFolder
from scheduling.agent.checkpoints import Store
from scheduling.agent.fraction.install import REGION
from scheduling.agent.fraction.region import Region
from scheduling.agent.launch import RefusedError
from scheduling.agent.processes import ProcessTree
from scheduling.agent.protocol import (
    AttemptPhase,
    AttemptReport,
    AttemptSpec,
    CheckpointReport,
    ExitCause,
    Goal,
    Member,
)
from scheduling.agent.removal import remove_tree
from scheduling.agent.site import Site

_REPOSITORY = Path(__file__).resolve().parents[2]
_WAKE = signal.SIGUSR1
# A shim takes 30 ms to lock its folder; after this long it is not coming.
_SHIM_LATE_S = 15.0
# How often a running training's checkpoint folder is looked at.
_LOOK_EVERY_S = 1.0

_CAUSES = {Goal.EVICT: ExitCause.EVICTED, Goal.STOP: ExitCause.STOPPED}
_PHASES = {
    "starting": AttemptPhase.STARTING,
    "running": AttemptPhase.RUNNING,
    "saving": AttemptPhase.SAVING,
    "stopping": AttemptPhase.STOPPING,
}


class Attempt:
    """One attempt of a workload on one of this agent's nodes."""

    def __init__(self, site: Site, store: Store, pool: Executor, spec: AttemptSpec) -> None:
        self.site = site
        self.pool = pool
        self.spec = spec
        self.folder = site.folders.attempt(spec.attempt_id)
        self.lease_s = 60.0
        self.is_ready = False
        # JSON of the shim's files, hence Any.
        self.state: dict[str, Any] = {}
        self.exit: dict[str, Any] | None = None
        self.is_settled_on_disk = False
        self.checkpoint_folder = CheckpointFolder(self.folder, store, spec.workload_id)
        self.members: Sequence[Member] = ()
        self.is_leader_saving: Callable[[], bool] = lambda: False
        self._told: object = None
        self._told_error = ""
        self._job: Future[object] | None = None
        self._spawned_s: float | None = None
        self._looked_s = 0.0
        self._is_collected = False
        self._asked_s = time.monotonic()
        self._last_report: AttemptReport | None = None

    # ------------------------------------------------------------------ on disk

    @classmethod
    def adopt(cls, site: Site, store: Store, pool: Executor, folder: Path) -> Attempt | None:
        """Take over what an earlier agent left in an attempt's folder."""
        try:
            data = (folder / folders.SPEC).read_bytes()
            spec = msgspec.json.decode(data, type=AttemptSpec)
        except (OSError, msgspec.MsgspecError):
            return None
        attempt = cls(site, store, pool, spec)
        attempt._read_files()
        return attempt

    def _write(self, name: str, value: dict[str, Any]) -> None:
        with folders.opened(self.folder) as fd:
            folders.write_json(name, value, dir_fd=fd)

    def _read_files(self) -> None:
        self.state = folders.read_json(self.folder / folders.STATE) or self.state
        self.exit = folders.read_json(self.folder / folders.EXIT) or self.exit

    # ------------------------------------------------------------------ what is wanted

    @property
    def is_over(self) -> bool:
        """Whether the workload has ended or never began."""
        return self.exit is not None

    @property
    def is_begun(self) -> bool:
        """Whether a shim has taken this attempt on."""
        return bool(self.state)

    def _record(self, spec: AttemptSpec) -> None:
        if spec != self.spec or not (self.folder / folders.SPEC).exists():
            self.spec = spec
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(folders.SPEC, msgspec.to_builtins(spec))

    def refuse(self, spec: AttemptSpec, reason: str) -> None:
        """Say that this can never start here."""
        self._record(spec)
        if not self.is_over:
            self._conclude({"refusal": reason, "field": reason.partition(":")[0]})

    @property
    def holds_devices(self) -> bool:
        """Whether its devices are in use, or about to be."""
        is_starting = self._job is not None or self._spawned_s is not None
        return (self.is_begun or is_starting) and not self.is_over

    @property
    def is_changing(self) -> bool:
        """Whether it is about to start or end, so that looking often is worth it."""
        if self.is_over:
            return not self.is_settled_on_disk
        return self.phase != AttemptPhase.RUNNING

    def usage(self) -> Cgroup | ProcessTree:
        """What it uses now: its cgroup, or where there is none its processes."""
        if self.site.isolation.cgroups is None:
            return ProcessTree(int(self.state.get("shim_pid") or 0))
        return self.site.isolation.cgroups.cgroup(self.folder.name)

    @property
    def accounting(self) -> Accounting:
        """What its processes use of its devices."""
        return Accounting(Region(self.folder / REGION), self.spec.devices)

    def order(self, spec: AttemptSpec) -> None:
        """Take over what the orchestrator wants now."""
        is_new_goal = spec.goal != self.spec.goal
        self._record(spec)
        if self.is_over:
            return
        if cause := _CAUSES.get(spec.goal):
            self.stop(cause)
        elif spec.goal == Goal.CHECKPOINT and is_new_goal:
            self.ask_to_save()
        elif not self.is_begun and self._job is None and self._spawned_s is None:
            self._job = self.pool.submit(self._start)

    def tell_members(self) -> None:
        """Have the workload know which replicas there are, and where its leader is."""
        news = (self.spec.crew, list(self.members))
        if news != self._told and crew.write_members(self.folder, self.spec, self.members):
            self._told = news

    def stop(self, cause: ExitCause) -> None:
        """Have the workload save and end; what has not begun is over at once."""
        if self.is_over:
            return
        is_untouched = self._job is None and self._spawned_s is None
        if not self.is_begun and is_untouched and not folders.is_locked(self.folder):
            self._conclude({"cause": cause, "code": None, "is_terminated": True})
            return
        request = folders.read_json(self.folder / folders.REQUEST) or {}
        wanted = {
            **request,
            "cause": cause,
            "grace_s": self.spec.grace_s,
            "is_awaiting_leader": self._is_awaiting_leader(cause),
        }
        if wanted == request:
            return
        if self.spec.goal_detail and request.get("cause") != cause:
            folders.append_line(self.folder / folders.LOG, self.spec.goal_detail)
        self._ask(wanted)

    def _is_awaiting_leader(self, cause: ExitCause) -> bool:
        """Whether it goes on until its leader has saved: as the orchestrator sees it, but when this
        agent stops everything, as the agent does."""
        if self.spec.crew is None or crew.is_leader(self.spec):
            return False
        if cause != ExitCause.NODE_SHUTDOWN:
            return self.spec.crew.is_awaiting_leader
        return self.is_leader_saving()

    def ask_to_save(self) -> None:
        """Have the workload save and go on."""
        request = folders.read_json(self.folder / folders.REQUEST) or {}
        if not request.get("cause"):
            self._asked_s = time.monotonic()
            self._ask({**request, "num_saves": int(request.get("num_saves", 0)) + 1})

    def _ask(self, request: dict[str, Any]) -> None:
        self._write(folders.REQUEST, request)
        self._signal_shim()

    def _signal_shim(self) -> None:
        """Wake the shim; were it gone, another process could have its number, hence the lock."""
        pid = self.state.get("shim_pid")
        if pid and folders.is_locked(self.folder):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, _WAKE)

    # ------------------------------------------------------------------ start

    def _start(self) -> None:
        """In a thread: prepare everything and start the shim. May be done twice."""
        launch.check(self.spec)
        launch.write_launch(self.site, self.spec, self.lease_s)
        self.checkpoint_folder.fill(self.spec, self.site.isolation)
        self.tell_members()
        self.renew()
        with open(self.folder / folders.SHIM_LOG, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-S", "-m", "scheduling.agent.shim", str(self.folder)],
                cwd=_REPOSITORY,
                env={"LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._spawned_s = time.monotonic()
        # It detaches from us at once.
        process.wait()

    def renew(self) -> None:
        """Renew the lease of what runs."""
        with suppress(OSError):
            (self.folder / folders.LEASE).touch()

    # ------------------------------------------------------------------ what happens

    def tick(self) -> bool:
        """Look at everything that may have changed; whether the report did."""
        self._finish_job()
        if not self.is_settled_on_disk:
            self._look()
        report = self.report()
        changed = report != self._last_report
        self._last_report = report
        return changed

    def _look(self) -> None:
        if self.exit is None:
            # The lock first: an exit record is written before the lock is given up.
            is_held = folders.is_locked(self.folder)
            self._read_files()
            if self.exit is None and not is_held:
                self._look_for_loss()
        if self._job is not None:
            return
        # Of several replicas what the leader saves is taken into the store.
        if not self._is_collected and crew.is_leader(self.spec) and self.is_begun:
            self._look_for_checkpoints()
        elif self.exit is not None:
            self.is_settled_on_disk = True
            self._job = self.pool.submit(self._clean)

    def _look_for_loss(self) -> None:
        """Nobody holds the attempt: it has not begun, or its shim was killed."""
        if self.is_begun:
            self._conclude({"cause": ExitCause.VANISHED, "code": None, "is_terminated": True})
        elif self._spawned_s and time.monotonic() - self._spawned_s > _SHIM_LATE_S:
            text = outcome.last_lines(self.folder / folders.SHIM_LOG) or ["its shim did not start"]
            self._conclude({"refusal": text[-1], "field": ""})

    def _look_for_checkpoints(self) -> None:
        now_s = time.monotonic()
        if self.exit is None:
            self._ask_when_due(now_s)
        if self.exit is not None or now_s - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now_s
            # The last look is not repeated, even when it fails.
            self._is_collected = self.exit is not None
            self._job = self.pool.submit(self.checkpoint_folder.collect, self.spec, self.exit)

    def _ask_when_due(self, now_s: float) -> None:
        """Ask for a checkpoint every so often, where the training's settings say so."""
        every_s = self.spec.checkpoint.every_s
        if every_s and self.spec.checkpoint.mode != "none" and now_s - self._asked_s >= every_s:
            self.ask_to_save()

    def _finish_job(self) -> None:
        if self._job is None or not self._job.done():
            return
        job, self._job = self._job, None
        error = job.exception()
        if isinstance(error, RefusedError):
            self._conclude({"refusal": str(error), "field": str(error).partition(":")[0]})
        elif error is not None and not self.is_begun:
            self._conclude({"refusal": f"could not be prepared: {error}", "field": ""})
        elif error is not None and str(error) != self._told_error:
            # What is tried every second is told once.
            self._told_error = str(error)
            folders.append_line(self.folder / folders.LOG, f"the agent failed: {error}")

    # ------------------------------------------------------------------ end

    def _conclude(self, record: dict[str, Any]) -> None:
        """Write the exit record that no shim will write."""
        self._record(self.spec)
        record = {"started_at": self.state.get("started_at"), "ended_at": time.time()} | record
        self._write(folders.EXIT, record)
        self.exit = record

    def _clean(self) -> None:
        """In a thread: remove what only a running attempt needs."""
        if self.site.isolation.cgroups is not None:
            cgroup = self.site.isolation.cgroups.cgroup(self.folder.name)
            if self.site.fractions is not None:
                self.site.fractions.lift_driver_limits(self.spec, cgroup)
            cgroup.remove()
        self.site.folders.socket(self.spec.attempt_id).unlink(missing_ok=True)
        remove_tree(self.site.folders.session(self.spec.attempt_id))
        if self.site.fractions is not None:
            self.site.fractions.remove(self.spec.attempt_id)
        remove_tree(self.folder / "tmp")

    def drop(self) -> bool:
        """Keep only log and records, out of the way; False while something is still being done."""
        if self._job is not None or not self.is_settled_on_disk:
            return False
        (self.folder / folders.LAUNCH).unlink(missing_ok=True)
        ended = self.site.folders.ended / self.folder.name
        self.folder.rename(ended)
        self.pool.submit(strip, ended)
        return True

    # ------------------------------------------------------------------ report

    @property
    def phase(self) -> AttemptPhase:
        """The phase as the orchestrator is told; final only once all checkpoints are stored."""
        if self.exit is not None and self.is_settled_on_disk:
            return AttemptPhase.REFUSED if "refusal" in self.exit else AttemptPhase.EXITED
        if self.exit is not None and "refusal" not in self.exit:
            return AttemptPhase.STOPPING
        return _PHASES.get(str(self.state.get("phase")), AttemptPhase.STARTING)

    def _reported_checkpoints(self) -> list[CheckpointReport]:
        if not crew.is_leader(self.spec):
            return []
        return [outcome.reported(checkpoint) for checkpoint in self.checkpoint_folder.kept]

    def report(self) -> AttemptReport:
        """Everything the orchestrator is told of this attempt."""
        running = AttemptReport(
            attempt_id=self.spec.attempt_id,
            phase=self.phase,
            is_ready=self.is_ready and not self.is_over,
            started_at=self.state.get("started_at"),
            pid=self.state.get("pid"),
            memory_limit_mib=self.spec.memory_mib,
            cpu_limit_milli=self.spec.cpu_milli,
            resumed_from=self.checkpoint_folder.resumed_from,
            checkpoints=self._reported_checkpoints(),
        )
        if self.exit is None or not self.is_settled_on_disk:
            return running
        if self._last_report is not None and self._last_report.ended_at is not None:
            return self._last_report
        return outcome.final(running, self.exit, self.folder / folders.LOG)


def strip(ended: Path) -> None:
    """Remove the workload's own files from a settled attempt's folder."""
    for name in (folders.WORK, "control", "own", "tmp"):
        remove_tree(ended / name)
    (ended / REGION).unlink(missing_ok=True)
