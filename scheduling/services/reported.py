"""Values of what agents report, read: ids and times that may be wrong or missing."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from django.db.models import BigIntegerField

_NOBODY = uuid.UUID(int=0)


def uuid_of(text: str) -> uuid.UUID:
    """An id as a report names it; where it is none, one that no row has."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return _NOBODY


def time_of(seconds: float | None) -> datetime | None:
    """A time as a report tells it, in seconds since 1970; None where it tells none that can be."""
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds is not None else None
    except (ValueError, OverflowError, OSError):
        return None


def step_of(number: int | None) -> int | None:
    """A training's step; None where it tells none that can be one."""
    return number if number is not None and 0 <= number <= BigIntegerField.MAX_BIGINT else None
