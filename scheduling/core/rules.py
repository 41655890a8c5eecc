"""The ways to make room for a claimant: who may claim by each, and how it finds what is needed.

Their order is the cycle's. What each of them allows lies in a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduling.core.admission import Bound, barrier_to
from scheduling.core.consolidate import consolidate
from scheduling.core.demand import Item, Option
from scheduling.core.preempt import PreemptVictims
from scheduling.core.prospects import Prospects
from scheduling.core.reclaim import ReclaimVictims, may_claim
from scheduling.core.search import Effort, Found, search
from scheduling.core.state import State


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to make room for a claimant.

    Attributes:
        name: As evictions tell it.
        may: Whether a workload may claim by it on a node type.
        claim: Finds what is needed, and takes it in the state; None if nothing does.
        whose: What matters to it of whose claim it is, beside what is asked for.
    """

    name: str
    may: Callable[[Prospects, Item, Option], bool]
    claim: Callable[[State, Prospects, Item, Option, Effort], Found | None]
    whose: Callable[[Item, Option], object]


def _may_consolidate(prospects: Prospects, item: Item, option: Option) -> bool:
    return item.is_preemptible


def _consolidate(
    state: State, prospects: Prospects, item: Item, option: Option, effort: Effort
) -> Found | None:
    return consolidate(state, prospects, item, option)


def _may_reclaim(prospects: Prospects, item: Item, option: Option) -> bool:
    """Within share, and held back by nothing that another project's victims could not change."""
    barrier = barrier_to(item, option)
    is_own = barrier is not None and (barrier.bound is Bound.QUOTA or barrier.level is item.account)
    return not is_own and may_claim(item, option)


def _reclaim(
    state: State, prospects: Prospects, item: Item, option: Option, effort: Effort
) -> Found | None:
    if not may_claim(item, option) or not prospects.could_ever_fit(item, option):
        return None
    victims = ReclaimVictims(state, prospects, item, option, effort)
    return search(state, item, option, victims, effort)


def _may_preempt(prospects: Prospects, item: Item, option: Option) -> bool:
    """Some work of its project has lower priority, and no quota is full of steady work."""
    heap = prospects.victim_heap(item.account.id)
    if not heap or heap[0][1].priority >= item.priority:
        return False
    barrier = barrier_to(item, option)
    return barrier is None or barrier.bound is Bound.LIMIT


def _preempt(
    state: State, prospects: Prospects, item: Item, option: Option, effort: Effort
) -> Found | None:
    if not prospects.could_ever_fit(item, option):
        return None
    is_admitted = barrier_to(item, option) is None
    if is_admitted and not prospects.could_fit_without_lower(item, option):
        return None
    victims = PreemptVictims(state, prospects, item, option, effort)
    return search(state, item, option, victims, effort)


def _is_admitted(item: Item, option: Option) -> bool:
    return barrier_to(item, option) is None


def _project_and_kind(item: Item, option: Option) -> object:
    return item.account.id, item.is_preemptible


def _project_priority_and_kind(item: Item, option: Option) -> object:
    return item.account.id, item.priority, item.is_preemptible


CONSOLIDATE = Rule("consolidate", _may_consolidate, _consolidate, _is_admitted)
RECLAIM = Rule("reclaim", _may_reclaim, _reclaim, _project_and_kind)
PREEMPT = Rule("preempt", _may_preempt, _preempt, _project_priority_and_kind)
