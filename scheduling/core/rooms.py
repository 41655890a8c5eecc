"""Nodes as room: what a replica asks of one, what is free on it, and alike ones pooled.

Room on a device is counted in *units* of a thousandth of a MiB of it, so that a third of a device
and 5 GiB of it add up exactly: a device has `1000 · gpu_memory_mib` of them, a thousandth is
`gpu_memory_mib`, a MiB is 1000.
"""

from __future__ import annotations

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
    emptiest where it is spread, then by name.
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


class Room:
    """What is free on one node."""

    __slots__ = (
        "cpu",
        "cpu_index_key",
        "devices",
        "free",
        "is_indexed",
        "key",
        "memory",
        "milli",
        "node",
        "pool",
        "rank",
        "shared",
        "slots",
        "whole",
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
        self.whole = node.num_devices
        self.shared = 0  # the largest room on a device that somebody shares
        self.key = 0
        self.cpu_index_key = 0
        self.is_indexed = False

    def recount(self) -> None:
        capacity = self.pool.unit_capacity
        whole = shared = 0
        for units, milli in zip(self.devices, self.milli, strict=True):
            if units == capacity:
                whole += 1
            elif units > shared and milli < WHOLE_GPU_MILLI:
                shared = units
        self.whole = whole
        self.shared = shared

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
            if self.whole < count:
                return None
            return tuple([i for i, free in enumerate(self.devices) if free == capacity][:count])
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
        self.cpu += sign * ask.cpu_milli
        self.memory += sign * ask.memory_mib
        self.slots += sign
        for device in spot.devices:
            self.devices[device] += sign * spot.units
            self.milli[device] += sign * spot.milli
