"""Free capacity of every node, indexed so that finding a place does not mean looking at all of
them.

Why it exists: a cycle tries thousands of placements and takes many of them back. So the ledger
keeps, per pool of alike nodes, sorted lists from which the best node for a request can be read off,
a journal of what was taken, and `with ledger.supposing():` for trials.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from scheduling.core.rooms import RANK_BITS, RANK_MASK, Ask, Load, Pool, Room, Spot
from scheduling.core.types import (
    Node,
    NodeName,
    NodeTypeName,
    Placement,
    ResourceKey,
)


class Ledger:
    """Free capacity, with `take` and `give_back`, `mark` and `rewind`.

    Invariant: after `rewind(mark)` everything is as it was at `mark`, indexes included.
    """

    def __init__(self, nodes: Iterable[Node], *, placement: Mapping[NodeTypeName, str]) -> None:
        self.rooms: dict[NodeName, Room] = {}
        self.pools: list[Pool] = []
        self._ranked: list[Room] = []
        self._journal: list[tuple[Spot, Ask, int]] = []
        by_kind: dict[tuple[NodeTypeName | None, ResourceKey, int, bool], Pool] = {}
        for rank, node in enumerate(sorted(nodes, key=lambda n: n.name)):
            kind = (node.node_type, node.gpu_key, node.gpu_memory_mib, node.num_devices > 0)
            pool = by_kind.get(kind)
            if pool is None:
                is_spread = node.node_type is not None and placement.get(node.node_type) == "spread"
                pool = by_kind[kind] = Pool(node, is_spread=is_spread)
                self.pools.append(pool)
            room = Room(node, rank, pool)
            self.rooms[node.name] = room
            self._ranked.append(room)
            if node.is_ready:
                pool.add(room)

    def index(self) -> None:
        """Open the ready nodes for placement, once everything that runs has been taken."""
        for room in self._ranked:
            if room.node.is_ready:
                room.pool.open(room)

    # Taking and giving back.

    def mark(self) -> int:
        return len(self._journal)

    def take(self, spot: Spot, ask: Ask) -> None:
        self._shift(spot, ask, 1)
        self._journal.append((spot, ask, 1))

    def occupy(self, spot: Spot, ask: Ask) -> None:
        """Take for good, before `index`: no journal, no index."""
        room = spot.room
        room.cpu -= ask.cpu_milli
        room.memory -= ask.memory_mib
        room.slots -= 1
        units, milli, devices = spot.units, spot.milli, spot.devices
        for device in devices:
            room.devices[device] -= units
            room.milli[device] += milli
        room.free -= units * len(devices)

    def give_back(self, spot: Spot, ask: Ask) -> None:
        self._shift(spot, ask, -1)
        self._journal.append((spot, ask, -1))

    def rewind(self, mark: int) -> None:
        while len(self._journal) > mark:
            spot, ask, sign = self._journal.pop()
            self._shift(spot, ask, -sign)

    @contextmanager
    def supposing(self) -> Iterator[Supposition]:
        """Try something; all of it is undone at the end unless `keep()` was called."""
        supposition = Supposition()
        mark = self.mark()
        try:
            yield supposition
        finally:
            if not supposition.is_kept:
                self.rewind(mark)

    def spot_of(self, placement: Placement, ask: Ask) -> Spot:
        """The spot that an existing placement takes."""
        room = self.rooms[placement.node]
        units = ask.units_per_device(room.pool.gpu_memory_mib)
        return Spot(room, placement.devices, units, placement.milli_per_device)

    def shade(self, room: Room, shadow: Load, sign: int) -> None:
        """Make capacity unavailable (1) or available again (-1), outside the journal."""
        room.cpu -= sign * shadow.cpu
        room.memory -= sign * shadow.memory
        room.slots -= sign * shadow.slots
        units = 0
        for device, amount in enumerate(shadow.devices):
            room.devices[device] -= sign * amount
            room.milli[device] += sign * shadow.milli[device]
            units += sign * amount
        room.free -= units
        if room.is_indexed:
            pool = room.pool
            pool.free_cpu -= sign * shadow.cpu
            pool.free_memory -= sign * shadow.memory
            pool.free_units -= units
            room.note()

    # Looking.

    def find(
        self,
        ask: Ask,
        pools: Sequence[Pool],
        avoided: frozenset[NodeName] = frozenset(),
        *,
        is_packed: bool = False,
    ) -> Spot | None:
        """The best place for one replica in these pools, or None.

        Args:
            ask: What it takes.
            pools: Of one node type.
            avoided: Nodes not to be used.
            is_packed: Pack even where the pool is spread (interactive work, which can never be
                moved).

        Cost: a few list look-ups; more only where a node has GPUs but no CPU or memory left.
        """
        if ask.gpu.num_devices == 0:
            return self._find_without_gpu(ask, pools, avoided)
        found: tuple[int, int, Room] | None = None
        for pool in pools:
            units = ask.units_per_device(pool.gpu_memory_mib)
            if units > pool.unit_capacity or ask.gpu.num_devices > pool.max_devices:
                continue
            is_partial_several = ask.gpu.num_devices > 1 and units < pool.unit_capacity
            if is_partial_several or (pool.is_spread and is_packed):
                candidate = _scan(pool, ask, units, avoided)
            else:
                candidate = self._look_up(pool, ask, units, avoided)
            if candidate is not None and (found is None or candidate[:2] < found[:2]):
                found = candidate
        if found is None:
            return None
        spot = self.spot_on(found[2], ask)
        assert spot is not None
        return spot

    def spot_on(self, room: Room, ask: Ask) -> Spot | None:
        """The place for one replica on this node, or None."""
        if not room.fits_beside_gpus(ask):
            return None
        if ask.gpu.num_devices == 0:
            return Spot(room, (), 0, 0)
        units = ask.units_per_device(room.pool.gpu_memory_mib)
        devices = room.choose_devices(units, ask.gpu.num_devices)
        if devices is None:
            return None
        return Spot(room, devices, units, min(room.share_of(d, ask) for d in devices))

    def emptiest(self, pool: Pool) -> Iterator[Room]:
        """Nodes with the most whole devices free first, then by room on shared ones, then full."""
        pool.refresh()
        seen: set[int] = set()
        for bucket in (*reversed(pool.by_whole), *reversed(pool.by_shared)):
            for key in bucket if pool.is_spread else reversed(bucket):
                rank = key & RANK_MASK
                if rank not in seen:
                    seen.add(rank)
                    yield self._ranked[rank]
        for room in pool.nodes:
            if room.rank not in seen:
                yield room

    # Inside.

    def _look_up(
        self, pool: Pool, ask: Ask, units: int, avoided: frozenset[NodeName]
    ) -> tuple[int, int, Room] | None:
        pool.refresh()
        if units < pool.unit_capacity:
            classes = pool.by_shared[pool.shared_class(units) :]
            key = self._best(classes, ask, avoided, units)
            if key is not None:
                return 0, key, self._ranked[key & RANK_MASK]
        key = self._best(pool.by_whole[ask.gpu.num_devices :], ask, avoided, 0)
        return None if key is None else (1, key, self._ranked[key & RANK_MASK])

    def _best(
        self, buckets: Sequence[list[int]], ask: Ask, avoided: frozenset[NodeName], shared: int
    ) -> int | None:
        """The smallest key of a node with room beside the GPUs and this much on a shared device."""
        best: int | None = None
        for bucket in buckets:
            for key in bucket:
                if best is not None and key >= best:
                    break
                room = self._ranked[key & RANK_MASK]
                if room.counted_shared >= shared and _is_usable(room, ask, avoided):
                    best = key
                    break
        return best

    def _find_without_gpu(
        self, ask: Ask, pools: Sequence[Pool], avoided: frozenset[NodeName]
    ) -> Spot | None:
        best: tuple[bool, int, Room] | None = None
        for pool in pools:
            pool.refresh()
            by_cpu = pool.index_cpu()
            start = 0 if pool.is_spread else bisect_left(by_cpu, ask.cpu_milli << RANK_BITS)
            for position in range(start, len(by_cpu)):
                key = by_cpu[position]
                if best is not None and (pool.has_gpus, key) >= best[:2]:
                    break
                room = self._ranked[key & RANK_MASK]
                if _is_usable(room, ask, avoided):
                    best = (pool.has_gpus, key, room)
                    break
        return None if best is None else Spot(best[2], (), 0, 0)

    def _shift(self, spot: Spot, ask: Ask, sign: int) -> None:
        room, devices, units, milli = spot
        cpu, memory = ask.cpu_milli * sign, ask.memory_mib * sign
        room.cpu -= cpu
        room.memory -= memory
        room.slots -= sign
        units *= sign
        milli *= sign
        free, charged = room.devices, room.milli
        for device in devices:
            free[device] -= units
            charged[device] += milli
        units *= len(devices)
        room.free -= units
        if room.is_indexed:
            pool = room.pool
            pool.free_cpu -= cpu
            pool.free_memory -= memory
            pool.free_units -= units
            if not room.is_stale:
                room.note()


class Supposition:
    """Handle of a trial; `keep()` makes it stay."""

    __slots__ = ("is_kept",)

    def __init__(self) -> None:
        self.is_kept = False

    def keep(self) -> None:
        self.is_kept = True


def _is_usable(room: Room, ask: Ask, avoided: frozenset[NodeName]) -> bool:
    return (
        room.cpu >= ask.cpu_milli
        and room.memory >= ask.memory_mib
        and room.slots > 0
        and (not avoided or room.node.name not in avoided)
    )


def _scan(
    pool: Pool, ask: Ask, units: int, avoided: frozenset[NodeName]
) -> tuple[int, int, Room] | None:
    """Look at every node: for the few requests that no index serves."""
    best: tuple[int, int, Room] | None = None
    count = ask.gpu.num_devices
    for room in pool.nodes:
        if not _is_usable(room, ask, avoided):
            continue
        devices = room.choose_devices(units, count)
        if devices is None:
            continue
        fresh = sum(1 for device in devices if room.devices[device] == pool.unit_capacity)
        fresh = fresh if units < pool.unit_capacity else 0
        candidate = (fresh, (room.free << RANK_BITS) | room.rank, room)
        if best is None or candidate[:2] < best[:2]:
            best = candidate
    return best
