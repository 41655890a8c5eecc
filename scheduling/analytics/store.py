"""Sums of past days, kept; sums of any period, read or computed.

A day (UTC) is computed anew while it runs and once more when it is over and its last samples have
come; later only if late samples change one of its quarter-hours. Whoever asks for days that are
not kept gets them computed at once, by the same function: the numbers are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import psycopg
from django.db import connection, transaction
from django.db.models import Min

from scheduling.analytics import facts
from scheduling.analytics.intervals import Floats
from scheduling.analytics.measures import QUARTER_S, QUARTERS_PER_DAY, Measure, Scope
from scheduling.analytics.usage import Signals, Sums, integrate, no_signals, quarter_edges
from scheduling.models import CapacityInterval, UsageDay, UsageVector
from telemetry import rollups
from telemetry.metrics import Kind
from telemetry.models import RolledQuarter

DAY = timedelta(days=1)
QUARTER = timedelta(seconds=QUARTER_S)

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
    late = _days_rolled_late(kept, now)
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
    UsageVector.objects.filter(day=day).delete()
    with (
        connection.cursor() as cursor,
        cursor.copy(
            "COPY scheduling_usagevector (scope, measure, day, project_id, key, values)"
            " FROM STDIN (FORMAT BINARY)"
        ) as copy,
    ):
        copy.set_types(["int2", "int2", "date", "int4", "varchar", "bytea"])
        for (scope, measure, project, key), row in sorted(sums.items(), key=lambda item: item[0]):
            copy.write_row((int(scope), int(measure), day, project, key, row.tobytes()))
    UsageDay.objects.update_or_create(day=day, defaults={"computed_at": now})
    return True


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Table:
    """One measure of all groups of a scope.

    Attributes:
        groups: (project, key) of each row.
        values: Shape (groups, quarter-hours).
    """

    groups: tuple[tuple[int, str], ...]
    values: Floats


def read(
    scope: Scope, measures: Sequence[Measure], since: datetime, until: datetime, now: datetime
) -> dict[Measure, Table]:
    """Sums of a period that begins and ends on quarter-hours."""
    first_day, last_day = since.astimezone(UTC).date(), (until - QUARTER).astimezone(UTC).date()
    days = [first_day + n * DAY for n in range((last_day - first_day).days + 1)]
    kept = _kept(days, now)
    collected: dict[Measure, _Collected] = {
        measure: _Collected(first_day, len(days)) for measure in measures
    }
    _read_kept(scope, collected, sorted(kept))
    for day in _worth_computing(days, kept, now):
        start = _midnight(day)
        for (row_scope, measure, project, key), row in compute(start, start + DAY, now).items():
            if row_scope == scope and measure in collected:
                collected[measure].add(day, project, key, row.tobytes())
    skipped = round((since - _midnight(first_day)) / QUARTER)
    count = round((until - since) / QUARTER)
    return {measure: item.table(skipped, count) for measure, item in collected.items()}


def _kept(days: Sequence[date], now: datetime) -> set[date]:
    """Days whose kept sums are good enough."""
    rows = UsageDay.objects.filter(day__gte=days[0], day__lte=days[-1])
    return {
        day
        for day, computed_at in rows.values_list("day", "computed_at")
        if computed_at >= min(_final_at(day), now - timedelta(seconds=FRESH_S))
    }


def _worth_computing(days: Sequence[date], kept: set[date], now: datetime) -> Iterator[date]:
    """Days that are not kept and in which something was there."""
    missing = [day for day in days if day not in kept and _midnight(day) < now]
    first = first_known() if missing else None
    if first is not None:
        yield from (day for day in missing if day >= first.astimezone(UTC).date())


class _Collected:
    """A measure's rows on their way into one array."""

    def __init__(self, first_day: date, num_days: int) -> None:
        self._first_day, self._num_days = first_day, num_days
        self._numbers: dict[tuple[int, str], int] = {}
        self._group: list[int] = []
        self._day: list[int] = []
        self._data: list[bytes] = []

    def add(self, day: date, project: int, key: str, data: bytes) -> None:
        self._group.append(self._numbers.setdefault((project, key), len(self._numbers)))
        self._day.append((day - self._first_day).days)
        self._data.append(data)

    def table(self, skipped: int, count: int) -> Table:
        values = np.zeros((len(self._numbers), self._num_days, QUARTERS_PER_DAY))
        if self._data:
            rows = np.frombuffer(b"".join(self._data)).reshape(-1, QUARTERS_PER_DAY)
            values[self._group, self._day] = rows
        flat = values.reshape(len(self._numbers), self._num_days * QUARTERS_PER_DAY)[
            :, skipped : skipped + count
        ]
        return Table(tuple(self._numbers), flat)


def _read_kept(scope: Scope, into: dict[Measure, _Collected], days: Sequence[date]) -> None:
    if not days:
        return
    connection.ensure_connection()
    # Binary: as text each byte would come as two, to be parsed one by one.
    with psycopg.Cursor(connection.connection) as cursor:
        cursor.execute(
            "SELECT measure, day, project_id, key, values FROM scheduling_usagevector"
            " WHERE scope = %s AND measure = ANY(%s) AND day >= %s AND day <= %s"
            " AND day = ANY(%s)",
            [int(scope), [int(m) for m in into], days[0], days[-1], list(days)],
            binary=True,
        )
        for measure, day, project, key, data in cursor:
            into[Measure(measure)].add(day, project, key, data)
