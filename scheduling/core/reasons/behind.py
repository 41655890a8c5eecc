"""Whether others of its project came first: what a workload could have had without them.

Told by trying: what higher priorities were given in this cycle, started or promised, is supposed to
be free again, and the workload is placed. Only if that works was it they who stood in the way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from scheduling.core.admission import barrier_to, is_within_share
from scheduling.core.demand import Item, Placed
from scheduling.core.state import State
from scheduling.core.types import ProjectId

MAX_QUESTIONS = 32
"""Each is a placement; a cycle with more different requests does not ask about the rest."""

Given = tuple[Item, Placed]


class Behind:
    """Who got what in this cycle, project by project; of these, where only they are asked about."""

    def __init__(self, state: State, among: Sequence[Item] | None = None) -> None:
        self._state = state
        self._among = state.items if among is None else among
        self._given: dict[ProjectId, list[Item]] | None = None
        self._ranks: dict[ProjectId, list[int]] | None = None
        self._answers: dict[object, bool] = {}

    def stands_before(self, item: Item) -> bool:
        """Whether a workload would have its place but for what higher priorities of its project
        were given."""
        given = self._of(item.account.id)
        if not given or given[0].rank <= item.rank:
            return False
        key = (item.account.id, item.shape.number, item.num_next, item.is_preemptible, item.rank)
        answer = self._answers.get(key)
        if answer is None:
            if len(self._answers) == MAX_QUESTIONS:
                return False
            ahead = [other for other in given if other.rank > item.rank]
            answer = self._answers[key] = self._would_fit_without(item, ahead)
        return answer

    def num_ahead(self, item: Item) -> int:
        """Workloads of its project with a higher priority that got something, or wait before it."""
        if self._ranks is None:
            self._ranks = {}
            for other in self._among:
                if other.pending or other.held or _is_new(other):
                    self._ranks.setdefault(other.account.id, []).append(-other.rank)
            for ranks in self._ranks.values():
                ranks.sort()
        return bisect_left(self._ranks[item.account.id], -item.rank)

    def _of(self, project: ProjectId) -> list[Item]:
        """Who of a project got something, highest priority first."""
        if self._given is None:
            self._given = {}
            for item in self._among:
                if item.held or _is_new(item):
                    self._given.setdefault(item.account.id, []).append(item)
            for items in self._given.values():
                items.sort(key=lambda item: (-item.rank, item.id))
        return self._given.get(project, [])

    def _would_fit_without(self, item: Item, ahead: list[Item]) -> bool:
        with self._supposing_gone(ahead) as only_claimed:
            for option in item.options():
                if not option.is_possible or barrier_to(item, option) is not None:
                    continue
                # What is promised came from victims: only who may insist could have had it.
                if only_claimed and not is_within_share(
                    item.account, option.amounts, item.num_next
                ):
                    continue
                with self._state.ledger.supposing():
                    if self._state.find(item, option, item.num_next) is not None:
                        return True
        return False

    @contextmanager
    def _supposing_gone(self, ahead: list[Item]) -> Iterator[bool]:
        """Inside, what they were given is free; whether all of it is only promised."""
        state = self._state
        given: list[Given] = [
            (other, placed)
            for other in ahead
            for placed in (*other.running, *other.held)
            if placed.is_new
        ]
        only_claimed = not any(_is_new(other) for other in ahead)
        with state.ledger.supposing():
            for other, placed in given:
                state.ledger.give_back(placed.spot, other.shape.ask)
                state.charge(other, placed.amounts, -1)
            try:
                yield only_claimed
            finally:
                for other, placed in given:
                    state.charge(other, placed.amounts, 1)


def _is_new(item: Item) -> bool:
    """Whether it, or a replica more of it, starts in this cycle: new ones come last."""
    return bool(item.running) and item.running[-1].is_new
