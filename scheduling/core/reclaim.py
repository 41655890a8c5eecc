"""Taking back from other projects what belongs to the claimant's: who may claim, who may lose, in
which order.

Everything is judged at the pair of ancestors where the two projects' paths part. Rules first, then
order: a project that may not lose is never in the way of one that may.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush

from scheduling.core.accounts import Account, parting
from scheduling.core.admission import is_within_quota, is_within_share
from scheduling.core.demand import Item, Option
from scheduling.core.ordering import VictimKey, key_after_shrinking
from scheduling.core.prospects import Excess, Loser, Losing, Prospects, Side, over_ratios
from scheduling.core.rooms import Room, Spot
from scheduling.core.search import Effort, Usefulness
from scheduling.core.state import State, Victim
from scheduling.core.types import NodeName


def may_claim(item: Item, option: Option) -> bool:
    """Whether the claimant's project stays within its fair share in every resource.

    On a node type that is not the workload's first choice only quota counts: the request, and so
    the share of the surplus, is counted at the first choice, and would come and go with the
    workload's place. That non-preemptible work stays within quota is a matter of admission.
    """
    if option.is_first:
        return is_within_share(item.account, option.amounts, item.num_next)
    return is_within_quota(item.account, option.amounts, item.num_next)


LARGE = 64
"""On more nodes than these, a claim for several devices of one node is kept to the nearest ones."""
MAX_NODES_TRIED = 1024
"""Nodes with somebody who may lose that are tried for one claim; its reason tells when it ends
there."""

FREE_ALREADY = -1
"""Stands among device numbers for: one is free already, only CPU or memory beside it is lacking."""

Loss = dict[int, int]
"""Amounts by number of resource."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a claim would leave one level of the claimant's own path.

    Attributes:
        holds_below: All levels below it stay within their share.
    """

    holds_below: bool
    is_within_quota: bool
    is_within_share: bool


class ReclaimVictims:
    """The victims of a claimant, in order: from the project most over its quota, then lowest
    priority, then newest."""

    def __init__(
        self, state: State, prospects: Prospects, item: Item, option: Option, effort: Effort
    ) -> None:
        self._state = state
        self._prospects = prospects
        self._item = item
        self._option = option
        self._is_useful = Usefulness(state, prospects, item, option, effort)
        count = item.num_next
        self._asked = {r: amount * count for r, amount in option.amounts}
        self._lacking = _lacking(state, option, self._asked)
        self._heaps: dict[Account, list[tuple[VictimKey, Item]]] = {}
        self._sides: dict[Account, Side] = {}
        self._taken: dict[Account, list[Victim]] = {}
        self._least: dict[Account, Loss] = {}  # a lower bound of what each of them lost
        self._standings: dict[Account, Standing] = {}
        self._asked_numbers = tuple(self._asked)
        self._has_changed_home = False
        self._queue: list[Loser] | None = None
        self._completable: dict[int, set[int]] = {}
        self._losing: dict[Account, bool] = {}
        self._effort = effort
        self._nearest: set[NodeName] | None = None
        self._num_tried = 0
        self._has_found_help = False
        self._is_known = False
        self._alike = (item.shape.number, option.number)
        self._whose: Losing = ((), ())

    def pick(self) -> Victim | None:
        """The victim with the smallest key among all projects that may lose just now.

        Removals only make keys larger and sides ineligible, so a key noted earlier is a lower
        bound: it is looked at again when its turn comes.
        """
        if self._has_changed_home:
            self._standings.clear()
            self._has_changed_home = False
        queue = self._queue
        if queue is None:
            queue = self._queue = self._first_queue()
        while queue:
            key, _, account = heappop(queue)
            side = self._side(account)
            if not self._may_lose(side):
                continue
            head = self._head(account)
            if head is None:
                continue
            now = (over_ratios(account, side.theirs, self._lacking), head)
            if now > key:
                heappush(queue, (now, account.id, account))
                continue
            item = heappop(self._heaps[account])[1]
            victim = self._state.next_victim(item)
            # What would end unfairly now will not become fair by further removals.
            is_fair = (
                victim is not None
                and self._ends_fairly(side, victim)
                and not self._is_too_much(side, victim)
            )
            if is_fair and victim is not None and len(victim.replicas) < len(item.running):
                heappush(self._heaps[account], (key_after_shrinking(item), item))
            heappush(queue, (now, account.id, account))
            if is_fair and victim is not None:
                # Inside the claimant's own tree, removals lower what its side holds, too.
                self._has_changed_home = account.path[0] is self._item.account.path[0]
                return replace(victim, numbers=self._numbers(side))
        if not self._is_known and not self._has_found_help and self._is_told_by_node():
            among = self._prospects.accounts_of(self._whose)
            self._prospects.changes.note_in_vain((*self._alike, self._whose), among)
        return None

    def _first_queue(self) -> list[Loser]:
        """Who may lose, unless it is known that nobody of them could help."""
        prospects, account = self._prospects, self._item.account
        self._whose = prospects.losing(account, self._may_lose)
        changed = prospects.changes.since((*self._alike, self._whose))
        if changed is not None and not any(self._could_help_now(other) for other in changed):
            self._is_known = True
            return []
        self._look_around()
        return prospects.losers(account, tuple(self._lacking), self._whose)

    def _is_told_by_node(self) -> bool:
        """Whether that nobody could help depends on nothing but the nodes where they run."""
        if self._nearest is None:
            return self._item.shape.ask.gpu.num_devices == 1
        return not self._nearest and 2 * self._num_tried < MAX_NODES_TRIED

    def _could_help_now(self, other: Item) -> bool:
        """Whether one that could not help before does now that something has changed for it."""
        if self._item.shape.ask.gpu.num_devices == 1:
            return self._is_useful.is_well_placed(other) and self._could_help(other)
        hosts = self._prospects.hosts(self._item.shape, self._option)
        rooms = [placed.spot.room for placed in other.running]
        return any(hosts(room) and self._could_complete(room) for room in rooms)

    def _look_around(self) -> None:
        shape = self._item.shape
        if shape.ask.gpu.num_devices > 1 and _num_nodes(self._option) > LARGE:
            self._nearest = self._nearest_nodes(self._effort)

    def may_take_from(self, theirs: Account) -> bool:
        """Whether this side may lose to the claimant as things stand; it is one where the paths
        part."""
        return self._may_lose(Side(self._item.account.path[theirs.depth], theirs))

    def _side(self, account: Account) -> Side:
        side = self._sides.get(account)
        if side is None:
            side = self._sides[account] = self._prospects.side_of(self._item.account, account)
        return side

    def displaced_by(self, victim: Victim) -> list[Victim]:
        """Earlier victims of the same side that would no longer be eligible if judged last.

        One victim, being all or nothing, may drop its side below what it may keep; two together
        may not, if one of them would do: or a small workload inside its quota would go with the
        large one that borrows, claim its place back, and so on in turn.
        """
        side = self._side(victim.item.account)
        taken = self._taken.setdefault(side.theirs, [])
        loss = _loss([victim])
        least = self._least.get(side.theirs, loss)
        displaced: list[Victim] = []
        if taken and not self._may_lose_last(side, loss, least):
            displaced = self._not_last(side, victim, loss, taken)
            for other in displaced:
                taken.remove(other)
        taken.append(victim)
        self._least[side.theirs] = {r: min(loss.get(r, 0), least.get(r, 0)) for r in self._asked}
        return displaced

    def _not_last(
        self, side: Side, victim: Victim, loss: Loss, taken: list[Victim]
    ) -> list[Victim]:
        return [
            other
            for group in _by_item(taken)
            if group[0].item is not victim.item
            and not self._may_lose_last(side, loss, _loss(group))
            for other in group
        ]

    def is_enough(self) -> bool:
        return True

    def is_legal(self, victims: list[Victim]) -> bool:
        """Each member must be allowed to lose as the last of them, all others being gone."""
        self._standings.clear()
        for group in _by_item(victims):
            side = self._side(group[0].item.account)
            if not self._may_lose_last(side, {}, _loss(group)):
                return False
            if not self._ends_fairly(side, None):
                return False
        return True

    def _may_lose_last(self, side: Side, lost: Loss, loss: Loss) -> bool:
        """Whether a victim already gone, of this loss, could be the last to go after `lost`."""
        theirs = side.theirs
        can_redeem = self._standing_of(side.mine).is_within_quota
        for r in self._asked:
            held = theirs.allocated[r] - lost.get(r, 0) + loss.get(r, 0)
            bound, quota = theirs.allocatable[r], theirs.quota[r]
            if bound is not None and held > bound:
                return True
            if can_redeem and quota is not None and held > quota:
                return True
        return False

    def _holds_below(self, mine: Account) -> bool:
        """Between the parting and the project, the claimant's side must stay within its share as
        well.
        """
        item = self._item
        return all(
            is_within_share(level, self._option.amounts, item.num_next)
            for level in item.account.path[mine.depth + 1 :]
        )

    def _standing_of(self, mine: Account) -> Standing:
        """How the claim leaves our side at one level; removals in other trees do not change it."""
        standing = self._standings.get(mine)
        if standing is None:
            amounts, count = self._option.amounts, self._item.num_next
            standing = self._standings[mine] = Standing(
                holds_below=self._holds_below(mine),
                is_within_quota=is_within_quota(mine, amounts, count),
                is_within_share=is_within_share(mine, amounts, count),
            )
        return standing

    def _may_lose(self, side: Side) -> bool:
        """The other side is above its allocatable share, or above its quota while ours stays
        within quota."""
        standing = self._standing_of(side.mine)
        if not standing.holds_below:
            return False
        excess = self._prospects.excess(side.theirs, self._asked_numbers)
        if excess is Excess.NONE or (excess is Excess.QUOTA and not standing.is_within_quota):
            return False
        return standing.is_within_share or self._ends_fairly(side, None)

    def _ends_fairly(self, side: Side, victim: Victim | None) -> bool:
        """Our side does not end above its share with a ratio at least the other's, which loses
        the victim or, for a first look, nothing."""
        mine, theirs = side.mine, side.theirs
        if self._standing_of(mine).is_within_share:
            return True
        for r, asked in self._asked.items():
            after = mine.allocated[r] + asked
            if after <= mine.fair[r]:
                continue
            quota = mine.quota[r]
            if quota is None or after <= quota:
                continue
            lost = () if victim is None else victim.replicas
            loss = sum(amount for placed in lost for q, amount in placed.amounts if q == r)
            # after / mine.fair >= left / theirs.fair, without dividing by a share of 0
            if after * theirs.fair[r] >= (theirs.allocated[r] - loss) * mine.fair[r]:
                return False
        return True

    def _is_too_much(self, side: Side, victim: Victim) -> bool:
        """Whether a replica beyond minimum and quota would stop a workload of those who then hold
        less than their quota: they would claim it back, and so on in turn."""
        claimant, other = self._item, victim.item
        is_growth = claimant.gang_state > 0
        if not is_growth or self._standing_of(side.mine).is_within_quota or other.num_surplus:
            return False
        loss, theirs = _loss([victim]), side.theirs
        return any(
            quota is not None and theirs.allocated[r] - loss.get(r, 0) < quota
            for r, quota in ((r, theirs.quota[r]) for r in self._asked)
        )

    def _head(self, account: Account) -> VictimKey | None:
        """Key of the project's next victim that could help, dropping those that cannot."""
        heap = self._heaps.get(account)
        if heap is None:
            heap = self._heaps[account] = self._first_heap(account)
        while heap:
            other = heap[0][1]
            if self._is_useful.is_well_placed(other) and self._could_help(other):
                self._has_found_help = True
                if self._is_useful.is_past_minimum(other):
                    return heap[0][0]
            heappop(heap)
        return None

    def _first_heap(self, account: Account) -> list[tuple[VictimKey, Item]]:
        """A project's workloads, or on a large cluster only those on the nearest nodes."""
        heap = self._prospects.victim_heap(account.id)
        if self._nearest is None:
            return heap.copy()
        near = {
            other.id
            for name in self._nearest
            for other, _ in self._prospects.victims_on(name)
            if other.account is account
        }
        return [entry for entry in heap if entry[1].id in near] if near else []

    def _could_help(self, other: Item) -> bool:
        """Whether what a workload would give up is part of what could complete a place."""
        if self._nearest is not None:
            return any(placed.spot.room.node.name in self._nearest for placed in other.leaving)
        if self._item.shape.ask.gpu.num_devices == 1:
            return any(self._could_complete_a_device(placed.spot) for placed in other.leaving)
        return True

    def _could_complete_a_device(self, spot: Spot) -> bool:
        """Whether all who may lose, gone from this spot's node, leave room on one of its devices,
        or just beside one that is free."""
        devices = self._completable.get(spot.room.rank)
        if devices is None:
            devices = self._completable[spot.room.rank] = self._devices_to_complete(spot.room)
        return FREE_ALREADY in devices or not devices.isdisjoint(spot.devices)

    def _devices_to_complete(self, room: Room) -> set[int]:
        ask = self._item.shape.ask
        units = ask.units_per_device(room.pool.gpu_memory_mib)
        cpu, memory, devices = room.cpu, room.memory, room.devices.copy()
        losing = self._losing
        for other, placed in self._prospects.victims_on(room.node.name):
            is_losing = losing.get(other.account)
            if is_losing is None:
                is_losing = self._is_losing(other)
            if is_losing and placed in other.running:
                theirs, spot = other.shape.ask, placed.spot
                cpu += theirs.cpu_milli
                memory += theirs.memory_mib
                for device in spot.devices:
                    devices[device] += spot.units
        if cpu < ask.cpu_milli or memory < ask.memory_mib:
            return set()
        found = {i for i, free in enumerate(devices) if free >= units}
        if max(room.devices, default=0) >= units:
            found.add(FREE_ALREADY)
        return found

    def _is_losing(self, other: Item) -> bool:
        """Whether a workload's project may lose, or could when the search began."""
        return self._is_loser(other.account)

    def _is_loser(self, theirs: Account) -> bool:
        mine = self._item.account
        answer = self._losing.get(theirs)
        if answer is None:
            answer = self._losing[theirs] = (
                theirs is not mine
                and parting(mine, theirs) is not None
                and self._may_lose(self._side(theirs))
            )
        return answer

    def _nearest_nodes(self, effort: Effort) -> set[NodeName]:
        """On a large cluster, the nodes that lack least, of those that victims could complete.

        Taking several devices of one node victim by victim, wherever the next one in order lies,
        would empty many nodes by half before one is whole.
        """
        wanted = 2 * self._item.num_next + 6
        nearest: set[NodeName] = set()
        losing = self._prospects.accounts_of(self._whose)
        self._losing = dict.fromkeys(self._prospects.accounts(), False)
        self._losing |= dict.fromkeys(losing, True)
        rooms = self._prospects.rooms_of(losing)
        hosts = self._prospects.hosts(self._item.shape, self._option)
        num_tried = 0
        for pool in self._option.pools:
            for room in self._state.ledger.emptiest(pool) if rooms else ():
                if len(nearest) == wanted or num_tried == MAX_NODES_TRIED:
                    break
                if room in rooms and hosts(room):
                    num_tried += 1
                    if self._could_complete(room):
                        nearest.add(room.node.name)
        self._num_tried = num_tried
        effort.was_cut_short = effort.was_cut_short or num_tried == MAX_NODES_TRIED
        return nearest

    def _could_complete(self, room: Room) -> bool:
        """Whether those who may lose just now, gone from this node, would leave room for one."""
        losers = (
            other
            for other, _ in self._prospects.victims_on(room.node.name)
            if self._is_losing(other)
        )
        return self._prospects.could_fit_without(self._item, self._option, losers, room)

    def _numbers(self, side: Side) -> dict[str, object]:
        mine, theirs = side.mine, side.theirs
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


def _num_nodes(option: Option) -> int:
    return sum(len(pool.nodes) for pool in option.pools)


def _by_item(victims: list[Victim]) -> list[list[Victim]]:
    """What each workload gives up, its surplus replicas and the rest together."""
    groups: dict[str, list[Victim]] = {}
    for victim in victims:
        groups.setdefault(victim.item.id, []).append(victim)
    return list(groups.values())


def _loss(victims: list[Victim]) -> Loss:
    """What their side loses with these."""
    loss: Loss = {}
    for victim in victims:
        for placed in (*victim.replicas, *victim.held):
            for r, amount in placed.amounts:
                loss[r] = loss.get(r, 0) + amount
    return loss


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
