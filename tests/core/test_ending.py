"""Warnings and the end of what idles, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.ending import (
    Course,
    End,
    EndingRule,
    Wait,
    Warn,
    Withdraw,
    due_s,
    earliest_end_s,
    next_step,
)

MINUTE, HOUR = 60.0, 3600.0
RULE = EndingRule(stop_after_s=8 * HOUR, first_warning_s=15 * MINUTE, last_warning_s=5 * MINUTE)
FIRST = Warn(8 * HOUR, is_last=False)


@pytest.mark.parametrize(
    ("about", "course", "now", "step"),
    [
        ("in use", Course(None), 9 * HOUR, Wait()),
        ("not idle for long enough", Course(0), 7.7 * HOUR, Wait()),
        ("the first warning", Course(0), 7.75 * HOUR, FIRST),
        ("warned once", Course(0, None, 7.75 * HOUR, None, 8 * HOUR), 7.9 * HOUR, Wait()),
        (
            "the last warning",
            Course(0, None, 7.75 * HOUR, None, 8 * HOUR),
            8 * HOUR - 5 * MINUTE,
            Warn(8 * HOUR, is_last=True),
        ),
        (
            "warned twice",
            Course(0, None, 7.75 * HOUR, 8 * HOUR - 5 * MINUTE, 8 * HOUR),
            8 * HOUR - 1,
            Wait(),
        ),
        (
            "the end",
            Course(0, None, 7.75 * HOUR, 8 * HOUR - 5 * MINUTE, 8 * HOUR),
            8 * HOUR,
            End(),
        ),
        ("used after a warning", Course(None, None, 1, None, 2), 9 * HOUR, Withdraw()),
        (
            "extended after both warnings",
            Course(0, 12 * HOUR, 7.75 * HOUR, 7.95 * HOUR, 8 * HOUR),
            8 * HOUR,
            Withdraw(),
        ),
        (
            "idle anew, warned in the idleness before",
            Course(1 * HOUR, None, 0.5 * HOUR, 0.6 * HOUR, 1 * HOUR),
            8.75 * HOUR,
            Warn(9 * HOUR, is_last=False),
        ),
        (
            "nobody looked for a day: all time is given anew",
            Course(0),
            24 * HOUR,
            Warn(24 * HOUR + 15 * MINUTE, is_last=False),
        ),
        (
            "nobody looked between the warnings",
            Course(0, None, 7.75 * HOUR, None, 8 * HOUR),
            24 * HOUR,
            Warn(24 * HOUR + 5 * MINUTE, is_last=True),
        ),
        (
            "nobody looked after both",
            Course(0, None, 7.75 * HOUR, 8 * HOUR - 5 * MINUTE, 8 * HOUR),
            24 * HOUR,
            End(),
        ),
    ],
)
def test_the_next_step(
    about: str, course: Course, now: float, step: Wait | Withdraw | Warn | End
) -> None:
    assert next_step(RULE, course, now) == step, about


def test_a_rule_that_was_tightened_gives_all_warnings_first() -> None:
    tight = replace(RULE, stop_after_s=1 * HOUR)
    assert next_step(tight, Course(0), 5 * HOUR) == Warn(5 * HOUR + 15 * MINUTE, is_last=False)


def test_a_rule_that_was_tightened_after_a_warning_keeps_to_what_was_told() -> None:
    tight = replace(RULE, stop_after_s=1 * HOUR)
    warned = Course(0, None, 7.75 * HOUR, 8 * HOUR - 5 * MINUTE, 8 * HOUR)
    assert next_step(tight, warned, 8 * HOUR - 1) == Wait()


def test_a_rule_that_was_switched_off_withdraws() -> None:
    never = replace(RULE, stop_after_s=None)
    assert due_s(never, Course(0)) is None
    assert next_step(never, Course(0, None, 5.0, None, 9.0), 8 * HOUR) == Withdraw()


@dataclass(slots=True)
class World:
    """A workload whose idleness somebody looks at now and then."""

    course: Course = field(default_factory=lambda: Course(0.0))
    warnings: list[tuple[float, Warn]] = field(default_factory=list)

    def look(self, now: float, rule: EndingRule = RULE) -> bool:
        """Take the step that is due; whether that was the end."""
        match next_step(rule, self.course, now):
            case Warn(end_s, is_last) as warning:
                self.warnings.append((now, warning))
                first = self.course.first_warned_s if is_last else now
                last = now if is_last else None
                self.course = replace(
                    self.course, first_warned_s=first, last_warned_s=last, told_s=end_s
                )
            case Withdraw():
                self.forget()
            case End():
                return True
        return False

    def forget(self) -> None:
        self.warnings.clear()
        self.course = replace(self.course, first_warned_s=None, last_warned_s=None, told_s=None)


HAPPENINGS = st.lists(
    st.tuples(
        st.floats(1, 6 * HOUR), st.sampled_from(["look", "look", "look", "use", "idle", "extend"])
    ),
    max_size=60,
)


@given(HAPPENINGS)
def test_whenever_somebody_looks_nothing_ends_without_both_warnings_in_time(
    happenings: list[tuple[float, str]],
) -> None:
    world, now = World(), 0.0
    for pause, what in happenings:
        now += pause
        if what == "use":
            world.course = replace(world.course, since_s=None)
        elif what == "idle" and world.course.since_s is None:
            world.course = replace(world.course, since_s=now)
        elif what == "extend":
            world.forget()  # as the service does
            world.course = replace(world.course, kept_until_s=now + 4 * HOUR)
        elif world.look(now):
            since = world.course.since_s
            assert since is not None
            assert now >= max(since + 8 * HOUR, world.course.kept_until_s or 0)
            (first_at, first), (last_at, last) = world.warnings[-2:]
            assert not first.is_last
            assert last.is_last
            assert first_at >= max(since, (world.course.kept_until_s or 0) - 4 * HOUR)
            assert now >= first_at + RULE.first_warning_s
            assert now >= last_at + RULE.last_warning_s
            assert now >= last.end_s >= first.end_s
            return


def test_looking_twice_at_the_same_moment_takes_no_second_step() -> None:
    world = World()
    for now in (7.75 * HOUR, 8 * HOUR - 5 * MINUTE):
        for _ in range(3):
            assert not world.look(now)
    assert len(world.warnings) == 2


@given(
    st.floats(0, 12 * HOUR),
    st.floats(MINUTE, 12 * HOUR),
    st.sampled_from([None, 6 * HOUR, 20 * HOUR]),
)
def test_who_looks_often_ends_it_when_it_was_said(
    ran_s: float, limit_s: float, kept_until_s: float | None
) -> None:
    rule = EndingRule(limit_s, min(15 * MINUTE, limit_s / 2), min(5 * MINUTE, limit_s / 4))
    world, now = World(Course(0.0, kept_until_s)), ran_s
    said = earliest_end_s(rule, world.course, now)
    assert said is not None
    assert said >= now + rule.first_warning_s
    assert said <= max(limit_s, now + rule.first_warning_s, kept_until_s or 0.0)
    moments = (now, said - rule.first_warning_s, said - rule.last_warning_s, said)
    for now in sorted(max(ran_s, each) for each in moments):
        assert earliest_end_s(rule, world.course, now) == pytest.approx(said)
        is_over = world.look(now, rule)
    assert is_over
    assert len(world.warnings) == 2
