"""Taking back from other projects what belongs to the claimant's: who may claim, who may lose, in
which order.

Everything is judged at the pair of ancestors where the two projects' paths part. Rules first, then
order: a project that may not lose is never in the way of one that may.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush

from scheduling.core.accounts import Account, parting
from scheduling.core.admission import is_within_quota, is_within_share
from scheduling.core.demand import Item, Option
from scheduling.core.ordering import VictimKey, key_after_shrinking, victim_key
from scheduling.core.search import Effort, is_useful
from scheduling.core.state import State, Victim

LossKey = tuple[tuple[float, ...], VictimKey]
_Side = tuple[Account, Account, Account]
"""A project that has victims, and the pair where its path and the claimant's part: ours, theirs."""


def may_claim(item: Item, option: Option) -> bool:
    """Whether the claimant's project stays within its fair share in every resource.

    That non-preemptible work stays within quota is a matter of admission.
    """
    return is_within_share(item.account, option.amounts, item.num_next)


class ReclaimVictims:
    """The victims of a claimant, in order: from the project most over its quota, then lowest
    priority, then newest."""

    def __init__(self, state: State, item: Item, option: Option, effort: Effort) -> None:
        self._state = state
        self._item = item
        self._option = option
        self._effort = effort
        count = item.num_next
        self._asked = {r: amount * count for r, amount in option.amounts}
        self._lacking = _lacking(state, option, self._asked)
        self._heaps: dict[Account, list[tuple[VictimKey, Item]]] = {}
        self._sides: dict[Account, list[_Side]] = {}
        self._keys: dict[Account, LossKey] = {}
        self._last: _Side | None = None
        legal: dict[Account, bool] = {}
        for account, mine, theirs in state.sides_of(item.account):
            if mine not in legal:
                legal[mine] = self._holds_below(mine)
            if legal[mine]:
                side = (account, mine, theirs)
                self._sides.setdefault(theirs, []).append(side)
                self._rank(side)

    def pick(self) -> Victim | None:
        """The victim with the smallest key among all projects that may lose just now."""
        if self._last is not None:
            # Only the side that lost something stands otherwise than before.
            for side in self._sides[self._last[2]]:
                self._rank(side)
            self._last = None
        while self._keys:
            account = min(self._keys, key=self._keys.__getitem__)
            mine, theirs = self._pair(account)
            item = heappop(self._heaps[account])[1]
            victim = self._state.next_victim(item)
            # What would end unfairly now will not become fair by further removals.
            if victim is None or not self._ends_fairly(mine, theirs, victim):
                self._rank((account, mine, theirs))
                continue
            if len(victim.replicas) < len(item.running):
                heappush(self._heaps[account], (key_after_shrinking(item), item))
            self._last = (account, mine, theirs)
            return replace(victim, numbers=self._numbers(mine, theirs))
        return None

    def _rank(self, side: _Side) -> None:
        """Note where a project stands among those that may lose, or that it may not."""
        account, mine, theirs = side
        head = self._head(account) if self._may_lose(mine, theirs) else None
        if head is None:
            self._keys.pop(account, None)
        else:
            self._keys[account] = (self._ratios(account, theirs), head)

    def _pair(self, account: Account) -> tuple[Account, Account]:
        pair = parting(self._item.account, account)
        assert pair is not None
        return pair

    def is_enough(self) -> bool:
        return True

    def is_legal(self, victims: list[Victim]) -> bool:
        """Walk the set through once more: each member must be allowed to lose just before its
        removal.
        """
        state = self._state
        for victim in reversed(victims):
            state.put_back(victim)
        is_legal = True
        for victim in victims:
            mine, theirs = self._pair(victim.item.account)
            is_legal = is_legal and self._may_lose(mine, theirs)
            is_legal = is_legal and self._ends_fairly(mine, theirs, victim)
            state.remove(victim)
        return is_legal

    def _holds_below(self, mine: Account) -> bool:
        """Between the parting and the project, the claimant's side must stay within its share as
        well.
        """
        item = self._item
        return all(
            is_within_share(level, self._option.amounts, item.num_next)
            for level in item.account.path[mine.depth + 1 :]
        )

    def _may_lose(self, mine: Account, theirs: Account) -> bool:
        """The other side is above its allocatable share, or above its quota while ours stays
        within quota."""
        is_above_quota = False
        for r in self._asked:
            if theirs.is_above_allocatable(r):
                return True
            is_above_quota = is_above_quota or theirs.is_above_quota(r)
        return is_above_quota and is_within_quota(mine, self._option.amounts, self._item.num_next)

    def _ends_fairly(self, mine: Account, theirs: Account, victim: Victim) -> bool:
        """Our side does not end above its share with a ratio at least the other's."""
        for r, asked in self._asked.items():
            after = mine.allocated[r] + asked
            if after <= mine.fair[r]:
                continue
            loss = sum(
                amount for placed in victim.replicas for q, amount in placed.amounts if q == r
            )
            quota = mine.quota[r]
            if quota is None or after <= quota:
                continue
            # after / mine.fair >= left / theirs.fair, without dividing by a share of 0
            if after * theirs.fair[r] >= (theirs.allocated[r] - loss) * mine.fair[r]:
                return False
        return True

    def _ratios(self, account: Account, theirs: Account) -> tuple[float, ...]:
        """Over-ratio at each level from the parting down, negated so that the largest comes
        first.
        """
        return tuple(
            -max(level.over_ratio(r) for r in self._lacking)
            for level in account.path[theirs.depth :]
        )

    def _head(self, account: Account) -> VictimKey | None:
        """Key of the project's next victim that could help, dropping those that cannot."""
        heap = self._heaps.get(account)
        if heap is None:
            heap = [
                (victim_key(item), item) for item in self._state.victims_by_project()[account.id]
            ]
            heapify(heap)
            self._heaps[account] = heap
        while heap:
            item = heap[0][1]
            if self._helps(item):
                return heap[0][0]
            heappop(heap)
        return None

    def _helps(self, item: Item) -> bool:
        victim = self._state.next_victim(item)
        return victim is not None and is_useful(
            self._state, self._item, self._option, victim, self._effort
        )

    def _numbers(self, mine: Account, theirs: Account) -> dict[str, object]:
        r = max(self._lacking, key=lambda r: (theirs.over_ratio(r), r))
        return {
            "resource": self._state.resources.keys[r],
            "claimant_side": mine.id,
            "claimant_allocated": mine.allocated[r],
            "claimant_requested": self._asked.get(r, 0),
            "claimant_quota": mine.quota[r],
            "claimant_share": mine.fair[r],
            "victim_side": theirs.id,
            "victim_allocated": theirs.allocated[r],
            "victim_quota": theirs.quota[r],
            "victim_share": theirs.fair[r],
            "victim_borrowed": theirs.borrowed(r),
        }


def _lacking(state: State, option: Option, asked: dict[int, int]) -> list[int]:
    """The resources of which less is free than is asked; all that are asked where the sums would
    do.
    """
    free = [0, 0, 0]
    for pool in option.pools:
        free[0] += pool.free_cpu
        free[1] += pool.free_memory
        free[2] += pool.free_units * 1000 // pool.unit_capacity
    lacking = [r for r, amount in asked.items() if amount > free[min(r, 2)]]
    return sorted(lacking or asked)
