"""Reads one subject's history, thinned so that a chart stays drawable.

From samples while they are there and the chart is short, else from minutes, else from
quarter-hours: whatever is finest of what is kept and not finer than the chart can show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.utils import timezone
from psycopg import sql

from telemetry.ingestion import horizon
from telemetry.metrics import METRICS, Fold, Kind, metric_names, split_subject
from telemetry.models import SAMPLE_MODELS
from telemetry.rollups import KEEP_MINUTES, MINUTE, QUARTER, table_of

SAMPLE_EVERY_S = 5
MAX_POINTS = 1000

# Widths of means that people read easily, in seconds.
_WIDTHS_S = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)

# Closer than two samples that nobody watched, which do not come quite evenly.
_CLOSE_S = 4.5

# Up to this, samples are few enough to be read themselves.
_SAMPLES_AT_MOST = timedelta(hours=24)
_ORIGIN = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one subject over time, oldest first.

    Attributes:
        columns: By metric; as long as `times`; None is no data.
        width_s: Each value is the mean over so many seconds; that of single samples is 5.
    """

    times: tuple[datetime, ...]
    columns: dict[str, tuple[float | None, ...]]
    width_s: int


def width_for(period: timedelta) -> int:
    """Narrowest width that yields at most `MAX_POINTS` points."""
    needed = period.total_seconds() / MAX_POINTS
    return next((width for width in _WIDTHS_S if width >= needed), _WIDTHS_S[-1])


def read(subject: str, metrics: Sequence[str], since: datetime, until: datetime) -> Series:
    """Read a subject's metrics from `since` up to `until`.

    Raises:
        ValueError: the subject or a metric does not exist; says which there are.
    """
    kind, name = split_subject(subject)
    known = metric_names(kind)
    for metric in metrics:
        if metric not in known:
            raise ValueError(f"metric is {metric!r}: a {kind} has {', '.join(known)}")
    width_s = width_for(until - since)
    if until - since > _SAMPLES_AT_MOST or since < horizon(timezone.now()):
        return _read_rolled(kind, name, metrics, since, until)
    found = (
        evened(_samples(kind, name, metrics, since, until))
        if width_s == SAMPLE_EVERY_S
        else _means(kind, name, metrics, (since, until), width_s)
    )
    return Series(
        times=tuple(row[0] for row in found),
        columns={
            metric: tuple(row[number] for row in found) for number, metric in enumerate(metrics, 1)
        },
        width_s=width_s,
    )


def devices_together(since: datetime, until: datetime) -> list[tuple[datetime, float | None]]:
    """How many GPUs' worth all measured devices did, by minute; without data none counts."""
    statement = sql.SQL(
        "SELECT at, sum(gpu_util_percent) / 100 FROM {table}"
        " WHERE at >= %s AND at < %s GROUP BY at ORDER BY at"
    ).format(table=sql.Identifier(table_of(Kind.DEVICE, MINUTE)))
    with connection.cursor() as cursor:
        cursor.execute(statement, [since, until])
        return [(at, value) for at, value in cursor.fetchall()]


Row = tuple[Any, ...]
"""A time, then values. `Any`: the types of a row's columns differ."""


def _samples(
    kind: Kind, name: str, metrics: Sequence[str], since: datetime, until: datetime
) -> list[Row]:
    samples = SAMPLE_MODELS[kind]._default_manager.filter(
        subject__kind=kind, subject__name=name, at__gte=since, at__lt=until
    )
    return list(samples.order_by("at").values_list("at", *metrics))


def _means(
    kind: Kind,
    name: str,
    metrics: Sequence[str],
    period: tuple[datetime, datetime],
    width_s: int,
) -> list[Row]:
    """Means of samples over even widths.

    Means of means over five seconds, so that the time in which samples came every second weighs no
    more. They leave out NULL: a time without data is not a time of nothing.
    """
    means = sql.SQL(", ").join(
        sql.SQL("avg({0}) AS {0}").format(sql.Identifier(m)) for m in metrics
    )
    query = sql.SQL(
        "SELECT date_bin(%(width)s::interval, five, %(origin)s) AS bucket, {means} FROM ("
        " SELECT date_bin(%(every)s::interval, at, %(origin)s) AS five, {means} FROM {table}"
        " WHERE subject_id = (SELECT id FROM telemetry_subject"
        " WHERE kind = %(kind)s AND name = %(name)s)"
        " AND at >= %(since)s AND at < %(until)s GROUP BY 1) fives GROUP BY 1 ORDER BY 1"
    ).format(means=means, table=sql.Identifier(SAMPLE_MODELS[kind]._meta.db_table))
    with connection.cursor() as cursor:
        cursor.execute(
            query,
            {
                "width": f"{width_s} seconds",
                "every": f"{SAMPLE_EVERY_S} seconds",
                "origin": _ORIGIN,
                "kind": kind.value,
                "name": name,
                "since": period[0],
                "until": period[1],
            },
        )
        return list(cursor.fetchall())


def evened(rows: Sequence[Row]) -> list[Row]:
    """Samples that came every second while somebody looked, as means at the distance of others."""
    groups: list[list[Row]] = []
    for row in rows:
        if groups and (row[0] - groups[-1][0][0]).total_seconds() < _CLOSE_S:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [group[0] if len(group) == 1 else _mean_row(group) for group in groups]


def _mean_row(group: Sequence[Row]) -> Row:
    """At the time of the last one; what none of them knows stays no data."""
    columns = list(zip(*group, strict=True))[1:]
    known = [[value for value in column if value is not None] for column in columns]
    return (group[-1][0], *(sum(values) / len(values) if values else None for values in known))


def _read_rolled(
    kind: Kind, name: str, metrics: Sequence[str], since: datetime, until: datetime
) -> Series:
    """Means of means, each weighted by the time for which it has data."""
    source = MINUTE if since >= timezone.now() - KEEP_MINUTES else QUARTER
    width_s = max(width_for(until - since), int(source.total_seconds()))
    folds = {metric.name: metric.fold for metric in METRICS[kind]}
    means = [
        sql.SQL(
            "max({x})" if folds[m] is Fold.LAST else "sum({x} * {s}) / NULLIF(sum({s}), 0)"
        ).format(x=sql.Identifier(m), s=sql.Identifier(f"{m}_s"))
        for m in metrics
    ]
    query = sql.SQL(
        "SELECT date_bin(%(width)s::interval, at, %(origin)s) AS bucket, {means} FROM {table}"
        " WHERE subject_id = (SELECT id FROM telemetry_subject"
        " WHERE kind = %(kind)s AND name = %(name)s)"
        " AND at >= %(since)s AND at < %(until)s GROUP BY 1 ORDER BY 1"
    ).format(means=sql.SQL(", ").join(means), table=sql.Identifier(table_of(kind, source)))
    with connection.cursor() as cursor:
        cursor.execute(
            query,
            {
                "width": f"{width_s} seconds",
                "origin": _ORIGIN,
                "kind": kind.value,
                "name": name,
                "since": since,
                "until": until,
            },
        )
        found = cursor.fetchall()
    return Series(
        times=tuple(row[0] for row in found),
        columns={
            metric: tuple(row[number] for row in found) for number, metric in enumerate(metrics, 1)
        },
        width_s=width_s,
    )
