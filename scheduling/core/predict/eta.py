"""When what waits will start: a range, with what it rests on, or nothing where nothing is known.

The later end of the range comes from laying the queue, in its order, on the capacity that running
work is predicted to leave, by the pessimistic ends of the snapshot. The earlier end supposes that
the workload is the only one that waits and that all end as early as they may. What is predicted to
end never does not help: a range is given only if the known ends suffice.

Asked once at the end of a cycle and bounded: no further than `MAX_ESTIMATED` in each queue, exact
places for `MAX_EXACT` different requests only; without any predicted end it is skipped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, nsmallest
from itertools import accumulate

from scheduling.core.accounts import Account, Amounts
from scheduling.core.decisions import Eta, Reason
from scheduling.core.demand import Item
from scheduling.core.ordering import WorkloadKey, workload_key
from scheduling.core.reasons.words import unit_suffix
from scheduling.core.reservation import Reservations
from scheduling.core.state import State
from scheduling.core.types import ResourceKey

MAX_ESTIMATED = 500
MAX_EXACT = 4
_FIXED = ("node_size", "labels", "failed_here")
_BY_CAPACITY = (
    "no_fit",
    "over_share",
    "gang_incomplete",
    "behind_priority",
    "behind_reservation",
    "quota_exceeds_capacity",
    "search_cut_short",
)
_BY_BOUND = ("interactive_over_quota", "over_limit")
_BY_POLICY = ("in_delay", "in_min_runtime")


@dataclass(frozen=True, slots=True)
class Waits:
    """Something that waits, and why."""

    item: Item
    reason: Reason


@dataclass(frozen=True, slots=True, order=True)
class _Release:
    """Capacity that comes back: at the latest then, perhaps earlier."""

    at_s: float
    early_s: float
    amount: int
    basis: str


class _Supply:
    """What is free of one resource, and what comes back of it in time."""

    def __init__(self, free: int, releases: Iterable[_Release]) -> None:
        self.free = free
        self.releases = sorted(releases)
        early = sorted(self.releases, key=lambda release: (release.early_s, release.at_s))
        self._early = [release.early_s for release in early]
        self._sums = list(accumulate(release.amount for release in early))
        self.bases = {release.basis for release in self.releases}

    def earliest(self, amount: int, now_s: float) -> float | None:
        """When so much could be free at the earliest; None if never."""
        missing = amount - self.free
        if missing <= 0:
            return now_s
        place = bisect_left(self._sums, missing)
        return max(now_s, self._early[place]) if place < len(self._sums) else None

    def in_order(
        self, needs: Sequence[tuple[int, float | None]], now_s: float
    ) -> Iterator[float | None]:
        """When each of these would have its amount, if all before it come first.

        Args:
            needs: Amounts, each with how long it is kept (None: for ever).
            now_s: Not earlier than this.
        """
        free, at_s = self.free, now_s
        heap = [(release.at_s, release.amount) for release in self.releases]
        heapify(heap)
        for amount, run_s in needs:
            while free < amount and heap:
                end_s, back = heappop(heap)
                free, at_s = free + back, max(at_s, end_s)
            if free < amount:
                yield None
                continue
            free -= amount
            if run_s is not None:
                heappush(heap, (at_s + run_s, amount))
            yield at_s


class Estimates:
    """Estimates for all that waits at the end of a cycle."""

    def __init__(self, state: State, reservations: Reservations) -> None:
        self._state = state
        self._reservations = reservations
        self._exact: dict[object, float | None] = {}
        self._enders = [
            item
            for item in state.items
            if item.running and item.workload.expected_end_s is not None
        ]

    def of(self, waiting: Sequence[Waits]) -> dict[str, Eta]:
        """By workload; what is not there is not known."""
        found: dict[str, Eta] = {}
        queues: dict[int, list[Waits]] = {}
        kept = self._reservations.kept
        bounded: dict[tuple[Account, int, str], list[Waits]] = {}
        for one in waiting:
            code = one.reason.code
            if kept is not None and one.item is kept.item:
                now_s = self._state.now_s
                found[one.item.id] = Eta(now_s, max(now_s, kept.until_s), "reservation")
            elif code in ("start_after", "backing_off", "awaiting_release") or code in _BY_POLICY:
                found[one.item.id] = self._by_time(one)
            elif self._enders and code in _BY_BOUND:
                bounded.setdefault((*self._bound_of(one), code), []).append(one)
            elif self._enders and code in _BY_CAPACITY and not _is_never(one.reason):
                queues.setdefault(_resource(one.item.shape.first), []).append(one)
        for (level, r, code), several in bounded.items():
            found |= self._by_bound(level, r, several, steady=code == _BY_BOUND[0])
        for r, several in queues.items():
            found |= self._by_capacity(r, several)
        return found

    # What only time changes.

    def _by_time(self, one: Waits) -> Eta:
        now_s, policy = self._state.now_s, self._state.policy
        if one.reason.code == "awaiting_release":
            return Eta(now_s, now_s + policy.hold_deadline_s, "release", "high")
        until = one.reason.details["until_s"]
        assert isinstance(until, int | float)
        basis = "policy" if one.reason.code in _BY_POLICY else "schedule"
        return Eta(until, None if basis == "schedule" else until + policy.hold_deadline_s, basis)

    # Quota and limit: their own work must end.

    def _bound_of(self, one: Waits) -> tuple[Account, int]:
        details = one.reason.details
        level = next(a for a in one.item.account.path if a.id == details["level"])
        return level, self._state.resources.number[ResourceKey(str(details["resource"]))]

    def _by_bound(
        self, level: Account, r: int, several: list[Waits], *, steady: bool
    ) -> dict[str, Eta]:
        """When enough of what counts against the bound has ended."""
        bound = level.quota[r] if steady else level.limit[r]
        used = level.non_preemptible[r] if steady else level.allocated[r]
        assert bound is not None
        holders = (
            item
            for item in self._enders
            if level in item.account.path and not (steady and item.is_preemptible)
        )
        supply = _Supply(bound - used, self._releases(holders, r))
        return self._laid(supply, r, several, is_exact=False)

    # Capacity: anybody's work must end.

    def _by_capacity(self, r: int, several: list[Waits]) -> dict[str, Eta]:
        """When enough is free on the nodes of the resource."""
        free = 0
        for pool in self._state.ledger.pools:
            if r == 0:
                free += pool.free_cpu
            elif pool.has_gpus and self._state.resources.number[pool.gpu_key] == r:
                free += pool.free_units * 1000 // pool.unit_capacity
        supply = _Supply(free, self._releases(self._enders, r))
        return self._laid(supply, r, several, is_exact=True)

    def _releases(self, items: Iterable[Item], r: int) -> Iterator[_Release]:
        now_s = self._state.now_s
        for item in items:
            workload = item.workload
            end_s = workload.expected_end_s
            assert end_s is not None
            amount = sum(part for placed in item.running for q, part in placed.amounts if q == r)
            if amount:
                end_s = max(end_s, now_s)
                early_s = now_s if workload.early_end_s is None else workload.early_end_s
                early_s = max(now_s, min(early_s, end_s))
                yield _Release(end_s, early_s, amount, workload.expected_basis or "prediction")

    def _laid(
        self, supply: _Supply, r: int, several: list[Waits], *, is_exact: bool
    ) -> dict[str, Eta]:
        """The queue laid on what comes back; with real places where `is_exact`."""
        if not supply.releases:
            return {}
        queue = nsmallest(MAX_ESTIMATED, several, key=_queue_key(several))
        needs = [(_need(one, r), one.item.workload.expected_run_s) for one in queue]
        now_s = self._state.now_s
        basis = "history" if "history" in supply.bases else min(supply.bases)
        found: dict[str, Eta] = {}
        in_order = supply.in_order(needs, now_s)
        for one, (amount, _), latest in zip(queue, needs, in_order, strict=True):
            earliest = supply.earliest(amount, now_s)
            if latest is None or earliest is None:
                continue
            eta = Eta(earliest, latest, basis, "low" if basis == "history" else "medium")
            found[one.item.id] = self._refined(one.item, eta) if is_exact else eta
        return found

    def _refined(self, item: Item, eta: Eta) -> Eta:
        """With real places for what needs several devices, and after a gang's reservation."""
        assert eta.max_at_s is not None
        latest, confidence = eta.max_at_s, eta.confidence
        if item.num_next > 1 or item.shape.ask.gpu.num_devices > 1:
            exact = self._exact_time(item)
            latest = max(latest, exact or latest)
            confidence = "low" if exact is None else confidence
        kept = self._reservations.kept
        if kept is not None and not self._reservations.is_open_to(item):
            latest = max(latest, kept.until_s)
        return replace(eta, max_at_s=latest, confidence=confidence)

    def _exact_time(self, item: Item) -> float | None:
        """When its places together would be free if nobody came first; None where not asked."""
        key = (item.shape.number, item.num_next, item.chosen_type)
        if key not in self._exact:
            if len(self._exact) == MAX_EXACT:
                return None
            times = [
                at_s
                for option in item.options()
                if option.is_possible
                and (at_s := self._reservations.expected_free(item, option)) is not None
            ]
            self._exact[key] = min(times, default=None)
        return self._exact[key]


def _is_never(reason: Reason) -> bool:
    """Whether no end of other work would help."""
    return reason.code == "no_fit" and reason.details.get("constraint") in _FIXED


def _queue_key(several: Sequence[Waits]) -> Callable[[Waits], tuple[int, WorkloadKey]]:
    """Project by project in their own order, each project's n-th before another's n+1-th."""
    by_project: dict[str, list[Item]] = {}
    for one in several:
        by_project.setdefault(one.item.account.id, []).append(one.item)
    place: dict[str, int] = {}
    for items in by_project.values():
        items.sort(key=workload_key)
        place.update((item.id, i) for i, item in enumerate(items))
    return lambda one: (place[one.item.id], workload_key(one.item))


def _resource(amounts: Amounts) -> int:
    """GPUs where there are any, else CPU."""
    r = max((r for r, _ in amounts), default=0)
    return 0 if r == 1 else r


def _need(one: Waits, r: int) -> int:
    """What it lacks of a resource: told by the reason where a bound is in the way."""
    if one.reason.code in _BY_BOUND:
        asked = one.reason.details[f"requested_{unit_suffix(r)}"]
        assert isinstance(asked, int)
        return asked
    item = one.item
    return sum(amount for q, amount in item.shape.first if q == r) * item.num_next
