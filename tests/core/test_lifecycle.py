"""The state machine of a workload: every pair of state and event, and what follows from it."""

from __future__ import annotations

from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.errors import LifecycleError
from scheduling.core.lifecycle import (
    BACKOFF_CAP_S,
    Cause,
    Event,
    EvictAsked,
    Exited,
    Facts,
    GivenUp,
    NodeBack,
    NodeLost,
    Phase,
    Placed,
    Ready,
    Refused,
    ReplicaFailed,
    RetryAsked,
    StopAsked,
    WindDown,
    backoff_s,
    next_state,
)

EVENTS: dict[type[Event], list[Event]] = {
    Placed: [Placed()],
    Ready: [Ready()],
    EvictAsked: [EvictAsked()],
    StopAsked: [StopAsked()],
    RetryAsked: [RetryAsked()],
    Exited: [Exited(cause, code) for cause in Cause for code in (0, 1, None)],
    Refused: [Refused(is_retryable=True), Refused(is_retryable=False)],
    NodeLost: [NodeLost()],
    NodeBack: [NodeBack()],
    GivenUp: [GivenUp()],
    ReplicaFailed: [ReplicaFailed()],
    WindDown: [WindDown()],
}

WAITING = {Phase.QUEUED, Phase.PREEMPTED}
ACTIVE = {Phase.STARTING, Phase.RUNNING, Phase.CHECKPOINTING, Phase.STOPPING, Phase.LOST}
UNDISTURBED = {Phase.STARTING, Phase.RUNNING, Phase.LOST}
ENDED = {Phase.STOPPED, Phase.COMPLETED, Phase.FAILED}

ALLOWED: dict[type[Event], set[Phase]] = {
    Placed: WAITING,
    Ready: {Phase.STARTING},
    EvictAsked: UNDISTURBED,
    StopAsked: WAITING | ACTIVE,
    RetryAsked: ENDED,
    Exited: ACTIVE,
    Refused: ACTIVE,
    NodeLost: ACTIVE,
    NodeBack: {Phase.LOST},
    GivenUp: ACTIVE,
    ReplicaFailed: UNDISTURBED,
    WindDown: UNDISTURBED,
}


def facts(**more: object) -> Facts:
    values: dict[str, object] = {
        "is_session": False,
        "can_save": True,
        "is_stop_wanted": False,
        "has_progress": False,
        "num_failures": 0,
        "backoff_limit": 3,
    }
    return Facts(**{**values, **more})  # type: ignore[arg-type]  # a dict of mixed values


def test_every_kind_of_event_is_here() -> None:
    assert set(EVENTS) == set(get_args(Event)) == set(ALLOWED)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_pair(phase: Phase, kind: type[Event]) -> None:
    for event in EVENTS[kind]:
        if phase in ALLOWED[kind]:
            transition = next_state(phase, event, facts())
            assert isinstance(transition.phase, Phase)
            assert transition.is_end == (transition.phase in ENDED)
        else:
            with pytest.raises(LifecycleError, match=f"'{phase.value}' on {kind.__name__}"):
                next_state(phase, event, facts())


def test_an_evicted_training_saves_and_returns_to_the_queue() -> None:
    assert next_state(Phase.RUNNING, EvictAsked(), facts()).phase is Phase.CHECKPOINTING
    gone = next_state(Phase.CHECKPOINTING, Exited(Cause.EVICTED, 0), facts())
    assert (gone.phase, gone.releases, gone.is_end) == (Phase.PREEMPTED, True, False)
    assert next_state(Phase.PREEMPTED, Placed(), facts()).phase is Phase.STARTING


def test_a_session_is_never_preempted() -> None:
    for phase in (Phase.STARTING, Phase.RUNNING):
        with pytest.raises(LifecycleError, match="never preempted"):
            next_state(phase, EvictAsked(), facts(is_session=True))


def test_a_clean_shutdown_of_the_node_returns_work_to_the_queue() -> None:
    for is_session in (False, True):
        back = next_state(
            Phase.RUNNING, Exited(Cause.NODE_SHUTDOWN, 0), facts(is_session=is_session)
        )
        assert (back.phase, back.num_failures, back.releases) == (Phase.QUEUED, 0, True)


def test_a_training_that_fails_is_retried_with_back_off_and_not_for_ever() -> None:
    failures, phases, waits = 0, [], []
    for _ in range(4):
        after = next_state(Phase.RUNNING, Exited(Cause.OWN, 1), facts(num_failures=failures))
        failures = after.num_failures
        phases.append(after.phase)
        waits.append(after.backoff_s)
    assert phases == [Phase.QUEUED] * 3 + [Phase.FAILED]
    assert waits == [10.0, 20.0, 40.0, 0.0]


def test_progress_resets_the_count_of_failures() -> None:
    after = next_state(
        Phase.RUNNING, Exited(Cause.OWN, 1), facts(num_failures=3, has_progress=True)
    )
    assert (after.phase, after.num_failures) == (Phase.QUEUED, 1)


@given(st.integers(1, 60))
def test_back_off_doubles_up_to_its_cap(failures: int) -> None:
    seconds = backoff_s(failures)
    assert seconds == min(10.0 * 2 ** (failures - 1), BACKOFF_CAP_S)


@given(st.integers(0, 10**6), st.booleans())
def test_random_walks_stay_in_the_table(seed: int, is_session: bool) -> None:
    """From any state there is a way on, and a stop that was asked for is never undone."""
    random = Random(seed)
    phase = Phase.QUEUED
    is_stop_wanted = False
    for _ in range(30):
        kinds = [kind for kind, phases in ALLOWED.items() if phase in phases]
        assert kinds
        event = random.choice(EVENTS[random.choice(kinds)])
        known = facts(is_session=is_session, is_stop_wanted=is_stop_wanted)
        if is_session and isinstance(event, EvictAsked):
            continue
        after = next_state(phase, event, known)
        assert not (is_session and after.phase is Phase.PREEMPTED) or isinstance(event, Exited)
        if isinstance(event, StopAsked):
            is_stop_wanted = True
        if isinstance(event, RetryAsked):
            is_stop_wanted = False
        if is_stop_wanted:
            assert after.phase not in (Phase.QUEUED, Phase.STARTING) or phase in WAITING
        phase = after.phase
