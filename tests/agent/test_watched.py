"""Which nodes are measured every second, and that a wish ends by itself."""

from __future__ import annotations

import math

import pytest

from scheduling.agent.watched import MAX_FOR_S, Watched


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched(clock: Clock) -> Watched:
    return Watched(["a", "b", "c"], clock)


def test_a_wish_ends_by_itself(watched: Watched, clock: Clock) -> None:
    assert watched.now() == frozenset()
    watched.watch(["a", "b"], 10.0)
    clock.now += 9.0
    assert watched.now() == {"a", "b"}
    clock.now += 1.5
    assert watched.now() == frozenset()


def test_it_goes_on_while_it_is_renewed_and_a_shorter_one_ends_no_longer_one(
    watched: Watched, clock: Clock
) -> None:
    watched.watch(["a"], 10.0)
    clock.now += 5.0
    watched.watch(["a"], 10.0)
    watched.watch(["a"], 1.0)
    clock.now += 9.0
    assert watched.now() == {"a"}


def test_nobody_watches_what_is_not_there(watched: Watched) -> None:
    watched.watch(["elsewhere", "c"], 10.0)
    assert watched.now() == {"c"}


@pytest.mark.parametrize("for_s", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_makes_no_sense_is_no_wish(watched: Watched, for_s: float) -> None:
    watched.watch(["a"], for_s)
    assert watched.now() == frozenset()


def test_nobody_watches_for_ever(watched: Watched, clock: Clock) -> None:
    watched.watch(["a"], 1e9)
    clock.now += MAX_FOR_S + 1
    assert watched.now() == frozenset()
