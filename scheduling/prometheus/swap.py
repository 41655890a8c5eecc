"""Swap for Prometheus: loans, what they gave, how fast sessions woke. Counters of the month."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime

from scheduling.analytics import loans
from scheduling.prometheus.exposition import Family, histogram

WAKE_LIMITS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


def families(month: datetime, now: datetime) -> Iterator[Family]:
    """One query."""
    outs = Family("allot_swap_out_total", "counter", "Sessions swapped out, this month")
    wakes = Family("allot_swap_in_seconds", "histogram", "From wake to running, this month")
    ends = Family("allot_swap_loans_ended_total", "counter", "Loans that ended, this month")
    gpu_s = Family("allot_swap_lent_gpu_seconds_total", "counter", "GPU time lent, this month")
    lent_now = Family("allot_swap_lent_gpus", "gauge", "GPUs lent now")
    by_type: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    now_milli: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    slow: dict[str, Counter[float]] = {}
    totals: defaultdict[str, float] = defaultdict(float)
    rows = loans.of_period(month, now).filter(lent_at__isnull=False)
    for row in rows.values_list(
        "device__node__node_type__name", "lent_at", "ended_at", "gpu_milli", "wake_s", "ended_by"
    ):
        kind, lent_at, ended_at, milli, wake_s, cause = row
        kind = kind or ""
        by_type[kind] += int(lent_at is not None and lent_at >= month)
        seconds[kind] += 3600 * loans.hours(lent_at, ended_at, milli, month, now)
        if ended_at is None:
            now_milli[kind] += milli
        else:
            ended[cause] += 1
        if wake_s is not None:
            limit = next((x for x in WAKE_LIMITS_S if wake_s <= x), float("inf"))
            slow.setdefault(kind, Counter())[limit] += 1
            totals[kind] += wake_s
    for kind in sorted(by_type):
        labels = {"node_type": kind}
        outs.add(by_type[kind], labels)
        gpu_s.add(seconds[kind], labels)
        lent_now.add(now_milli[kind] / 1000, labels)
    for cause in sorted(ended):
        ends.add(ended[cause], {"ended_by": cause})
    for kind in sorted(slow):
        histogram(wakes, {"node_type": kind}, WAKE_LIMITS_S, slow[kind], totals[kind])
    yield from (outs, wakes, ends, gpu_s, lent_now)
