"""What is free on the nodes that a request could use, in the numbers that a reason tells."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.demand import Option, Shape
from scheduling.core.rooms import Pool, Room


@dataclass(frozen=True, slots=True)
class Free:
    """What is free on some nodes; `block` is the largest piece together on one of them."""

    nodes: int
    gpu_milli: int
    block: int
    cpu_milli: int
    memory_mib: int


class RoomLeft:
    """What is free at the end of a cycle, found once for all that may use the same nodes."""

    def __init__(self) -> None:
        self._blocks: dict[Pool, int] = {}
        self._known: dict[object, Free] = {}

    def of(self, shape: Shape, option: Option) -> Free:
        """What is free on the nodes of a type that would do."""
        key = (shape.number, option.number) if shape.avoided else option.pools
        free = self._known.get(key)
        if free is None:
            free = self._among(shape, option) if shape.avoided else self._on(option)
            self._known[key] = free
        return free

    def _on(self, option: Option) -> Free:
        """What is free on all nodes of a type."""
        pools = option.pools
        return Free(
            nodes=sum(len(pool.nodes) for pool in pools),
            gpu_milli=sum(pool.free_units * 1000 // pool.unit_capacity for pool in pools),
            block=max((self._block(pool) for pool in pools), default=0),
            cpu_milli=sum(pool.free_cpu for pool in pools),
            memory_mib=sum(pool.free_memory for pool in pools),
        )

    def _among(self, shape: Shape, option: Option) -> Free:
        """What is free on the nodes that would do: the right labels, and no failed start."""
        rooms = [
            room
            for pool in option.pools
            for room in pool.nodes
            if room.node.name not in shape.avoided
        ]
        return Free(
            nodes=len(rooms),
            gpu_milli=sum(room.free * 1000 // room.pool.unit_capacity for room in rooms),
            block=max((_largest_piece(room) for room in rooms), default=0),
            cpu_milli=sum(room.cpu for room in rooms),
            memory_mib=sum(room.memory for room in rooms),
        )

    def _block(self, pool: Pool) -> int:
        """The largest free piece on one node: whole devices, or part of one."""
        block = self._blocks.get(pool)
        if block is None:
            pool.refresh()
            whole = max((i for i, bucket in enumerate(pool.by_whole) if bucket), default=0)
            shared = 0
            if not whole:
                shared = max((room.shared for room in pool.nodes), default=0)
            block = self._blocks[pool] = whole * 1000 or shared * 1000 // pool.unit_capacity
        return block


def constraint(shape: Shape, option: Option, asked: int, count: int, free: Free) -> str:
    """What stands in the way of `count` replicas, of `asked` thousandths of a GPU each, on this
    node type: the first of them that does.
    """
    if shape.unlabelled and all(
        room.node.name in shape.unlabelled for pool in option.pools for room in pool.nodes
    ):
        return "labels"
    if not option.is_possible:
        return "node_size"
    if not free.nodes:
        return "failed_here"
    is_short = asked > free.block or asked * count > free.gpu_milli
    return "gpu" if is_short else "cpu_or_memory"


def _largest_piece(room: Room) -> int:
    """Thousandths: its whole devices, or the largest part of one."""
    return room.whole * 1000 or room.shared * 1000 // room.pool.unit_capacity
