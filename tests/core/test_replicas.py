"""What the end of one replica means for the others, case by case."""

from __future__ import annotations

import pytest

from scheduling.core.lifecycle import Cause, Event, Exited, Facts, GivenUp, Refused
from scheduling.core.replicas import Crew, Effect, conclusion, decides, effect_of

DONE = Exited(Cause.OWN, 0)
FAILED = Exited(Cause.OWN, 1)
KILLED = Exited(Cause.OUT_OF_MEMORY, 137)
GIVEN_BACK = Exited(Cause.EVICTED, 143)
VANISHED = Exited(Cause.VANISHED, None)
BROKEN = Refused(is_retryable=True)
HOPELESS = Refused(is_retryable=False)
ALL = (DONE, FAILED, KILLED, GIVEN_BACK, VANISHED, BROKEN, HOPELESS, GivenUp())


def facts(failures: int = 0) -> Facts:
    return Facts(
        is_session=False,
        can_save=True,
        is_stop_wanted=False,
        has_progress=False,
        num_failures=failures,
        backoff_limit=3,
    )


@pytest.mark.parametrize("event", ALL, ids=repr)
@pytest.mark.parametrize("minimum", [1, 4])
def test_the_last_end_concludes_whatever_it_is(event: Event, minimum: int) -> None:
    crew = Crew(minimum=minimum, num_others=0, num_succeeded=0)
    effect = effect_of(event, crew, facts())
    assert effect is Effect.CONCLUDES
    assert not decides(event, crew, effect)


@pytest.mark.parametrize("event", ALL, ids=repr)
def test_while_all_leave_the_first_end_that_is_no_success_decides(event: Event) -> None:
    crew = Crew(minimum=2, num_others=2, num_succeeded=int(event == DONE), is_leaving=True)
    effect = effect_of(event, crew, facts())
    assert effect is Effect.STAYS
    assert decides(event, crew, effect) == (event != DONE)


@pytest.mark.parametrize(
    ("event", "in_gang", "alone"),
    [
        (DONE, Effect.STAYS, Effect.STAYS),
        (GIVEN_BACK, Effect.STAYS, Effect.STAYS),
        (VANISHED, Effect.STAYS, Effect.STAYS),
        (GivenUp(), Effect.STAYS, Effect.STAYS),
        (FAILED, Effect.WINDS_DOWN, Effect.RESTARTS),
        (BROKEN, Effect.WINDS_DOWN, Effect.RESTARTS),
        (KILLED, Effect.WINDS_DOWN, Effect.WINDS_DOWN),
        (HOPELESS, Effect.WINDS_DOWN, Effect.WINDS_DOWN),
    ],
    ids=repr,
)
def test_the_others_of_a_gang_and_without_one(event: Event, in_gang: Effect, alone: Effect) -> None:
    gang, elastic = (Crew(minimum=n, num_others=2, num_succeeded=0) for n in (3, 1))
    assert effect_of(event, gang, facts()) is in_gang
    assert effect_of(event, elastic, facts()) is alone
    for crew, effect in ((gang, in_gang), (elastic, alone)):
        assert decides(event, crew, effect) == (effect is Effect.WINDS_DOWN)


def test_one_failure_too_many_ends_all() -> None:
    crew = Crew(minimum=1, num_others=2, num_succeeded=0)
    assert effect_of(FAILED, crew, facts(failures=2)) is Effect.RESTARTS
    assert effect_of(FAILED, crew, facts(failures=3)) is Effect.WINDS_DOWN


def test_what_fails_when_others_have_succeeded_is_tried_again_with_all() -> None:
    crew = Crew(minimum=1, num_others=2, num_succeeded=1)
    effect = effect_of(FAILED, crew, facts())
    assert effect is Effect.STAYS
    assert decides(FAILED, crew, effect)


@pytest.mark.parametrize("event", [GIVEN_BACK, VANISHED, GivenUp()], ids=repr)
def test_enough_successes_complete_it_though_one_was_given_back_or_lost(event: Event) -> None:
    enough = Crew(minimum=2, num_others=0, num_succeeded=2)
    assert conclusion(event, enough) == DONE
    assert conclusion(event, Crew(minimum=2, num_others=0, num_succeeded=1)) == event


@pytest.mark.parametrize("event", [FAILED, KILLED, BROKEN, HOPELESS], ids=repr)
def test_no_number_of_successes_hides_a_failure(event: Event) -> None:
    assert conclusion(event, Crew(minimum=2, num_others=0, num_succeeded=5)) == event
