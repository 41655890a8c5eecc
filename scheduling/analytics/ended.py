"""Statistics of what ended in a period: percentiles, means and ratios per bucket and group.

Percentiles are those of the values themselves, and ratios those of sums: nothing is averaged twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import numpy as np
from django.utils.translation import gettext as _

from scheduling.analytics import store
from scheduling.analytics.events import Source
from scheduling.analytics.intervals import Floats, Ints
from scheduling.analytics.query import Query
from scheduling.analytics.sight import WHOLE, Named, Sight

Values = tuple[float | None, ...]


def percentile(part: float, values: Floats, _weights: Floats) -> float:
    """Like `np.percentile`, digit by digit, whose checks cost ten times this for few values."""
    ordered = np.sort(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    below, above = ordered[low], ordered[min(low + 1, len(ordered) - 1)]
    after, gap = place - low, above - below
    return float(below + gap * after if after < 0.5 else above - gap * (1 - after))


def _mean(values: Floats, _weights: Floats) -> float:
    return float(values.mean())


def _sum(values: Floats, _weights: Floats) -> float:
    return float(values.sum())


def _ratio(factor: float, values: Floats, weights: Floats) -> float | None:
    total = float(weights.sum())
    return factor * float(values.sum()) / total if total > 0 else None


@dataclass(frozen=True, slots=True)
class _Statistic:
    """Events, and what is made of them.

    Attributes:
        of_none: Of no events at all: a count is 0 then, a mean is nothing.
    """

    source: Source
    value: Callable[[Floats, Floats], float | None]
    of_none: float | None = None


_PERCENT = partial(_ratio, 100.0)

STATISTICS = {
    "wait_s_p50": _Statistic(Source.WAITS, partial(percentile, 0.5)),
    "wait_s_p90": _Statistic(Source.WAITS, partial(percentile, 0.9)),
    "wait_s_p95": _Statistic(Source.WAITS, partial(percentile, 0.95)),
    "run_s_p50": _Statistic(Source.RUNS, partial(percentile, 0.5)),
    "run_s_p95": _Statistic(Source.RUNS, partial(percentile, 0.95)),
    "expansion_factor": _Statistic(Source.EXPANSION, partial(_ratio, 1.0)),
    "preemptions": _Statistic(Source.EVICTED, _sum, of_none=0.0),
    "lost_work_s": _Statistic(Source.LOST, _sum, of_none=0.0),
    "checkpoint_success": _Statistic(Source.CHECKPOINTS, _PERCENT),
    "completion_s": _Statistic(Source.COMPLETED, _mean),
    "no_lost_progress": _Statistic(Source.NO_LOSS, _PERCENT),
    "checkpoint_overhead": _Statistic(Source.OVERHEAD, _PERCENT),
    "migration_overhead": _Statistic(Source.MIGRATIONS, _PERCENT),
    "cost_per_training": _Statistic(Source.COSTS, _mean),
}


def statistics(
    query: Query, seen: Sight, now: datetime
) -> dict[Named, tuple[Values, float | None]]:
    """A metric of what ended, per group and (under `WHOLE`) of everything the viewer sees."""
    statistic = STATISTICS[query.metric.name]
    period = query.since, query.until
    groups, events = store.read_events(
        seen.scope, statistic.source, period, now, is_total=seen.is_total
    )
    names = [seen.group_of(project, key) for project, key in groups]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(filter(None, names)))}
    of_group = np.array([numbers[name] if name else -1 for name in names], dtype=np.int64)
    edges = np.array([at.timestamp() for at in query.edges])
    number = of_group[events.group]
    bucket = np.searchsorted(edges, events.values[:, 0], side="right") - 1
    is_seen = (number >= 0) & (bucket >= 0) & (bucket < len(edges) - 1)
    told = _Told(
        statistic, number[is_seen], bucket[is_seen], events.values[is_seen], len(edges) - 1
    )
    found = {name: told.of(told.group == number) for name, number in numbers.items()}
    return {**found, Named(WHOLE, _("All")): told.of(np.ones(len(told.group), dtype=bool))}


@dataclass(frozen=True, slots=True)
class _Told:
    """Events that the viewer sees, with their groups and buckets."""

    statistic: _Statistic
    group: Ints
    bucket: Ints
    events: Floats
    num_buckets: int

    def of(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[Values, float | None]:
        """Values by bucket, and of the whole period."""
        events = self.events[chosen]
        if not len(events):
            nothing = self.statistic.of_none
            return (nothing,) * self.num_buckets, nothing
        order = np.argsort(self.bucket[chosen], kind="stable")
        bucket, ordered = self.bucket[chosen][order], events[order]
        cuts = np.searchsorted(bucket, np.arange(self.num_buckets + 1))
        values = tuple(
            self._one(ordered[start:end])
            for start, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
        )
        return values, self._one(events)

    def _one(self, events: Floats) -> float | None:
        if not len(events):
            return self.statistic.of_none
        return self.statistic.value(events[:, 1], events[:, 2])
