"""What has changed since a planner last read all rows, from the log that the database itself keeps.

Transactions commit in another order than they begin. So a reader does not go by the number of a row
but by transactions: all that were over when it last looked are before its mark, and it reads again
whatever is not. A change may be read twice, and none is missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from scheduling.models import Change


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened since a mark, and the mark from which to read on."""

    mark: int
    rows: tuple[tuple[int, str, str, str], ...]
    """Transaction, kind, operation, key."""


def mark() -> int:
    """Every transaction before this one is over, and what it changed can be read."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        return int(cursor.fetchone()[0])


def since(earlier: int) -> Changes:
    """Changes of transactions from a mark on, and the next mark, read at the same instant."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint,"
            " change.xid, change.kind, change.operation, change.key"
            " FROM (SELECT) nothing LEFT JOIN scheduling_change change ON change.xid >= %s",
            [earlier],
        )
        found = cursor.fetchall()
    rows = tuple((xid, kind, operation, key) for _, xid, kind, operation, key in found if kind)
    return Changes(int(found[0][0]), rows)


def this_transaction() -> int:
    """The number under which this transaction's changes are logged."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()::text::bigint")
        return int(cursor.fetchone()[0])


def expire(before: datetime) -> int:
    """Delete what no planner asks for any more."""
    return Change.objects.filter(at__lt=before).delete()[0]
