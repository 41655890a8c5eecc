"""Keeping room for a large gang until enough of what it needs is expected free; backfill meanwhile.

Without it a gang may wait for ever while small work takes each device as it comes free. So for the
first gang of a cycle that does not fit, though its project may have what it asks, the earliest time
is found at which enough devices are expected free, from pessimistic predictions of when running
work ends. What is free already on the nodes it would then get is kept; others may start there only
if they are predicted to end before. Found anew in each cycle; without predictions there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from scheduling.core.admission import barrier_to, is_within_share
from scheduling.core.demand import Item, Option
from scheduling.core.rooms import Load, Loads, Pool, Room, Spot
from scheduling.core.state import State
from scheduling.core.types import WorkloadId

Ender = tuple[float, WorkloadId, Item]
"""When a running workload is predicted to end."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room kept for a gang.

    Attributes:
        until_s: When all of it is expected free, by pessimistic predictions.
    """

    item: Item
    option: Option
    until_s: float
    nodes: tuple[str, ...]


class Reservations:
    """The one reservation of a cycle, and who may use its room all the same."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._shadows: list[tuple[Room, Load]] = []
        self._enders: list[Ender] | None = None
        self._enders_by_pools: dict[tuple[Pool, ...], list[Ender]] = {}
        self._fits_without: dict[tuple[int, int, int], bool] = {}
        self.kept: Reservation | None = None

    def may_come(self) -> bool:
        """Whether enough is predicted for room to be kept for a gang."""
        return bool(self._all_enders())

    def consider(self, item: Item) -> None:
        """Keep room for a gang that could not be placed, if it is the first and may have it."""
        if self.kept is not None or item.num_missing < 2:
            return
        found: tuple[Reservation, list[Spot]] | None = None
        for option in item.options():
            if not option.is_possible or not _may_have(item, option):
                continue
            candidate = self._earliest(item, option)
            if candidate and (found is None or candidate[0].until_s < found[0].until_s):
                found = candidate
        if found is not None:
            self.kept, spots = found
            self._shadows = _free_part(spots, item)
            self._shade(1)

    def is_kept_for(self, item: Item) -> bool:
        return self.kept is not None and item is self.kept.item

    def is_open_to(self, item: Item) -> bool:
        """The gang itself, and work that is predicted to end before the gang can start."""
        if self.kept is None or item is self.kept.item:
            return True
        run_s = item.workload.expected_run_s
        return run_s is not None and self._state.now_s + run_s <= self.kept.until_s

    @contextmanager
    def open_to(self, item: Item) -> Iterator[None]:
        """Inside, the room kept is free for those to whom it is open."""
        is_open = bool(self._shadows) and self.is_open_to(item)
        if is_open:
            self._shade(-1)
        try:
            yield
        finally:
            if is_open:
                self._shrink()
                self._shade(1)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Inside, the room kept is free for all."""
        self._shade(-1)
        try:
            yield
        finally:
            self._shade(1)

    def ask_anew(self) -> None:
        """Forget answers of before: something has been decided since."""
        self._fits_without.clear()

    def would_fit_without(self, item: Item, option: Option) -> bool:
        """Whether only the room kept is in a workload's way. To be asked when all is decided: the
        answer is kept for those that ask for the same."""
        if self.kept is None or self.is_open_to(item):
            return False
        key = (item.shape.number, option.number, item.num_next)
        fits = self._fits_without.get(key)
        if fits is None:
            self._shade(-1)
            with self._state.ledger.supposing():
                fits = self._state.find(item, option, item.num_next) is not None
            self._shade(1)
            self._fits_without[key] = fits
        return fits

    def expected_free(self, item: Item, option: Option) -> float | None:
        """When places for an item's next replicas together are expected free; None if never."""
        found = self._earliest(item, option)
        return None if found is None else found[0].until_s

    def _earliest(self, item: Item, option: Option) -> tuple[Reservation, list[Spot]] | None:
        """When, and on which places, the gang could start if all ends as predicted.

        Cost: a placement per doubling and halving of the number of workloads that must end.
        """
        enders = self._enders_on(option)
        if not enders:
            return None
        low, high = 0, 1
        while self._places(item, option, enders[:high]) is None:
            if high == len(enders):
                return None
            low, high = high, min(2 * high, len(enders))
        while high - low > 1:
            middle = (low + high) // 2
            if self._places(item, option, enders[:middle]) is None:
                low = middle
            else:
                high = middle
        spots = self._places(item, option, enders[:high])
        assert spots is not None
        nodes = tuple(sorted({spot.room.node.name for spot in spots}))
        return Reservation(item, option, enders[high - 1][0], nodes), spots

    def _enders_on(self, option: Option) -> list[Ender]:
        """Those that lie on nodes of a type."""
        enders = self._enders_by_pools.get(option.pools)
        if enders is None:
            enders = self._enders_by_pools[option.pools] = [
                ender
                for ender in self._all_enders()
                if any(placed.spot.room.pool in option.pools for placed in ender[2].running)
            ]
        return enders

    def _all_enders(self) -> list[Ender]:
        """What runs and is predicted to end, first to end first."""
        if self._enders is None:
            now_s = self._state.now_s
            found = [
                (max(end_s, now_s), other.id, other)
                for other in self._state.items
                if (end_s := other.workload.expected_end_s) is not None and other.running
            ]
            self._enders = sorted(found, key=lambda ender: ender[:2])
        return self._enders

    def _places(self, item: Item, option: Option, ended: Sequence[Ender]) -> list[Spot] | None:
        """Places for the gang once these have ended."""
        ledger = self._state.ledger
        with ledger.supposing():
            for _, _, other in ended:
                for placed in other.running:
                    ledger.give_back(placed.spot, other.shape.ask)
            return self._state.find(item, option, item.num_next)

    def _shade(self, sign: int) -> None:
        for room, shadow in self._shadows:
            self._state.ledger.shade(room, shadow, sign)

    def _shrink(self) -> None:
        """What was used by those to whom it was open can no longer be kept."""
        for room, shadow in self._shadows:
            shadow.cpu = min(shadow.cpu, room.cpu)
            shadow.memory = min(shadow.memory, room.memory)
            shadow.slots = min(shadow.slots, room.slots)
            shadow.devices = [
                min(kept, free) for kept, free in zip(shadow.devices, room.devices, strict=True)
            ]


def _may_have(item: Item, option: Option) -> bool:
    return barrier_to(item, option) is None and is_within_share(
        item.account, option.amounts, item.num_next
    )


def _free_part(spots: list[Spot], item: Item) -> list[tuple[Room, Load]]:
    """What of these places is free now, node by node."""
    loads = Loads()
    for spot in spots:
        loads[spot.room].add(spot, item.shape.ask)
    for room, load in loads.items():
        load.milli = [0] * len(load.milli)  # only what starts is recorded
        load.cpu = min(load.cpu, max(0, room.cpu))
        load.memory = min(load.memory, max(0, room.memory))
        load.slots = min(load.slots, max(0, room.slots))
        load.devices = [
            min(asked, free) for asked, free in zip(load.devices, room.devices, strict=True)
        ]
    return list(loads.items())
