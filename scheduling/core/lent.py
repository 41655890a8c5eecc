"""What loans take, those that go on and new ones: of nodes beside their lenders, and of limits.

A lender's part of a device is its own and stays promised to it. What a borrower uses beyond that
(the free rest of the device, CPU, memory, a replica's slot) is promised to nobody, and so counted
here for as long as loans are decided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from scheduling.core.accounts import Account, Amounts
from scheduling.core.demand import Body, Item
from scheduling.core.loans import add_body
from scheduling.core.rooms import Load, Loads, Room, Spot
from scheduling.core.state import State
from scheduling.core.types import WHOLE_GPU_MILLI


class Lent:
    """Sums of the loans of one cycle.

    Attributes:
        loads: Per node, what borrowers take beside what their lenders hold.
        swapped_mib: Per node, device memory of lenders that is moved to the host.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._amounts: dict[Account, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.loads = Loads()
        self.swapped_mib: dict[Room, int] = defaultdict(int)

    def amount(self, account: Account, r: int) -> int:
        """What a project, or a department's projects together, use of a resource on loan."""
        return self._amounts[account][r]

    def note(self, body: Body) -> None:
        """A loan that goes on takes what it takes; one that waits in memory uses no device."""
        room = body.spot.room
        add_body(self.loads[room], body)
        for lender, _ in body.lenders:
            self.swapped_mib[room] += lender.workload.idle.memory_mib if lender.workload.idle else 0
        if not body.is_parked:
            self.note_amounts(body.item.account, self.amounts(body.item, [body.spot]))

    def note_amounts(self, account: Account, amounts: Amounts) -> None:
        """Count what a project uses on loan, up the tree."""
        for level in account.path:
            sums = self._amounts[level]
            for r, amount in amounts:
                sums[r] += amount

    def amounts(self, item: Item, spots: Iterable[Spot]) -> Amounts:
        """What a workload's replicas at these places count for together."""
        totals: dict[int, int] = defaultdict(int)
        for spot in spots:
            for r, amount in self._state.amounts(item.shape, spot):
                totals[r] += amount
        return tuple(sorted(totals.items()))

    def over_limit(self, account: Account, amounts: Amounts) -> dict[str, object] | None:
        """Which limit would be passed by so much more, loans included; None if none."""
        for level in reversed(account.path):
            for r, amount in amounts:
                limit, on_loan = level.limit[r], self.amount(level, r)
                if limit is not None and level.allocated[r] + on_loan + amount > limit:
                    return {
                        "resource": self._state.resources.keys[r],
                        "level": level.id,
                        "requested": amount,
                        "allocated": level.allocated[r],
                        "lent": on_loan,
                        "limit": limit,
                    }
        return None

    def has_room(self, room: Room, load: Load) -> bool:
        """Whether promises leave room for this beside the loans that go on."""
        taken = self.loads.on(room)
        return (
            room.cpu - taken.cpu >= load.cpu
            and room.memory - taken.memory >= load.memory
            and room.slots - taken.slots >= load.slots
            and all(
                free - other >= mine or not mine
                for free, other, mine in zip(room.devices, taken.devices, load.devices, strict=True)
            )
        )

    def spare(self, item: Item, room: Room) -> Load:
        """What is neither promised nor present on a node, beside loans; a borrower's own body that
        waits there counts as free.
        """
        presence = self._state.presence
        leaving, held = presence.leaving_on(room), presence.held_on(room)
        taken = self.loads.on(room)
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
