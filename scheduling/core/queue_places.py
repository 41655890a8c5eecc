"""Which place a waiting workload has among those who wait with it, as pages tell it.

One line per project and first choice of GPUs; the cycle itself goes by `ordering.Queue`, which
orders projects, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.core.demand import Item
from scheduling.core.ordering import Batch, WorkloadKey, workload_key
from scheduling.core.types import WorkloadId


def queue_of(item: Item) -> tuple[str, int]:
    """Those who wait with it: of its project, for its first choice of GPUs (number of the resource;
    0 without GPUs)."""
    r = item.shape.first[-1][0] if item.shape.first else 0
    return item.account.id, 0 if r == 1 else r


def queue_places(waiting: Iterable[Item]) -> dict[WorkloadId, tuple[int, int]]:
    """Place of each workload in its queue, from 1 on, and the length of that queue.

    Args:
        waiting: All that wait; a batch may be named by any of its workloads.
    """
    queues: dict[tuple[str, int], list[tuple[WorkloadKey, Item]]] = {}
    batches: set[Batch] = set()
    for item in waiting:
        batch = item.batch
        if batch is None:
            entries = [(workload_key(item), item)]
        elif batch in batches:
            continue
        else:
            batches.add(batch)
            entries = [entry for entry in batch.entries if _only_waits(entry[1], batch)]
        queues.setdefault(queue_of(item), []).extend(entries)
    places = {}
    for queue in queues.values():
        queue.sort()
        length = len(queue)
        for place, (_, item) in enumerate(queue, 1):
            places[item.id] = (place, length)
    return places


def _only_waits(item: Item, batch: Batch) -> bool:
    """Still one of its batch, and nothing of it starts just now."""
    return item.batch is batch and not (item.running and item.running[-1].is_new)
