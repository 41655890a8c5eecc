"""Answers: one series per group, as far as the viewer may know the group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise

import numpy as np
from django.utils.translation import gettext as _
from numpy.typing import NDArray

from projects.models import User
from scheduling.analytics import ended, sight, store
from scheduling.analytics.computing import HOUR, QUARTER, first_known
from scheduling.analytics.intervals import Floats
from scheduling.analytics.measures import Measure, Scope
from scheduling.analytics.metrics import Form, Group, Metric
from scheduling.analytics.query import Query
from scheduling.analytics.sight import OTHERS, UNALLOCATED, WHOLE, Named, Sight
from scheduling.analytics.store import Table

Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """One step of time.

    Attributes:
        is_partial: The period, or the present, cuts it.
    """

    start: datetime
    end: datetime
    is_partial: bool


@dataclass(frozen=True, slots=True)
class Series:
    """One group's values.

    Attributes:
        key: Stable: a name; `others`, `unallocated`, `all` and `capacity` are no group's.
        values: One per bucket; None is no data.
        total: Over the whole period.
        coverage: For what samples tell: which part was measured, 0 to 1, per bucket.
        total_coverage: Likewise over the whole period.
    """

    key: str
    label: str
    values: Values
    total: float | None
    coverage: Values | None = None
    total_coverage: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked, and the answer.

    Attributes:
        series: Of groups, largest first; then *others*, then *unallocated*.
        whole: Of everything that the viewer may know, *unallocated* apart.
        capacity: What groups and *unallocated* add up to; None where there is no such thing.
        is_restricted: Whether the viewer sees only a part of the cost.
    """

    query: Query
    buckets: tuple[Bucket, ...]
    series: tuple[Series, ...]
    whole: Series
    capacity: Series | None
    is_restricted: bool


def run(query: Query, viewer: User, now: datetime) -> Answer:
    """Answer a question for one viewer.

    Raises:
        QueryError: the viewer may not see this by this group.
    """
    seen = sight.of(query, viewer)
    edges = query.edges
    buckets = tuple(
        Bucket(start, end, is_partial or end > now)
        for start, end, is_partial in zip(edges[:-1], edges[1:], query.partial, strict=True)
    )
    if query.metric.form is Form.ENDED:
        found = ended.statistics(query, seen, now)
        told = [Series(name.key, name.label, *values) for name, values in found.items()]
        whole = next(series for series in told if series.key == WHOLE)
        if query.group_by is not Group.TOTAL:
            told.remove(whole)
        return Answer(query, buckets, _ordered(told), whole, None, seen.is_restricted)
    return _from_sums(query, seen, buckets, now)


def _from_sums(query: Query, seen: Sight, buckets: tuple[Bucket, ...], now: datetime) -> Answer:
    metric = query.metric
    # By hours where days and hours begin on one: most zones do, and months are kept so.
    edges = query.edges
    width = HOUR if all(at.minute == 0 for at in edges) else QUARTER
    period = query.since, query.until
    read = partial(store.read, period=period, now=now, bin_width=width)
    tables = read(seen.scope, metric.measures, is_total=seen.is_total)
    if metric.whole is not None and seen.scope is not Scope.NODE:
        # What there was has no project, user, kind or template.
        tables |= read(Scope.NODE_TYPE, [metric.whole], is_total=True)
    starts = [(at - query.since) // width for at in edges[:-1]]
    sums = _Sums(query, seen, tables, starts, _known_buckets(query, now))
    series = [sums.series(name, rows) for name, rows in sums.groups()]
    whole = sums.series(Named(WHOLE, _("All")), sums.seen_rows())
    capacity = None
    if metric.whole is not None and not seen.is_restricted and query.only is None:
        capacity = sums.capacity(metric.whole)
        series.append(sums.rest(metric))
    return Answer(query, buckets, _ordered(series), whole, capacity, seen.is_restricted)


def _known_buckets(query: Query, now: datetime) -> NDArray[np.bool_]:
    """Which buckets have anything known in them: not those before the first node ever reported."""
    first = first_known()
    edges = query.edges
    return np.array(
        [first is not None and end > first and start < now for start, end in pairwise(edges)]
    )


class _Sums:
    """Sums by bin to values by bucket and group."""

    def __init__(
        self,
        query: Query,
        seen: Sight,
        tables: Mapping[Measure, Table],
        starts: list[int],
        known: NDArray[np.bool_],
    ) -> None:
        """Fold tables into buckets that begin at these bins."""
        self._query, self._seen, self._known = query, seen, known
        self._folded = {
            measure: self._fold(measure, table.values, starts) for measure, table in tables.items()
        }
        self._names = {
            measure: [seen.group_of(project, key) for project, key in table.groups]
            for measure, table in tables.items()
        }

    @staticmethod
    def _fold(measure: Measure, values: Floats, starts: list[int]) -> Floats:
        """Shape (groups, buckets + 1): the last column is the whole period."""
        fold = np.maximum if measure is Measure.MEMORY_PEAK else np.add
        by_bucket = fold.reduceat(values, starts, axis=1)
        whole = fold.reduce(by_bucket, axis=1, keepdims=True)
        return np.concatenate([by_bucket, whole], axis=1)

    def groups(self) -> list[tuple[Named, dict[Measure, list[int]]]]:
        """Each group with the rows of each measure that belong to it."""
        rows: dict[Named, dict[Measure, list[int]]] = {}
        shown = set(self._query.metric.measures) - {self._query.metric.whole}
        for measure, names in self._names.items():
            for number, name in enumerate(names):
                if name is not None and measure in shown:
                    rows.setdefault(name, {}).setdefault(measure, []).append(number)
        return list(rows.items())

    def seen_rows(self) -> dict[Measure, list[int]]:
        """All rows that the viewer sees."""
        return {
            measure: [number for number, name in enumerate(names) if name is not None]
            for measure, names in self._names.items()
        }

    def _sum(self, measure: Measure, rows: Mapping[Measure, list[int]]) -> Floats:
        table = self._folded[measure][rows.get(measure, [])]
        if measure is Measure.MEMORY_PEAK:
            highest: Floats = table.max(axis=0, initial=0.0)
            return highest
        total: Floats = table.sum(axis=0)
        return total

    def series(self, name: Named, rows: Mapping[Measure, list[int]]) -> Series:
        """A group's values, with no data where nothing is known."""
        metric = self._query.metric
        nothing = np.zeros(len(self._known) + 1)
        value = nothing if metric.of is None else self._sum(metric.of, rows)
        has_data = np.append(self._known, self._known.any())
        if metric.by is not None:
            divisor = self._sum(metric.by, rows)
            has_data &= divisor > 0
            value = 100 * np.divide(value, divisor, out=np.zeros_like(value), where=divisor > 0)
        coverage: Floats | None = None
        if metric.cover is not None:
            measured, held = (self._sum(measure, rows) for measure in metric.cover)
            has_data &= (measured > 0) | (held == 0)
            coverage = np.divide(measured, held, out=np.full_like(held, np.nan), where=held > 0)
        values = _plain(np.where(has_data, value, np.nan))
        if coverage is None:
            return Series(name.key, name.label, values[:-1], values[-1])
        covered = _plain(coverage)
        return Series(name.key, name.label, values[:-1], values[-1], covered[:-1], covered[-1])

    def capacity(self, measure: Measure) -> Series:
        """What there was."""
        values = _plain(np.where(self._all_known(), self._everything(measure), np.nan))
        return Series("capacity", _("Capacity"), values[:-1], values[-1])

    def rest(self, metric: Metric) -> Series:
        """What there was and nobody held."""
        if metric.of is None or metric.whole is None:
            raise TypeError(f"{metric.name} has no whole")
        rest = self._everything(metric.whole) - self._everything(metric.of)
        # Sums of many parts may differ in the last digit.
        values = _plain(np.where(self._all_known(), np.maximum(rest, 0.0), np.nan))
        return Series(UNALLOCATED, _("Unallocated"), values[:-1], values[-1])

    def _everything(self, measure: Measure) -> Floats:
        total: Floats = self._folded[measure].sum(axis=0)
        return total

    def _all_known(self) -> NDArray[np.bool_]:
        return np.append(self._known, self._known.any())


def _plain(values: Floats) -> Values:
    plain = values.astype(object)
    plain[np.isnan(values)] = None
    return tuple(plain.tolist())


def _ordered(series: list[Series]) -> tuple[Series, ...]:
    """Largest first, then *others*, then *unallocated*."""
    last = {OTHERS: 1, UNALLOCATED: 2}
    return tuple(
        sorted(series, key=lambda one: (last.get(one.key, 0), -(one.total or 0.0), one.key))
    )
