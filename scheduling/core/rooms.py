"""Nodes as room: what a replica asks of one, what is free on it, and alike ones pooled.

Room on a device is counted in *units* of a thousandth of a MiB of it, so that a third of a device
and 5 GiB of it add up exactly: a device has `1000 · gpu_memory_mib` of them, a thousandth is
`gpu_memory_mib`, a MiB is 1000.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import NamedTuple

from scheduling.core.types import (
    WHOLE_GPU_MILLI,
    GpuRequest,
    Node,
    NodeTypeName,
    Placement,
    ResourceKey,
)

_NUM_CLASSES = 20  # classes of room on shared devices, each a twentieth of a device
_NO_LIMIT = 1 << 40
RANK_BITS = 20  # a key is (how free << 20) | rank of the node's name: a million nodes
RANK_MASK = (1 << RANK_BITS) - 1


@dataclass(frozen=True, slots=True)
class Ask:
    """What one replica takes from a node."""

    gpu: GpuRequest
    cpu_milli: int
    memory_mib: int

    def units_per_device(self, gpu_memory_mib: int) -> int:
        """Units of one device with this much memory; more than it has when it cannot fit."""
        gpu = self.gpu
        if gpu.memory_mib_per_device is not None:
            return gpu.memory_mib_per_device * WHOLE_GPU_MILLI
        return (gpu.milli_per_device or 0) * (gpu_memory_mib or 1)

    def milli_per_device(self, gpu_memory_mib: int) -> int:
        """Thousandths of one device, rounded up; what quota is charged."""
        if self.gpu.memory_mib_per_device is not None:
            asked = self.gpu.memory_mib_per_device * WHOLE_GPU_MILLI
            return -(-asked // max(1, gpu_memory_mib))
        return self.gpu.milli_per_device or 0


class Pool:
    """Nodes of one type with the same devices, and the indexes over them.

    Every index is a sorted list of keys, best node first: fullest where the pool is packed,
    emptiest where it is spread, then by name. A trial takes and gives back much between two looks
    at an index, so a node that has changed is only noted (`stale`), and moved in them by `refresh`,
    which whoever reads them calls before.
    """

    __slots__ = (
        "by_cpu",
        "by_shared",
        "by_whole",
        "free_cpu",
        "free_memory",
        "free_units",
        "gpu_key",
        "gpu_memory_mib",
        "has_gpus",
        "is_spread",
        "max_cpu",
        "max_devices",
        "max_memory",
        "node_type",
        "nodes",
        "stale",
        "unit_capacity",
    )

    def __init__(self, node: Node, *, is_spread: bool) -> None:
        self.node_type: NodeTypeName | None = node.node_type
        self.gpu_key: ResourceKey = node.gpu_key
        self.gpu_memory_mib = node.gpu_memory_mib
        self.unit_capacity = WHOLE_GPU_MILLI * max(1, node.gpu_memory_mib)
        self.has_gpus = node.num_devices > 0
        self.is_spread = is_spread
        self.nodes: list[Room] = []
        self.max_devices = 0
        self.max_cpu = 0
        self.max_memory = 0
        self.free_units = 0
        self.free_cpu = 0
        self.free_memory = 0
        self.by_whole: list[list[int]] = [[]]
        self.by_shared: list[list[int]] = [[] for _ in range(_NUM_CLASSES)]
        self.by_cpu: list[int] | None = None
        self.stale: list[Room] = []

    def add(self, room: Room) -> None:
        self.nodes.append(room)
        node = room.node
        self.max_devices = max(self.max_devices, node.num_devices)
        self.max_cpu = max(self.max_cpu, node.cpu_milli)
        self.max_memory = max(self.max_memory, node.memory_mib)
        while len(self.by_whole) <= node.num_devices:
            self.by_whole.append([])

    def shared_class(self, units: int) -> int:
        return min(_NUM_CLASSES - 1, units * _NUM_CLASSES // self.unit_capacity)

    def open(self, room: Room) -> None:
        """Put a node into the indexes, and count what is free there."""
        self.free_units += room.free
        self.free_cpu += room.cpu
        self.free_memory += room.memory
        room.recount()
        room.is_indexed = True
        self._insert(room)

    def refresh(self) -> None:
        """Move the nodes that have changed to where they belong in the indexes."""
        for room in self.stale:
            room.is_stale = False
            whole, shared, key = room.counted_whole, room.counted_shared, room.key
            room.recount()
            has_moved = (
                key != self._key(room)
                or whole != room.counted_whole
                or shared != room.counted_shared
            )
            if self.has_gpus and has_moved:
                self._remove(room, whole, shared)
                self._insert(room)
            if self.by_cpu is not None and room.cpu_index_key != (cpu_key := _cpu_key(room)):
                del self.by_cpu[bisect_left(self.by_cpu, room.cpu_index_key)]
                room.cpu_index_key = cpu_key
                insort(self.by_cpu, cpu_key)
        self.stale.clear()

    def num_whole(self) -> int:
        """Devices that are free as a whole, on all nodes together."""
        self.refresh()
        return sum(count * len(bucket) for count, bucket in enumerate(self.by_whole))

    def index_cpu(self) -> list[int]:
        """The index by free CPU, made when it is first asked for."""
        if self.by_cpu is None:
            for room in self.nodes:
                room.cpu_index_key = _cpu_key(room)
            self.by_cpu = sorted([room.cpu_index_key for room in self.nodes])
        return self.by_cpu

    def _key(self, room: Room) -> int:
        free = room.free
        if self.is_spread:
            free = self.unit_capacity * room.node.num_devices - free
        return (free << RANK_BITS) | room.rank

    def _insert(self, room: Room) -> None:
        key = room.key = self._key(room)
        if room.counted_whole:
            insort(self.by_whole[room.counted_whole], key)
        if room.counted_shared:
            insort(self.by_shared[self.shared_class(room.counted_shared)], key)

    def _remove(self, room: Room, whole: int, shared: int) -> None:
        """Take a node out of where it was when so much of it was free."""
        if whole:
            bucket = self.by_whole[whole]
            del bucket[bisect_left(bucket, room.key)]
        if shared:
            bucket = self.by_shared[self.shared_class(shared)]
            del bucket[bisect_left(bucket, room.key)]


def _cpu_key(room: Room) -> int:
    cpu = max(0, room.cpu)
    if room.pool.is_spread:
        cpu = max(0, room.node.cpu_milli - cpu)
    return (cpu << RANK_BITS) | room.rank


class Room:
    """What is free on one node.

    Attributes:
        is_stale: It has changed since the indexes of its pool, and what is counted, were made.
        counted_whole, counted_shared: As `whole` and `shared` were then.
    """

    __slots__ = (
        "counted_shared",
        "counted_whole",
        "cpu",
        "cpu_index_key",
        "devices",
        "free",
        "is_indexed",
        "is_stale",
        "key",
        "memory",
        "milli",
        "node",
        "pool",
        "rank",
        "slots",
    )

    def __init__(self, node: Node, rank: int, pool: Pool) -> None:
        self.node = node
        self.rank = rank
        self.pool = pool
        self.cpu = node.cpu_milli
        self.memory = node.memory_mib
        self.slots = _NO_LIMIT if node.max_replicas is None else node.max_replicas
        self.devices = [pool.unit_capacity] * node.num_devices
        self.milli = [0] * node.num_devices  # thousandths charged, each rounded up
        self.free = pool.unit_capacity * node.num_devices
        self.counted_whole = node.num_devices
        self.counted_shared = 0
        self.key = 0
        self.cpu_index_key = 0
        self.is_indexed = False
        self.is_stale = False

    @property
    def whole(self) -> int:
        """Devices that are free as a whole."""
        if self.is_stale:
            return self.devices.count(self.pool.unit_capacity)
        return self.counted_whole

    @property
    def shared(self) -> int:
        """The largest room on a device that somebody shares."""
        return self._largest_shared() if self.is_stale else self.counted_shared

    def note(self) -> None:
        """It has changed: its pool's indexes are to be refreshed."""
        if self.is_indexed and not self.is_stale:
            self.is_stale = True
            self.pool.stale.append(self)

    def recount(self) -> None:
        self.counted_whole = self.devices.count(self.pool.unit_capacity)
        self.counted_shared = self._largest_shared()

    def _largest_shared(self) -> int:
        capacity, shared = self.pool.unit_capacity, 0
        for device, units in enumerate(self.devices):
            if shared < units < capacity and self.milli[device] < WHOLE_GPU_MILLI:
                shared = units
        return shared

    def fits_beside_gpus(self, ask: Ask) -> bool:
        return self.cpu >= ask.cpu_milli and self.memory >= ask.memory_mib and self.slots > 0

    def share_of(self, device: int, ask: Ask) -> int:
        """Thousandths to be recorded for one more sharer of a device; together never above 1000.

        Asked by memory, what all sharers use together is rounded up once and not each one apart, or
        many small ones would use up the thousandths before the memory.
        """
        memory = self.pool.gpu_memory_mib
        own, recorded = ask.milli_per_device(memory), self.milli[device]
        if ask.gpu.memory_mib_per_device is not None:
            capacity = self.pool.unit_capacity
            used = capacity - self.devices[device] + ask.units_per_device(memory)
            together = -(-used * WHOLE_GPU_MILLI // capacity)
            own = max(1, min(own, together - recorded))
        return min(own, WHOLE_GPU_MILLI - recorded)

    def choose_devices(self, units: int, count: int) -> tuple[int, ...] | None:
        """The fullest shared devices that have room, then fresh ones; lowest number first."""
        capacity = self.pool.unit_capacity
        if units == capacity:
            whole = [i for i, free in enumerate(self.devices) if free == capacity]
            return tuple(whole[:count]) if len(whole) >= count else None
        fitting = sorted(
            (free, i)
            for i, free in enumerate(self.devices)
            if free >= units and self.milli[i] < WHOLE_GPU_MILLI
        )
        if len(fitting) < count:
            return None
        return tuple(sorted(i for _, i in fitting[:count]))


class Spot(NamedTuple):
    """A place found: devices of a node, the units of each, and the thousandths recorded for it.

    Requests by memory are rounded up to thousandths, so those of a full device may add up to a
    little over 1000. What is recorded may not (`Room.share_of`).
    """

    room: Room
    devices: tuple[int, ...]
    units: int
    milli: int

    def is_free(self, ask: Ask) -> bool:
        """Whether just this place is free on its node."""
        room = self.room
        return room.fits_beside_gpus(ask) and all(
            room.devices[device] >= self.units
            and room.milli[device] + self.milli <= WHOLE_GPU_MILLI
            for device in self.devices
        )

    def placement(self) -> Placement:
        return Placement(self.room.node.name, self.devices, self.milli)


class Load:
    """An amount of everything that a node has."""

    __slots__ = ("cpu", "devices", "memory", "milli", "slots")

    def __init__(self, num_devices: int) -> None:
        self.cpu = 0
        self.memory = 0
        self.slots = 0
        self.devices = [0] * num_devices
        self.milli = [0] * num_devices

    def add(self, spot: Spot, ask: Ask, sign: int = 1) -> None:
        """Count what one replica takes at a place (1), or no longer (-1)."""
        self.cpu += sign * ask.cpu_milli
        self.memory += sign * ask.memory_mib
        self.slots += sign
        for device in spot.devices:
            self.devices[device] += sign * spot.units
            self.milli[device] += sign * spot.milli

    def copy(self) -> Load:
        return self.plus(Load(len(self.devices)))

    def plus(self, other: Load) -> Load:
        """This and another of the same node together."""
        total = Load(0)
        total.cpu = self.cpu + other.cpu
        total.memory = self.memory + other.memory
        total.slots = self.slots + other.slots
        total.devices = [a + b for a, b in zip(self.devices, other.devices, strict=True)]
        total.milli = [a + b for a, b in zip(self.milli, other.milli, strict=True)]
        return total

    def beyond(self, other: Load) -> Load:
        """What is left when another of the same node is taken off, nowhere less than nothing."""
        rest = Load(0)
        rest.cpu = max(0, self.cpu - other.cpu)
        rest.memory = max(0, self.memory - other.memory)
        rest.slots = max(0, self.slots - other.slots)
        rest.devices = [max(0, a - b) for a, b in zip(self.devices, other.devices, strict=True)]
        rest.milli = [max(0, a - b) for a, b in zip(self.milli, other.milli, strict=True)]
        return rest


class Loads(dict[Room, Load]):
    """Loads by node; a node's is made, with nothing in it, when it is first asked for by `[]`."""

    def __missing__(self, room: Room) -> Load:
        load = self[room] = Load(len(room.devices))
        return load

    def on(self, room: Room) -> Load:
        """A node's load, to be read only: asking leaves no trace."""
        return self.get(room) or Load(len(room.devices))
