"""Giving way inside one project, and only to strictly higher priority.

There is no question of fairness as long as the project's total does not grow by it. A preemptible
claimant that would take idle capacity beside its victims' and so end above its project's share is
refused: others would take it back, and the two would evict each other in turn. Nor does it inherit
what a victim holds as surplus in smaller pieces: those go one by one, down to the share, while the
claimant would go as a whole, and what it had displaced would come back from inside the share.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

from scheduling.core.demand import Item, Option
from scheduling.core.ordering import VictimKey, key_after_shrinking
from scheduling.core.prospects import Prospects
from scheduling.core.search import Effort, Usefulness
from scheduling.core.state import State, Victim


class PreemptVictims:
    """The victims of a claimant in its own project: lowest priority first, there the newest."""

    def __init__(
        self, state: State, prospects: Prospects, item: Item, option: Option, effort: Effort
    ) -> None:
        self._state = state
        self._item = item
        self._option = option
        self._is_useful = Usefulness(state, prospects, item, option, effort)
        self._heap: list[tuple[VictimKey, Item]] = [
            (key, other)
            for key, other in prospects.victim_heap(item.account.id)
            # One that starts just now by its age is not undone at once.
            if other.priority < item.priority and other.rank < item.rank
        ]
        self._before = item.account.allocated.copy()
        self._surplus: list[Victim] = []

    def pick(self) -> Victim | None:
        while self._heap:
            item = heappop(self._heap)[1]
            victim = self._state.next_victim(item) if self._is_useful(item) else None
            if victim is None:
                continue
            if len(victim.replicas) < len(item.running):
                heappush(self._heap, (key_after_shrinking(item), item))
                self._surplus.append(victim)
            numbers: dict[str, object] = {
                "claimant_priority": self._item.priority,
                "victim_priority": item.priority,
            }
            return replace(victim, numbers=numbers)
        return None

    def displaced_by(self, victim: Victim) -> list[Victim]:
        return []

    def is_enough(self) -> bool:
        item = self._item
        account, count = item.account, item.num_next
        return not item.is_preemptible or all(
            account.allocated[r] + amount * count
            <= max(self._before[r] - self._in_pieces(r, amount * count), account.fair[r])
            for r, amount in self._option.amounts
        )

    def _in_pieces(self, resource: int, claimed: int) -> int:
        """What surplus replicas smaller than the claim held, of those removed by now."""
        return sum(
            amount
            for victim in self._surplus
            for placed in victim.replicas
            if placed not in victim.item.running
            for r, amount in placed.amounts
            if r == resource and amount < claimed
        )

    def is_legal(self, victims: list[Victim]) -> bool:
        return all(victim.item.priority < self._item.priority for victim in victims)
