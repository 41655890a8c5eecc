"""Facts and signals to sums per quarter-hour and group; pure numpy.

`integrate` is the only place where analytics computes. What it returns adds up: over groups to the
whole, over bins to any period.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scheduling.analytics.facts import Facts, Piece
from scheduling.analytics.intervals import Cuts, Floats, Ints, cut, excess
from scheduling.analytics.measures import BANDS, NO_KEY, NO_PROJECT, QUARTER_S, Measure, Scope

HOUR_S = 3600.0

IDLE_GPU_PERCENT = 2.0
IDLE_CPU_OF_REQUEST = 0.10
IDLE_NETWORK_BYTES_PER_S = 50 * 1024.0
IDLE_COVERED_S = 0.95 * 1800
"""Half an hour of quiet in a row, but for a sample or two that are missing."""

Key = tuple[Scope, Measure, int, str]
Sums = dict[Key, Floats]


@dataclass(frozen=True, slots=True)
class Signals:
    """Roll-ups of workloads, by workload and bin, with one more bin on either side.

    Attributes:
        row_of: Number of each workload.
        gpu_percent: Use of the grant, shape (workloads, bins + 2); NaN is no data. Likewise cores,
            throttled (seconds per second), memory and peak (GiB), network (bytes per second).
        gpu_s, cpu_s, memory_s: Seconds of each bin for which there is data.
    """

    row_of: Mapping[str, int]
    gpu_percent: Floats
    gpu_s: Floats
    cores: Floats
    cpu_s: Floats
    throttled: Floats
    memory_gib: Floats
    memory_s: Floats
    peak_gib: Floats
    network: Floats


def no_signals(num_bins: int) -> Signals:
    """Nothing was measured."""
    empty = np.empty((0, num_bins + 2))
    return Signals({}, empty, empty, empty, empty, empty, empty, empty, empty, empty)


def integrate(facts: Facts, edges: Floats, signals: Signals) -> Sums:
    """Sum everything that happened by quarter-hour and group.

    Args:
        facts: Of the same period.
        edges: Of the bins, Unix seconds, shape (num_bins + 1,).
        signals: Of the workloads that held something.

    Returns:
        By scope, measure, project and key: one value per bin. Without an entry it is 0.

    Invariant:
        The sums of `*_ALLOCATED` over the groups of any scope are equal, and at most `*_CAPACITY`.
    """
    sums = _Sums(edges)
    _add_capacity(sums, facts.capacity)
    if facts.held:
        _add_held(sums, facts, signals)
    _add_quotas(sums, facts)
    sums.add_totals()
    return sums.found


@dataclass(slots=True)
class _Sums:
    edges: Floats
    found: Sums = field(default_factory=dict)

    @property
    def num_bins(self) -> int:
        return len(self.edges) - 1

    def add(
        self,
        scope: Scope,
        groups: _Grouping,
        cuts: Cuts,
        weights: Mapping[Measure, Floats],
    ) -> None:
        """Add each cut's weight to its group and bin."""
        place = groups.number[cuts.item] * self.num_bins + cuts.bin
        size = len(groups.names) * self.num_bins
        for measure, weight in weights.items():
            table = np.bincount(place, weight, size).astype(np.float64)
            for (project, key), row in zip(
                groups.names, table.reshape(-1, self.num_bins), strict=True
            ):
                if row.any():
                    self.found[scope, measure, project, key] = row

    def add_totals(self) -> None:
        """Over all projects by each key, and over all node types by project: charts read these."""
        totals: Sums = {}
        for (scope, measure, project, key), row in self.found.items():
            if project == NO_PROJECT or scope is Scope.USER:
                continue
            names = [(scope, measure, NO_PROJECT, key)]
            if scope is Scope.NODE_TYPE:
                names.append((Scope.PROJECT, measure, project, NO_KEY))
            for name in names:
                if name not in totals:
                    totals[name] = row.copy()
                elif measure is Measure.MEMORY_PEAK:
                    np.maximum(totals[name], row, out=totals[name])
                else:
                    totals[name] += row
        self.found |= totals

    def add_highest(self, scope: Scope, groups: _Grouping, cuts: Cuts, values: Floats) -> None:
        """The highest value of each group and bin."""
        table = np.zeros((len(groups.names), self.num_bins))
        np.maximum.at(table, (groups.number[cuts.item], cuts.bin), values)
        for (project, key), row in zip(groups.names, table, strict=True):
            if row.any():
                self.found[scope, Measure.MEMORY_PEAK, project, key] = row


@dataclass(frozen=True, slots=True)
class _Grouping:
    """Which group each piece belongs to."""

    number: Ints
    names: tuple[tuple[int, str], ...]


def _group(pieces: Sequence[Piece], name_of: Callable[[Piece], tuple[int, str]]) -> _Grouping:
    numbers: dict[tuple[int, str], int] = {}
    found = [numbers.setdefault(name_of(piece), len(numbers)) for piece in pieces]
    return _Grouping(np.array(found, dtype=np.int64), tuple(numbers))


def _array(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Pieces as arrays, cut into bins."""

    gpu: Floats
    cpu: Floats
    memory: Floats
    rate: Floats
    cuts: Cuts

    @classmethod
    def of(cls, pieces: Sequence[Piece], edges: Floats) -> _Pieces:
        gpu = _array(p.gpu for p in pieces)
        cpu = _array(p.cpu for p in pieces)
        memory = _array(p.memory_gib for p in pieces)
        rate = (
            gpu * _array(p.price.gpu for p in pieces)
            + cpu * _array(p.price.cpu for p in pieces)
            + memory * _array(p.price.memory for p in pieces)
        )
        starts, ends = _array(p.start for p in pieces), _array(p.end for p in pieces)
        return cls(gpu, cpu, memory, rate, cut(starts, ends, edges))

    def hours(self, amount: Floats) -> Floats:
        """Amount times time of each cut."""
        hours: Floats = amount[self.cuts.item] * self.cuts.seconds / HOUR_S
        return hours


def _add_capacity(sums: _Sums, pieces: Sequence[Piece]) -> None:
    if not pieces:
        return
    parts = _Pieces.of(pieces, sums.edges)
    weights = {
        Measure.GPU_CAPACITY: parts.hours(parts.gpu),
        Measure.CPU_CAPACITY: parts.hours(parts.cpu),
        Measure.MEMORY_CAPACITY: parts.hours(parts.memory),
        Measure.CAPACITY_COST: parts.hours(parts.rate),
    }
    by_type = _group(pieces, lambda p: (NO_PROJECT, p.node_type))
    by_node = _group(pieces, lambda p: (NO_PROJECT, p.node))
    sums.add(Scope.NODE_TYPE, by_type, parts.cuts, weights)
    sums.add(Scope.NODE, by_node, parts.cuts, weights)


# ---------------------------------------------------------------- what was held


def _add_held(sums: _Sums, facts: Facts, signals: Signals) -> None:
    pieces = facts.charged
    parts = _Pieces.of(pieces, sums.edges)
    seen = _Seen(facts, pieces, parts, signals, sums.num_bins)
    held_weights = {
        **_held_weights(parts),
        **_gpu_weights(parts, seen),
        **_cpu_and_memory_weights(parts, seen),
    }
    # Loans shift cost only: what is held stays with the lender.
    is_held = parts.cuts.item < len(facts.held)
    weights = {measure: weight * is_held for measure, weight in held_weights.items()}
    weights[Measure.COST] = parts.hours(parts.rate)
    weights[Measure.GPU_LENT] = np.where(is_held, 0.0, np.maximum(-parts.hours(parts.gpu), 0.0))
    weights[Measure.IDLE_COST] = weights[Measure.COST] * seen.is_idle
    peaks = seen.of(signals.peak_gib)
    for scope, name_of in NAMES.items():
        groups = _group(pieces, name_of)
        sums.add(scope, groups, parts.cuts, weights)
        sums.add_highest(scope, groups, parts.cuts, peaks)
    _add_borrowed(sums, facts)


def _project(piece: Piece) -> int:
    return piece.groups.project if piece.groups else NO_PROJECT


NAMES: Mapping[Scope, Callable[[Piece], tuple[int, str]]] = {
    Scope.NODE_TYPE: lambda p: (_project(p), p.node_type),
    Scope.USER: lambda p: (_project(p), p.groups.user if p.groups else NO_KEY),
    Scope.KIND: lambda p: (_project(p), p.groups.kind if p.groups else NO_KEY),
    Scope.TEMPLATE: lambda p: (_project(p), p.groups.template if p.groups else NO_KEY),
    Scope.NODE: lambda p: (NO_PROJECT, p.node),
}


class _Seen:
    """What signals say about each cut.

    A workload holds its node for as long as it holds anything, so the seconds for which it was
    measured are shared out over what it holds in proportion to time.
    """

    def __init__(
        self,
        facts: Facts,
        pieces: Sequence[Piece],
        parts: _Pieces,
        signals: Signals,
        num_bins: int,
    ) -> None:
        cuts = parts.cuts
        self.signals = signals
        self._num_rows = len(signals.row_of)
        rows = np.array([signals.row_of.get(p.workload, -1) for p in pieces], dtype=np.int64)
        self._row, self._bin = rows[cuts.item], cuts.bin
        is_device = np.array([p.is_device for p in pieces])
        on_node = ~is_device[cuts.item] & (self._row >= 0)
        self._held_s = np.zeros((self._num_rows, num_bins))
        np.add.at(self._held_s, (self._row[on_node], self._bin[on_node]), cuts.seconds[on_node])
        needs_gpu = np.zeros(self._num_rows, dtype=bool)
        needs_gpu[rows[is_device & (rows >= 0)]] = True
        asked = np.array([facts.requests.get(name, 0.0) for name in signals.row_of])
        self.is_idle = self._pick(idle_bins(signals, asked, needs_gpu).astype(float), 0.0) > 0

    def _pick(self, table: Floats, default: float) -> Floats:
        """The value of each cut's workload and bin."""
        if not self._num_rows:
            return np.full(len(self._row), default)
        rows = np.maximum(self._row, 0)
        return np.where(self._row >= 0, table[:, 1:-1][rows, self._bin], default)

    def of(self, table: Floats) -> Floats:
        """The mean over each cut; 0 where there is none, since nothing is measured there."""
        return np.nan_to_num(self._pick(table, 0.0))

    def fraction(self, covered_s: Floats) -> Floats:
        """Which part of each cut was measured, 0 to 1."""
        part = np.zeros_like(covered_s)
        held = self._held_s
        measured = np.minimum(covered_s[:, 1:-1], held)
        np.divide(measured, held, out=part[:, 1:-1], where=held > 0)
        return self._pick(part, 0.0)


def idle_bins(
    signals: Signals, asked_cores: Floats, needs_gpu: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Where each workload was idle, for half an hour or longer.

    What is not known is not idle; only the network may be missing.

    Args:
        signals: As measured.
        asked_cores: Of each workload.
        needs_gpu: Whether it holds any; otherwise the GPU says nothing.

    Returns:
        Shape (workloads, bins + 2); the first and last bin only serve their neighbours.
    """
    with np.errstate(invalid="ignore"):
        quiet = (
            (signals.cpu_s > 0)
            & (signals.cores < IDLE_CPU_OF_REQUEST * asked_cores[:, None])
            & ~(signals.network >= IDLE_NETWORK_BYTES_PER_S)
            & ((signals.gpu_percent < IDLE_GPU_PERCENT) | ~needs_gpu[:, None])
        )
    covered_s = np.where(quiet, signals.cpu_s, 0.0)
    in_a_row_s = (
        _since_broken(covered_s, quiet)
        + _since_broken(covered_s[:, ::-1], quiet[:, ::-1])[:, ::-1]
        - covered_s
    )
    idle: NDArray[np.bool_] = quiet & (in_a_row_s >= IDLE_COVERED_S)
    return idle


def _since_broken(covered_s: Floats, quiet: NDArray[np.bool_]) -> Floats:
    """Seconds covered in each bin and the quiet ones just before it."""
    total = np.cumsum(covered_s, axis=1)
    broken: Floats = np.maximum.accumulate(np.where(quiet, 0.0, total), axis=1)
    return total - broken


def _held_weights(parts: _Pieces) -> dict[Measure, Floats]:
    return {
        Measure.GPU_ALLOCATED: parts.hours(parts.gpu),
        Measure.CPU_ALLOCATED: parts.hours(parts.cpu),
        Measure.MEMORY_ALLOCATED: parts.hours(parts.memory),
    }


def _gpu_weights(parts: _Pieces, seen: _Seen) -> dict[Measure, Floats]:
    allocated = parts.hours(parts.gpu)
    percent = seen.of(seen.signals.gpu_percent)
    measured = allocated * seen.fraction(seen.signals.gpu_s)
    band = np.clip(percent // 25, 0, len(BANDS) - 1)
    return {
        Measure.GPU_MEASURED: measured,
        Measure.GPU_USED: measured * percent / 100,
        Measure.GPU_IDLE: allocated * seen.is_idle,
        **{name: measured * (band == number) for number, name in enumerate(BANDS)},
    }


def _cpu_and_memory_weights(parts: _Pieces, seen: _Seen) -> dict[Measure, Floats]:
    """Use of cores and memory belongs to the node's piece of an allocation."""
    signals, seconds = seen.signals, parts.cuts.seconds
    on_node = parts.cpu[parts.cuts.item] > 0
    cpu_h = seconds * seen.fraction(signals.cpu_s) * on_node / HOUR_S
    memory_h = seconds * seen.fraction(signals.memory_s) * on_node / HOUR_S
    cpu_measured = cpu_h * parts.cpu[parts.cuts.item]
    memory_measured = memory_h * parts.memory[parts.cuts.item]
    cpu_used, memory_used = cpu_h * seen.of(signals.cores), memory_h * seen.of(signals.memory_gib)
    return {
        Measure.CPU_MEASURED: cpu_measured,
        Measure.CPU_USED: cpu_used,
        Measure.CPU_IDLE: np.maximum(cpu_measured - cpu_used, 0.0),
        Measure.CPU_THROTTLED_S: cpu_h * HOUR_S * seen.of(signals.throttled),
        Measure.MEMORY_MEASURED: memory_measured,
        Measure.MEMORY_USED: memory_used,
        Measure.MEMORY_IDLE: np.maximum(memory_measured - memory_used, 0.0),
    }


# ---------------------------------------------------------------- quotas


def _add_borrowed(sums: _Sums, facts: Facts) -> None:
    """What a project held beyond its quota of a node type, moment by moment."""
    held: dict[tuple[int, str], list[tuple[float, float, float]]] = defaultdict(list)
    for piece in facts.held:
        if piece.gpu:
            held[_project(piece), piece.node_type].append((piece.start, piece.end, piece.gpu))
    for (project, node_type), holdings in held.items():
        quota = facts.gpu_quotas.get((project, node_type), [])
        levels = excess(holdings, quota, float(sums.edges[-1]))
        _add_levels(
            sums, Measure.GPU_BORROWED, project, node_type, (levels.start, levels.end, levels.level)
        )


def _add_quotas(sums: _Sums, facts: Facts) -> None:
    until = facts.until.timestamp()
    for (project, node_type), changes in facts.gpu_quotas.items():
        _add_levels(sums, Measure.GPU_QUOTA, project, node_type, _steps(changes, until))
    for measure, quotas in (
        (Measure.CPU_QUOTA, facts.cpu_quotas),
        (Measure.MEMORY_QUOTA, facts.memory_quotas),
    ):
        for project, changes in quotas.items():
            _add_levels(sums, measure, project, NO_KEY, _steps(changes, until))


def _steps(changes: Sequence[tuple[float, float]], until: float) -> tuple[Floats, Floats, Floats]:
    starts = _array(at for at, _ in changes)
    return starts, np.append(starts[1:], until), _array(value for _, value in changes)


def _add_levels(
    sums: _Sums,
    measure: Measure,
    project: int,
    key: str,
    levels: tuple[Floats, Floats, Floats],
) -> None:
    starts, ends, values = levels
    cuts = cut(starts, ends, sums.edges)
    if not len(cuts.item):
        return
    weights = values[cuts.item] * cuts.seconds / HOUR_S
    row = np.bincount(cuts.bin, weights, sums.num_bins).astype(np.float64)
    if row.any():
        sums.found[Scope.NODE_TYPE, measure, project, key] = row


def quarter_edges(since_s: float, num_bins: int) -> Floats:
    """Edges of so many quarter-hours."""
    return since_s + QUARTER_S * np.arange(num_bins + 1, dtype=np.float64)
