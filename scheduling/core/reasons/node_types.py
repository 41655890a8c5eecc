"""What each node type has for a workload that waits, in the numbers that its reason tells.

Made once for all that ask for the same, and only the code added where limit or quota bars one.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.accounts import gpu_milli
from scheduling.core.admission import Refusal, barrier_to
from scheduling.core.demand import Item, Option, Shape
from scheduling.core.reasons.room_left import Free, RoomLeft, constraint
from scheduling.core.reasons.words import Details


class NodeTypes:
    """Node types at the end of a cycle."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int, int], Details] = {}
        self._unbarred: dict[object, tuple[Details, ...]] = {}
        self._room_left = RoomLeft()

    def free(self, item: Item, option: Option) -> Free:
        """What is free on the nodes of a type that would do."""
        return self._room_left.of(item.shape, option)

    def is_unbarred(self, item: Item, entries: tuple[Details, ...]) -> bool:
        """Whether these are the numbers of all that ask for the same, since nothing bars it."""
        return entries is self._unbarred.get(_alike(item))

    def entry(self, item: Item, option: Option) -> Details:
        """The numbers of one of them, with what bars it there."""
        return self._told(item, option, barrier_to(item, option))

    def entries(
        self, item: Item, options: Sequence[Option], barriers: Sequence[Refusal | None]
    ) -> tuple[Details, ...]:
        """The numbers of all of these.

        Args:
            item: Who waits.
            options: Its node types.
            barriers: What bars it from each.
        """
        if any(barriers):
            return tuple(map(self._told, [item] * len(options), options, barriers))
        key = _alike(item)
        entries = self._unbarred.get(key)
        if entries is None:
            entries = self._unbarred[key] = tuple(self._told(item, o, None) for o in options)
        return entries

    def _told(self, item: Item, option: Option, barrier: Refusal | None) -> Details:
        key = (item.shape.number, option.number, item.num_next)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._free_numbers(item.shape, option, item.num_next)
        return entry if barrier is None else {**entry, "code": str(barrier.bound)}

    def _free_numbers(self, shape: Shape, option: Option, count: int) -> Details:
        asked = gpu_milli(option.amounts)
        free = self._room_left.of(shape, option)
        entry: Details = {
            "node_type": option.node_type,
            "nodes": free.nodes,
            "requested_gpu_milli": asked,
            "free_gpu_milli": free.gpu_milli,
            "largest_free_gpu_milli": free.block,
            "free_cpu_milli": free.cpu_milli,
            "free_memory_mib": free.memory_mib,
            "code": "no_fit",
        }
        if option.pools:
            entry["constraint"] = constraint(shape, option, asked, count, free)
        else:
            entry["code"] = "node_type_offline"
        return entry

    def is_scattered(self, item: Item, option: Option) -> bool:
        """Enough is free in all, but not together."""
        asked = gpu_milli(option.amounts)
        free = self.free(item, option)
        return asked > 0 and free.gpu_milli >= asked * item.num_next


def _alike(item: Item) -> tuple[object, ...]:
    """What decides the numbers of its node types: equal where as many of the same are asked."""
    return item.shape.number, item.chosen_type, item.num_next
