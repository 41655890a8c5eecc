"""The parts of the sample and roll-up tables: made before a part's first row, dropped whole.

Samples and minutes have a part per day, quarter-hours one per month, all in UTC. Samples may come
late, so a batch can need any day that is still kept; whoever writes asks for its days first.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from django.db import connection, transaction
from psycopg import sql

from telemetry.metrics import Kind
from telemetry.models import SAMPLE_MODELS

TABLES = tuple(model._meta.db_table for model in SAMPLE_MODELS.values())
MINUTE_TABLES = tuple(f"telemetry_{kind}_minute" for kind in Kind)
QUARTER_TABLES = tuple(f"telemetry_{kind}_quarter" for kind in Kind)

# Any constant that nobody else locks: makes two writers of a part's first rows take turns.
_LOCK = 0x616C6C6F74_01


def ensure_days(days: Iterable[date], tables: Iterable[str] = TABLES) -> None:
    """Make the parts of these days where they are missing. Call inside the writing transaction."""
    wanted = {
        f"{table}_{day:%Y%m%d}": (table, day, day + timedelta(days=1))
        for day in days
        for table in tables
    }
    _ensure(wanted)


def ensure_months(days: Iterable[date], tables: Iterable[str] = QUARTER_TABLES) -> None:
    """Make the parts of the months of these days. Call inside the writing transaction."""
    firsts = {day.replace(day=1) for day in days}
    wanted = {
        f"{table}_{first:%Y%m}": (table, first, (first + timedelta(days=31)).replace(day=1))
        for first in firsts
        for table in tables
    }
    _ensure(wanted)


# Parts that were there when a transaction of this process ended, by database: every batch asks.
_seen: set[tuple[object, object, str]] = set()


def _ensure(wanted: dict[str, tuple[str, date, date]]) -> None:
    database = connection.settings_dict["HOST"], connection.settings_dict["NAME"]
    named = {(*database, part) for part in wanted}
    if named <= _seen:
        return
    _make(wanted)
    transaction.on_commit(lambda: _seen.update(named))


def _make(wanted: dict[str, tuple[str, date, date]]) -> None:
    missing = wanted.keys() - _existing(wanted)
    if not missing:
        return
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        for part in sorted(missing - _existing(missing)):
            table, since, until = wanted[part]
            cursor.execute(
                sql.SQL("CREATE TABLE {} PARTITION OF {} FOR VALUES FROM ({}) TO ({})").format(
                    sql.Identifier(part),
                    sql.Identifier(table),
                    sql.Literal(_midnight(since)),
                    sql.Literal(_midnight(until)),
                )
            )


def drop_before(day: date, tables: Iterable[str] = TABLES) -> list[str]:
    """Drop the parts of all earlier days; returns their names."""
    with transaction.atomic(), connection.cursor() as cursor:
        # A long reader makes this wait, and everybody else would wait behind it.
        cursor.execute("SET LOCAL lock_timeout = '5s'")
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        limits = {table: f"{table}_{day:%Y%m%d}" for table in tables}
        old = sorted(part for table, limit in limits.items() for part in _earlier(table, limit))
        _seen.clear()
        for part in old:
            cursor.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(part)))
    return old


def _earlier(table: str, limit: str) -> list[str]:
    """Parts of a table below a name: names end in the date, so their order is that of time."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT part.relname FROM pg_inherits"
            " JOIN pg_class part ON part.oid = inhrelid"
            " WHERE inhparent = %s::regclass AND part.relname < %s",
            [table, limit],
        )
        return [str(name) for (name,) in cursor.fetchall()]


def _existing(names: Iterable[str]) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tablename FROM pg_tables"
            " WHERE schemaname = current_schema() AND tablename = ANY(%s)",
            [list(names)],
        )
        return {str(name) for (name,) in cursor.fetchall()}


def _midnight(day: date) -> str:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).isoformat()
