"""The newest sample of each subject of a kind, for who shows the present."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from psycopg import sql

from telemetry.metrics import Kind, metric_names
from telemetry.models import SAMPLE_MODELS

RECENT = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Newest:
    """A subject's latest values; None is no data."""

    at: datetime
    values: dict[str, float | None]


def newest(kind: Kind, now: datetime, *, within: timedelta = RECENT) -> dict[str, Newest]:
    """By the subject's name; who has sent nothing for so long is absent. One query."""
    metrics = metric_names(kind)
    query = sql.SQL(
        "SELECT subject.name, sample.at, {columns} FROM telemetry_subject subject,"
        " LATERAL (SELECT * FROM {table} WHERE subject_id = subject.id AND at > %s AND at <= %s"
        " ORDER BY at DESC LIMIT 1) sample WHERE subject.kind = %s"
    ).format(
        columns=sql.SQL(", ").join([sql.Identifier("sample", name) for name in metrics]),
        table=sql.Identifier(SAMPLE_MODELS[kind]._meta.db_table),
    )
    with connection.cursor() as cursor:
        # A clock that is a little ahead is no reason to show nothing.
        cursor.execute(query, [now - within, now + within, kind.value])
        return {
            str(name): Newest(at, dict(zip(metrics, values, strict=True)))
            for name, at, *values in cursor.fetchall()
        }
