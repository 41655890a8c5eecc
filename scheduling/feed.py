"""What has changed since a planner last read all rows, from the log that the database itself keeps.

Transactions commit in another order than they begin. So a reader does not go by the number of a row
but by what it could see: its mark is PostgreSQL's own snapshot, and it reads on with the changes
of all transactions that were not visible in it. None is missed or read twice, and what goes on in
other databases of the server does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from scheduling.models import Change


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened since a mark, and the mark from which to read on."""

    mark: str
    rows: tuple[tuple[int, str, str, str], ...]
    """Transaction, kind, operation, key."""


def mark() -> str:
    """What can be read now, as `pg_snapshot`."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_snapshot()::text")
        return str(cursor.fetchone()[0])


def since(earlier: str) -> Changes:
    """Changes that could not be read at a mark, and the next mark, read at the same instant."""
    with connection.cursor() as cursor:
        # The comparison with the oldest open transaction is for the index.
        cursor.execute(
            "SELECT pg_current_snapshot()::text,"
            " change.xid, change.kind, change.operation, change.key"
            " FROM (SELECT %s::pg_snapshot AS earlier) AS before"
            " LEFT JOIN scheduling_change change"
            " ON change.xid >= pg_snapshot_xmin(earlier)::text::bigint"
            " AND NOT pg_visible_in_snapshot(change.xid::text::xid8, earlier)",
            [earlier],
        )
        found = cursor.fetchall()
    rows = tuple((xid, kind, operation, key) for _, xid, kind, operation, key in found if kind)
    return Changes(found[0][0], rows)


def this_transaction() -> int:
    """The number under which this transaction's changes are logged."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()::text::bigint")
        return int(cursor.fetchone()[0])


def expire(before: datetime) -> int:
    """Delete what no planner asks for any more."""
    return Change.objects.filter(at__lt=before).delete()[0]
