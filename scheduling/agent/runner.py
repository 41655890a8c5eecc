"""All attempts of this agent: adopts, starts, stops and reports them.

The desired state goes in, processes and reports come out. Calling anything twice changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scheduling.agent import crew, folders, jupyter
from scheduling.agent.attempt import Attempt, strip
from scheduling.agent.checkpoints import Store
from scheduling.agent.fraction.region import Region
from scheduling.agent.homes import person
from scheduling.agent.idle import Endpoint, IdleWatch, Watched
from scheduling.agent.protocol import (
    AttemptPhase,
    AttemptReport,
    AttemptSpec,
    Desired,
    ExitCause,
    Goal,
    Member,
)
from scheduling.agent.removal import remove_tree
from scheduling.agent.site import Site
from telemetry.sampling import AttemptView

log = logging.getLogger(__name__)

_NUM_THREADS = 4
# Renewals per lease: the shim looks twice a second, so a few missed ones do no harm.
_RENEWALS_PER_LEASE = 10
GPU_MILLI = 1000
_KEEP_LOGS_S = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Session:
    """A session that has a socket: where, and the token that it expects."""

    attempt_id: str
    socket: Path
    base_url: str
    token: str


@contextmanager
def _going_on(attempt_id: str) -> Iterator[None]:
    """One attempt's trouble with the disk, which may be full, must not touch the others.

    What was not done is tried again at the next turn, since all of it may be done twice.
    """
    try:
        yield
    except OSError as error:
        log.warning("attempt %s: %s", attempt_id, error)


def _view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        attempt_id=attempt.spec.attempt_id,
        workload_id=attempt.spec.workload_id,
        node=attempt.spec.node,
        devices=attempt.spec.devices,
        cgroup=attempt.usage(),
        cpu_milli=attempt.spec.cpu_milli,
        device_memory_mib=attempt.accounting.used_mib(),
    )


class Runner:
    """The attempts on this agent's nodes."""

    def __init__(self, site: Site, node_names: Iterable[str]) -> None:
        self.site = site
        self.node_names = frozenset(node_names)
        self.attempts: dict[str, Attempt] = {}
        self.lease_s = 60.0
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="attempt")
        self._store = Store(site.folders.checkpoints)
        self._renewed_s = 0.0
        self._is_stopping_all = False
        # Replaced by who also knows what is swapped out (`swap.moves`).
        self.may_start: Callable[[AttemptSpec], bool] = self._has_room
        self._held_back: dict[str, AttemptSpec] = {}

    # ------------------------------------------------------------------ restart

    def adopt(self) -> None:
        """Take over what an earlier agent left, and remove what nobody holds any more."""
        self.site.folders.prepare(is_open=not self.site.isolation.has_namespaces)
        self.site.install_tools()
        self._store.clean()
        for folder in sorted(self.site.folders.attempts.iterdir()):
            attempt = Attempt.adopt(self.site, self._store, self._pool, folder)
            if attempt is None:
                log.warning("%s holds no attempt that this version can read", folder)
                continue
            self.attempts[attempt.spec.attempt_id] = attempt
        self._remove_leftovers()
        if self.attempts:
            log.info("took over %d attempts", len(self.attempts))

    def _remove_leftovers(self) -> None:
        """Cgroups of attempts that are gone, and logs that nobody needs any more."""
        hierarchy = self.site.isolation.cgroups
        if hierarchy is not None:
            kept = {attempt.folder.name for attempt in self.attempts.values()} | {"rest"}
            for name in hierarchy.names() - kept:
                hierarchy.cgroup(name).remove()
        for folder in self.site.folders.ended.iterdir():
            if time.time() - folder.stat().st_mtime > _KEEP_LOGS_S:
                remove_tree(folder)
            elif (folder / folders.WORK).exists():
                self._pool.submit(strip, folder)

    # ------------------------------------------------------------------ wanted

    def apply(self, desired: Desired) -> None:
        """Act on the difference between what is wanted and what is there."""
        if self._is_stopping_all:
            return
        self.lease_s = desired.lease_s
        for spec in desired.attempts:
            with _going_on(spec.attempt_id):
                self._order(spec, desired.members.get(spec.workload_id, ()))
        wanted = {spec.attempt_id for spec in desired.attempts}
        self._held_back = {
            attempt_id: spec for attempt_id, spec in self._held_back.items() if attempt_id in wanted
        }
        for attempt_id, attempt in self.attempts.items():
            if attempt_id not in wanted:
                with _going_on(attempt_id):
                    attempt.stop(ExitCause.STOPPED)

    def _order(self, spec: AttemptSpec, members: Sequence[Member]) -> None:
        attempt = self.attempts.get(spec.attempt_id)
        if attempt is None:
            if self._is_settled(spec.attempt_id):
                return
            attempt = Attempt(self.site, self._store, self._pool, spec)
            self.attempts[spec.attempt_id] = attempt
        attempt.lease_s = self.lease_s
        attempt.members = members
        if spec.node not in self.node_names and not attempt.is_begun:
            attempt.refuse(spec, f"node: {spec.node!r} is not one of this agent's nodes")
            return
        self._held_back.pop(spec.attempt_id, None)
        is_to_start = spec.goal == Goal.RUN and not attempt.holds_devices and not attempt.is_over
        if is_to_start and not self.may_start(spec):
            # Not yet: the next desired state brings it again, or whoever makes room.
            log.info("attempt %s waits: its devices are still in use", spec.attempt_id)
            self._held_back[spec.attempt_id] = spec
            return
        attempt.order(spec)
        attempt.tell_members()

    def _has_room(self, spec: AttemptSpec) -> bool:
        """Whether its devices are free: whatever is ordered, no device is given twice."""
        held: Counter[str] = Counter()
        for attempt in self.attempts.values():
            if attempt.holds_devices:
                for device in attempt.spec.devices:
                    held[device.uuid] += device.gpu_milli
        return all(held[each.uuid] + each.gpu_milli <= GPU_MILLI for each in spec.devices)

    def order_again(self) -> None:
        """Start what has waited for devices, where there is room by now."""
        for spec in list(self._held_back.values()):
            with _going_on(spec.attempt_id):
                self._order(spec, self.attempts[spec.attempt_id].members)

    def _is_settled(self, attempt_id: str) -> bool:
        """Whether it ended and was acknowledged; an older desired state may still name it."""
        name = self.site.folders.attempt(attempt_id).name
        return (self.site.folders.ended / name).exists()

    def settle(self, attempt_ids: Iterable[str]) -> None:
        """Drop what the orchestrator has recorded as ended."""
        for attempt_id in attempt_ids:
            attempt = self.attempts.get(attempt_id)
            with _going_on(attempt_id):
                if attempt is not None and attempt.drop():
                    del self.attempts[attempt_id]

    def stop_all(self) -> None:
        """Have everything save and end, whatever the orchestrator wants from now on."""
        self._is_stopping_all = True
        for attempt_id, attempt in self.attempts.items():
            attempt.is_leader_saving = partial(self._is_leader_saving, attempt.spec)
            with _going_on(attempt_id):
                attempt.stop(ExitCause.NODE_SHUTDOWN)

    def _is_leader_saving(self, spec: AttemptSpec) -> bool:
        """Whether a replica's leader runs here and has not saved yet."""
        return any(
            attempt.spec.workload_id == spec.workload_id
            and crew.is_leader(attempt.spec)
            and not attempt.is_over
            and attempt.phase != AttemptPhase.STOPPING
            for attempt in self.attempts.values()
        )

    @property
    def num_running(self) -> int:
        """Attempts that have not ended."""
        return sum(not attempt.is_settled_on_disk for attempt in self.attempts.values())

    @property
    def is_changing(self) -> bool:
        """Whether some attempt is about to start or end."""
        return any(attempt.is_changing for attempt in self.attempts.values())

    # ------------------------------------------------------------------ seen

    def tick(self) -> bool:
        """Look at all attempts and renew their leases; whether anything is to be reported."""
        now_s = time.monotonic()
        if now_s - self._renewed_s >= self.lease_s / _RENEWALS_PER_LEASE:
            self._renewed_s = now_s
            for attempt in self.attempts.values():
                attempt.renew()
        is_changed = False
        if self._is_stopping_all:
            self.stop_all()
        for attempt_id, attempt in list(self.attempts.items()):
            with _going_on(attempt_id):
                is_changed |= attempt.tick()
        return is_changed

    def reports(self) -> list[AttemptReport]:
        """What is to be told of each attempt."""
        return [attempt.report() for attempt in self.attempts.values()]

    def views(self) -> list[AttemptView]:
        """What sampling needs to see of each running attempt."""
        return [
            _view(attempt)
            for attempt in self.attempts.values()
            if attempt.is_begun and not attempt.is_over
        ]

    def regions(self) -> dict[str, Region]:
        """What running attempts use of their devices, where that is counted."""
        return {attempt.spec.attempt_id: attempt.accounting.region for attempt in self.holders()}

    def holders(self) -> list[Attempt]:
        """Running attempts that hold devices."""
        return [
            attempt
            for attempt in self.attempts.values()
            if attempt.spec.devices and attempt.is_begun and not attempt.is_over
        ]

    def watched(self) -> list[Watched]:
        """Those whose idleness is watched: sessions that answer, trainings that run."""
        return [
            Watched(
                view=_view(attempt),
                is_session=attempt.spec.kind == "interactive",
                thresholds=attempt.spec.idle,
                has_gpu=bool(attempt.spec.devices),
                is_simulated=self.site.is_simulated(attempt.spec.node),
                last_call_s=attempt.accounting.last_call_s,
            )
            for attempt in self.attempts.values()
            if attempt.is_begun and not attempt.is_over
            if attempt.is_ready or attempt.spec.kind == "training"
        ]

    async def look_for_idleness(self, watch: IdleWatch, attempt_ids: Iterable[str]) -> None:
        """Ask these sessions for their kernels and terminals."""
        await asyncio.gather(
            *(
                watch.look(
                    Endpoint(session.attempt_id, session.socket, session.base_url, session.token),
                    self.attempts[session.attempt_id].usage().pids(),
                )
                for session in map(self.session, attempt_ids)
                if session is not None
            )
        )

    def sessions(self) -> list[Session]:
        """Sessions whose socket is there."""
        return [found for found in map(self.session, self.attempts) if found is not None]

    def session(self, attempt_id: str) -> Session | None:
        """A session's pinned socket; None if it is no session, has ended or has no socket yet."""
        attempt = self.attempts.get(attempt_id)
        if attempt is None or attempt.spec.tool != jupyter.TOOL or attempt.is_over:
            return None
        socket = self.site.folders.socket(attempt_id)
        where = self.site.folders.session(attempt_id) / jupyter.SOCKET
        uid = person(attempt.spec).uid if self.site.isolation.has_identities else None
        if not jupyter.pin(where, socket, uid):
            return None
        return Session(attempt_id, socket, attempt.spec.base_url, attempt.spec.session_secret)

    async def look_for_answers(self) -> None:
        """Find sessions that have begun to answer."""
        waiting = [
            session for session in self.sessions() if not self.attempts[session.attempt_id].is_ready
        ]
        found = await asyncio.gather(
            *(jupyter.answers(session.socket, session.base_url) for session in waiting)
        )
        for session, is_ready in zip(waiting, found, strict=True):
            if attempt := self.attempts.get(session.attempt_id):
                attempt.is_ready = is_ready

    def log_path(self, attempt_id: str) -> Path | None:
        """An attempt's log, settled or not."""
        name = self.site.folders.attempt(attempt_id).name
        for parent in (self.site.folders.attempts, self.site.folders.ended):
            path = parent / name / folders.LOG
            if path.exists():
                return path
        return None

    def close(self) -> None:
        """Leave the workloads alone and let go of the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self.site.isolation.cgroups is not None:
            self.site.isolation.cgroups.leave()
