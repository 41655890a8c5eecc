"""Racks, zones and the like: which nodes lie close together, and gathering a gang on such.

A preference, never a condition: replicas have their places already when this is asked, so that
nothing waits for a better one. The levels are labels of nodes, from the narrowest (`rack`, `zone`);
the node itself is narrower than all of them. Without levels in the policy nothing is gathered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace

from scheduling.core.ledger import Ledger
from scheduling.core.rooms import Ask, Room, Spot
from scheduling.core.types import WHOLE_GPU_MILLI

Domain = tuple[str, ...]
"""Values from one level's label up to the widest one's: two racks of one name are two racks."""


class Topology:
    """The domains of all nodes, level by level.

    Attributes:
        levels: `node`, then the labels, from the narrowest to the widest.
    """

    __slots__ = ("_domains", "_keys", "levels")

    def __init__(self, keys: Sequence[str]) -> None:
        self.levels = ("node", *keys)
        self._keys = tuple(keys)
        self._domains: dict[int, tuple[Domain | None, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def level_of(self, rooms: Sequence[Room]) -> int:
        """Number of the narrowest level at which all lie together; that of no level where none."""
        for level in range(len(self.levels)):
            first = self.domain(rooms[0], level)
            if first is not None and all(self.domain(room, level) == first for room in rooms[1:]):
                return level
        return len(self.levels)

    def domain(self, room: Room, level: int) -> Domain | None:
        """The domain of a node at a level; None where it lacks the label."""
        domains = self._domains.get(room.rank)
        if domains is None:
            domains = self._domains[room.rank] = tuple(self._domains_of(room))
        return domains[level]

    def _domains_of(self, room: Room) -> Iterable[Domain | None]:
        labels = room.node.labels
        yield (room.node.name,)
        for i, key in enumerate(self._keys):
            path = tuple(labels.get(above, "") for above in self._keys[i:])
            yield path if key in labels else None


def gather(
    ledger: Ledger,
    topology: Topology,
    ask: Ask,
    rooms: Iterable[Room],
    beside: Sequence[Room],
    spots: Sequence[Spot],
) -> list[Spot] | None:
    """Better places than these for as many replicas: in a smaller domain that holds them all and
    those that lie there already. Taken in the ledger; None where there is no such domain.

    Args:
        ledger: In which `spots` are not taken (any more).
        topology: The domains.
        ask: What one replica takes.
        rooms: Nodes that would do.
        beside: Where replicas of the gang lie.
        spots: Places that would do as well.

    Which of several: the one with the least room that suffices (or with the most, where the type is
    spread), then by name.

    Cost: a look at every node of the type, for gangs only, and only where levels are set.
    """
    count = len(spots)
    level = topology.level_of([*beside, *(spot.room for spot in spots)])
    if level == 0:
        return None
    fitting = {room: n for room in rooms if (n := num_fitting(room, ask))}
    for narrower in range(level):
        home = _common(topology, beside, narrower)
        if beside and home is None:
            continue
        totals: dict[Domain, int] = {}
        for room, number in fitting.items():
            domain = topology.domain(room, narrower)
            if domain is not None and home in (None, domain):
                totals[domain] = totals.get(domain, 0) + number
        is_spread = any(room.pool.is_spread for room in fitting)
        order = sorted((-n if is_spread else n, domain) for domain, n in totals.items())
        for total, domain in order:
            if abs(total) < count:
                continue
            inside = [room for room in fitting if topology.domain(room, narrower) == domain]
            found = _fill(ledger, ask, inside, count)
            if found is not None:
                return found
    return None


def _common(topology: Topology, rooms: Sequence[Room], level: int) -> Domain | None:
    """The domain in which all of these lie; None where there is none."""
    domains = {topology.domain(room, level) for room in rooms}
    return domains.pop() if len(domains) == 1 else None


def _fill(ledger: Ledger, ask: Ask, rooms: Sequence[Room], count: int) -> list[Spot] | None:
    """Lay replicas on these nodes as placement has it: on shared devices first, on the fullest node
    (the emptiest where the type is spread), then by name."""
    mark, spots = ledger.mark(), list[Spot]()
    heap = [(_order(room, ask), room.rank, room) for room in rooms]
    heapify(heap)
    while len(spots) < count and heap:
        room = heap[0][2]
        spot = ledger.spot_on(room, ask)
        if spot is None:
            heap[0] = heap[-1]
            heap.pop()
            heapify(heap)
            continue
        ledger.take(spot, ask)
        spots.append(spot)
        heapreplace(heap, (_order(room, ask), room.rank, room))
    if len(spots) < count:
        ledger.rewind(mark)
        return None
    return spots


def _order(room: Room, ask: Ask) -> tuple[bool, int]:
    units = ask.units_per_device(room.pool.gpu_memory_mib)
    needs_new = units < room.pool.unit_capacity and room.shared < units
    free = room.free if ask.gpu.num_devices else room.cpu
    return needs_new, -free if room.pool.is_spread else free


def num_fitting(room: Room, ask: Ask) -> int:
    """At most so many replicas fit a node as it is."""
    fitting = room.slots
    if ask.cpu_milli:
        fitting = min(fitting, room.cpu // ask.cpu_milli)
    if ask.memory_mib:
        fitting = min(fitting, room.memory // ask.memory_mib)
    count = ask.gpu.num_devices
    if not count:
        return max(0, fitting)
    units = ask.units_per_device(room.pool.gpu_memory_mib)
    if units == room.pool.unit_capacity:
        parts = room.whole
    else:
        parts = sum(
            free // units
            for free, milli in zip(room.devices, room.milli, strict=True)
            if milli < WHOLE_GPU_MILLI
        )
    return max(0, min(fitting, parts // count))
