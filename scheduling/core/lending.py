"""Lending: idle sessions' devices to trainings that still wait, when everything else is decided.

A session that is swapped out keeps its fraction: it stays allocated to its project, and whoever
borrows it is promised nothing. So quota, fair share and every other decision are as if there were
no loans; use on loan counts for the borrower's limit (and its cost) only. In exchange a borrower
yields at once, whatever its share or minimum runtime: to the session, which its node's agent wakes
without asking anybody, and to every decision that gives the room beside the session to somebody
else.

`Lending.run` first calls back what can stay lent no longer, then lends what is idle:

* *lenders*: sessions idle for their window, which can be swapped, have had their device for a
  minimum time since they last woke, and are expected to stay idle for longer than copying their
  memory to the host and back takes, by a margin. For a whole device all who hold it must be such;
  for a part of one, as many as are needed.
* *borrowers*: preemptible trainings of which nothing runs, whole gangs; projects in the order of
  the part that they use of what they may have, loans included, and inside a project in the order of
  its queue. One that was given a loan is not exchanged for another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from scheduling.core.accounts import Account, Amounts
from scheduling.core.decisions import Lend, Reason, Recall
from scheduling.core.demand import Body, Item, Option
from scheduling.core.lenders import (
    LENDING_OFF,
    Lender,
    copy_s,
    fewest,
    joint_left_s,
    why_no_lender,
)
from scheduling.core.loans import taken_beside_lenders
from scheduling.core.ordering import workload_key
from scheduling.core.reasons.lending import lent, not_lent, recalled
from scheduling.core.rooms import Load, Room, Spot
from scheduling.core.state import State
from scheduling.core.types import (
    WHOLE_GPU_MILLI,
    NodeName,
    WorkloadId,
)


@dataclass(slots=True)
class _Taken:
    """What new loans take of a node, beyond what their lenders hold."""

    load: Load
    swapped_mib: int = 0


@dataclass(frozen=True, slots=True)
class _Offer:
    """Where one replica could run on loan."""

    spot: Spot
    lenders: tuple[Lender, ...]
    left_s: float


@dataclass(slots=True)
class _Loan:
    """What is lent to one workload in this cycle."""

    offers: list[_Offer] = field(default_factory=list)


class Lending:
    """The loans of one cycle: what is called back, what is lent, and what is not, and why."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._recalls: dict[WorkloadId, Recall] = {}
        self._loans: dict[WorkloadId, _Loan] = {}
        self._lent_milli: dict[Account, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._taken: dict[NodeName, _Taken] = {}
        self._lenders: dict[NodeName, dict[int, list[Lender]]] = {}
        self._refused: dict[WorkloadId, tuple[str, dict[str, object]]] = {}
        self._num_free_lenders = 0

    def run(self, waiting: Iterable[Item]) -> None:
        """Call back, then lend.

        Args:
            waiting: Whatever may be tried in this cycle.
        """
        self._call_back()
        if self._state.policy.lends:
            self._find_lenders()
            if self._num_free_lenders:
                borrowers = [
                    item for item in waiting if _may_borrow(item) and item.id not in self._recalls
                ]
                while self._lend(borrowers) and self._num_free_lenders:
                    # What a loan has left over may suit one whom it did not suit before.
                    borrowers = [item for item in borrowers if item.id not in self._loans]

    def recall(self, item: Item, code: str, numbers: Mapping[str, object]) -> None:
        """End what a workload borrows, or waits for in memory."""
        replicas = tuple(body.replica.id for body in item.bodies)
        lenders = sorted({lender.id for body in item.bodies for lender, _ in body.lenders})
        reason = recalled(item, code, {**numbers, "lenders": lenders})
        self._recalls.setdefault(item.id, Recall(item.id, replicas, reason))

    def recalls(self) -> Iterator[Recall]:
        yield from self._recalls.values()

    def borrowers(self) -> Iterator[Item]:
        """To whom something was lent in this cycle."""
        return (item for item in self._state.items if item.id in self._loans)

    def loan(self, item: Item) -> Lend | None:
        """What was lent to a workload in this cycle."""
        found = self._loans.get(item.id)
        if found is None:
            return None
        pairs = list(zip(item.pending, found.offers, strict=False))
        return Lend(
            item.id,
            {replica.id: offer.spot.placement() for replica, offer in pairs},
            {
                replica.id: tuple(lender.placed.replica.id for lender in offer.lenders)
                for replica, offer in pairs
            },
            lent(
                [lender.item.id for _, offer in pairs for lender in offer.lenders],
                min(offer.left_s for _, offer in pairs),
                sum(amount for r, amount in self._amounts(found.offers, item) if r >= 2),
            ),
        )

    def not_lent(self) -> Mapping[WorkloadId, Reason]:
        """Why idle sessions lend nothing, in order of their names."""
        return {name: not_lent(*self._refused[name]) for name in sorted(self._refused)}

    # Calling back.

    def _call_back(self) -> None:
        """End loans that can stay no longer; of those that do not fit together, the newest."""
        oldest = sorted(
            self._state.presence.bodies.items,
            key=lambda item: (item.bodies[0].replica.started_s, item.id),
        )
        for item in oldest:
            if item.id in self._recalls:
                continue
            code, numbers = self._why_not_longer(item)
            if code:
                self.recall(item, code, numbers)
                continue
            for body in item.bodies:
                self._note(body)

    def _why_not_longer(self, item: Item) -> tuple[str, dict[str, object]]:
        if item.running or item.held:
            return "placed_elsewhere", {}
        if item.is_on_loan:
            code, lender = _why_lenders_end(item)
            if code:
                return code, {"lender": lender} if lender else {}
            amounts = _times(self._state, item, [body.spot for body in item.bodies])
            over = self._over_limit(item.account, amounts)
            if over is not None:
                return "over_limit", over
        wanted: dict[NodeName, tuple[Room, Load]] = {}
        for body in item.bodies:
            room = body.spot.room
            _, load = wanted.setdefault(room.node.name, (room, Load(len(room.devices))))
            _add_body(load, body)
        if all(self._has_room(room, load) for room, load in wanted.values()):
            return "", {}
        return "room_taken", {"nodes": sorted(wanted)}

    def _note(self, body: Body) -> None:
        """A loan that goes on takes what it takes."""
        room = body.spot.room
        taken = self._taken_on(room)
        _add_body(taken.load, body)
        for lender, _ in body.lenders:
            taken.swapped_mib += lender.workload.idle.memory_mib if lender.workload.idle else 0
        if not body.is_parked:
            self._note_amounts(body.item.account, _times(self._state, body.item, [body.spot]))

    def _note_amounts(self, account: Account, amounts: Amounts) -> None:
        for level in account.path:
            sums = self._lent_milli[level]
            for r, amount in amounts:
                sums[r] += amount

    def _over_limit(self, account: Account, amounts: Amounts) -> dict[str, object] | None:
        """Which limit would be passed, loans included; None if none."""
        for level in reversed(account.path):
            for r, amount in amounts:
                limit, lent_amount = level.limit[r], self._lent_milli[level][r]
                if limit is not None and level.allocated[r] + lent_amount + amount > limit:
                    return {
                        "resource": self._state.resources.keys[r],
                        "level": level.id,
                        "requested": amount,
                        "allocated": level.allocated[r],
                        "lent": lent_amount,
                        "limit": limit,
                    }
        return None

    def _taken_on(self, room: Room) -> _Taken:
        taken = self._taken.get(room.node.name)
        if taken is None:
            taken = self._taken[room.node.name] = _Taken(Load(len(room.devices)))
        return taken

    def _has_room(self, room: Room, load: Load) -> bool:
        """Whether promises leave room for this beside the loans that go on."""
        taken = self._taken_on(room).load
        return (
            room.cpu - taken.cpu >= load.cpu
            and room.memory - taken.memory >= load.memory
            and room.slots - taken.slots >= load.slots
            and all(
                free - other >= mine or not mine
                for free, other, mine in zip(room.devices, taken.devices, load.devices, strict=True)
            )
        )

    # Lenders.

    def _find_lenders(self) -> None:
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
            (device,) = placed.spot.devices
            by_device = self._lenders.setdefault(room.node.name, {})
            by_device.setdefault(device, []).append(lender)
            self._refused[item.id] = ("nobody_waits", {})
            self._num_free_lenders += 1

    # Lending.

    def _lend(self, borrowers: Sequence[Item]) -> bool:
        """Give loans in order, until nobody waits or nothing is left to lend; whether any was
        given.

        What failed for one is not tried for another that asks for the same.
        """
        num_before = len(self._loans)
        queues: dict[Account, list[Item]] = {}
        for item in borrowers:
            queues.setdefault(item.account, []).append(item)
        for queue in queues.values():
            queue.sort(key=workload_key, reverse=True)
        turns = [(self._turn(queue[-1]), account) for account, queue in queues.items()]
        heap = [(key, account.id, account) for key, account in turns]
        heapify(heap)
        hopeless: set[object] = set()
        while heap and self._num_free_lenders:
            _, name, account = heappop(heap)
            queue = queues[account]
            item = queue.pop()
            likeness = (item.shape.number, item.num_next, item.home)
            if likeness not in hopeless and not self._lend_to(item):
                hopeless.add(likeness)
            if queue:
                heappush(heap, (self._turn(queue[-1]), name, account))
        return len(self._loans) > num_before

    def _turn(self, item: Item) -> tuple[float, int]:
        """Smaller part of what the project may have, loans and this workload included; older.

        A share of less than a GPU counts as one, so that a project without any gets its turn.
        """
        account, share = item.account, 0.0
        for r, amount in item.shape.first:
            bound = account.allocatable[r]
            if bound is None:
                bound = self._state.resources.capacity[r]
            used = account.allocated[r] + self._lent_milli[account][r] + amount * item.num_next
            if r >= 2:
                share = max(share, used / max(bound, WHOLE_GPU_MILLI))
        return share, account.created

    def _lend_to(self, item: Item) -> bool:
        """Whether this workload, or one like it, could be lent what it asks for."""
        is_only_limited = False
        for option in item.options():
            if not option.is_possible:
                continue
            offers = self._offers(item, option)
            if offers is None:
                continue
            amounts = self._amounts(offers, item)
            if self._over_limit(item.account, amounts) is not None:
                is_only_limited = True
                self._give_back(item, offers)
                continue
            self._note_amounts(item.account, amounts)
            self._loans[item.id] = _Loan(offers)
            for offer in offers:
                for lender in offer.lenders:
                    del self._refused[lender.item.id]
            return True
        return is_only_limited

    def _amounts(self, offers: Sequence[_Offer], item: Item) -> Amounts:
        return _times(self._state, item, [offer.spot for offer in offers])

    def _offers(self, item: Item, option: Option) -> list[_Offer] | None:
        """Devices for all missing replicas, taken; None, and nothing taken, if there are not
        enough.
        """
        found: list[_Offer] = []
        homes: list[Room | None] = [body.spot.room for body in item.bodies]
        homes = homes or [None] * item.num_next
        for home in homes:
            offer = self._best_offer(item, option, home)
            if offer is None:
                self._give_back(item, found)
                return None
            self._take(item, offer, 1)
            found.append(offer)
        return found

    def _best_offer(self, item: Item, option: Option, home: Room | None) -> _Offer | None:
        """Where lenders are expected to stay idle longest; by name of the node where alike."""
        best: _Offer | None = None
        for name in sorted(self._lenders):
            room = self._state.ledger.rooms[name]
            if room.pool not in option.pools or (home is not None and room is not home):
                continue
            if name in item.shape.avoided:
                continue
            offer = self._offer_on(item, room)
            if offer is not None and (best is None or offer.left_s > best.left_s):
                best = offer
        return best

    def _offer_on(self, item: Item, room: Room) -> _Offer | None:
        """The devices of one node that could be lent to one replica."""
        ask = item.shape.ask
        spare = self._spare(item, room)
        if spare.cpu < ask.cpu_milli or spare.memory < ask.memory_mib or spare.slots < 1:
            self._blame(room, "no_room_beside", {"node": room.node.name})
            return None
        units = ask.units_per_device(room.pool.gpu_memory_mib)
        parts: list[tuple[float, int, tuple[Lender, ...]]] = []
        for device, lenders in self._lenders[room.node.name].items():
            chosen = fewest(lenders, units - spare.devices[device])
            if chosen is None:
                if lenders:
                    self._blame_device(lenders, units, spare.devices[device])
            elif chosen:
                parts.append((joint_left_s(chosen), device, chosen))
        parts.sort(key=lambda part: (-part[0], part[1]))
        parts = parts[: ask.gpu.num_devices]
        if len(parts) < ask.gpu.num_devices:
            return None
        lenders_of_all = tuple(lender for _, _, chosen in parts for lender in chosen)
        left_s = joint_left_s(lenders_of_all)
        if not self._is_worthwhile(item, room, lenders_of_all, left_s):
            return None
        # Requests by memory are rounded up to thousandths: whoever comes last gets what is left.
        milli = ask.milli_per_device(room.pool.gpu_memory_mib)
        for _, device, chosen in parts:
            theirs = sum(lender.placed.spot.milli for lender in chosen)
            milli = min(milli, spare.milli[device] + theirs)
        if milli <= 0:
            return None
        spot = Spot(room, tuple(sorted(device for _, device, _ in parts)), units, milli)
        return _Offer(spot, lenders_of_all, left_s)

    def _is_worthwhile(
        self, item: Item, room: Room, lenders: Sequence[Lender], left_s: float
    ) -> bool:
        """Longer than all copying and the borrower's start, by a margin, and with host memory."""
        bound = room.node.swap_host_mib
        swapped = sum(lender.idle.memory_mib for lender in lenders)
        if bound is not None and self._taken_on(room).swapped_mib + swapped > bound:
            numbers: dict[str, object] = {
                "node": room.node.name,
                "used_mib": self._taken_on(room).swapped_mib,
                "needed_mib": swapped,
                "reserve_mib": bound,
            }
            for lender in lenders:
                self._refused[lender.item.id] = ("swap_reserve_full", numbers)
            return False
        cost = item.workload.eviction_cost
        start_s = 0.0 if cost is None else cost.restore_s
        copy_s = sum(lender.copy_s for lender in lenders)
        needed_s = copy_s + start_s + self._state.policy.lending_margin_s
        if left_s >= needed_s:
            return True
        for lender in lenders:
            self._refused[lender.item.id] = (
                "short_idleness",
                {"expected_left_s": round(left_s, 1), "needed_s": round(needed_s, 1)},
            )
        return False

    def _spare(self, item: Item, room: Room) -> Load:
        """What is neither promised nor present on a node, beside loans; a borrower's own body that
        waits there counts as free.
        """
        presence = self._state.presence
        leaving, held = presence.leaving_on(room), presence.held_on(room)
        taken = self._taken_on(room).load
        spare = Load(len(room.devices))
        spare.cpu = min(room.cpu, room.cpu + held.cpu - leaving.cpu) - taken.cpu
        spare.memory = min(room.memory, room.memory + held.memory - leaving.memory) - taken.memory
        spare.slots = min(room.slots, room.slots + held.slots - leaving.slots) - taken.slots
        spare.devices = [
            min(free, free + kept - gone) - other
            for free, kept, gone, other in zip(
                room.devices, held.devices, leaving.devices, taken.devices, strict=True
            )
        ]
        spare.milli = [
            WHOLE_GPU_MILLI - max(given, given - kept + gone) - other
            for given, kept, gone, other in zip(
                room.milli, held.milli, leaving.milli, taken.milli, strict=True
            )
        ]
        for body in item.bodies:
            if body.spot.room is room:
                spare.cpu += item.shape.ask.cpu_milli
                spare.memory += item.shape.ask.memory_mib
                spare.slots += 1
        return spare

    def _take(self, item: Item, offer: _Offer, sign: int) -> None:
        room = offer.spot.room
        taken = self._taken_on(room)
        by_device = self._lenders[room.node.name]
        held_units: dict[int, int] = defaultdict(int)
        held_milli: dict[int, int] = defaultdict(int)
        for lender in offer.lenders:
            (device,) = lender.placed.spot.devices
            held_units[device] += lender.units
            held_milli[device] += lender.placed.spot.milli
            if sign > 0:
                by_device[device].remove(lender)
            else:
                by_device[device].append(lender)
                by_device[device].sort(key=lambda one: one.item.id)
            taken.swapped_mib += sign * lender.idle.memory_mib
            self._num_free_lenders -= sign
        for device in offer.spot.devices:
            taken.load.devices[device] += sign * max(0, offer.spot.units - held_units[device])
            taken.load.milli[device] += sign * max(0, offer.spot.milli - held_milli[device])
        if not item.bodies:
            taken.load.cpu += sign * item.shape.ask.cpu_milli
            taken.load.memory += sign * item.shape.ask.memory_mib
            taken.load.slots += sign

    def _give_back(self, item: Item, offers: Sequence[_Offer]) -> None:
        for offer in reversed(offers):
            self._take(item, offer, -1)

    # Why not.

    def _blame(self, room: Room, code: str, numbers: dict[str, object]) -> None:
        for lenders in self._lenders[room.node.name].values():
            for lender in lenders:
                self._refused[lender.item.id] = (code, numbers)

    def _blame_device(self, lenders: Sequence[Lender], units: int, spare: int) -> None:
        """Others on the device are in use, or it is too small a part."""
        capacity = lenders[0].placed.spot.room.pool.unit_capacity
        idle = sum(lender.units for lender in lenders) + max(0, spare)
        numbers: dict[str, object] = {
            "idle_gpu_milli": idle * 1000 // capacity,
            "wanted_gpu_milli": units * 1000 // capacity,
        }
        for lender in lenders:
            if self._refused[lender.item.id][0] == "nobody_waits":
                self._refused[lender.item.id] = ("part_too_small", numbers)


def _why_lenders_end(item: Item) -> tuple[str, WorkloadId | None]:
    """Why one of a borrower's lenders lends no longer, and which; nothing if all do."""
    for body in item.bodies:
        if body.is_parked:
            return "lender_woke", None  # one replica of a gang: it has left its device already
        if not body.lenders:
            return "lender_gone", None
        for lender, _ in body.lenders:
            idle = lender.workload.idle
            if idle is not None and idle.obstacle == LENDING_OFF:
                return LENDING_OFF, lender.id
            if idle is None or idle.since_s is None:
                return "lender_woke", lender.id
    return "", None


def _may_borrow(item: Item) -> bool:
    """A preemptible training with GPUs of which nothing runs or is coming."""
    is_still = not (item.running or item.held or item.evicted or item.moved or item.num_succeeded)
    return (
        item.is_preemptible
        and is_still
        and item.shape.ask.gpu.num_devices > 0
        and len(item.pending) >= item.num_next
        and (not item.bodies or len(item.bodies) == item.num_next)
    )


def _add_body(load: Load, body: Body) -> None:
    ask = body.item.shape.ask
    load.cpu += ask.cpu_milli
    load.memory += ask.memory_mib
    load.slots += 1
    for device, (units, milli) in taken_beside_lenders(body).items():
        load.devices[device] += units
        load.milli[device] += milli


def _times(state: State, item: Item, spots: Sequence[Spot]) -> Amounts:
    """What replicas at these places count for together."""
    totals: dict[int, int] = defaultdict(int)
    for spot in spots:
        for r, amount in state.amounts(item.shape, spot):
            totals[r] += amount
    return tuple(sorted(totals.items()))
