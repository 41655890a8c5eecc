"""Everybody else in the kept state of a cycle: whether a newcomer's arrival lets them get anything.

All of them have failed at every step. That can change only where shares have risen (their projects
may claim more), where shares have changed or the newcomer has got something (others' projects may
lose more), or inside the newcomer's own project. Whoever could profit is tried for real, and
nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from scheduling.core.accounts import Account
from scheduling.core.cycle import Cycle
from scheduling.core.demand import Item
from scheduling.core.ordering import Batch
from scheduling.core.reclaim import ReclaimVictims, may_claim
from scheduling.core.rules import PREEMPT, RECLAIM, Rule
from scheduling.core.search import Effort, give_up
from scheduling.core.stakes import Shares, borrowers, losing_by, sides_of, was_bound

MAX_TRIED = 200
"""So many others are tried for one newcomer; with more, a full cycle is the cheaper answer."""


class Others:
    """What waits in a kept cycle.

    Attributes:
        protected_until_s: The earliest end of a minimum runtime that was in somebody's way: until
            then what they were told holds.
    """

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self._by_account: dict[Account, list[Batch]] = {}
        for batch in cycle.passes.batches.values():
            self._by_account.setdefault(batch.first.account, []).append(batch)
        may_reclaim = cycle.claim_by(RECLAIM).is_worth_trying
        self._claimants = {
            account: claimants
            for account, batches in self._by_account.items()
            if (claimants := [batch for batch in batches if may_reclaim(batch.first)])
        }
        self.protected_until_s = float("inf")

    def waiting(self) -> list[Batch]:
        """All that waits."""
        return [batch for batches in self._by_account.values() for batch in batches]

    def join(self, item: Item) -> None:
        """A newcomer is from now on one of those who wait."""
        batch = self._cycle.passes.batch_of(item)
        if not batch.entries:
            self._by_account.setdefault(item.account, []).append(batch)
            self._claimants.setdefault(item.account, []).append(batch)
        batch.add(item)
        batch.entries.sort()

    def fail(self, risen: Shares, fallen: Shares) -> bool:
        """Whether everybody fails still under the new shares."""
        gaining = self._bound_by(risen)
        for batch in gaining:
            account = batch.first.account
            self._claimants[account] = self._by_account[account].copy()
        own = [batch for batch in gaining if batch.first.account in risen]
        return (
            self._all_fail(own, PREEMPT)
            and self._all_fail(gaining)
            and self.nobody_could_take(losing_by(risen, fallen))
        )

    def gaining(self, risen: Shares, fallen: Shares) -> set[Batch]:
        """Who may claim more, or take from who may lose more, under the new shares."""
        return {*self._bound_by(risen), *self._takers(losing_by(risen, fallen))}

    def nobody_gains(self, item: Item) -> bool:
        """Whether nobody could take anything because of what a newcomer got: from its project,
        which borrows more, or inside it, where more beyond its share may change hands."""
        account = item.account
        got = {r for placed in (*item.running, *item.held) for r, _ in placed.amounts}
        is_beyond = any(account.allocated[r] > account.fair[r] for r in got)
        return self.nobody_could_take(borrowers(item)) and (
            not is_beyond or self._all_fail(self._by_account.get(account, ()), PREEMPT)
        )

    def nobody_could_take(self, losing: Mapping[Account, set[int]]) -> bool:
        """Whether all fail who might take something from these, of what they hold beyond quota.

        Args:
            losing: Who may lose, of which resources (by number).
        """
        return not losing or self._all_fail(self._takers(losing))

    def would_get(self, item: Item, rule: Rule) -> bool:
        """Whether a claim succeeds, as things stand; it is not kept."""
        cycle, effort = self._cycle, Effort()
        for option in item.options():
            if option.is_possible:
                found = rule.claim(cycle.state, cycle.prospects, item, option, effort)
                if found is not None:
                    give_up(cycle.state, item, found)
                    return True
        if effort.protected_until is not None:
            self.protected_until_s = min(self.protected_until_s, effort.protected_until)
        return False

    def _bound_by(self, risen: Shares) -> list[Batch]:
        """What a share that has risen was in the way of."""
        return [
            batch
            for account, batches in self._by_account.items()
            if any(level in risen for level in account.path)
            for batch in batches
            if was_bound(batch.first, risen)
        ]

    def _takers(self, losing: Mapping[Account, set[int]]) -> Iterator[Batch]:
        for account, batches in self._claimants.items():
            if sides := sides_of(account, losing):
                yield from (batch for batch in batches if self._may_take(batch.first, sides))

    def _may_take(self, item: Item, sides: Mapping[Account, set[int]]) -> bool:
        """Whether a workload asks for what a side has too much of, and that side may lose to it."""
        cycle = self._cycle
        for option in item.shape.options:
            wanted = [
                side for side, over in sides.items() if any(r in over for r, _ in option.amounts)
            ]
            if wanted and option.is_possible and may_claim(item, option):
                source = ReclaimVictims(cycle.state, cycle.prospects, item, option, Effort())
                if any(source.may_take_from(side) for side in wanted):
                    return True
        return False

    def _all_fail(self, batches: Iterable[Batch], rule: Rule = RECLAIM) -> bool:
        """Whether none of these would get anything by a rule now."""
        is_worth_trying, tried = self._cycle.claim_by(rule).is_worth_trying, set[object]()
        for batch in batches:
            item = batch.first
            priority = item.priority if rule is PREEMPT else 0
            alike = (item.account.id, item.shape.number, item.num_next, item.is_preemptible)
            key = (alike, priority, item.chosen_type)
            if key in tried or not is_worth_trying(item):
                continue
            tried.add(key)
            if len(tried) > MAX_TRIED or self.would_get(item, rule):
                return False
        return True
