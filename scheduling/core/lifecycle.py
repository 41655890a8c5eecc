"""A workload's states: event in, next state and consequences out. No clock, no rows.

The table at the end is the whole machine: a pair that is not in it is a mistake of the caller and
raises. Transitions that reflect (something was seen: `Ready`, `Exited`, `Refused`, `NodeLost`,
`NodeBack`, `ReplicaFailed`) and transitions that cause (somebody wants something: `Placed`,
`EvictAsked`, `StopAsked`, `RetryAsked`, `WindDown`) are separate events. A workload of several
replicas is one here; what the end of one of them means is said by `replicas`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from scheduling.core.errors import LifecycleError

BACKOFF_BASE_S = 10.0
BACKOFF_CAP_S = 300.0


class Phase(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    PREEMPTED = "preempted"
    STOPPING = "stopping"
    STOPPED = "stopped"
    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"


class Cause(StrEnum):
    """Why an attempt ended; the values are those of the agent's protocol."""

    OWN = "own"
    STOPPED = "stopped"
    EVICTED = "evicted"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_SHUTDOWN = "node_shutdown"
    LEASE_EXPIRED = "lease_expired"
    VANISHED = "vanished"


INTERRUPTIONS = (Cause.NODE_SHUTDOWN, Cause.LEASE_EXPIRED, Cause.VANISHED)
"""Nobody's wish: the work is still wanted and returns to the queue."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a transition may depend on.

    Attributes:
        is_stop_wanted: A person asked it to stop, so an interruption ends it too.
        has_progress: This attempt saved a checkpoint, so a failure now is not one more in a row.
        num_failures: Failed starts and runs in a row, before this event.
        backoff_limit: So many failures are retried.
    """

    is_session: bool
    can_save: bool
    is_stop_wanted: bool
    has_progress: bool
    num_failures: int
    backoff_limit: int


@dataclass(frozen=True, slots=True)
class Placed:
    """The planner gave it a place."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A training's process runs; a session's page answers."""


@dataclass(frozen=True, slots=True)
class EvictAsked:
    """The planner wants its place for a claimant."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A person wants it to end."""


@dataclass(frozen=True, slots=True)
class RetryAsked:
    """A person wants it again."""


@dataclass(frozen=True, slots=True)
class Exited:
    """Its process ended. `exit_code` as a shell gives it; None where nobody saw it."""

    cause: Cause
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The node could not start it."""

    is_retryable: bool


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Its node no longer reports."""


@dataclass(frozen=True, slots=True)
class NodeBack:
    """Its node reports it alive again."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Its node has been away for longer than its lease: a training cannot be alive any more."""


@dataclass(frozen=True, slots=True)
class ReplicaFailed:
    """One of several replicas failed and starts again alone; the others go on."""


@dataclass(frozen=True, slots=True)
class WindDown:
    """One of several replicas ended in a way that ends all: the others save and leave."""


Event = (
    Placed
    | Ready
    | EvictAsked
    | StopAsked
    | RetryAsked
    | Exited
    | Refused
    | NodeLost
    | NodeBack
    | GivenUp
    | ReplicaFailed
    | WindDown
)


@dataclass(frozen=True, slots=True)
class Transition:
    """What follows.

    Attributes:
        phase: The next state.
        wait_cause: A wait opens, for this cause.
        backoff_s: Not to be started again before so long.
        num_failures: The new count.
        is_end: The workload is over (until somebody retries it).
        releases: The attempt is over: what it held is free.
    """

    phase: Phase
    wait_cause: str | None = None
    backoff_s: float = 0.0
    num_failures: int = 0
    is_end: bool = False
    releases: bool = False


def backoff_s(failures: int) -> float:
    """Seconds to wait after the k-th failure in a row (k >= 1): min(base * 2^(k-1), cap)."""
    return float(min(BACKOFF_BASE_S * 2 ** (failures - 1), BACKOFF_CAP_S))


def next_state(phase: Phase, event: Event, facts: Facts) -> Transition:
    """The transition for an event.

    Raises:
        LifecycleError: the pair is not in the table.
    """
    step = _TABLE.get((phase, type(event)))
    if step is None:
        raise LifecycleError(f"no transition from {phase.value!r} on {type(event).__name__}")
    return step(phase, event, facts)


Step = Callable[[Phase, Event, Facts], Transition]


def _to(phase: Phase) -> Step:
    return lambda _phase, _event, facts: Transition(phase, num_failures=facts.num_failures)


def _evict(_phase: Phase, _event: Event, facts: Facts) -> Transition:
    if facts.is_session:
        raise LifecycleError("a session is never preempted")
    return Transition(Phase.CHECKPOINTING, num_failures=facts.num_failures)


def _stop_waiting(_phase: Phase, _event: Event, _facts: Facts) -> Transition:
    return Transition(Phase.STOPPED, is_end=True)


def _stop_active(phase: Phase, _event: Event, facts: Facts) -> Transition:
    saves = facts.can_save and not facts.is_session and phase is Phase.RUNNING
    return Transition(
        Phase.CHECKPOINTING if saves else Phase.STOPPING, num_failures=facts.num_failures
    )


def _exited(_phase: Phase, event: Event, facts: Facts) -> Transition:
    assert isinstance(event, Exited)  # the table's key says so
    if event.cause is Cause.OUT_OF_MEMORY:
        return _end(Phase.FAILED)
    if event.cause is Cause.STOPPED or facts.is_stop_wanted:
        return _end(Phase.STOPPED)
    if event.cause is Cause.EVICTED:
        return Transition(Phase.PREEMPTED, wait_cause="evicted", releases=True)
    if event.cause in INTERRUPTIONS:
        return Transition(Phase.QUEUED, wait_cause=event.cause.value, releases=True)
    if event.exit_code == 0:
        return _end(Phase.COMPLETED)
    return _failed(facts)


def _refused(_phase: Phase, event: Event, facts: Facts) -> Transition:
    assert isinstance(event, Refused)  # the table's key says so
    if facts.is_stop_wanted:
        return _end(Phase.STOPPED)
    return _failed(facts) if event.is_retryable else _end(Phase.FAILED)


def failures_after(facts: Facts) -> int:
    """Failures in a row, with one more now."""
    return 1 if facts.has_progress else facts.num_failures + 1


def _replica_failed(phase: Phase, _event: Event, facts: Facts) -> Transition:
    failures = failures_after(facts)
    return Transition(phase, backoff_s=backoff_s(failures), num_failures=failures)


def _failed(facts: Facts) -> Transition:
    failures = failures_after(facts)
    if facts.is_session or failures > facts.backoff_limit:
        return Transition(Phase.FAILED, num_failures=failures, is_end=True, releases=True)
    return Transition(
        Phase.QUEUED,
        wait_cause="failed",
        backoff_s=backoff_s(failures),
        num_failures=failures,
        releases=True,
    )


def _end(phase: Phase) -> Transition:
    return Transition(phase, is_end=True, releases=True)


def _given_up(_phase: Phase, _event: Event, facts: Facts) -> Transition:
    if facts.is_stop_wanted:
        return _end(Phase.STOPPED)
    if facts.is_session:
        return Transition(Phase.LOST, num_failures=facts.num_failures)
    return Transition(Phase.QUEUED, wait_cause="node_lost", releases=True)


def _retry(_phase: Phase, _event: Event, _facts: Facts) -> Transition:
    return Transition(Phase.QUEUED, wait_cause="retried")


WAITING = (Phase.QUEUED, Phase.PREEMPTED)
HELD = (Phase.STARTING, Phase.RUNNING, Phase.CHECKPOINTING, Phase.STOPPING, Phase.LOST)
UNDISTURBED = (Phase.STARTING, Phase.RUNNING, Phase.LOST)
ENDED = (Phase.STOPPED, Phase.COMPLETED, Phase.FAILED)

_TABLE: dict[tuple[Phase, type[Event]], Step] = {
    **{(phase, Placed): _to(Phase.STARTING) for phase in WAITING},
    **{(phase, StopAsked): _stop_waiting for phase in WAITING},
    (Phase.STARTING, Ready): _to(Phase.RUNNING),
    **{(phase, EvictAsked): _evict for phase in UNDISTURBED},
    **{(phase, StopAsked): _stop_active for phase in HELD},
    **{(phase, Exited): _exited for phase in HELD},
    **{(phase, Refused): _refused for phase in HELD},
    **{(phase, NodeLost): _to(Phase.LOST) for phase in HELD},
    (Phase.LOST, NodeBack): _to(Phase.RUNNING),
    **{(phase, GivenUp): _given_up for phase in HELD},
    **{(phase, ReplicaFailed): _replica_failed for phase in UNDISTURBED},
    **{(phase, WindDown): _to(Phase.CHECKPOINTING) for phase in UNDISTURBED},
    **{(phase, RetryAsked): _retry for phase in ENDED},
}
