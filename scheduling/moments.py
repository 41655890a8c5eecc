"""Moments as the core counts them."""

from __future__ import annotations

from datetime import datetime


def unix_s(moment: datetime | None) -> float | None:
    """Seconds since 1970; None for no moment."""
    return None if moment is None else moment.timestamp()
