"""Moving running work so that scattered free capacity becomes usable.

Nobody loses by it but time: every moved workload has its new place in the same plan. So it is tried
before anybody is evicted, for any claimant that may be stopped itself, inside its quota or beyond.
What it costs is bounded: a few moves, no more GPUs moved than claimed, and only if the claimant
saves more than all movers lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

from scheduling.core.accounts import gpu_milli
from scheduling.core.admission import barrier_to
from scheduling.core.demand import Item, Option, Placed
from scheduling.core.prospects import Prospects
from scheduling.core.rooms import Room, Spot
from scheduling.core.search import Found
from scheduling.core.state import State
from scheduling.core.types import NodeTypeName

_NUM_NODES = 16
"""So many nodes, those that lack least, are considered: more would be a search without end."""


@dataclass(frozen=True, slots=True)
class _Rearrangement:
    """Places for the claimant and new ones for what must move, all taken in the ledger."""

    spots: list[Spot]
    moves: list[tuple[Item, Placed, Spot]]

    @property
    def movers(self) -> list[Item]:
        """Workloads with a replica that moves, each once."""
        return list({item.id: item for item, _, _ in self.moves}.values())


def consolidate(state: State, prospects: Prospects, item: Item, option: Option) -> Found | None:
    """Make room for an item's next replicas by moving others, newest first; None if it does not
    pay.

    Source: kai-scheduler/KAI-Scheduler, actions/consolidation. Ours counts every moved GPU, caps
    them by the claim, and weighs the wait saved against save, restore and lost progress.
    """
    count = item.num_next
    if barrier_to(item, option) is not None or not _could_pay(state, item, option, count):
        return None
    ledger = state.ledger
    start = ledger.mark()
    if state.find(item, option, count) is not None:
        # What others are leaving is enough, so nobody need move for it.
        ledger.rewind(start)
        return None
    movable: list[Item] = []
    num_lifted = 0
    candidates = _candidates(state, prospects, item, option)
    refuges = _Refuges(state, candidates[: state.policy.consolidation_max_moves])
    if refuges.is_hopeless(item, option):
        return None
    for candidate in candidates:
        num_lifted += len(candidate.running)
        if num_lifted > state.policy.consolidation_max_moves or state.should_stop():
            break
        movable.append(candidate)
        _lift(state, [candidate])
        lifted = ledger.mark()
        if _settle(state, item, option, movable, refuges) is None:
            continue
        ledger.rewind(start)
        found = _fewest(state, item, option, movable, refuges)
        if _pays(state, item, found, count):
            return _carry_out(state, item, found)
        ledger.rewind(start)
        _lift(state, movable)
        assert ledger.mark() == lifted
    ledger.rewind(start)
    return None


def _could_pay(state: State, item: Item, option: Option, count: int) -> bool:
    """Enough is free in all, so that only its being scattered is in the way."""
    ask = item.shape.ask
    if ask.gpu.num_devices == 0 or state.policy.consolidation_max_moves == 0:
        return False
    free = sum(pool.free_units * 1000 // pool.unit_capacity for pool in option.pools)
    return free >= gpu_milli(item.shape.first) * count


def _candidates(state: State, prospects: Prospects, item: Item, option: Option) -> list[Item]:
    """Preemptible workloads on the nodes that lack least: lowest priority first, there the
    newest.
    """
    found = {
        other.id: other
        for room in _rooms(state, prospects, item, option)
        for other, placed in prospects.victims_on(room.node.name)
        if placed in other.running and _is_movable(state, prospects, other)
    }
    return sorted(found.values(), key=lambda other: (other.priority, -other.submitted, other.id))


def _is_movable(state: State, prospects: Prospects, item: Item) -> bool:
    return (
        item.shape.ask.gpu.num_devices > 0
        and not item.moved
        and not item.evicted
        and not any(placed.is_new for placed in item.running)
        and prospects.protected_until(item) <= state.now_s
    )


def _rooms(state: State, prospects: Prospects, item: Item, option: Option) -> list[Room]:
    """Nodes with the most free, of those that could host a replica."""
    hosts = prospects.hosts(item.shape, option)
    rooms: list[Room] = []
    for pool in option.pools:
        found = 0
        for room in state.ledger.emptiest(pool):
            if found == _NUM_NODES:
                break
            if hosts(room):
                rooms.append(room)
                found += 1
    return nsmallest(_NUM_NODES, rooms, key=lambda room: (-room.free, room.rank))


def _lift(state: State, movable: list[Item]) -> None:
    for other in movable:
        for placed in other.running:
            state.ledger.give_back(placed.spot, other.shape.ask)


class _Refuges:
    """Which of those that could move would find another node as things stand."""

    def __init__(self, state: State, movable: Sequence[Item]) -> None:
        """Made while nothing is lifted."""
        self._state = state
        self._movable = movable
        self._known: dict[tuple[int, NodeTypeName | None], bool] = {}
        for other in movable:
            option, key = _own_option(other), self._key(other)
            if option is not None and key not in self._known:
                spot = state.ledger.find(other.shape.ask, option.pools, other.shape.avoided)
                self._known[key] = spot is not None

    def is_hopeless(self, item: Item, option: Option) -> bool:
        """Whether surely nothing can be found: everybody would have to stay on the claimant's
        nodes, in whole devices, of which no more are free then than before.

        One node where one replica would fit then has all that it needs already. Of several nodes
        only the sum of free devices is known, so that must be too small.
        """
        if any(self._known.values()) or not all(map(_is_whole, self._movable)):
            return False
        ask, count = item.shape.ask, item.num_next
        if any(ask.units_per_device(p.gpu_memory_mib) != p.unit_capacity for p in option.pools):
            return False
        free = sum(pool.num_whole() for pool in option.pools)
        return count == 1 or free < count * ask.gpu.num_devices

    def are_missing(self, lifted: list[Item], spots: list[Spot]) -> bool:
        """Whether somebody lifted, whose place the claimant has taken, surely finds no other:
        none was free before, and no node of the claimant's has room beside it.

        Only the claimant's nodes can have more room than before, since what lies elsewhere stays.
        """
        ledger = self._state.ledger
        rooms = {spot.room.rank: spot.room for spot in spots}
        for other in lifted:
            ask = other.shape.ask
            for placed in other.running:
                if (
                    placed.spot.room.rank in rooms
                    and not self._known.get(self._key(other), False)
                    and not placed.spot.is_free(ask)
                    and all(ledger.spot_on(room, ask) is None for room in rooms.values())
                ):
                    return True
        return False

    def _key(self, other: Item) -> tuple[int, NodeTypeName | None]:
        return other.shape.number, other.chosen_type[1]


def _is_whole(other: Item) -> bool:
    """Whether it shares no device."""
    return all(p.spot.units == p.spot.room.pool.unit_capacity for p in other.running)


def _own_option(other: Item) -> Option | None:
    """The node type that a running workload keeps to."""
    _, node_type = other.chosen_type
    return next((o for o in other.shape.options if o.node_type == node_type), None)


def _settle(
    state: State, item: Item, option: Option, lifted: list[Item], refuges: _Refuges
) -> _Rearrangement | None:
    """Place the claimant, then again what was lifted; None and nothing taken if not all fit."""
    mark = state.ledger.mark()
    spots = state.find(item, option, item.num_next)
    moves = None
    if spots is not None and not refuges.are_missing(lifted, spots):
        moves = _place_again(state, lifted)
    if spots is None or moves is None:
        state.ledger.rewind(mark)
        return None
    return _Rearrangement(spots, moves)


def _place_again(state: State, movable: list[Item]) -> list[tuple[Item, Placed, Spot]] | None:
    """Every lifted replica stays where it was if it can, else gets a place of its node type."""
    ledger = state.ledger
    homeless: list[tuple[Item, Placed]] = []
    for other in movable:
        for placed in other.running:
            if placed.spot.is_free(other.shape.ask):
                ledger.take(placed.spot, other.shape.ask)
            else:
                homeless.append((other, placed))
    moves = []
    for other, placed in homeless:
        option = _own_option(other)
        spots = None if option is None else state.find(other, option, 1)
        if spots is None:
            return None
        moves.append((other, placed, spots[0]))
    return moves


def _fewest(
    state: State, item: Item, option: Option, movable: list[Item], refuges: _Refuges
) -> _Rearrangement:
    """The rearrangement after every workload that need not be lifted was left where it is."""
    ledger = state.ledger
    start = ledger.mark()
    needed = list(movable)
    for other in movable[:-1]:
        rest = [kept for kept in needed if kept is not other]
        _lift(state, rest)
        if _settle(state, item, option, rest, refuges) is not None:
            needed = rest
        ledger.rewind(start)
    _lift(state, needed)
    found = _settle(state, item, option, needed, refuges)
    assert found is not None
    return found


def _pays(state: State, item: Item, found: _Rearrangement, count: int) -> bool:
    """No more GPUs moved than claimed, and less time lost than saved; a gang moves as a whole."""
    policy = state.policy
    claimed = gpu_milli(item.shape.first) * count
    moved = cost = 0.0
    for other in found.movers:
        milli = gpu_milli(other.shape.first) * len(other.running)
        moved += milli
        if other.workload.eviction_cost is not None:
            cost += milli * other.workload.eviction_cost.total_s
    if moved > claimed:
        return False
    saved = claimed * policy.consolidation_wait_s
    return cost == 0 or saved > policy.consolidation_margin * cost


def _carry_out(state: State, item: Item, found: _Rearrangement) -> Found:
    for other, placed, spot in found.moves:
        state.move(other, placed, spot, item)
    item.waits_for.extend(other for other in found.movers if other not in item.waits_for)
    return Found([], found.spots)
