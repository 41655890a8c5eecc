"""What idle sessions could lend to one workload, and why the rest of them lends nothing.

For a whole device all who hold it must be idle; for a part of one, as many as are needed. Where
several places would do, the one whose lenders are expected to stay idle for longest is offered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduling.core.decisions import Reason
from scheduling.core.demand import Item, Option
from scheduling.core.lenders import Lender, copy_s, fewest, joint_left_s, why_no_lender
from scheduling.core.lent import Lent
from scheduling.core.reasons.lending import not_lent
from scheduling.core.rooms import Load, Room, Spot
from scheduling.core.state import State
from scheduling.core.types import WorkloadId

Obstacle = tuple[str, dict[str, object]]
"""A code and the numbers compared."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Where one replica could run on loan.

    Attributes:
        lenders: All who would be swapped out for it.
        left_s: How long they are expected to stay idle together.
    """

    spot: Spot
    lenders: tuple[Lender, ...]
    left_s: float


class Offers:
    """Sessions that may lend and have not yet, by device.

    Attributes:
        num_free: How many of them there are.
    """

    def __init__(self, state: State, lent: Lent) -> None:
        self._state = state
        self._lent = lent
        self._lenders: dict[Room, dict[int, list[Lender]]] = {}
        self._refused: dict[WorkloadId, Obstacle] = {}
        self.num_free = 0

    def find_lenders(self) -> None:
        """Sort idle sessions into those that may lend, by device, and those that may not, and why.

        A session whose loan has just been called back is not lent anew in the same cycle.
        """
        lending = {
            lender.id
            for item in self._state.presence.bodies.items
            for body in item.bodies
            for lender, _ in body.lenders
        }
        for item in self._state.items:
            idle = item.workload.idle
            if idle is None or idle.since_s is None or item.id in lending:
                continue
            if len(item.running) != 1 or not item.running[0].spot.devices:
                continue
            code, numbers = why_no_lender(self._state, item, idle)
            if code:
                self._refused[item.id] = (code, numbers)
                continue
            placed = item.running[0]
            room = placed.spot.room
            lender = Lender(item, placed, idle, copy_s(self._state.policy, room, idle))
            self._lenders.setdefault(room, {}).setdefault(lender.device, []).append(lender)
            self._refused[item.id] = ("nobody_waits", {})
            self.num_free += 1

    def take(self, item: Item, option: Option) -> list[Offer] | None:
        """Devices of a node type for all missing replicas, taken; None, and nothing taken, if there
        are not enough.
        """
        found: list[Offer] = []
        homes: list[Room | None] = [body.spot.room for body in item.bodies]
        homes = homes or [None] * item.num_next
        for home in homes:
            offer = self._best(item, option, home)
            if offer is None:
                self.give_back(item, found)
                return None
            self._shift(item, offer, 1)
            found.append(offer)
        return found

    def give_back(self, item: Item, offers: Sequence[Offer]) -> None:
        """Undo `take`."""
        for offer in reversed(offers):
            self._shift(item, offer, -1)

    def accept(self, offers: Iterable[Offer]) -> None:
        """What was taken is lent: nothing is refused to these lenders any more."""
        for offer in offers:
            for lender in offer.lenders:
                del self._refused[lender.item.id]

    def not_lent(self) -> Mapping[WorkloadId, Reason]:
        """Why idle sessions lend nothing, in order of their names."""
        return {name: not_lent(*self._refused[name]) for name in sorted(self._refused)}

    def _best(self, item: Item, option: Option, home: Room | None) -> Offer | None:
        """Where lenders are expected to stay idle longest; by name of the node where alike."""
        best: Offer | None = None
        for room in sorted(self._lenders, key=lambda room: room.rank):
            if room.pool not in option.pools or (home is not None and room is not home):
                continue
            if room.node.name in item.shape.avoided:
                continue
            offer = self._on(room, item)
            if offer is not None and (best is None or offer.left_s > best.left_s):
                best = offer
        return best

    def _on(self, room: Room, item: Item) -> Offer | None:
        """The devices of one node that could be lent to one replica."""
        ask = item.shape.ask
        spare = self._lent.spare(item, room)
        if spare.cpu < ask.cpu_milli or spare.memory < ask.memory_mib or spare.slots < 1:
            everybody = (one for lenders in self._lenders[room].values() for one in lenders)
            self._refuse(everybody, ("no_room_beside", {"node": room.node.name}))
            return None
        units = ask.units_per_device(room.pool.gpu_memory_mib)
        parts = self._parts(room, units, spare)[: ask.gpu.num_devices]
        if len(parts) < ask.gpu.num_devices:
            return None
        lenders = tuple(lender for _, _, chosen in parts for lender in chosen)
        left_s = joint_left_s(lenders)
        obstacle = self._why_not(item, room, lenders, left_s)
        if obstacle is not None:
            self._refuse(lenders, obstacle)
            return None
        # Requests by memory are rounded up to thousandths: whoever comes last gets what is left.
        milli = ask.milli_per_device(room.pool.gpu_memory_mib)
        for _, device, chosen in parts:
            theirs = sum(lender.placed.spot.milli for lender in chosen)
            milli = min(milli, spare.milli[device] + theirs)
        if milli <= 0:
            return None
        spot = Spot(room, tuple(sorted(device for _, device, _ in parts)), units, milli)
        return Offer(spot, lenders, left_s)

    def _parts(
        self, room: Room, units: int, spare: Load
    ) -> list[tuple[float, int, tuple[Lender, ...]]]:
        """Devices of a node with lenders who leave so many units, idle longest first: for how long
        (negated), which, and who."""
        parts: list[tuple[float, int, tuple[Lender, ...]]] = []
        for device, lenders in self._lenders[room].items():
            chosen = fewest(lenders, units - spare.devices[device])
            if chosen is None and lenders:
                self._refuse_part(lenders, units, spare.devices[device])
            elif chosen:
                parts.append((-joint_left_s(chosen), device, chosen))
        return sorted(parts, key=lambda part: part[:2])

    def _why_not(
        self, item: Item, room: Room, lenders: Sequence[Lender], left_s: float
    ) -> Obstacle | None:
        """What is in the way of a loan that would find its devices: too little host memory, or less
        time than all copying and the borrower's start take, by a margin."""
        bound, used = room.node.swap_host_mib, self._lent.swapped_mib[room]
        swapped = sum(lender.idle.memory_mib for lender in lenders)
        if bound is not None and used + swapped > bound:
            return "swap_reserve_full", {
                "node": room.node.name,
                "used_mib": used,
                "needed_mib": swapped,
                "reserve_mib": bound,
            }
        cost = item.workload.eviction_cost
        start_s = 0.0 if cost is None else cost.restore_s
        copying_s = sum(lender.copy_s for lender in lenders)
        needed_s = copying_s + start_s + self._state.policy.lending_margin_s
        if left_s < needed_s:
            return "short_idleness", {
                "expected_left_s": round(left_s, 1),
                "needed_s": round(needed_s, 1),
            }
        return None

    def _refuse(self, lenders: Iterable[Lender], why: Obstacle) -> None:
        for lender in lenders:
            self._refused[lender.item.id] = why

    def _refuse_part(self, lenders: Sequence[Lender], units: int, spare: int) -> None:
        """Others on the device are in use, or it is too small a part."""
        capacity = lenders[0].placed.spot.room.pool.unit_capacity
        idle = sum(lender.units for lender in lenders) + max(0, spare)
        numbers: dict[str, object] = {
            "idle_gpu_milli": idle * 1000 // capacity,
            "wanted_gpu_milli": units * 1000 // capacity,
        }
        unasked = (one for one in lenders if self._refused[one.item.id][0] == "nobody_waits")
        self._refuse(list(unasked), ("part_too_small", numbers))

    def _shift(self, item: Item, offer: Offer, sign: int) -> None:
        """Take an offer (1), or give it back (-1)."""
        room = offer.spot.room
        by_device = self._lenders[room]
        held_units: dict[int, int] = defaultdict(int)
        held_milli: dict[int, int] = defaultdict(int)
        for lender in offer.lenders:
            device = lender.device
            held_units[device] += lender.units
            held_milli[device] += lender.placed.spot.milli
            if sign > 0:
                by_device[device].remove(lender)
            else:
                by_device[device].append(lender)
                by_device[device].sort(key=lambda one: one.item.id)
            self._lent.swapped_mib[room] += sign * lender.idle.memory_mib
            self.num_free -= sign
        load = self._lent.loads[room]
        for device in offer.spot.devices:
            load.devices[device] += sign * max(0, offer.spot.units - held_units[device])
            load.milli[device] += sign * max(0, offer.spot.milli - held_milli[device])
        if not item.bodies:
            load.cpu += sign * item.shape.ask.cpu_milli
            load.memory += sign * item.shape.ask.memory_mib
            load.slots += sign
