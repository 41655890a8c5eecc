"""Why work is ended, idleness or its time limit: what is seen on the rows, and where that which was
said of it is kept.

Of idleness only what agents have reported just now counts; how long something runs is known without
them (`scheduling.time_limits`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduling import formats, time_limits
from scheduling.core.ending import Course, EndingRule
from scheduling.idle_signals import idle_since
from scheduling.models import LEADER, Attempt, AttemptPhase, SwapState, Workload
from scheduling.moments import unix_s
from scheduling.rules import rule_for
from scheduling.services.claims import LOST_AFTER_S

Details = dict[str, object]


@dataclass(frozen=True, slots=True)
class Ground:
    """Why work is ended.

    Attributes:
        prefix: Of the columns of `Attempt` that keep what was said, and of the events' codes.
        code: Of the end: its event, and the workload's reason.
        rule_of, course_of: What the core asks; no course is known, or none runs.
        details_of: Numbers for the sentences.
        message_of: Why it ended, for the record and the log.
    """

    prefix: str
    code: str
    rule_of: Callable[[Workload, Attempt], EndingRule]
    course_of: Callable[[Workload, Sequence[Attempt], datetime], Course | None]
    details_of: Callable[[Workload, Course, datetime], Details]
    message_of: Callable[[Workload, Details], str]

    @property
    def columns(self) -> tuple[str, str, str]:
        """When it was warned, when for the last time, and of which end."""
        names = ("warned_at", "last_warned_at", "end_at")
        first, last, end = (f"{self.prefix}_{name}" for name in names)
        return first, last, end


# ---------------------------------------------------------------- idleness


def rule_of(workload: Workload) -> EndingRule:
    """The idle rule of a workload, as the core takes it."""
    rule = rule_for(workload)
    stop_after_s = rule.idle_stop_after_s
    return EndingRule(
        stop_after_s=None if stop_after_s is None else float(stop_after_s),
        first_warning_s=float(rule.idle_first_warning_s),
        last_warning_s=float(rule.idle_last_warning_s),
    )


def course_of(workload: Workload, crew: Sequence[Attempt], now: datetime) -> Course | None:
    """How far it is with a workload's idleness; None while nobody knows what it does.

    Args:
        workload: With its project.
        crew: Its open attempts with their nodes, the leader first.
        now: Reports that are older than a few seconds tell nothing.
    """
    silent = now - timedelta(seconds=LOST_AFTER_S)
    reports = [attempt.node.last_report_at for attempt in crew]
    if not crew or crew[0].replica != LEADER:
        return None
    if any(at is None or at < silent for at in reports):
        return None
    leader = crew[0]
    return Course(
        since_s=unix_s(_idle_since(workload, crew)),
        kept_until_s=unix_s(leader.idle_kept_until),
        first_warned_s=unix_s(leader.idle_warned_at),
        last_warned_s=unix_s(leader.idle_last_warned_at),
        told_s=unix_s(leader.idle_end_at),
    )


def _idle_since(workload: Workload, crew: Iterable[Attempt]) -> datetime | None:
    """Since when all of it has been idle, and nobody has asked for it."""
    times: list[datetime] = []
    for attempt in crew:
        since = idle_since(
            attempt.idle_signals,
            may_lack_network=rule_for(workload).idle_may_lack_network,
            is_session=workload.is_session,
        )
        # A borrower that waits in memory has no device that it could use.
        has_device = workload.is_session or attempt.swap_state == SwapState.RUNNING
        is_at_rest = attempt.phase == AttemptPhase.RUNNING and not attempt.is_leaving
        if since is None or not is_at_rest or not has_device:
            return None
        times.append(since)
        if not workload.is_session and attempt.woke_at is not None:
            times.append(attempt.woke_at)
        if attempt.idle_from is not None:
            times.append(attempt.idle_from)
    return max(times)


def _idle_details(row: Workload, course: Course, now: datetime) -> Details:
    idle_s = None if course.since_s is None else now.timestamp() - course.since_s
    return {
        "project": str(row.project),
        "idle_s": idle_s,
        "stop_after_s": rule_for(row).idle_stop_after_s,
    }


def _idle_message(row: Workload, details: Details) -> str:
    idle = formats.duration(float(str(details["idle_s"])))
    return f"idle for {idle}, by the idle rule of project {row.project.name}"


IDLENESS = Ground(
    prefix="idle",
    code="idle_stopped",
    rule_of=lambda row, _leader: rule_of(row),
    course_of=course_of,
    details_of=_idle_details,
    message_of=_idle_message,
)


# ---------------------------------------------------------------- the time limit


def _limit_course(row: Workload, crew: Sequence[Attempt], now: datetime) -> Course | None:
    if not crew or crew[0].replica != LEADER:
        return None
    before = time_limits.ran_before([row]).get(row.pk, 0.0)
    return time_limits.course_of(row, crew[0], before, now)


def _limit_details(row: Workload, course: Course, now: datetime) -> Details:
    limit = time_limits.limit_of(row)
    ran_s = None if course.since_s is None else now.timestamp() - course.since_s
    return {
        "project": str(row.project),
        "limit_s": None if limit is None else limit.seconds,
        "is_own": limit is not None and limit.is_own,
        "ran_s": ran_s,
    }


def _limit_message(row: Workload, details: Details) -> str:
    ran, limit = (formats.duration(float(str(details[name]))) for name in ("ran_s", "limit_s"))
    return f"ran for {ran}, its time limit is {limit}"


TIME_LIMIT = Ground(
    prefix="limit",
    code="time_limit",
    rule_of=time_limits.ending_rule,
    course_of=_limit_course,
    details_of=_limit_details,
    message_of=_limit_message,
)
