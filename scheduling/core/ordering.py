"""Who comes first: total orders over projects, workloads and victims, each ending in a unique id.

`Queue` walks the tree of projects: at each level the best child, down to a project's best workload.
Only the path of the workload just handled changes its keys, so a turn costs a few heap operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from scheduling.core.accounts import Account, Accounts, Amounts
from scheduling.core.admission import is_within_quota
from scheduling.core.decisions import Reason
from scheduling.core.demand import Item

WorkloadKey = tuple[int, int, float, str]
ProjectKey = tuple[bool, bool, int, bool, float, float, float, int, str]
VictimKey = tuple[int, bool, float, float, str]


def workload_key(item: Item) -> WorkloadKey:
    """Which workload next, inside a project.

    1. Higher priority, raised by aging.
    2. Gangs below their minimum, then at it, then above.
    3. Submitted earlier; an evicted workload keeps its submission, hence its place.
    4. Smaller id.
    """
    return (-item.rank, item.gang_state, item.submitted, item.id)


def project_key(account: Account, amounts: Amounts, capacity: list[int]) -> ProjectKey:
    """Which project next, among siblings.

    1. Not above its fair share in any resource.
    2. Its next workload fits inside quota.
    3. Higher priority.
    4. No use of a resource whose allocatable share is 0.
    5. Smaller dominant share with the next workload; 6. without it.
    7. Smaller allocatable share. 8. Older. 9. Smaller id.
    """
    allocated, allocatable = account.allocated, account.allocatable
    is_above = False
    uses_nothing_of_its_own = False
    without = size = 0.0
    for r, held in enumerate(allocated):
        bound = allocatable[r]
        if bound is None:
            bound = capacity[r]
        if capacity[r]:
            size = max(size, bound / capacity[r])
        if held:
            if held > account.fair[r]:
                is_above = True
            if bound:
                without = max(without, held / bound)
            else:
                uses_nothing_of_its_own = True
    share = without
    for r, amount in amounts:
        bound = allocatable[r]
        if bound is None:
            bound = capacity[r]
        if bound:
            share = max(share, (allocated[r] + amount) / bound)
        else:
            uses_nothing_of_its_own = True
    return (
        is_above,
        not is_within_quota(account, amounts),
        -account.priority,
        uses_nothing_of_its_own,
        share,
        without,
        size,
        account.created,
        account.id,
    )


def victim_key(item: Item) -> VictimKey:
    """Which of a project's workloads yields first.

    1. Lower priority.
    2. One with surplus replicas, which gives up one of them.
    3. Among those whose cost is known, the smallest save + restore + lost progress.
    4. Submitted last. 5. Smaller id.
    """
    cost = item.workload.eviction_cost
    return (
        item.priority,
        item.num_surplus == 0,
        float("inf") if cost is None else cost.total_s,
        -item.submitted,
        item.id,
    )


def key_after_shrinking(item: Item) -> VictimKey:
    """The item's key once it has given up one more surplus replica than it has now."""
    key = victim_key(item)
    return (key[0], item.num_surplus <= 1, *key[2:])


class Batch:
    """Workloads of one project that are alike to every rule, in order: what fails for the first
    fails for all, so a pass handles them as one.

    Attributes:
        alike: What they have in common.
        entries: Each with its key, in order.
        next: Number of the one that comes after the one in the heap of the pass under way.
        reason: Why all of them wait, once it is known.
    """

    __slots__ = ("alike", "entries", "next", "reason")

    def __init__(self, alike: object) -> None:
        self.alike = alike
        self.entries: list[tuple[WorkloadKey, Item]] = []
        self.next = 0
        self.reason: Reason | None = None

    def add(self, item: Item) -> None:
        item.batch = self
        self.entries.append((workload_key(item), item))

    @property
    def first(self) -> Item:
        return self.entries[0][1]


class _Branch:
    """An account with its waiting workloads, or with children that have some.

    Of each batch only the next workload lies in the heap.
    """

    __slots__ = ("account", "children", "heads", "is_stale")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.heads: list[tuple[WorkloadKey, Item, Batch | None]] = []
        self.children: list[tuple[ProjectKey, _Branch]] = []
        self.is_stale = False

    def next_amounts(self) -> Amounts | None:
        """What the next workload of this branch asks for; None when nothing waits."""
        if self.heads:
            item = self.heads[0][1]
            count = item.num_next
            if count == 1:
                return item.shape.first
            return tuple((r, amount * count) for r, amount in item.shape.first)
        return self.children[0][1].next_amounts() if self.children else None

    def pop(self) -> Item:
        """Take the next workload out; the one behind it in its batch moves up."""
        _, item, batch = heappop(self.heads)
        if batch is not None:
            self._move_up(batch)
        return item

    def drop(self) -> None:
        """The next workload is hopeless, and with it all that is alike."""
        _, item, batch = heappop(self.heads)
        if batch is not None and item.batch is not batch:
            self._move_up(batch)

    def _move_up(self, batch: Batch) -> None:
        """Those that have changed since lie in the heap by themselves."""
        entries = batch.entries
        while batch.next < len(entries):
            key, item = entries[batch.next]
            batch.next += 1
            if item.batch is batch:
                heappush(self.heads, (key, item, batch))
                return


class Queue:
    """Everything that waits, in the order in which it is to be tried."""

    def __init__(self, accounts: Accounts, batches: Iterable[Batch]) -> None:
        self._capacity = accounts.resources.capacity
        self._branches: dict[Account, _Branch] = {}
        self._root = _Branch.__new__(_Branch)
        self._root.heads, self._root.children, self._root.is_stale = [], [], False
        for batch in batches:
            key, item = batch.entries[0]
            batch.next = 1
            self._branch(item.account).heads.append((key, item, batch))
        for branch in self._branches.values():
            heapify(branch.heads)
        deepest_first = sorted(self._branches.values(), key=lambda b: -b.account.depth)
        for branch in deepest_first:
            amounts = branch.next_amounts()
            if amounts is not None:
                key_above = project_key(branch.account, amounts, self._capacity)
                heappush(self._above(branch).children, (key_above, branch))

    def _branch(self, account: Account) -> _Branch:
        branch = self._branches.get(account)
        if branch is None:
            for level in account.path:
                if level not in self._branches:
                    self._branches[level] = _Branch(level)
            branch = self._branches[account]
        return branch

    def _above(self, branch: _Branch) -> _Branch:
        parent = branch.account.parent
        return self._root if parent is None else self._branches[parent]

    def run(self, attempt: Callable[[Item], bool], is_hopeless: Callable[[Item], bool]) -> None:
        """Try each workload in its turn.

        Args:
            attempt: One for which it says True gets another turn.
            is_hopeless: What need not be tried is passed over: it takes nobody's turn.
        """
        while self._root.children:
            self._turn(self._root, attempt, is_hopeless)

    def _turn(
        self,
        branch: _Branch,
        attempt: Callable[[Item], bool],
        is_hopeless: Callable[[Item], bool],
    ) -> None:
        if branch.is_stale:
            branch.children = [
                (project_key(child.account, child.next_amounts() or (), self._capacity), child)
                for _, child in branch.children
            ]
            heapify(branch.children)
            branch.is_stale = False
        if branch.heads:
            item = branch.pop()
            if attempt(item):
                heappush(branch.heads, (workload_key(item), item, None))
            while branch.heads and is_hopeless(branch.heads[0][1]):
                branch.drop()
            return
        _, child = heappop(branch.children)
        self._turn(child, attempt, is_hopeless)
        amounts = child.next_amounts()
        if amounts is not None:
            key = project_key(child.account, amounts, self._capacity)
            heappush(branch.children, (key, child))

    def refresh(self, account: Account) -> None:
        """An account's sums changed outside its turn: order its level anew before the next one."""
        for level in account.path:
            if level in self._branches:
                self._above(self._branches[level]).is_stale = True

    def set_apart(self, item: Item) -> None:
        """A workload that waits in its batch is no longer like the others: it lies by itself."""
        branch, batch = self._branches.get(item.account), item.batch
        if branch is None or batch is None:
            return
        for key, other in batch.entries[batch.next :]:
            if other is item:
                heappush(branch.heads, (key, item, None))
