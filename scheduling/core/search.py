"""Finding the fewest victims for a claimant: try it in memory, look, take it back.

One victim after another is supposed gone, in the order that the rule (`reclaim`, `preempt`) gives,
until the claimant really fits, devices and limits included. Then the victims are walked back and
each that is not needed returns. Nothing is kept unless the claimant fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from scheduling.core.admission import barrier_to
from scheduling.core.demand import Item, Option
from scheduling.core.prospects import Prospects
from scheduling.core.rooms import Spot
from scheduling.core.state import State, Victim


class VictimSource(Protocol):
    """Hands out victims by one rule, judging each just before its removal."""

    def pick(self) -> Victim | None:
        """The next victim, not yet removed; None when nobody else may lose."""

    def displaced_by(self, victim: Victim) -> list[Victim]:
        """Earlier victims that must return if this one is taken as well."""

    def is_enough(self) -> bool:
        """Whether with what is removed by now the rule lets the claimant in."""

    def is_legal(self, victims: list[Victim]) -> bool:
        """Whether each of this set, with all of them removed now, may lose."""


@dataclass(frozen=True, slots=True)
class Found:
    """Victims that make room, removed in the state; places for the claimant, taken in the
    ledger.
    """

    victims: list[Victim]
    spots: list[Spot]


@dataclass(slots=True)
class Effort:
    """What one claimant's search came to.

    Attributes:
        protected_until: Earliest end of a minimum runtime that kept somebody from being a victim.
        was_cut_short: The bound on victims or on time was reached.
    """

    num_tried: int = 0
    protected_until: float | None = None
    was_cut_short: bool = False


def search(
    state: State, item: Item, option: Option, source: VictimSource, effort: Effort
) -> Found | None:
    """The victims needed to place an item's next replicas, or None with the state unchanged.

    Args:
        state: Changed only if something is found.
        item: The claimant.
        option: The node type to place it on.
        source: Who may lose, in order.
        effort: Told how the search went.

    Cost: a placement test per victim, at most `Policy.max_victims`; as many again for the walk
    back.
    """
    victims: list[Victim] = []
    spots = _try(state, item, option, source)
    while spots is None:
        victim = None
        if len(victims) >= state.policy.max_victims or state.should_stop():
            effort.was_cut_short = True
        else:
            victim = source.pick()
        if victim is None:
            for removed in reversed(victims):
                state.put_back(removed)
            return None
        for other in reversed(source.displaced_by(victim)):
            state.put_back(other)
            victims.remove(other)
        state.remove(victim)
        victims.append(victim)
        effort.num_tried += 1
        spots = _try(state, item, option, source)
    if victims:
        victims, spots = _walk_back(state, item, option, source, victims, spots)
    return Found(victims, spots)


def give_up(state: State, item: Item, found: Found) -> None:
    """Undo a search that has found something, as if it had not been made."""
    for spot in found.spots:
        state.ledger.give_back(spot, item.shape.ask)
    for victim in reversed(found.victims):
        state.put_back(victim)


def _try(state: State, item: Item, option: Option, source: VictimSource) -> list[Spot] | None:
    """Places for the claimant as things stand, taken in the ledger, if limits and quota allow it
    too.
    """
    return state.find(item, option, item.num_next) if _is_let_in(item, option, source) else None


def _is_let_in(item: Item, option: Option, source: VictimSource) -> bool:
    """Whether limits, quota and the rule allow the claimant in as things stand."""
    return barrier_to(item, option) is None and source.is_enough()


def _walk_back(
    state: State,
    item: Item,
    option: Option,
    source: VictimSource,
    victims: list[Victim],
    spots: list[Spot],
) -> tuple[list[Victim], list[Spot]]:
    """Return each victim the claimant can do without, first picked first.

    The last one picked is needed by construction. Replicas of one workload leave in reverse of
    their starting order, so they return last picked first, and once one of them is needed the ones
    before it stay out as well.
    """
    needed = {id(victim): victim for victim in victims}
    fixed = {victims[-1].item.id}
    for victim in _return_order(victims):
        if victim.item.id in fixed:
            continue
        again = _without(state, item, option, source, victim, spots)
        if again is not None and not _is_still_legal(item, source, victim, needed):
            for spot in again:
                state.ledger.give_back(spot, item.shape.ask)
            state.remove(victim)
            again = _try(state, item, option, source)
            assert again is not None
            spots, again = again, None
        if again is None:
            fixed.add(victim.item.id)
        else:
            spots = again
            del needed[id(victim)]
    return list(needed.values()), spots


def _is_still_legal(
    item: Item, source: VictimSource, returned: Victim, needed: dict[int, Victim]
) -> bool:
    """Whether the rest of the set could lose still.

    A return elsewhere only raises what its side holds above the bounds; inside the claimant's own
    tree it also raises what the claimant's side holds, so there the whole set is looked at again.
    """
    if returned.item.account.path[0] is not item.account.path[0]:
        return True
    return source.is_legal([victim for victim in needed.values() if victim is not returned])


def _without(
    state: State,
    item: Item,
    option: Option,
    source: VictimSource,
    victim: Victim,
    spots: list[Spot],
) -> list[Spot] | None:
    """Places for the claimant with this victim back where it was; None, and it is gone again, if
    there are none."""
    rooms = {spot.room.rank for spot in spots}
    if not any(placed.spot.room.rank in rooms for placed in (*victim.replicas, *victim.held)):
        # It is in nobody's way: only the sums could object.
        state.put_back(victim)
        if _is_let_in(item, option, source):
            return spots
        state.remove(victim)
        return None
    for spot in spots:
        state.ledger.give_back(spot, item.shape.ask)
    state.put_back(victim)
    again = _try(state, item, option, source)
    if again is None:
        state.remove(victim)
        for spot in spots:
            state.ledger.take(spot, item.shape.ask)
    return again


def _return_order(victims: list[Victim]) -> list[Victim]:
    """First picked first, but the victims of one workload together, last picked first."""
    by_item: dict[str, list[Victim]] = {}
    for victim in victims:
        by_item.setdefault(victim.item.id, []).append(victim)
    order: list[Victim] = []
    for group in by_item.values():
        order.extend(reversed(group))
    return order


class Usefulness:
    """Whether a workload, if it gave way, could help a claimant: it lies where the claimant could
    go, and is past its minimum runtime, which is told to the claimant's effort where it is not."""

    __slots__ = ("_effort", "_has_minimum", "_hosts", "_now_s", "_prospects")

    def __init__(
        self, state: State, prospects: Prospects, item: Item, option: Option, effort: Effort
    ) -> None:
        self._prospects = prospects
        self._effort = effort
        self._now_s = state.now_s
        self._hosts = prospects.hosts(item.shape, option)
        self._has_minimum = bool(state.policy.min_runtime_s)

    def __call__(self, other: Item) -> bool:
        return self.is_well_placed(other) and self.is_past_minimum(other)

    def is_well_placed(self, other: Item) -> bool:
        """Whether it lies where the claimant could go."""
        if not other.running or other.moved:
            return False
        return any(self._hosts(placed.spot.room) for placed in other.leaving)

    def is_past_minimum(self, other: Item) -> bool:
        if not self._has_minimum:
            return True
        until, effort = self._prospects.protected_until(other), self._effort
        if until <= self._now_s:
            return True
        if effort.protected_until is None or until < effort.protected_until:
            effort.protected_until = until
        return False
