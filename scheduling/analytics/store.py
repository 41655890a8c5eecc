"""Reads sums of any period: kept ones, and what is not kept computed by the same function.

So the numbers are the same whether or not they were kept before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import psycopg
from django.db import connection
from psycopg import sql

from scheduling.analytics import events
from scheduling.analytics.computing import (
    DAY,
    HOUR,
    QUARTER,
    compute,
    days_of,
    final_at,
    first_known,
    midnight,
    next_month,
)
from scheduling.analytics.events import Source
from scheduling.analytics.intervals import Floats, Ints
from scheduling.analytics.measures import NO_PROJECT, Measure, Scope
from scheduling.models import UsageDay, UsageMonth

MONTH_TYPE = np.float32
"""Of months' hours: seven digits are enough for what is older than a week, and half to read."""

FRESH_S = 180.0
"""A running day's sums serve for so long before they are computed anew."""


@dataclass(frozen=True, slots=True)
class Table:
    """One measure of all groups of a scope.

    Attributes:
        groups: (project, key) of each row.
        values: Shape (groups, bins).
    """

    groups: tuple[tuple[int, str], ...]
    values: Floats


def read(
    scope: Scope,
    measures: Sequence[Measure],
    period: tuple[datetime, datetime],
    now: datetime,
    *,
    bin_width: timedelta = QUARTER,
    is_total: bool = False,
) -> dict[Measure, Table]:
    """Sums of a period, by quarter-hour or (from months where they are kept) by hour.

    Args:
        scope: By what sums are told apart.
        measures: Which.
        period: Begins and ends on bins.
        now: The present.
        bin_width: `QUARTER` or `HOUR`.
        is_total: Over all projects, instead of by project.
    """
    since, until = period
    first_day, last_day = since.astimezone(UTC).date(), (until - QUARTER).astimezone(UTC).date()
    days = [first_day + n * DAY for n in range((last_day - first_day).days + 1)]
    per_day = DAY // bin_width
    collected = {m: Collected(m, first_day, len(days), per_day) for m in measures}
    months = _kept_months(days) if bin_width == HOUR else []
    _read_months(scope, collected, months, is_total)
    in_months = {day for month in months for day in days_of(month)}
    days = [day for day in days if day not in in_months]
    kept = _kept(days, now) if days else set()
    read_days(scope, collected, sorted(kept), is_total)
    for day in _worth_computing(days, kept, now):
        start = midnight(day)
        for (row_scope, measure, project, key), row in compute(start, start + DAY, now).items():
            is_wanted = row_scope == scope and (project == NO_PROJECT) == is_total
            if is_wanted and measure in collected:
                collected[measure].add_day(day, [(project, key)], row.tobytes())
    skipped = (since - midnight(first_day)) // bin_width
    count = (until - since) // bin_width
    tables = {measure: item.table() for measure, item in collected.items()}
    return {
        measure: Table(table.groups, table.values[:, skipped : skipped + count])
        for measure, table in tables.items()
    }


@dataclass(frozen=True, slots=True)
class Happened:
    """Events of many groups.

    Attributes:
        group: Number of each event's group.
        values: Shape (events, 3): moment, value, weight.
    """

    group: Ints
    values: Floats


def read_events(
    scope: Scope,
    source: Source,
    period: tuple[datetime, datetime],
    now: datetime,
    *,
    is_total: bool,
) -> tuple[tuple[tuple[int, str], ...], Happened]:
    """Groups as (project, key), and what ended in each; a little more than the period."""
    since, until = period
    first_day, last_day = since.astimezone(UTC).date(), (until - QUARTER).astimezone(UTC).date()
    days = [first_day + n * DAY for n in range((last_day - first_day).days + 1)]
    months = _kept_months(days)
    in_months = {day for month in months for day in days_of(month)}
    days = [day for day in days if day not in in_months]
    kept = _kept(days, now) if days else set()
    kept_as = (scope, is_total)
    parts: list[tuple[int, str, bytes]] = []
    for table, column, moments in (
        ("usagemonthvector", "month", months),
        ("usagevector", "day", sorted(kept)),
    ):
        rows = kept_rows(table, column, kept_as, [source], moments)
        parts += [(project, key, data) for _source, _moment, project, key, data in rows]
    for day in _worth_computing(days, kept, now):
        found = events.read(midnight(day), midnight(day) + DAY)
        parts += [
            (project, key, data.tobytes())
            for (row_scope, row_source, project, key), data in found.items()
            if (row_scope, row_source) == (scope, source) and (project == NO_PROJECT) == is_total
        ]
    numbers: dict[tuple[int, str], int] = {}
    group = [numbers.setdefault((project, key), len(numbers)) for project, key, _ in parts]
    counts = [len(data) // _EVENT_BYTES for _, _, data in parts]
    values = np.frombuffer(b"".join(data for _, _, data in parts)).reshape(-1, 3)
    return tuple(numbers), Happened(np.repeat(np.array(group, dtype=np.int64), counts), values)


_EVENT_BYTES = 3 * 8


def _kept_months(days: Sequence[date]) -> list[date]:
    """Months that are kept and lie wholly within these days."""
    rows = UsageMonth.objects.filter(month__gte=days[0], month__lte=days[-1])
    return [
        month
        for month in rows.order_by("month").values_list("month", flat=True)
        if next_month(month) - DAY <= days[-1]
    ]


def _kept(days: Sequence[date], now: datetime) -> set[date]:
    """Days whose kept sums are good enough."""
    wanted = set(days)
    rows = UsageDay.objects.filter(day__gte=days[0], day__lte=days[-1])
    return {
        day
        for day, computed_at in rows.values_list("day", "computed_at")
        if day in wanted and computed_at >= min(final_at(day), now - timedelta(seconds=FRESH_S))
    }


def _worth_computing(days: Sequence[date], kept: set[date], now: datetime) -> Iterator[date]:
    """Days that are not kept and in which something was there."""
    missing = [day for day in days if day not in kept and midnight(day) < now]
    first = first_known() if missing else None
    if first is not None:
        yield from (day for day in missing if day >= first.astimezone(UTC).date())


class Collected:
    """A measure's rows on their way into one array."""

    def __init__(self, measure: Measure, first_day: date, num_days: int, per_day: int) -> None:
        self._fold = np.maximum if measure is Measure.MEMORY_PEAK else np.add
        self._first_day, self._num_days, self._per_day = first_day, num_days, per_day
        self._numbers: dict[tuple[int, str], int] = {}
        self._days: list[tuple[date, list[int], bytes]] = []
        self._months: list[tuple[date, list[int], bytes]] = []

    def _numbers_of(self, groups: Iterable[tuple[int, str]]) -> list[int]:
        numbers = self._numbers
        return [numbers.setdefault(group, len(numbers)) for group in groups]

    def add_day(self, day: date, groups: Iterable[tuple[int, str]], data: bytes) -> None:
        """Add a day of some groups by quarter-hours."""
        self._days.append((day, self._numbers_of(groups), data))

    def add_month(self, month: date, groups: Iterable[tuple[int, str]], data: bytes) -> None:
        """Add a month of some groups by hours."""
        self._months.append((month, self._numbers_of(groups), data))

    def table(self) -> Table:
        """All days of the period, by bins; groups in their own order, however they came.

        So that sums over them are the same each time, to the last digit.
        """
        groups = sorted(self._numbers)
        place = np.empty(len(groups), dtype=np.int64)
        place[[self._numbers[group] for group in groups]] = np.arange(len(groups))
        values = np.zeros((len(groups), self._num_days * self._per_day))
        for day, rows, data in self._days:
            first = (day - self._first_day).days * self._per_day
            bins = np.frombuffer(data).reshape(len(rows), self._per_day, -1)
            values[place[rows], first : first + self._per_day] = self._fold.reduce(bins, axis=2)
        for month, rows, data in self._months:
            first = (month - self._first_day).days * self._per_day
            hours = np.frombuffer(data, dtype=MONTH_TYPE).reshape(len(rows), -1)
            values[place[rows], first : first + hours.shape[1]] = hours
        return Table(tuple(groups), values)


def read_days(
    scope: Scope, into: dict[Measure, Collected], days: Sequence[date], is_total: bool
) -> None:
    """Add what is kept of these days."""
    for measure, day, groups, data in _kept_sums(
        "usagevector", "day", (scope, is_total), into, days
    ):
        into[measure].add_day(day, groups, data)


def _read_months(
    scope: Scope, into: dict[Measure, Collected], months: Sequence[date], is_total: bool
) -> None:
    kept = _kept_sums("usagemonthvector", "month", (scope, is_total), into, months)
    for measure, month, groups, data in kept:
        into[measure].add_month(month, groups, data)


def _kept_sums(
    table: str,
    column: str,
    kept_as: tuple[Scope, bool],
    measures: Iterable[Measure],
    moments: Sequence[date],
) -> Iterator[tuple[Measure, date, Iterable[tuple[int, str]], bytes]]:
    """Kept sums of these days or months, those of all groups in one piece.

    A year of many groups would otherwise come as ten thousand rows, one by one.
    """
    # Aggregates of one query take their rows in the same order.
    what = sql.SQL(
        "measure, {column}, array_agg(project_id), array_agg(key), string_agg(values, '')"
    ).format(column=sql.Identifier(column))
    together = sql.SQL(" GROUP BY measure, {column}").format(column=sql.Identifier(column))
    for measure, moment, projects, keys, data in _fetch(
        (table, column), (what, together), kept_as, measures, moments
    ):
        yield Measure(measure), moment, zip(projects, keys, strict=True), data


def kept_rows(
    table: str,
    column: str,
    kept_as: tuple[Scope, bool],
    measures: Iterable[Measure | Source],
    moments: Sequence[date],
) -> Iterator[tuple[int, date, int, str, bytes]]:
    """Kept rows of these days or months."""
    what = sql.SQL("measure, {column}, project_id, key, values").format(
        column=sql.Identifier(column)
    )
    yield from _fetch((table, column), (what, sql.SQL("")), kept_as, measures, moments)


# `Any`: rows of what is asked for.
def _fetch(
    kept_in: tuple[str, str],
    asked: tuple[sql.Composable, sql.Composable],
    kept_as: tuple[Scope, bool],
    measures: Iterable[Measure | Source],
    moments: Sequence[date],
) -> Iterator[tuple[Any, ...]]:
    """What is asked for: columns, and how to put them together.

    In binary: as text each byte would come as two, to be parsed one by one.
    """
    if not moments:
        return
    (table, column), (what, together), (scope, is_total) = kept_in, asked, kept_as
    statement = sql.SQL(
        "SELECT {what} FROM {table}"
        " WHERE scope = %s AND measure = ANY(%s) AND {column} = ANY(%s)"
        " AND project_id {compared} 0{together}"
    ).format(
        what=what,
        column=sql.Identifier(column),
        table=sql.Identifier(f"scheduling_{table}"),
        compared=sql.SQL("=" if is_total else ">"),
        together=together,
    )
    connection.ensure_connection()
    with psycopg.Cursor(connection.connection) as cursor:
        cursor.execute(
            statement,
            [int(scope), [int(m) for m in measures], list(moments)],
            binary=True,
        )
        # At once: a row at a time would take the connection's lock each time.
        yield from cursor.fetchall()
