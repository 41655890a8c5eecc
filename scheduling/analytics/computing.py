"""Sums of a period from allocations and roll-ups, and the calendar by which they are kept.

Days and months are those of UTC; zones cut them into their own days when they are read.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import numpy as np
from django.db.models import Min

from scheduling.analytics import facts
from scheduling.analytics.intervals import Floats
from scheduling.analytics.measures import QUARTER_S
from scheduling.analytics.usage import Signals, Sums, integrate, no_signals, quarter_edges
from scheduling.models import CapacityInterval
from telemetry import rollups
from telemetry.metrics import Kind

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
QUARTER = timedelta(seconds=QUARTER_S)

SETTLES_AFTER = timedelta(minutes=20)
"""A day is final when the quarter-hour after it is rolled up: idleness looks at neighbours."""

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


def first_known() -> datetime | None:
    """When anything was there for the first time; None while nothing ever was."""
    first: datetime | None = CapacityInterval.objects.aggregate(first=Min("started_at"))["first"]
    return first


def final_at(day: date) -> datetime:
    return midnight(day) + DAY + SETTLES_AFTER


def midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def month_of(day: date) -> date:
    return day.replace(day=1)


def next_month(month: date) -> date:
    return month_of(month + timedelta(days=31))


def days_of(month: date) -> list[date]:
    return [month + n * DAY for n in range((next_month(month) - month).days)]
