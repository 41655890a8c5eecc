"""What is really on the nodes, as against what the plan has promised there.

*Promised* is what the plan has given away: running replicas, those started now, and places held for
claimants. *Present* is what is there: running replicas, victims that have not left yet, and
borrowers (`loans.py`). The ledger counts the promised side; here lies, node by node, the
difference between the two: what is leaving, what is only held, and the borrowers' bodies. A replica
may start only where both sides leave room; a claimant may be promised what victims still occupy.

While nodes are searched for room to start in at once, what is present but not promised is hidden
in the ledger by *shadows*; they are lifted for claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduling.core.demand import Item
from scheduling.core.ledger import Ledger
from scheduling.core.loans import Bodies
from scheduling.core.rooms import Ask, Load, Loads, Room, Spot
from scheduling.core.types import WHOLE_GPU_MILLI


class Presence:
    """Per node: who is leaving, what is held, and who is there on loan.

    Attributes:
        bodies: Borrowers, and those that wait in memory after yielding.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.bodies = Bodies()
        self._leaving = Loads()
        self._held = Loads()
        self._leavers: dict[Room, list[tuple[Item, Spot]]] = {}
        self._shadows: list[tuple[Room, Load]] = []
        self._loan_shadows: dict[Room, Load] | None = None

    # Who leaves, and what is held.

    def add_leaver(self, item: Item, spot: Spot) -> None:
        """A replica told to leave before this cycle is still there."""
        self.leave(spot, item.shape.ask)
        self._leavers.setdefault(spot.room, []).append((item, spot))

    def leave(self, spot: Spot, ask: Ask) -> None:
        """What runs here has no promise any more, but is there yet."""
        self._leaving[spot.room].add(spot, ask)

    def hold(self, spot: Spot, ask: Ask, sign: int = 1) -> None:
        """A place is promised (1) to one that is not there yet, or no longer (-1)."""
        self._held[spot.room].add(spot, ask, sign)

    def leavers_from(self, spots: Iterable[Spot]) -> list[Item]:
        """Who, told to leave before this cycle or there on loan, is still where these places
        are.
        """
        found = {item.id: item for item in self.bodies.at(spots)} if self.bodies.items else {}
        for spot in spots:
            for item, theirs in self._leavers.get(spot.room, ()):
                if not spot.devices or set(spot.devices) & set(theirs.devices):
                    found[item.id] = item
        return [found[name] for name in sorted(found)]

    def leaving_on(self, room: Room) -> Load:
        """What victims still occupy on a node; not to be changed."""
        return self._leaving.on(room)

    def held_on(self, room: Room) -> Load:
        """What is held on a node for those who are not there yet; not to be changed."""
        return self._held.on(room)

    def is_free_now(self, spots: Sequence[Spot], ask: Ask, *, is_held: bool = False) -> bool:
        """Whether places taken in the ledger are free at present, too.

        Present room is promised room, plus what is only held, minus what has not left yet.

        Args:
            spots: Each for one replica.
            ask: What each of these takes.
            is_held: The places themselves are among what is held.
        """
        for room in {spot.room for spot in spots}:
            if room not in self._leaving and room not in self.bodies.loads:
                continue
            present = self._leaving.on(room).plus(self.bodies.loads.on(room))
            spare = self._held.on(room).copy()
            here = [spot for spot in spots if spot.room is room]
            if is_held:
                for spot in here:
                    spare.add(spot, ask, -1)
            if (
                room.cpu + spare.cpu < present.cpu
                or room.memory + spare.memory < present.memory
                or room.slots + spare.slots < present.slots
                or any(
                    room.devices[i] + spare.devices[i] < present.devices[i]
                    or room.milli[i] - spare.milli[i] + present.milli[i] > WHOLE_GPU_MILLI
                    for spot in here
                    for i in spot.devices
                )
            ):
                return False
        return True

    # Shadows.

    def open(self) -> None:
        """Open the nodes for placement; what is promised to nobody but still occupied stays
        hidden.
        """
        for room, leaving in self._leaving.items():
            shadow = leaving.beyond(self._held.on(room))
            self._shadows.append((room, shadow))
            self._ledger.shade(room, shadow, 1)
        self._ledger.index()
        self.lower_loan_shadows()

    def lift_shadows(self) -> None:
        """From here on, what victims still occupy may be promised to claimants."""
        for room, shadow in self._shadows:
            self._ledger.shade(room, shadow, -1)

    def lower_shadows(self) -> None:
        """Hide it again: a newcomer looks for what is free at present."""
        for room, shadow in self._shadows:
            self._ledger.shade(room, shadow, 1)

    def lift_loan_shadows(self) -> None:
        """From here on, what borrowers occupy may be promised as if they were not there."""
        for room, shadow in (self._loan_shadows or {}).items():
            self._ledger.shade(room, shadow, -1)
        self._loan_shadows = None

    def lower_loan_shadows(self) -> None:
        """Hide what borrowers occupy, until it is lifted."""
        self._loan_shadows = {}
        for room in self.bodies.loads:
            self._shade_loans(room)

    def lift_bodies(self, item: Item) -> None:
        """Suppose that a borrower's bodies are not there; `lay_bodies` undoes it."""
        self.bodies.lift(item)
        self._shade_loans_of(item)

    def lay_bodies(self, item: Item) -> None:
        """Undo `lift_bodies`."""
        self.bodies.lay(item)
        self._shade_loans_of(item)

    def _shade_loans_of(self, item: Item) -> None:
        for room in dict.fromkeys(body.spot.room for body in item.bodies):
            self._shade_loans(room)

    def _shade_loans(self, room: Room) -> None:
        """Hide, while loan shadows are kept, what borrowers take on a node beside what is leaving
        or held there.
        """
        if self._loan_shadows is None:
            return
        old = self._loan_shadows.pop(room, None)
        if old is not None:
            self._ledger.shade(room, old, -1)
        leaving, held = self._leaving.on(room), self._held.on(room)
        present = self.bodies.loads.on(room).plus(leaving)
        shadow = present.beyond(held).beyond(leaving.beyond(held))
        self._loan_shadows[room] = shadow
        self._ledger.shade(room, shadow, 1)
