"""What could be had if others gave way: who has something to give, and which nodes would help.

Asked for every claim of a cycle, thousands of times, so what was found out is kept as long as it
holds: the order in which projects yield (ratios only fall while somebody loses), and the most that
a node could ever have free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from scheduling.core.accounts import Account, parting
from scheduling.core.changes import Changes
from scheduling.core.demand import Item, Option, Placed, Shape
from scheduling.core.ordering import VictimKey, victim_key
from scheduling.core.rooms import Ask, Load, Loads, Room, Spot
from scheduling.core.state import State, Victim
from scheduling.core.types import NodeName, ProjectId


@dataclass(frozen=True, slots=True)
class Side:
    """The pair of ancestors where a claimant's path and another project's part."""

    mine: Account
    theirs: Account


class Excess(Enum):
    """What a side holds too much of: nothing, beyond its quota, beyond all that it may have."""

    NONE = 0
    QUOTA = 1
    SHARE = 2


LossKey = tuple[tuple[float, ...], VictimKey]
Loser = tuple[LossKey, str, Account]
Losing = tuple[tuple[Account, ...], tuple[Account, ...]]
"""The roots of trees that may lose, and projects of the claimant's own tree that may."""


def over_ratios(account: Account, theirs: Account, lacking: Sequence[int]) -> tuple[float, ...]:
    """Over-ratio at each level from the parting down, negated so that the largest comes first."""
    return tuple(
        [-max([level.over_ratio(r) for r in lacking]) for level in account.path[theirs.depth :]]
    )


class Prospects:
    """Possible victims, and the nodes that they would free, during the claims of one cycle."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.changes = Changes()
        self._victims: dict[ProjectId, list[Item]] | None = None
        self._rooms: dict[ProjectId, set[Room]] = {}
        self._on_node: dict[NodeName, list[tuple[Item, Placed]]] | None = None
        self._heaps: dict[ProjectId, list[tuple[VictimKey, Item]]] = {}
        self._by_root: dict[Account, list[Account]] | None = None
        self._sides: dict[ProjectId, dict[ProjectId, Side]] = {}
        self._ranks: dict[tuple[ProjectId, tuple[int, ...]], list[Loser]] = {}
        self._ceilings: dict[NodeName, tuple[int, int, int, list[int]]] = {}
        self._hosts: dict[tuple[int, int], dict[int, bool]] = {}
        self._could_fit: dict[tuple[int, int, int], bool] = {}
        self._lower: dict[ProjectId, dict[int, dict[Room, Load]]] = {}

    # Who could give way.

    def victims_by_project(self) -> dict[ProjectId, list[Item]]:
        """Preemptible workloads that ran, or were to start, when this was first asked."""
        if self._victims is None:
            self._victims = {}
            for item in self._state.items:
                if item.is_preemptible and item.running:
                    self._victims.setdefault(item.account.id, []).append(item)
        return self._victims

    def prepare(self) -> None:
        """Find out now what the first claim would ask for."""
        for project in self.victims_by_project():
            self.victim_heap(project)
        self._index_victims()

    def victim_heap(self, project: ProjectId) -> list[tuple[VictimKey, Item]]:
        """A project's workloads that could give way, first victim first; copy it before
        changing.
        """
        heap = self._heaps.get(project)
        if heap is None:
            items = self.victims_by_project().get(project, ())
            heap = sorted((victim_key(item), item) for item in items if item.running)
            self._heaps[project] = heap
        return heap

    def protected_until(self, item: Item) -> float:
        """When the minimum runtime of what runs ends; minus infinity where none applies."""
        until = float("-inf")
        minimum = self._state.policy.min_runtime_s
        if minimum and not item.num_surplus:
            for placed in item.running:
                node_type = placed.spot.room.pool.node_type
                if not placed.is_new and node_type is not None and node_type in minimum:
                    until = max(until, placed.replica.started_s + minimum[node_type])
        return until

    # In which order.

    def side_of(self, claimant: Account, other: Account) -> Side:
        """The pair where another project's path and a claimant's part."""
        known = self._sides.setdefault(claimant.id, {})
        side = known.get(other.id)
        if side is None:
            pair = parting(claimant, other)
            assert pair is not None
            side = known[other.id] = Side(*pair)
        return side

    def losing(self, claimant: Account, may_lose: Callable[[Side], bool]) -> Losing:
        """Who may lose to a claimant."""
        home = claimant.path[0]
        by_root = self._losing_accounts()
        return (
            tuple(
                root
                for root in by_root
                if root is not home and may_lose(self.side_of(claimant, root))
            ),
            tuple(
                account
                for account in by_root.get(home, ())
                if parting(claimant, account) is not None
                and may_lose(self.side_of(claimant, account))
            ),
        )

    def losers(
        self,
        claimant: Account,
        lacking: tuple[int, ...],
        losing: Losing,
    ) -> list[Loser]:
        """Other projects that may lose, those that yield first in front: a heap of lower bounds.

        From outside a tree all see its projects with the same ratios, so these are kept from one
        claim to the next, tree by tree.
        """
        roots, accounts = losing
        heap: list[Loser] = []
        for root in roots:
            heap.extend(self._ranks_of(root, lacking))
        for account in accounts:
            heap.extend(self._rank(account, self.side_of(claimant, account).theirs, lacking))
        heap.sort()
        return heap

    def accounts_of(self, losing: Losing) -> list[Account]:
        """All projects of these that had somebody who could give way."""
        roots, accounts = losing
        by_root = self._losing_accounts()
        return [*accounts, *(account for root in roots for account in by_root[root])]

    def excess(self, theirs: Account, asked: tuple[int, ...]) -> Excess:
        """What a side is above in some resource that is asked for."""
        excess = Excess.NONE
        allocatable, quota = theirs.allocatable, theirs.quota
        for r in asked:
            held, bound, guaranteed = theirs.allocated[r], allocatable[r], quota[r]
            if bound is not None and held > bound:
                return Excess.SHARE
            if guaranteed is not None and held > guaranteed:
                excess = Excess.QUOTA
        return excess

    def _ranks_of(self, root: Account, lacking: tuple[int, ...]) -> list[Loser]:
        """The projects of one tree as they rank among those of all others."""
        ranks = self._ranks.get((root.id, lacking))
        if ranks is None:
            ranks = self._ranks[root.id, lacking] = [
                loser
                for account in self._losing_accounts()[root]
                for loser in self._rank(account, root, lacking)
            ]
        return ranks

    def _rank(
        self, account: Account, theirs: Account, lacking: tuple[int, ...]
    ) -> tuple[Loser, ...]:
        heap = self.victim_heap(account.id)
        if not heap:
            return ()
        return (((over_ratios(account, theirs, lacking), heap[0][0]), account.id, account),)

    def _losing_accounts(self) -> dict[Account, list[Account]]:
        """Projects that have victims, by the root of their tree."""
        if self._by_root is None:
            self._by_root = {}
            for project in self.victims_by_project():
                account = self._state.accounts.by_id[project]
                self._by_root.setdefault(account.path[0], []).append(account)
        return self._by_root

    # Where it would help.

    def hosts(self, shape: Shape, option: Option) -> Callable[[Room], bool]:
        """Whether a node could host a replica if everything preemptible left it, by node."""
        known = self._hosts.setdefault((shape.number, option.number), {})
        ask, pools, avoided = shape.ask, option.pools, shape.avoided

        def could(room: Room) -> bool:
            answer = known.get(room.rank)
            if answer is None:
                answer = known[room.rank] = (
                    room.pool in pools
                    and room.node.name not in avoided
                    and self.could_host(room, ask)
                )
            return answer

        return could

    def victims_on(self, name: NodeName) -> list[tuple[Item, Placed]]:
        """Preemptible replicas that ran on a node when it was first asked for."""
        return self._index_victims().get(name, [])

    def _index_victims(self) -> dict[NodeName, list[tuple[Item, Placed]]]:
        if self._on_node is None:
            self._on_node = {}
            for items in self.victims_by_project().values():
                for item in items:
                    for placed in item.running:
                        node = placed.spot.room.node.name
                        self._on_node.setdefault(node, []).append((item, placed))
        return self._on_node

    def accounts(self) -> Iterable[Account]:
        """Projects that had somebody who could give way."""
        return [account for theirs in self._losing_accounts().values() for account in theirs]

    def rooms_of(self, accounts: Iterable[Account]) -> set[Room]:
        """Nodes on which somebody of these projects who could give way has run."""
        rooms: set[Room] = set()
        for account in accounts:
            theirs = self._rooms.get(account.id)
            if theirs is None:
                theirs = self._rooms[account.id] = {
                    placed.spot.room
                    for item in self.victims_by_project().get(account.id, ())
                    for placed in item.running
                }
            rooms |= theirs
        return rooms

    def could_ever_fit(self, item: Item, option: Option) -> bool:
        """Whether the item's next replicas would fit if everything preemptible were gone.

        Told once per request and kept, since places given away later only make it less likely.
        """
        key = (item.shape.number, option.number, item.num_next)
        answer = self._could_fit.get(key)
        if answer is None:
            answer = self._could_fit[key] = self._look_for_room(item, option)
        return answer

    def _look_for_room(self, item: Item, option: Option) -> bool:
        missing, ask = item.num_next, item.shape.ask
        hosts = self.hosts(item.shape, option)
        for pool in option.pools:
            for room in pool.nodes:
                if hosts(room):
                    missing -= self._num_fitting(room, ask)
                    if missing <= 0:
                        return True
        return False

    def _num_fitting(self, room: Room, ask: Ask) -> int:
        """At most so many replicas fit a node with nothing preemptible on it."""
        cpu, memory, slots, devices = self._ceilings[room.node.name]
        fitting = slots
        if ask.cpu_milli:
            fitting = min(fitting, cpu // ask.cpu_milli)
        if ask.memory_mib:
            fitting = min(fitting, memory // ask.memory_mib)
        count = ask.gpu.num_devices
        if count:
            units = ask.units_per_device(room.pool.gpu_memory_mib)
            parts = sum([free // units for free in devices])
            fitting = min(fitting, parts // count)
        return fitting

    def could_fit_without(
        self, item: Item, option: Option, others: Iterable[Item], only: Room | None = None
    ) -> bool:
        """Whether one replica would fit some node (or only this) if these were gone.

        That much is needed at least.
        """
        return self._would_fit(item, option, _freed_by(others, only))

    def could_fit_without_lower(self, item: Item, option: Option) -> bool:
        """Whether one replica would fit some node if what its project runs at lower priority were
        gone."""
        known = self._lower.setdefault(item.account.id, {})
        freed = known.get(item.priority)
        if freed is None:
            lower = (
                other
                for _, other in self.victim_heap(item.account.id)
                if other.priority < item.priority
            )
            freed = known[item.priority] = _freed_by(lower)
        return self._would_fit(item, option, freed)

    def _would_fit(self, item: Item, option: Option, freed: Mapping[Room, Load]) -> bool:
        ask = item.shape.ask
        hosts = self.hosts(item.shape, option)
        for room, load in freed.items():
            if not hosts(room):
                continue
            units = ask.units_per_device(room.pool.gpu_memory_mib)
            fitting = 0
            for free, more in zip(room.devices, load.devices, strict=True):
                if free + more >= units:
                    fitting += 1
            if (
                fitting >= ask.gpu.num_devices
                and room.cpu + load.cpu >= ask.cpu_milli
                and room.memory + load.memory >= ask.memory_mib
            ):
                return True
        return False

    def could_host(self, room: Room, ask: Ask) -> bool:
        """Whether a replica would fit this node if everything preemptible left it."""
        if not room.is_indexed:
            return False
        ceiling = self._ceilings.get(room.node.name)
        if ceiling is None:
            ceiling = self._ceilings[room.node.name] = self._ceiling(room)
        cpu, memory, slots, devices = ceiling
        count = ask.gpu.num_devices
        return (
            cpu >= ask.cpu_milli
            and memory >= ask.memory_mib
            and slots > 0
            and (
                count == 0
                or (
                    count <= len(devices)
                    and devices[count - 1] >= ask.units_per_device(room.pool.gpu_memory_mib)
                )
            )
        )

    def _ceiling(self, room: Room) -> tuple[int, int, int, list[int]]:
        """Most that a node could have free: CPU, memory, replicas, its devices from the
        emptiest.
        """
        cpu, memory, slots, devices = room.cpu, room.memory, room.slots, list(room.devices)
        for item, placed in self.victims_on(room.node.name):
            if placed in item.running:
                cpu += item.shape.ask.cpu_milli
                memory += item.shape.ask.memory_mib
                slots += 1
                for device in placed.spot.devices:
                    devices[device] += placed.spot.units
        devices.sort(reverse=True)
        return cpu, memory, slots, devices

    def forget_order(self) -> None:
        """Shares have changed, and with them who yields first."""
        self._ranks.clear()

    def enter(self, item: Item, placed: Sequence[Placed]) -> None:
        """Replicas have their places that had none when all were looked at."""
        if self._victims is not None and item.is_preemptible:
            theirs = self._victims.setdefault(item.account.id, [])
            if not theirs:
                self.changes = Changes()  # there is one more who may lose
            if item not in theirs:
                theirs.append(item)
            self._by_root = None
        if self._on_node is not None and item.is_preemptible:
            for one in placed:
                self._on_node.setdefault(one.spot.room.node.name, []).append((item, one))
            self._rooms.pop(item.account.id, None)
            # Until now these were taken for what never leaves.
            self._could_fit = {key: fits for key, fits in self._could_fit.items() if fits}
        self.update(item, [], [one.spot for one in placed])
        self._ranks.clear()

    def update(
        self,
        claimant: Item,
        victims: Sequence[Victim],
        spots: Sequence[Spot],
        movers: Sequence[Item] = (),
    ) -> None:
        """Somebody gave way for good and somebody got these places: forget what that changes."""
        accounts = {claimant.account, *(victim.item.account for victim in victims)}
        for project in {account.id for account in accounts} | {m.account.id for m in movers}:
            self._lower.pop(project, None)
        roots = {account.path[0].id for account in accounts}
        for account in accounts:
            self._heaps.pop(account.id, None)
        for key in [key for key in self._ranks if key[0] in roots]:
            del self._ranks[key]
        for spot in spots:
            self._ceilings.pop(spot.room.node.name, None)
            for known in self._hosts.values():
                known.pop(spot.room.rank, None)
        if self._victims is not None:
            self._note_changes(claimant, victims, spots, movers)

    def _note_changes(
        self,
        claimant: Item,
        victims: Sequence[Victim],
        spots: Sequence[Spot],
        movers: Sequence[Item],
    ) -> None:
        changed = {claimant, *movers, *(victim.item for victim in victims)}
        rooms = {spot.room for spot in spots}
        rooms |= {p.spot.room for v in victims for p in (*v.replicas, *v.held)}
        rooms |= {p.spot.room for mover in movers for p in (*mover.evicted, *mover.running)}
        for room in rooms:
            changed.update(item for item, _ in self.victims_on(room.node.name))
        self.changes.note(changed)


def _freed_by(others: Iterable[Item], only: Room | None = None) -> Loads:
    """What would come free, node by node, if these were gone."""
    freed = Loads()
    for other in others:
        for placed in other.running:
            room = placed.spot.room
            if only is None or room is only:
                freed[room].add(placed.spot, other.shape.ask)
    return freed
