"""Giving way inside one project: only to strictly higher priority, and without any question of
fairness, since the project's total hardly changes."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from scheduling.core.demand import Item, Option
from scheduling.core.ordering import VictimKey, key_after_shrinking, victim_key
from scheduling.core.search import Effort, is_useful
from scheduling.core.state import State, Victim


class PreemptVictims:
    """The victims of a claimant in its own project: lowest priority first, there the newest."""

    def __init__(self, state: State, item: Item, option: Option, effort: Effort) -> None:
        self._state = state
        self._item = item
        self._option = option
        self._effort = effort
        self._heap: list[tuple[VictimKey, Item]] = [
            (victim_key(other), other)
            for other in state.victims_by_project().get(item.account.id, ())
            if other.priority < item.priority
        ]
        heapify(self._heap)

    def pick(self) -> Victim | None:
        while self._heap:
            item = heappop(self._heap)[1]
            victim = self._state.next_victim(item)
            if victim is None or not is_useful(
                self._state, self._item, self._option, victim, self._effort
            ):
                continue
            if len(victim.replicas) < len(item.running):
                heappush(self._heap, (key_after_shrinking(item), item))
            numbers: dict[str, object] = {
                "claimant_priority": self._item.priority,
                "victim_priority": item.priority,
            }
            return Victim(item, victim.replicas, numbers)
        return None

    def is_legal(self, victims: list[Victim]) -> bool:
        return all(victim.item.priority < self._item.priority for victim in victims)
