"""What Swap brought in a period: loans made, GPU hours that trainings gained, and how fast sessions
woke.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from django.db.models import Q, QuerySet

from scheduling.models import Loan

PERCENTILES = (50, 95)


@dataclass(frozen=True, slots=True)
class Gain:
    """Figures of a period.

    Attributes:
        num_loans: That came about.
        num_refused: That did not, because the session was used again first, say.
        gpu_hours: That borrowers had, in the period.
        num_wakes: Ended by the session's use, or its owner's wish.
        wake_p50_s, wake_p95_s: From the wake to the running session; None without any.
        bytes_moved: To the host.
    """

    num_loans: int
    num_refused: int
    num_open: int
    gpu_hours: float
    num_wakes: int
    wake_p50_s: float | None
    wake_p95_s: float | None
    bytes_moved: int


def of_period(since: datetime, until: datetime) -> QuerySet[Loan]:
    """Loans that were made or went on in a period, newest first."""
    return Loan.objects.filter(started_at__lt=until).filter(
        Q(ended_at__isnull=True) | Q(ended_at__gt=since)
    )


def gained(since: datetime, until: datetime) -> Gain:
    """The figures; one query."""
    rows = of_period(since, until).values_list(
        "lent_at", "ended_at", "gpu_milli", "wake_s", "swapped_out_bytes", "state"
    )
    lent = [row for row in rows if row[0] is not None]
    wakes = [row[3] for row in lent if row[3] is not None]
    p50, p95 = _percentiles(wakes)
    return Gain(
        num_loans=len(lent),
        num_refused=sum(1 for row in rows if row[5] == "refused"),
        num_open=sum(1 for row in lent if row[1] is None),
        gpu_hours=sum(hours(row[0], row[1], row[2], since, until) for row in lent),
        num_wakes=len(wakes),
        wake_p50_s=p50,
        wake_p95_s=p95,
        bytes_moved=sum(row[4] for row in lent),
    )


def hours(
    lent_at: datetime | None,
    ended_at: datetime | None,
    gpu_milli: int,
    since: datetime,
    until: datetime,
) -> float:
    """GPU hours of a loan within a period."""
    if lent_at is None:
        return 0.0
    end = until if ended_at is None else min(ended_at, until)
    return max(0.0, (end - max(lent_at, since)).total_seconds()) / 3600 * gpu_milli / 1000


def _percentiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    p50, p95 = np.percentile(values, PERCENTILES)
    return float(p50), float(p95)
