"""Since when a session or training has been idle, signal by signal, as it is seen on its node.

Five signals, none of which alone tells: the GPU (the last CUDA call that its accounting region
saw, and what NVML says of its processes), CPU and network of its processes, its kernels, and what
runs in its terminals; a training has but the first three. What cannot be read is *missing* and
never taken for idle. The rates come from the samples that are taken anyway; only kernels and
terminals are asked for here.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from scheduling.agent import jupyter, processes
from scheduling.agent.protocol import IdleReport, IdleThresholds, Sample, Signal
from telemetry.sampling import AttemptView

# Use is judged by its mean over so long, so that one burst of a server's housekeeping does not
# make a session busy. Samples come every five seconds, and every second while somebody watches.
_MEAN_OVER_S = 60.0
_KIB = 1024
# Of a kernel: these run nothing of the person's. `dead` stays until somebody restarts it, and
# `starting` until a client has connected.
_QUIET_KERNELS: Final = frozenset({"idle", "dead", "starting"})
# What is no list of kernels or terminals; brackets without end are read by recursion.
_NO_ANSWERS: Final = (msgspec.MsgspecError, RecursionError)
OF_SESSIONS: Final = frozenset({Signal.KERNELS, Signal.TERMINALS})


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look at one signal found.

    Attributes:
        since: Idle since then, in Unix seconds; None while busy.
    """

    since: float | None
    is_missing: bool = False


BUSY: Final = Finding(None)
MISSING: Final = Finding(None, is_missing=True)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a session's Jupyter is asked."""

    attempt_id: str
    socket: Path
    base_url: str
    token: str


class _Kernel(msgspec.Struct):
    execution_state: str
    last_activity: datetime


class _Terminal(msgspec.Struct):
    last_activity: datetime


@dataclass(slots=True)
class _Mean:
    """A rate's mean over the last samples, and since when it has been below its threshold."""

    values: deque[tuple[float, float]] = field(default_factory=deque)
    since: float | None = None

    def add(self, value: float | None, threshold: float, now: float) -> Finding:
        if value is None:
            self.values.clear()
            self.since = None
            return MISSING
        self.values.append((now, value))
        while self.values[0][0] <= now - _MEAN_OVER_S:
            self.values.popleft()
        is_idle = sum(each for _, each in self.values) / len(self.values) < threshold
        self.since = (self.since or now) if is_idle else None
        return Finding(self.since)


@dataclass(frozen=True, slots=True)
class Watched:
    """A running session or training, as the watch needs to see it.

    Attributes:
        is_session: It has kernels and terminals.
        last_call_s: When it last called CUDA by `time.monotonic()`, `None` before the first call;
            raises `OSError` where nothing counts its calls.
        has_gpu, is_simulated: Whether it holds a device, and of which kind.
    """

    view: AttemptView
    is_session: bool
    thresholds: IdleThresholds
    has_gpu: bool
    is_simulated: bool
    last_call_s: Callable[[], float | None]


@dataclass(slots=True)
class _Session:
    """What has been seen of one session."""

    began_at: float
    findings: dict[Signal, Finding] = field(default_factory=lambda: dict.fromkeys(Signal, MISSING))
    means: dict[Signal, _Mean] = field(
        default_factory=lambda: {
            signal: _Mean() for signal in (Signal.GPU, Signal.CPU, Signal.NETWORK)
        }
    )
    num_busy_terminals: int = 0
    watched: Watched | None = None


class IdleWatch:
    """Idle signals of all sessions of one agent."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}

    def keep(self, attempt_ids: Iterable[str]) -> None:
        """Forget all sessions but these."""
        kept = set(attempt_ids)
        for attempt_id in self._sessions.keys() - kept:
            del self._sessions[attempt_id]

    def _session(self, attempt_id: str) -> _Session:
        return self._sessions.setdefault(attempt_id, _Session(time.time()))

    # ------------------------------------------------------------------ rates

    def sampled(self, sessions: Sequence[Watched], samples: Iterable[Sample], now: float) -> None:
        """Take over what was just measured of these."""
        values = {sample.subject: sample.values for sample in samples}
        for watched in sessions:
            mine = values.get(f"workload:{watched.view.workload_id}", {})
            self._take(watched, mine, now)

    def _take(self, watched: Watched, values: Mapping[str, float | None], now: float) -> None:
        session, limits = self._session(watched.view.attempt_id), watched.thresholds
        session.watched = watched
        cores = (watched.view.cpu_milli or 0) / 1000
        session.findings[Signal.CPU] = session.means[Signal.CPU].add(
            values.get("cpu_cores"), limits.cpu_fraction * cores, now
        )
        session.findings[Signal.NETWORK] = session.means[Signal.NETWORK].add(
            _sum(values.get("net_rx_bytes_per_s"), values.get("net_tx_bytes_per_s")),
            limits.network_kib_s * _KIB,
            now,
        )
        session.findings[Signal.GPU] = session.means[Signal.GPU].add(
            values.get("gpu_util_percent"), limits.gpu_percent, now
        )

    # ------------------------------------------------------------------ kernels and terminals

    async def look(self, endpoint: Endpoint, pids: Sequence[int]) -> None:
        """Ask one session's server for its kernels and terminals."""
        session = self._session(endpoint.attempt_id)
        kernels, terminals = await asyncio.gather(
            _ask(endpoint, "api/kernels"), _ask(endpoint, "api/terminals")
        )
        session.findings[Signal.KERNELS] = _kernels(kernels, session.began_at)
        session.num_busy_terminals = sum(processes.runs_in_terminal(pid) for pid in pids)
        session.findings[Signal.TERMINALS] = (
            BUSY if session.num_busy_terminals else _terminals(terminals, session.began_at)
        )

    def is_at_work(self, attempt_id: str) -> bool:
        """Whether the last look saw a busy kernel, or something that runs in a terminal."""
        session = self._session(attempt_id)
        kernels = session.findings[Signal.KERNELS]
        return kernels == BUSY or session.num_busy_terminals > 0

    # ------------------------------------------------------------------ told

    def report(self, attempt_id: str, held_cells: int) -> IdleReport | None:
        """What has been seen of it; None before the first look."""
        session = self._sessions.get(attempt_id)
        if session is None:
            return None
        found = session.findings | {Signal.GPU: _gpu(session)}
        has_server = session.watched is None or session.watched.is_session
        asked = set(Signal) if has_server else set(Signal) - OF_SESSIONS
        return IdleReport(
            gpu_idle_since=found[Signal.GPU].since,
            cpu_idle_since=found[Signal.CPU].since,
            network_idle_since=found[Signal.NETWORK].since,
            kernels_idle_since=None if held_cells else found[Signal.KERNELS].since,
            terminals_idle_since=found[Signal.TERMINALS].since,
            held_cells=held_cells,
            missing=sorted(signal for signal in asked if found[signal].is_missing),
        )


def is_idle(report: IdleReport | None, for_s: float, now: float) -> bool:
    """Whether a session has been idle by every signal for so long.

    Only the network may be missing: where sessions share the machine's, nobody can tell their
    traffic apart.
    """
    if report is None or report.held_cells or set(report.missing) - {Signal.NETWORK}:
        return False
    since = [
        report.gpu_idle_since,
        report.cpu_idle_since,
        report.kernels_idle_since,
        report.terminals_idle_since,
    ]
    if Signal.NETWORK not in report.missing:
        since.append(report.network_idle_since)
    return all(each is not None and now - each >= for_s for each in since)


def _gpu(session: _Session) -> Finding:
    """The region's last call says when a kernel was launched, NVML whether one still runs.

    A simulated device runs nothing of its own: where calls are counted they say it all.
    """
    watched, use = session.watched, session.findings[Signal.GPU]
    if watched is None:
        return MISSING
    if not watched.has_gpu:
        return Finding(session.began_at)
    try:
        called_s = watched.last_call_s()
    except OSError:
        return use
    called_at = session.began_at
    if called_s is not None:
        called_at = time.time() - max(0.0, time.monotonic() - called_s)
    if watched.is_simulated:
        return Finding(called_at)
    return use if use.since is None else Finding(max(use.since, called_at))


async def _ask(endpoint: Endpoint, path: str) -> bytes | None:
    try:
        return await jupyter.ask(
            endpoint.socket, f"{endpoint.base_url.rstrip('/')}/{path}", endpoint.token
        )
    except jupyter.NoAnswerError:
        return None


def _kernels(answer: bytes | None, began_at: float) -> Finding:
    try:
        kernels = msgspec.json.decode(answer or b"", type=list[_Kernel])
    except _NO_ANSWERS:
        return MISSING
    if any(kernel.execution_state not in _QUIET_KERNELS for kernel in kernels):
        return BUSY
    return _last((kernel.last_activity for kernel in kernels), began_at)


def _terminals(answer: bytes | None, began_at: float) -> Finding:
    try:
        terminals = msgspec.json.decode(answer or b"", type=list[_Terminal])
    except _NO_ANSWERS:
        return MISSING
    return _last((terminal.last_activity for terminal in terminals), began_at)


def _last(times: Iterable[datetime], began_at: float) -> Finding:
    """Idle since the last activity. The session's server may say anything, the future included."""
    try:
        last = max((each.timestamp() for each in times), default=began_at)
    except (ValueError, OverflowError):
        # Before the first year, by the machine's own zone.
        return MISSING
    return Finding(min(last, time.time())) if last >= 0 else MISSING


def _sum(*values: float | None) -> float | None:
    return None if None in values else sum(value for value in values if value is not None)
