"""When what idles, or has run for as long as it may, is warned and ended: what was seen and said so
far in, the next step out.

Ending follows the project's own rule and nobody's demand. It is never due before both warnings were
given, each as long beforehand as the rule says: whoever takes these steps may have been away for
hours. Times are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndingRule:
    """A project's rule.

    Attributes:
        stop_after_s: Idle, or running, for so long it is ended; None is never.
        first_warning_s, last_warning_s: So long before it is warned; the last is the shorter one.
    """

    stop_after_s: float | None
    first_warning_s: float
    last_warning_s: float


@dataclass(frozen=True, slots=True)
class Course:
    """How far it is with one workload.

    Attributes:
        since_s: Idle without a break since then, or running if it had never been interrupted; None
            while that does not hold.
        kept_until_s: A person wants it until then, idle or not.
        first_warned_s, last_warned_s: When it was warned; None where it was not.
        told_s: The end that the latest warning named.
    """

    since_s: float | None
    kept_until_s: float | None = None
    first_warned_s: float | None = None
    last_warned_s: float | None = None
    told_s: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is due."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """What was warned of will not come: it is used again, extended, or the rule has changed."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Say that it ends at `end_s` unless it is used."""

    end_s: float
    is_last: bool


@dataclass(frozen=True, slots=True)
class End:
    """Checkpoint and stop it."""


Step = Wait | Withdraw | Warn | End


def due_s(rule: EndingRule, course: Course) -> float | None:
    """When it has been so for long enough; None where it never ends."""
    if rule.stop_after_s is None or course.since_s is None:
        return None
    return max(course.since_s + rule.stop_after_s, course.kept_until_s or 0.0)


def earliest_end_s(rule: EndingRule, course: Course, now_s: float) -> float | None:
    """When it ends if all stays as it is: when it is due, and not before the warnings that are
    still to be given; None where it never ends."""
    due = due_s(rule, course)
    if due is None or course.since_s is None:
        return None
    told, notice_s = course.told_s or 0.0, 0.0
    if course.first_warned_s is None or course.first_warned_s < course.since_s:
        told, notice_s = 0.0, rule.first_warning_s
    elif course.last_warned_s is None:
        notice_s = rule.last_warning_s
    return max(due, told, now_s + notice_s)


def next_step(rule: EndingRule, course: Course, now_s: float) -> Step:
    """What to do now."""
    due = due_s(rule, course)
    warned_s = course.first_warned_s
    if due is None or course.since_s is None or now_s < due - rule.first_warning_s:
        return Wait() if warned_s is None else Withdraw()
    if warned_s is None or warned_s < course.since_s:
        # Warnings of an earlier idleness count for nothing.
        return Warn(max(due, now_s + rule.first_warning_s), is_last=False)
    end_s = max(due, course.told_s or 0.0)
    if course.last_warned_s is None:
        if now_s < end_s - rule.last_warning_s:
            return Wait()
        return Warn(max(end_s, now_s + rule.last_warning_s), is_last=True)
    return End() if now_s >= end_s else Wait()
