"""What is on the nodes without a place of its own: borrowers on lent devices, and those that wait
in memory after yielding one.

They are *present* but nothing is *promised* to them, so all other steps of a cycle decide as if
they were not there. Only where something is to start at once must there be room beside them; where
there is not, its place is held, and the borrower leaves (`scheduling.core.lending`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduling.core.demand import Body, Item, Placed
from scheduling.core.rooms import Load, Loads, Room, Spot
from scheduling.core.types import Loan, Replica, ReplicaId


class Bodies:
    """All borrowers' bodies.

    Attributes:
        loads: Per node what they take beyond what their lenders left.
    """

    def __init__(self) -> None:
        self.loads = Loads()
        self._on_node: dict[Room, list[Body]] = {}
        self._items: list[Item] = []

    @property
    def items(self) -> Sequence[Item]:
        """Workloads that have bodies."""
        return self._items

    def add(self, item: Item, replica: Replica, spot: Spot) -> None:
        """Take in a replica without a place of its own; it counts from `settle` on."""
        if not item.bodies:
            self._items.append(item)
        item.bodies.append(Body(item, replica, spot))

    def settle(self, items: Iterable[Item], loans: Sequence[Loan]) -> None:
        """Find the lenders, once all workloads are known, and count what is taken beside them."""
        if loans:
            lenders = self._lenders(items, loans)
            bodies = {body.replica.id: body for item in self._items for body in item.bodies}
            for loan in sorted(loans, key=lambda loan: (loan.borrower, loan.lender)):
                body, lender = bodies.get(loan.borrower), lenders.get(loan.lender)
                if body is not None and lender is not None and not body.is_parked:
                    body.lenders.append(lender)
        for item in self._items:
            item.bodies.sort(key=lambda body: (len(body.replica.id), body.replica.id))
            self.lay(item)

    def _lenders(
        self, items: Iterable[Item], loans: Sequence[Loan]
    ) -> dict[ReplicaId, tuple[Item, Placed]]:
        wanted = {loan.lender for loan in loans}
        return {
            placed.replica.id: (item, placed)
            for item in items
            if item.shape.is_interactive
            for placed in item.running
            if placed.replica.id in wanted
        }

    def lay(self, item: Item) -> None:
        """Count a workload's bodies on their nodes."""
        for body in item.bodies:
            self._count(body, 1)
            self._on_node.setdefault(body.spot.room, []).append(body)

    def lift(self, item: Item) -> None:
        """Undo `lay`."""
        for body in item.bodies:
            self._count(body, -1)
            self._on_node[body.spot.room].remove(body)

    def drop(self, item: Item) -> None:
        """Forget bodies that were lifted: the workload has a place of its own now."""
        item.settled, item.bodies = item.bodies, []
        self._items.remove(item)

    def restore(self, item: Item, replica: Replica) -> None:
        """Its place is its own no more, in the same cycle: it is there on loan, as before."""
        for body in [body for body in item.settled if body.replica is replica]:
            item.settled.remove(body)
            if not item.bodies:
                self._items.append(item)
            item.bodies.append(body)
            self._count(body, 1)
            self._on_node.setdefault(body.spot.room, []).append(body)

    def _count(self, body: Body, sign: int) -> None:
        add_body(self.loads[body.spot.room], body, sign)

    def at(self, spots: Iterable[Spot]) -> list[Item]:
        """Whose bodies are where these places are."""
        found: dict[str, Item] = {}
        for spot in spots:
            for body in self._on_node.get(spot.room, ()):
                is_there = not spot.devices or set(spot.devices) & set(body.spot.devices)
                if is_there or body.is_parked:
                    found[body.item.id] = body.item
        return [found[name] for name in sorted(found)]


def add_body(load: Load, body: Body, sign: int = 1) -> None:
    """Count what a body takes of its node beside its lenders (1), or no longer (-1)."""
    ask = body.item.shape.ask
    load.cpu += sign * ask.cpu_milli
    load.memory += sign * ask.memory_mib
    load.slots += sign
    for device, (units, milli) in _taken_beside_lenders(body).items():
        load.devices[device] += sign * units
        load.milli[device] += sign * milli


def _taken_beside_lenders(body: Body) -> dict[int, tuple[int, int]]:
    """Per device, what a borrower uses beyond what its lenders hold there: units, thousandths."""
    if body.is_parked:
        return {}
    taken = {}
    for device in body.spot.devices:
        units, milli = body.spot.units, body.spot.milli
        for _, placed in body.lenders:
            if placed.spot.room is body.spot.room and device in placed.spot.devices:
                units -= placed.spot.units
                milli -= placed.spot.milli
        taken[device] = (max(0, units), max(0, milli))
    return taken
