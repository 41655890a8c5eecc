"""How long a workload may run, how long it has, and when that will be over.

The clock is the running time of its leader, from the start of its processes to their end, over all
starts since it was submitted (or put back into the queue by a person). Waits do not count, nor does
the time that a borrower waits in memory for a device: what a training was promised is time to work.
A session that is swapped out holds its place, so its clock goes on.

Warnings and the end are those of `core.ending`: running for as long as the limit is to this what
idling for as long as the rule says is to the other.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil

from django.db.models import F

from projects.idle_rules import MAX_RUN
from scheduling.core.ending import Course, EndingRule, earliest_end_s
from scheduling.models import LEADER, Attempt, AttemptPhase, Phase, SwapState, Workload
from scheduling.moments import unix_s
from scheduling.past import Expected
from scheduling.rules import rule_for

BASIS = "time_limits"
MAX_EXTENSIONS = 10
"""So often may the owner put it off; WCAG 2.2.1 asks for ten times at least. Managers may go on."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a workload may run.

    Attributes:
        seconds: With what it was extended by.
        is_own: It was submitted with it; else it is its project's.
    """

    seconds: int
    is_own: bool


def limit_of(workload: Workload) -> Limit | None:
    """The tighter one of its own and its project's; None without any."""
    # Asked of each row of a snapshot: hence one field, and not the whole rule.
    name = MAX_RUN[workload.kind]
    kept = workload.kept_rule
    own, project = workload.max_run_s, getattr(workload.project, name)
    if kept and name in kept:
        project = kept[name]
    if own is None and project is None:
        return None
    is_own = own is not None and (project is None or own < project)
    seconds = own if is_own else project
    assert seconds is not None  # one of them is given
    return Limit(seconds + workload.extended_s, is_own)


# ---------------------------------------------------------------- the clock

Before = Mapping[uuid.UUID, float]
"""Seconds that workloads ran before their present start; those that did not are left out."""


def ran_before(workloads: Iterable[Workload]) -> Before:
    """Of those that have a limit; one query, none where nothing has."""
    has_run = (row for row in workloads if row.current_id is not None)
    limited = {row.pk: row for row in has_run if limit_of(row) is not None}
    if not limited:
        return {}
    ended = Attempt.objects.filter(
        workload__in=limited,
        replica=LEADER,
        phase=AttemptPhase.ENDED,
        started_at__isnull=False,
        placed_at__gte=F("workload__submitted_at"),
    )
    found: defaultdict[uuid.UUID, float] = defaultdict(float)
    for attempt in ended.only(*_CLOCK):
        assert attempt.ended_at is not None  # the schema says so
        found[attempt.workload_id] += ran(limited[attempt.workload_id], attempt, attempt.ended_at)
    return found


_CLOCK = ("workload_id", "started_at", "ended_at", "in_memory_s", "swap_state", "swap_since")


def ran(workload: Workload, attempt: Attempt, now: datetime) -> float:
    """Seconds that a start has run; `now` may be its end."""
    if attempt.started_at is None:
        return 0.0
    seconds = (now - attempt.started_at).total_seconds()
    if not workload.is_session:
        seconds -= attempt.in_memory_s
        if attempt.swap_state != SwapState.RUNNING and attempt.swap_since is not None:
            seconds -= (now - attempt.swap_since).total_seconds()
    return max(seconds, 0.0)


# ---------------------------------------------------------------- warnings and end


def ending_rule(workload: Workload, leader: Attempt | None) -> EndingRule:
    """When a workload is warned and ended.

    Of a short limit the warnings come at half and at three quarters of it; of one that was set
    while it ran they take as long as the project says.
    """
    limit = limit_of(workload)
    if limit is None:
        return _NEVER
    rule = rule_for(workload)
    first, last = float(rule.idle_first_warning_s), float(rule.idle_last_warning_s)
    if leader is None or leader.limit_notice_until is None:
        first = min(first, limit.seconds / 2)
        last = min(last, first / 2)
    return EndingRule(float(limit.seconds), first, last)


_NEVER = EndingRule(None, 0.0, 0.0)


def course_of(workload: Workload, leader: Attempt, before_s: float, now: datetime) -> Course | None:
    """How far a running workload is; None where its processes do not run yet, or leave. While its
    clock stands it is in no course to its end.

    Args:
        workload: With its project.
        leader: Its leader's open attempt.
        before_s: What it ran before that.
        now: The present.
    """
    is_parked = not workload.is_session and leader.swap_state != SwapState.RUNNING
    if leader.started_at is None or leader.is_leaving:
        return None
    since_s = now.timestamp() - ran(workload, leader, now) - before_s
    return Course(
        since_s=None if is_parked else since_s,
        kept_until_s=unix_s(leader.limit_notice_until),
        first_warned_s=unix_s(leader.limit_warned_at),
        last_warned_s=unix_s(leader.limit_last_warned_at),
        told_s=unix_s(leader.limit_end_at),
    )


def end_s(workload: Workload, leader: Attempt, before_s: float, now: datetime) -> float | None:
    """When a workload that runs, or begins to, is ended if nobody extends it; Unix seconds."""
    if workload.phase not in (Phase.STARTING, Phase.RUNNING) or leader.replica != LEADER:
        return None
    rule, now_s = ending_rule(workload, leader), now.timestamp()
    course = course_of(workload, leader, before_s, now)
    if course is None and workload.phase == Phase.STARTING and not leader.is_leaving:
        course = Course(since_s=now_s - before_s)  # its processes are about to run
    return None if course is None else earliest_end_s(rule, course, now_s)


def missing_s(workload: Workload, leader: Attempt, until: datetime, now: datetime) -> int:
    """By how many seconds the limit must be longer to let it run until then; less than 1 where it
    lets it already."""
    rule = ending_rule(workload, leader)
    assert rule.stop_after_s is not None  # it has a limit
    ran_s = ran_before([workload]).get(workload.pk, 0.0) + ran(workload, leader, now)
    end = now.timestamp() + rule.stop_after_s - ran_s
    is_noticed = leader.limit_notice_until is not None and until <= leader.limit_notice_until
    return 0 if is_noticed else ceil(until.timestamp() - end)


def left_s(workload: Workload, before_s: float) -> float | None:
    """How long a workload that waits may run once it starts; None for ever.

    One that has hardly anything left is warned as soon as it starts, and given the time for that.
    """
    rule = ending_rule(workload, None)
    if rule.stop_after_s is None:
        return None
    return max(rule.stop_after_s - before_s, rule.first_warning_s)


def bounded(
    told: Expected, row: Workload, leader: Attempt | None, before_s: float, now: datetime
) -> Expected:
    """What is predicted of a workload, by its time limit where nothing earlier is known."""
    if leader is None or row.is_parked:
        left = left_s(row, before_s)
        if left is None or (told.run_s is not None and told.run_s <= left):
            return told
        return replace(told, run_s=left, basis=BASIS)
    end = end_s(row, leader, before_s, now)
    if end is None or (told.end_s is not None and told.end_s <= end):
        return told
    early = None if told.early_end_s is None else min(told.early_end_s, end)
    return Expected(end, early, basis=BASIS)


# ---------------------------------------------------------------- what pages and API say


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a workload is with its time limit.

    Attributes:
        limit: How long it may run.
        ran_s: So long it has run.
        end_at: When it is ended if nobody extends it; None while it does not run, or its clock
            stands.
        warned_end_at: The end that its latest warning named.
        extensions_left: So often may its owner still extend it.
    """

    limit: Limit
    ran_s: float
    end_at: datetime | None
    warned_end_at: datetime | None
    extensions_left: int

    @property
    def left_s(self) -> float:
        """Of its clock."""
        return max(self.limit.seconds - self.ran_s, 0.0)


def standings(workloads: Sequence[Workload], now: datetime) -> Mapping[uuid.UUID, Standing]:
    """Of those that have a limit, read with their project and `current`; one query at most."""
    before = ran_before(workloads)
    found = {}
    for row in workloads:
        limit = limit_of(row)
        if limit is not None:
            found[row.pk] = _standing(row, limit, before.get(row.pk, 0.0), now)
    return found


def _standing(row: Workload, limit: Limit, before_s: float, now: datetime) -> Standing:
    left = max(MAX_EXTENSIONS - row.num_extensions, 0)
    leader: Attempt | None = row.current
    if leader is None or leader.phase == AttemptPhase.ENDED:
        return Standing(limit, before_s, None, None, left)
    end = end_s(row, leader, before_s, now)
    end_at = None if end is None else datetime.fromtimestamp(end, now.tzinfo)
    ran_s = before_s + ran(row, leader, now)
    is_told = row.phase == Phase.RUNNING and not leader.is_leaving
    return Standing(limit, ran_s, end_at, leader.limit_end_at if is_told else None, left)
