"""Samples to minutes, minutes to quarter-hours: means over time, with the time they cover.

A sample stands for the time since the one before it, after a silence for the usual time: so one
second or five between samples give the same mean, and a silence is not covered by anything. What
has no data has no mean and covers nothing. The ledger says which batches are new; whatever minutes
they touch, late ones too, are rolled anew together with their quarter-hours. Doing it twice
changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
from django.db import connection, transaction
from django.utils import timezone
from numpy.typing import NDArray
from psycopg import sql

from telemetry import binary_copy, partitions
from telemetry.metrics import METRICS, Fold, Kind
from telemetry.models import SAMPLE_MODELS, Batch, RolledQuarter, Subject

MINUTE = timedelta(minutes=1)
QUARTER = timedelta(minutes=15)

KEEP_MINUTES = timedelta(days=30)

USUAL_S = 5.0
LONGEST_S = 1.5 * USUAL_S
"""Up to here a sample is only late; beyond, one is missing."""
SETTLED_S = 10.0
"""A minute is rolled so long after its end, so that its last batches are there."""

_ORIGIN = datetime(2000, 1, 1, tzinfo=UTC)
_BATCHES_AT_ONCE = 20_000
_MINUTES_AT_ONCE = 30
_LOCK = 0x616C6C6F74_02


def floor(at: datetime, width: timedelta) -> datetime:
    """The start of the bucket in which a time lies."""
    return _ORIGIN + (at - _ORIGIN) // width * width


def table_of(kind: Kind, width: timedelta) -> str:
    """Name of the roll-up table of a kind."""
    return f"telemetry_{kind}_{'minute' if width == MINUTE else 'quarter'}"


def roll_up_new(
    *,
    now: datetime | None = None,
    budget_s: float = 45.0,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Roll up what has come in since the last time.

    Args:
        now: For tests.
        budget_s: Stop after about so long; the rest waits for the next call.
        clock: For tests.

    Returns:
        Minutes rolled; 0 also when somebody else is at it.
    """
    now = now or timezone.now()
    deadline = clock() + budget_s
    settled = floor(now - timedelta(seconds=SETTLED_S), MINUTE)
    num_minutes = 0
    while batches := _new_batches(settled):
        minutes = sorted({m for first, last in batches.values() for m in _minutes(first, last)})
        for run in _runs(minutes):
            if not _roll_run(run, now):
                return num_minutes
            num_minutes += len(run)
        Batch.objects.filter(pk__in=list(batches)).update(is_rolled=True)
        if clock() >= deadline:
            break
    return num_minutes


def _new_batches(settled: datetime) -> dict[int, tuple[datetime, datetime]]:
    rows = Batch.objects.filter(is_rolled=False, last_at__lt=settled).order_by("last_at")
    found = rows.values_list("pk", "first_at", "last_at")[:_BATCHES_AT_ONCE]
    return {pk: (first, last) for pk, first, last in found if first is not None and last}


def _minutes(first: datetime, last: datetime) -> Iterator[datetime]:
    at = floor(first, MINUTE)
    # What follows a late sample covers less time than before, and may lie in the next minute.
    end = last + timedelta(seconds=LONGEST_S)
    while at <= end:
        yield at
        at += MINUTE


def _runs(minutes: Sequence[datetime]) -> Iterator[list[datetime]]:
    """Neighbouring minutes together, since a statement rolls a stretch of time."""
    run: list[datetime] = []
    for at in minutes:
        if run and (at != run[-1] + MINUTE or len(run) >= _MINUTES_AT_ONCE):
            yield run
            run = []
        run.append(at)
    if run:
        yield run


@transaction.atomic
def _roll_run(minutes: Sequence[datetime], now: datetime) -> bool:
    """Roll these minutes and their quarter-hours; False when somebody else is at it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        if not cursor.fetchone()[0]:
            return False
    roll_minutes(minutes[0], minutes[-1] + MINUTE)
    roll_quarters({floor(at, QUARTER) for at in minutes}, now)
    return True


def roll_minutes(since: datetime, until: datetime) -> None:
    """Make the minutes from `since` up to `until` from samples."""
    days = _days(since, until)
    partitions.ensure_days(days, partitions.MINUTE_TABLES)
    with connection.cursor() as cursor:
        for kind in Kind:
            cursor.execute(
                _minute_sql(kind),
                {
                    "before": since - timedelta(seconds=LONGEST_S),
                    "since": since,
                    "until": until,
                    "usual": USUAL_S,
                    "longest": LONGEST_S,
                    "origin": _ORIGIN,
                },
            )


def roll_quarters(quarters: Iterable[datetime], now: datetime) -> None:
    """Make these quarter-hours from minutes, and note that they changed."""
    wanted = sorted(quarters)
    partitions.ensure_months({at.astimezone(UTC).date() for at in wanted})
    with connection.cursor() as cursor:
        for at in wanted:
            for kind in Kind:
                cursor.execute(_quarter_sql(kind), {"since": at, "until": at + QUARTER, "at": at})
    RolledQuarter.objects.bulk_create(
        [RolledQuarter(at=at, rolled_at=now) for at in wanted],
        update_conflicts=True,
        unique_fields=["at"],
        update_fields=["rolled_at"],
    )


def _days(since: datetime, until: datetime) -> set[date]:
    first, last = since.astimezone(UTC).date(), (until - MINUTE).astimezone(UTC).date()
    return {first + timedelta(days=n) for n in range((last - first).days + 1)}


# ---------------------------------------------------------------- SQL


def columns_of(kind: Kind) -> list[str]:
    """Columns of a kind's roll-up tables, after `subject_id` and `at`."""
    columns: list[str] = []
    for metric in METRICS[kind]:
        columns.append(metric.name)
        if metric.fold is not Fold.LAST:
            columns.append(f"{metric.name}_s")
        if metric.fold is Fold.PEAK:
            columns.append(f"{metric.name}_peak")
    return columns


def _minute_sql(kind: Kind) -> sql.Composed:
    folds: list[sql.Composable] = []
    for metric in METRICS[kind]:
        x = sql.Identifier(metric.name)
        if metric.fold is Fold.LAST:
            folds.append(sql.SQL("max({x})").format(x=x))
            continue
        covered = sql.SQL("sum(w) FILTER (WHERE {x} IS NOT NULL)").format(x=x)
        folds.append(sql.SQL("sum({x} * w) / NULLIF({s}, 0)").format(x=x, s=covered))
        folds.append(sql.SQL("LEAST(round(COALESCE({s}, 0)), 60)").format(s=covered))
        if metric.fold is Fold.PEAK:
            folds.append(sql.SQL("max({x})").format(x=x))
    names = [sql.Identifier(metric.name) for metric in METRICS[kind]]
    return sql.SQL(
        "WITH timed AS (SELECT subject_id, at, {names}, EXTRACT(EPOCH FROM at"
        " - lag(at) OVER (PARTITION BY subject_id ORDER BY at))::float8 AS gap"
        " FROM {samples} WHERE at >= %(before)s AND at < %(until)s),"
        " weighted AS (SELECT *, CASE WHEN gap <= %(longest)s THEN gap ELSE %(usual)s END AS w"
        " FROM timed) "
        "INSERT INTO {table} (subject_id, at, {columns})"
        " SELECT subject_id, date_bin('1 minute', at, %(origin)s), {folds} FROM weighted"
        " WHERE at >= %(since)s GROUP BY 1, 2 ORDER BY 2, 1 ON CONFLICT (subject_id, at)"
        " DO UPDATE SET {updates}"
    ).format(
        names=sql.SQL(", ").join(names),
        samples=sql.Identifier(SAMPLE_MODELS[kind]._meta.db_table),
        folds=sql.SQL(", ").join(folds),
        **_target(kind, MINUTE),
    )


def _quarter_sql(kind: Kind) -> sql.Composed:
    folds: list[sql.Composable] = []
    for metric in METRICS[kind]:
        x = sql.Identifier(metric.name)
        if metric.fold is Fold.LAST:
            folds.append(sql.SQL("max({x})").format(x=x))
            continue
        s = sql.Identifier(f"{metric.name}_s")
        folds.append(sql.SQL("sum({x} * {s}) / NULLIF(sum({s}), 0)").format(x=x, s=s))
        folds.append(sql.SQL("sum({s})").format(s=s))
        if metric.fold is Fold.PEAK:
            folds.append(sql.SQL("max({})").format(sql.Identifier(f"{metric.name}_peak")))
    return sql.SQL(
        "INSERT INTO {table} (subject_id, at, {columns})"
        " SELECT subject_id, %(at)s, {folds} FROM {minutes} WHERE at >= %(since)s"
        " AND at < %(until)s GROUP BY 1 ORDER BY 1 ON CONFLICT (subject_id, at)"
        " DO UPDATE SET {updates}"
    ).format(
        folds=sql.SQL(", ").join(folds),
        minutes=sql.Identifier(table_of(kind, MINUTE)),
        **_target(kind, QUARTER),
    )


def _target(kind: Kind, width: timedelta) -> dict[str, sql.Composable]:
    columns = [sql.Identifier(name) for name in columns_of(kind)]
    updates = [sql.SQL("{c} = EXCLUDED.{c}").format(c=column) for column in columns]
    return {
        "table": sql.Identifier(table_of(kind, width)),
        "columns": sql.SQL(", ").join(columns),
        "updates": sql.SQL(", ").join(updates),
    }


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Quarters:
    """Quarter-hours of many subjects as arrays: a row per subject and quarter-hour.

    Attributes:
        names: Of the subjects, by their number.
        subject: Number of each row's subject.
        bin: Quarter-hours since the start of what was asked for.
        values: By column; NaN is no data.
    """

    names: dict[int, str]
    subject: NDArray[np.int64]
    bin: NDArray[np.int64]
    values: dict[str, NDArray[np.float64]]


def read_quarters(kind: Kind, columns: Sequence[str], since: datetime, until: datetime) -> Quarters:
    """Read columns of all subjects of a kind from `since` up to `until`.

    By binary COPY with rows of one length (NaN stands for NULL on the way), so that numpy reads
    them as they come: a row costs a microsecond instead of twenty.
    """
    picked = [sql.SQL("COALESCE({}::float4, 'NaN')").format(sql.Identifier(c)) for c in columns]
    query = sql.SQL(
        "COPY (SELECT subject_id, (EXTRACT(EPOCH FROM at) - {since})::int4 / 900, {columns}"
        " FROM {table} WHERE at >= {start} AND at < {end}) TO STDOUT (FORMAT BINARY)"
    ).format(
        since=sql.Literal(int(since.timestamp())),
        columns=sql.SQL(", ").join(picked),
        table=sql.Identifier(table_of(kind, QUARTER)),
        start=sql.Literal(since),
        end=sql.Literal(until),
    )
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        data = b"".join(bytes(part) for part in copy)
    subject, bins, values = binary_copy.decode(data, columns)
    names = Subject.objects.filter(pk__in=np.unique(subject).tolist()).values_list("pk", "name")
    return Quarters(names=dict(names), subject=subject, bin=bins, values=values)
