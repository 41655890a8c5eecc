"""Keeps the sums of past days and months, and of the day that runs.

A day (UTC) is computed anew while it runs and once more when it is over and its last samples have
come; later only if late samples or late news of an end change it. Months are put together from
their days once nothing in them can change, by hour: a year of many groups is then few rows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
from django.db import connection, transaction
from django.db.models import F
from psycopg import sql

from scheduling.analytics import events
from scheduling.analytics.computing import (
    DAY,
    QUARTER,
    SETTLES_AFTER,
    compute,
    days_of,
    final_at,
    first_known,
    midnight,
    month_of,
    next_month,
)
from scheduling.analytics.events import Source
from scheduling.analytics.intervals import Floats
from scheduling.analytics.measures import Measure, Scope
from scheduling.analytics.store import MONTH_TYPE, Collected, kept_rows, read_days
from scheduling.models import Attempt, UsageDay, UsageMonth, UsageMonthVector, UsageVector
from telemetry.models import RolledQuarter

HOURS_PER_DAY = 24

LATEST = timedelta(days=8)
"""No sample comes later than a week, so no older quarter-hour changes any more."""

_LOCK = 0x616C6C6F74_03


def keep_days(
    now: datetime, *, budget_s: float = 60.0, clock: Callable[[], float] = time.monotonic
) -> int:
    """Compute and keep what is missing or outdated, oldest day first, for about so long.

    Returns:
        Days kept anew; 0 also when somebody else is at it.
    """
    deadline = clock() + budget_s
    num_kept = 0
    for day in _outdated(now):
        if not _keep(day, now):
            break
        num_kept += 1
        if clock() >= deadline:
            break
    return num_kept


def _outdated(now: datetime) -> Iterator[date]:
    first = first_known()
    if first is None:
        return
    kept = dict(UsageDay.objects.values_list("day", "computed_at"))
    late = _days_rolled_late(kept, now) | _days_ended_late(kept, now)
    day, today = first.astimezone(UTC).date(), now.astimezone(UTC).date()
    while day <= today:
        computed_at = kept.get(day)
        if computed_at is None or computed_at < final_at(day) or day in late:
            yield day
        day += DAY


def _days_rolled_late(kept: dict[date, datetime], now: datetime) -> set[date]:
    """Days with a quarter-hour that was rolled up after their sums were made.

    Quarter-hours at the edge of a neighbouring day count too, since idleness looks at them.
    """
    if not kept:
        return set()
    rows = RolledQuarter.objects.filter(at__gt=now - LATEST, rolled_at__gt=min(kept.values()))
    late: set[date] = set()
    for at, rolled_at in rows.values_list("at", "rolled_at").iterator():
        for day in {(at + offset).astimezone(UTC).date() for offset in (-QUARTER, QUARTER)}:
            if day in kept and rolled_at > kept[day]:
                late.add(day)
    return late


def _days_ended_late(kept: dict[date, datetime], now: datetime) -> set[date]:
    """Days in which an attempt ended of which we learnt after their sums were made."""
    rows = Attempt.objects.filter(
        ended_at__gt=now - LATEST, ended_at__lt=F("allocation__ended_at") - SETTLES_AFTER
    )
    late: set[date] = set()
    for ended_at, learnt_at in rows.values_list("ended_at", "allocation__ended_at"):
        if ended_at is not None and learnt_at is not None:
            day = ended_at.astimezone(UTC).date()
            if day in kept and learnt_at > kept[day]:
                late.add(day)
    return late


@transaction.atomic
def _keep(day: date, now: datetime) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        if not cursor.fetchone()[0]:
            return False
    since = midnight(day)
    sums = compute(since, since + DAY, now)
    happened = events.read(since, since + DAY)
    UsageVector.objects.filter(day=day).delete()
    _copy("usagevector", "day", day, [*sums.items(), *happened.items()])
    UsageDay.objects.update_or_create(day=day, defaults={"computed_at": now})
    _forget_month(month_of(day))
    return True


# (scope, measure or source, project, key) and values.
Kept = Iterable[tuple[tuple[Scope, int, int, str], Floats]]


def _copy(table: str, column: str, moment: date, kept: Kept) -> None:
    names = f"scope, measure, {column}, project_id, key, values"
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
        sql.Identifier(f"scheduling_{table}"), sql.SQL(names)
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(["int2", "int2", "date", "int4", "varchar", "bytea"])
        for (scope, measure, project, key), row in sorted(kept, key=lambda item: item[0]):
            copy.write_row((int(scope), int(measure), moment, project, key, row.tobytes()))


def keep_months(now: datetime) -> int:
    """Put the days of past months together, once nothing in them can change any more.

    Returns:
        Months kept anew.
    """
    first = first_known()
    if first is None:
        return 0
    kept = set(UsageMonth.objects.values_list("month", flat=True))
    days = dict(UsageDay.objects.values_list("day", "computed_at"))
    first_day = first.astimezone(UTC).date()
    month, num_kept = month_of(first_day), 0
    while midnight(next_month(month)) + LATEST < now:
        wanted = (day for day in days_of(month) if day >= first_day)
        if month not in kept and all(day in days and days[day] >= final_at(day) for day in wanted):
            _keep_month(month, now)
            num_kept += 1
        month = next_month(month)
    return num_kept


@transaction.atomic
def _keep_month(month: date, now: datetime) -> None:
    _forget_month(month)
    days = days_of(month)
    for scope in Scope:
        for measure in Measure:
            collected = {measure: Collected(measure, month, len(days), HOURS_PER_DAY)}
            read_days(scope, collected, days, False)
            read_days(scope, collected, days, True)
            table = collected[measure].table()
            hours = {
                (scope, measure, project, key): row.astype(MONTH_TYPE)
                for (project, key), row in zip(table.groups, table.values, strict=True)
            }
            _copy("usagemonthvector", "month", month, hours.items())
        _keep_events_of_month(scope, month, days)
    UsageMonth.objects.create(month=month, computed_at=now)


def _keep_events_of_month(scope: Scope, month: date, days: Sequence[date]) -> None:
    for source in Source:
        together: dict[tuple[Scope, Source, int, str], list[bytes]] = defaultdict(list)
        for is_total in (False, True):
            rows = kept_rows("usagevector", "day", (scope, is_total), [source], days)
            for _source, _day, project, key, data in rows:
                together[scope, source, project, key].append(data)
        _copy(
            "usagemonthvector",
            "month",
            month,
            [(name, np.frombuffer(b"".join(parts))) for name, parts in together.items()],
        )


def _forget_month(month: date) -> None:
    if UsageMonth.objects.filter(month=month).delete()[0]:
        UsageMonthVector.objects.filter(month=month).delete()
