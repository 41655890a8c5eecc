"""A known hour of the day, near the present: raw samples are read for two days only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_NOW = datetime.now(UTC)
_TODAY = _NOW.replace(hour=12, minute=0, second=0, microsecond=0)

NOON = _TODAY if _TODAY <= _NOW else _TODAY - timedelta(days=1)
"""The latest one of UTC."""
DAY = f"{NOON:%Y-%m-%d}"
NEXT_DAY = f"{NOON + timedelta(days=1):%Y-%m-%d}"
