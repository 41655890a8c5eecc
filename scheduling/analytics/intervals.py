"""Intervals cut into bins; pure numpy. Times are seconds from any common origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Parts of intervals by bin: interval number, bin number and seconds of each part."""

    item: Ints
    bin: Ints
    seconds: Floats


def cut(starts: Floats, ends: Floats, edges: Floats) -> Cuts:
    """Cut intervals at bin edges; what lies outside the bins is left out.

    Args:
        starts: Of each interval, shape (n,).
        ends: Likewise; an interval that ends before it starts is empty.
        edges: Ascending, shape (num_bins + 1,).

    Returns:
        One part per interval and bin that overlap.
    """
    starts = np.maximum(starts, edges[0])
    ends = np.minimum(ends, edges[-1])
    held = np.flatnonzero(ends > starts)
    first = np.searchsorted(edges, starts[held], side="right") - 1
    last = np.searchsorted(edges, ends[held], side="left") - 1
    counts = last - first + 1
    item = np.repeat(held, counts)
    # 0, 1, 2 … within each interval.
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    number = np.repeat(first, counts) + within
    seconds = np.minimum(ends[item], edges[number + 1]) - np.maximum(starts[item], edges[number])
    return Cuts(item, number, seconds)


@dataclass(frozen=True, slots=True)
class Levels:
    """A step function: `level` holds from `start` to `end`."""

    start: Floats
    end: Floats
    level: Floats


def excess(
    holdings: Sequence[tuple[float, float, float]],
    limits: Sequence[tuple[float, float]],
    until: float,
) -> Levels:
    """By how much the sum of holdings exceeds a limit, over time.

    Args:
        holdings: (start, end, amount), each with start < end.
        limits: (valid from, limit), ascending; before the first the limit is 0.
        until: Where the last piece ends.
    """
    if not holdings:
        nothing = np.empty(0)
        return Levels(nothing, nothing, nothing)
    times = np.array(
        [t for start, end, _ in holdings for t in (start, end)] + [t for t, _ in limits]
    )
    steps = np.array([s for _, _, amount in holdings for s in (amount, -amount)])
    rises = np.diff([0.0, *(value for _, value in limits)])
    changes = np.concatenate([steps, -rises])
    order = np.argsort(times, kind="stable")
    level = np.maximum(np.cumsum(changes[order]), 0.0)
    start = times[order]
    end = np.append(start[1:], until)
    used = (level > 1e-9) & (end > start)
    return Levels(start[used], end[used], level[used])
