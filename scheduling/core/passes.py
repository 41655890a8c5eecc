"""Passes over what waits: one rule after another is tried with every workload in its turn.

Thousands wait, and most of them fail at every rule. So workloads that are alike to every rule form
a batch (`ordering.Batch`), kept from one pass to the next: what fails for one is not tried for the
others. A workload of which something has changed leaves its batch, and joins one again before the
next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scheduling.core.accounts import Account
from scheduling.core.demand import Item, Option
from scheduling.core.ordering import Batch, Queue
from scheduling.core.state import State


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one pass tries with each workload.

    Attributes:
        make: Tries it; whether more replicas of the workload wait for another turn.
        key: What makes two tries alike on a node type, so that the second need not be made if the
            first failed.
        is_worth_trying: Whether it may be tried at all, judged before the pass for a whole batch.
        may_evict: Whether others may have to leave for it; then the preemption delay holds.
    """

    make: Callable[[Item], bool]
    key: Callable[[Item, Option], object]
    is_worth_trying: Callable[[Item], bool]
    may_evict: bool


def likeness(item: Item) -> object:
    """What makes two workloads alike to every rule."""
    tie = item.chosen_type
    shape, count = item.shape.number, item.num_next
    return (item.account.id, shape, count, item.priority, item.is_preemptible, tie, item.home)


class Passes:
    """What waits, and one pass over it after another.

    Attributes:
        batches: What waits, alike workloads together, by what they have in common.
        hopeless: What has failed in the pass under way, by the keys of its attempt.
    """

    def __init__(self, state: State, waiting: Iterable[Item]) -> None:
        self._state = state
        self._queue = Queue(state.accounts, ())
        self._loose = list(waiting)
        self._left: dict[int, Batch] = {}
        self.batches: dict[object, Batch] = {}
        self.hopeless: set[object] = set()

    def run(self, attempt: Attempt) -> None:
        """One pass over everything that still waits, in order."""
        self._gather()
        self.run_over(self.batches.values(), attempt)

    def run_over(self, batches: Iterable[Batch], attempt: Attempt) -> None:
        """One pass over these, in order."""
        self.hopeless.clear()
        if attempt.may_evict:
            batches = [batch for batch in batches if self._state.delayed_until(batch.first) is None]
        self._queue = Queue(
            self._state.accounts,
            [batch for batch in batches if attempt.is_worth_trying(batch.first)],
        )

        def is_hopeless(item: Item) -> bool:
            """Every way to place it has failed for one like it in this pass."""
            for option in item.options():
                if option.is_possible and attempt.key(item, option) not in self.hopeless:
                    return False
            return True

        self._queue.run(attempt.make, is_hopeless)

    def set_apart(self, item: Item) -> None:
        """The workload whose turn it was has changed: it is like its batch no more."""
        batch = item.batch
        if batch is not None:
            item.batch = None
            self._loose.append(item)
            self._left[id(batch)] = batch

    def set_apart_in_queue(self, item: Item) -> None:
        """A workload that waits for its turn has changed: it is tried by itself."""
        if item.batch is not None:
            self._queue.set_apart(item)
            self.set_apart(item)

    def refresh(self, account: Account) -> None:
        """An account's sums have changed outside its turn."""
        self._queue.refresh(account)

    def _gather(self) -> None:
        """Put what waits, and has changed since the last pass, among what is like it."""
        for batch in self._left.values():
            batch.entries = [entry for entry in batch.entries if entry[1].batch is batch]
            if not batch.entries:
                del self.batches[batch.alike]
        self._left.clear()
        grown: dict[int, Batch] = {}
        for item in self._loose:
            if item.pending and not item.evicted:
                batch = self.batch_of(item)
                batch.add(item)
                grown[id(batch)] = batch
        self._loose.clear()
        for batch in grown.values():
            batch.entries.sort()

    def batch_of(self, item: Item) -> Batch:
        """Where a workload belongs, made if nothing like it waits yet."""
        alike = (likeness(item), self._state.delayed_until(item) is None)
        batch = self.batches.get(alike)
        if batch is None:
            batch = self.batches[alike] = Batch(alike)
        return batch
