"""Sums of past days, kept; sums of any period, read or computed.

A day (UTC) is computed anew while it runs and once more when it is over and its last samples have
come; later only if late samples change one of its quarter-hours. Months are put together from
their days once nothing in them can change, by hour: a year of many groups is then few rows.
Whoever asks for days that are not kept gets them computed at once, by the same function: the
numbers are the same.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import psycopg
from django.db import connection, transaction
from django.db.models import F, Min
from psycopg import sql

from scheduling.analytics import events, facts
from scheduling.analytics.events import Source
from scheduling.analytics.intervals import Floats, Ints
from scheduling.analytics.measures import NO_PROJECT, QUARTER_S, Measure, Scope
from scheduling.analytics.usage import Signals, Sums, integrate, no_signals, quarter_edges
from scheduling.models import (
    Attempt,
    CapacityInterval,
    UsageDay,
    UsageMonth,
    UsageMonthVector,
    UsageVector,
)
from telemetry import rollups
from telemetry.metrics import Kind
from telemetry.models import RolledQuarter

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
QUARTER = timedelta(seconds=QUARTER_S)
HOURS_PER_DAY = 24

FRESH_S = 180.0
"""A running day's sums serve for so long before they are computed anew."""
SETTLES_AFTER = timedelta(minutes=20)
"""A day is final when the quarter-hour after it is rolled up: idleness looks at neighbours."""

LATEST = timedelta(days=8)
"""No sample comes later than a week, so no older quarter-hour changes any more."""

_LOCK = 0x616C6C6F74_03
_COLUMNS = (
    "gpu_util_percent",
    "gpu_util_percent_s",
    "cpu_cores",
    "cpu_cores_s",
    "cpu_throttled_s_per_s",
    "memory_mib",
    "memory_mib_s",
    "memory_mib_peak",
    "net_rx_bytes_per_s",
    "net_tx_bytes_per_s",
)


def compute(since: datetime, until: datetime, now: datetime) -> Sums:
    """Sums of a period by quarter-hour, from allocations and roll-ups."""
    num_bins = round((until - since) / QUARTER)
    read = facts.read(since, until, now)
    signals = _signals(since, num_bins) if read.held else no_signals(num_bins)
    return integrate(read, quarter_edges(since.timestamp(), num_bins), signals)


def _signals(since: datetime, num_bins: int) -> Signals:
    start = since - QUARTER
    rows = rollups.read_quarters(Kind.WORKLOAD, _COLUMNS, start, start + (num_bins + 2) * QUARTER)
    numbers = {number: row for row, number in enumerate(rows.names)}
    row = np.array([numbers[number] for number in rows.subject.tolist()], dtype=np.int64)

    def table(column: str, empty: float) -> Floats:
        filled = np.full((len(numbers), num_bins + 2), empty)
        filled[row, rows.bin] = rows.values[column]
        return filled

    received, sent = table("net_rx_bytes_per_s", np.nan), table("net_tx_bytes_per_s", np.nan)
    return Signals(
        row_of={rows.names[number]: place for number, place in numbers.items()},
        gpu_percent=table("gpu_util_percent", np.nan),
        gpu_s=np.nan_to_num(table("gpu_util_percent_s", 0.0)),
        cores=table("cpu_cores", np.nan),
        cpu_s=np.nan_to_num(table("cpu_cores_s", 0.0)),
        throttled=table("cpu_throttled_s_per_s", np.nan),
        memory_gib=table("memory_mib", np.nan) / 1024,
        memory_s=np.nan_to_num(table("memory_mib_s", 0.0)),
        peak_gib=table("memory_mib_peak", np.nan) / 1024,
        network=received + sent,
    )


# ---------------------------------------------------------------- keeping


def first_known() -> datetime | None:
    """When anything was there for the first time; None while nothing ever was."""
    first: datetime | None = CapacityInterval.objects.aggregate(first=Min("started_at"))["first"]
    return first


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
        if computed_at is None or computed_at < _final_at(day) or day in late:
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


def _final_at(day: date) -> datetime:
    return _midnight(day) + DAY + SETTLES_AFTER


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


@transaction.atomic
def _keep(day: date, now: datetime) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        if not cursor.fetchone()[0]:
            return False
    since = _midnight(day)
    sums = compute(since, since + DAY, now)
    happened = events.read(since, since + DAY)
    UsageVector.objects.filter(day=day).delete()
    _copy("usagevector", "day", day, [*sums.items(), *happened.items()])
    UsageDay.objects.update_or_create(day=day, defaults={"computed_at": now})
    _forget_month(_month_of(day))
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
    month, num_kept = _month_of(first_day), 0
    while _midnight(_next_month(month)) + LATEST < now:
        wanted = (day for day in _days_of(month) if day >= first_day)
        if month not in kept and all(day in days and days[day] >= _final_at(day) for day in wanted):
            _keep_month(month, now)
            num_kept += 1
        month = _next_month(month)
    return num_kept


@transaction.atomic
def _keep_month(month: date, now: datetime) -> None:
    _forget_month(month)
    days = _days_of(month)
    for scope in Scope:
        for measure in Measure:
            collected = {measure: _Collected(measure, month, len(days), HOURS_PER_DAY)}
            _read_days(scope, collected, days, False)
            _read_days(scope, collected, days, True)
            table = collected[measure].table()
            sums: Sums = {
                (scope, measure, project, key): row
                for (project, key), row in zip(table.groups, table.values, strict=True)
            }
            _copy("usagemonthvector", "month", month, sums.items())
        _keep_events_of_month(scope, month, days)
    UsageMonth.objects.create(month=month, computed_at=now)


def _keep_events_of_month(scope: Scope, month: date, days: Sequence[date]) -> None:
    for source in Source:
        together: dict[tuple[Scope, Source, int, str], list[bytes]] = defaultdict(list)
        for is_total in (False, True):
            rows = _rows("usagevector", "day", (scope, is_total), [source], days)
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


def _month_of(day: date) -> date:
    return day.replace(day=1)


def _next_month(month: date) -> date:
    return _month_of(month + timedelta(days=31))


def _days_of(month: date) -> list[date]:
    return [month + n * DAY for n in range((_next_month(month) - month).days)]


# ---------------------------------------------------------------- reading


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
    collected = {m: _Collected(m, first_day, len(days), per_day) for m in measures}
    months = _kept_months(days) if bin_width == HOUR else []
    _read_months(scope, collected, months, is_total)
    in_months = {day for month in months for day in _days_of(month)}
    days = [day for day in days if day not in in_months]
    kept = _kept(days, now) if days else set()
    _read_days(scope, collected, sorted(kept), is_total)
    for day in _worth_computing(days, kept, now):
        start = _midnight(day)
        for (row_scope, measure, project, key), row in compute(start, start + DAY, now).items():
            is_wanted = row_scope == scope and (project == NO_PROJECT) == is_total
            if is_wanted and measure in collected:
                collected[measure].add(day, project, key, row.tobytes())
    skipped = (since - _midnight(first_day)) // bin_width
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
    in_months = {day for month in months for day in _days_of(month)}
    days = [day for day in days if day not in in_months]
    kept = _kept(days, now) if days else set()
    kept_as = (scope, is_total)
    parts: list[tuple[int, str, bytes]] = []
    for table, column, moments in (
        ("usagemonthvector", "month", months),
        ("usagevector", "day", sorted(kept)),
    ):
        rows = _rows(table, column, kept_as, [source], moments)
        parts += [(project, key, data) for _source, _moment, project, key, data in rows]
    for day in _worth_computing(days, kept, now):
        found = events.read(_midnight(day), _midnight(day) + DAY)
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
        if _next_month(month) - DAY <= days[-1]
    ]


def _kept(days: Sequence[date], now: datetime) -> set[date]:
    """Days whose kept sums are good enough."""
    wanted = set(days)
    rows = UsageDay.objects.filter(day__gte=days[0], day__lte=days[-1])
    return {
        day
        for day, computed_at in rows.values_list("day", "computed_at")
        if day in wanted and computed_at >= min(_final_at(day), now - timedelta(seconds=FRESH_S))
    }


def _worth_computing(days: Sequence[date], kept: set[date], now: datetime) -> Iterator[date]:
    """Days that are not kept and in which something was there."""
    missing = [day for day in days if day not in kept and _midnight(day) < now]
    first = first_known() if missing else None
    if first is not None:
        yield from (day for day in missing if day >= first.astimezone(UTC).date())


class _Collected:
    """A measure's rows on their way into one array."""

    def __init__(self, measure: Measure, first_day: date, num_days: int, per_day: int) -> None:
        self._fold = np.maximum if measure is Measure.MEMORY_PEAK else np.add
        self._first_day, self._num_days, self._per_day = first_day, num_days, per_day
        self._numbers: dict[tuple[int, str], int] = {}
        self._group: list[int] = []
        self._day: list[int] = []
        self._data: list[bytes] = []
        self._months: list[tuple[int, int, bytes]] = []

    def _number(self, project: int, key: str) -> int:
        return self._numbers.setdefault((project, key), len(self._numbers))

    def add(self, day: date, project: int, key: str, data: bytes) -> None:
        """Add a day by quarter-hours."""
        self._group.append(self._number(project, key))
        self._day.append((day - self._first_day).days)
        self._data.append(data)

    def add_month(self, month: date, project: int, key: str, data: bytes) -> None:
        """Add a month by hours."""
        first = (month - self._first_day).days * self._per_day
        self._months.append((self._number(project, key), first, data))

    def table(self) -> Table:
        """All days of the period, by bins."""
        num_groups = len(self._numbers)
        values = np.zeros((num_groups, self._num_days, self._per_day))
        if self._data:
            quarters = np.frombuffer(b"".join(self._data))
            bins = quarters.reshape(len(self._data), self._per_day, -1)
            values[self._group, self._day] = self._fold.reduce(bins, axis=2)
        flat = values.reshape(num_groups, self._num_days * self._per_day)
        for group, first, data in self._months:
            hours = np.frombuffer(data)
            flat[group, first : first + len(hours)] = hours
        return Table(tuple(self._numbers), flat)


def _read_days(
    scope: Scope, into: dict[Measure, _Collected], days: Sequence[date], is_total: bool
) -> None:
    rows = _rows("usagevector", "day", (scope, is_total), into, days)
    for measure, day, project, key, data in rows:
        into[Measure(measure)].add(day, project, key, data)


def _read_months(
    scope: Scope, into: dict[Measure, _Collected], months: Sequence[date], is_total: bool
) -> None:
    rows = _rows("usagemonthvector", "month", (scope, is_total), into, months)
    for measure, month, project, key, data in rows:
        into[Measure(measure)].add_month(month, project, key, data)


def _rows(
    table: str,
    column: str,
    kept_as: tuple[Scope, bool],
    measures: Iterable[Measure | Source],
    moments: Sequence[date],
) -> Iterator[tuple[int, date, int, str, bytes]]:
    """Kept rows of these days or months.

    In binary: as text each byte would come as two, to be parsed one by one.
    """
    if not moments:
        return
    scope, is_total = kept_as
    statement = sql.SQL(
        "SELECT measure, {column}, project_id, key, values FROM {table}"
        " WHERE scope = %s AND measure = ANY(%s) AND {column} >= %s AND {column} <= %s"
        " AND project_id {compared} 0"
    ).format(
        column=sql.Identifier(column),
        table=sql.Identifier(f"scheduling_{table}"),
        compared=sql.SQL("=" if is_total else ">"),
    )
    wanted = set(moments)
    connection.ensure_connection()
    with psycopg.Cursor(connection.connection) as cursor:
        cursor.execute(
            statement,
            [int(scope), [int(m) for m in measures], moments[0], moments[-1]],
            binary=True,
        )
        for row in cursor:
            if row[1] in wanted:
                yield row
