"""Who comes first: total orders over projects, workloads and victims, each ending in a unique id.

`Queue` walks the tree of projects: at each level the best child, down to a project's best workload.
Only the path of the workload just handled changes its keys, so a turn costs a few heap operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from scheduling.core.accounts import Account, Accounts, Amounts
from scheduling.core.admission import is_within_quota
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


class _Branch:
    """An account with its waiting workloads, or with children that have some."""

    __slots__ = ("account", "children", "is_stale", "items")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.items: list[tuple[WorkloadKey, Item]] = []
        self.children: list[tuple[ProjectKey, _Branch]] = []
        self.is_stale = False

    def next_amounts(self) -> Amounts | None:
        """What the next workload of this branch asks for; None when nothing waits."""
        if self.items:
            item = self.items[0][1]
            count = item.num_next
            if count == 1:
                return item.shape.first
            return tuple((r, amount * count) for r, amount in item.shape.first)
        return self.children[0][1].next_amounts() if self.children else None


class Queue:
    """Everything that waits, in the order in which it is to be tried."""

    def __init__(self, accounts: Accounts, items: Iterable[Item]) -> None:
        self._capacity = accounts.resources.capacity
        self._branches: dict[Account, _Branch] = {}
        self._root = _Branch.__new__(_Branch)
        self._root.items, self._root.children, self._root.is_stale = [], [], False
        for item in items:
            self._branch(item.account).items.append((workload_key(item), item))
        for branch in self._branches.values():
            heapify(branch.items)
        deepest_first = sorted(self._branches.values(), key=lambda b: -b.account.depth)
        for branch in deepest_first:
            amounts = branch.next_amounts()
            if amounts is not None:
                key = project_key(branch.account, amounts, self._capacity)
                heappush(self._above(branch).children, (key, branch))

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
        if branch.items:
            _, item = heappop(branch.items)
            if attempt(item):
                heappush(branch.items, (workload_key(item), item))
            while branch.items and is_hopeless(branch.items[0][1]):
                heappop(branch.items)
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
