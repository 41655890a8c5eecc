"""The working copy of a snapshot during one cycle.

What runs on the nodes has two faces. *Promised* is what the plan has given away: running replicas,
those started now, and capacity held for claimants. *Present* is what is really there: running
replicas and victims that have not left yet. A replica may start only where both leave room; a
claimant may be promised what victims still occupy. The ledger holds the promised side; `_leaving`
and `_held` per node tell the difference to the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from scheduling.core.accounts import Account, Accounts, Amounts, Resources, parting
from scheduling.core.admission import refusal
from scheduling.core.demand import Item, Option, Placed, Shape, Shapes
from scheduling.core.errors import SnapshotError
from scheduling.core.ledger import Ask, Ledger, Load, Room, Spot
from scheduling.core.ordering import VictimKey, victim_key
from scheduling.core.types import (
    NodeName,
    Placement,
    Policy,
    ProjectId,
    Replica,
    ReplicaState,
    Snapshot,
    Workload,
)


@dataclass(frozen=True, slots=True)
class Victim:
    """Replicas of one workload that would stop together: one surplus replica, or all that run.

    Attributes:
        held: Places kept for further replicas, which go with the rest.
        numbers: What was compared when it was chosen.
    """

    item: Item
    replicas: tuple[Placed, ...]
    held: tuple[Placed, ...] = ()
    numbers: dict[str, object] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Eviction:
    """A victim that really stops, for whom, by which rule."""

    victim: Victim
    rule: str
    claimant: Item | None


@dataclass(frozen=True, slots=True)
class Side:
    """The pair of ancestors where a claimant's path and another project's part."""

    mine: Account
    theirs: Account


LossKey = tuple[tuple[float, ...], VictimKey]
Loser = tuple[LossKey, str, Account]


def over_ratios(account: Account, theirs: Account, lacking: Sequence[int]) -> tuple[float, ...]:
    """Over-ratio at each level from the parting down, negated so that the largest comes first."""
    return tuple(
        [-max([level.over_ratio(r) for r in lacking]) for level in account.path[theirs.depth :]]
    )


class State:
    """Nodes, projects and workloads, with everything decided so far taken into account."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        now_s: float,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self.policy = policy
        self.now_s = now_s
        self.should_stop = should_stop or _never
        self.resources = Resources(snapshot.nodes, snapshot.projects)
        self.accounts = Accounts(snapshot.projects, self.resources)
        self.ledger = Ledger(snapshot.nodes, placement=policy.placement)
        self.shapes = Shapes(self.ledger, self.resources)
        self.items: list[Item] = []
        self.evictions: list[Eviction] = []
        self.movers: list[tuple[Item, Item]] = []
        self._leaving: dict[NodeName, Load] = {}
        self._held: dict[NodeName, Load] = {}
        self._shadows: list[tuple[Room, Load]] = []
        self._victims: dict[ProjectId, list[Item]] | None = None
        self._on_node: dict[NodeName, list[tuple[Item, Placed]]] | None = None
        self._ceilings: dict[NodeName, tuple[int, int, int, list[int]]] = {}
        self._sides: dict[ProjectId, dict[ProjectId, Side]] = {}
        self._could_fit: dict[tuple[int, int, int], bool] = {}
        self._ranks: dict[tuple[ProjectId, tuple[int, ...]], list[Loser]] = {}
        self._by_root: dict[Account, list[Account]] | None = None
        self._heaps: dict[ProjectId, list[tuple[VictimKey, Item]]] = {}
        self._hosts: dict[tuple[int, int], dict[int, bool]] = {}
        self._kept_places: list[tuple[Item, Replica, Placement]] = []
        for workload in sorted(snapshot.workloads, key=lambda w: w.id):
            self._add(workload)
        self._keep_places()
        self.accounts.settle_shares()

    # Building.

    def _add(self, workload: Workload) -> None:
        account = self.accounts.by_id.get(workload.project)
        if account is None:
            raise SnapshotError(
                f"workload {workload.id!r} names the project {workload.project!r},"
                " which is not there"
            )
        shape = self.shapes.of(workload)
        item = Item(workload, account, shape)
        self.items.append(item)
        num_waiting = sum(self._add_replica(item, replica) for replica in workload.replicas)
        if num_waiting:
            first = shape.first
            self.accounts.request(account, tuple((r, n * num_waiting) for r, n in first))
        if len(item.running) > 1:
            item.running.sort(
                key=lambda placed: (placed.replica.started_s, *_name_key(placed.replica))
            )
        if len(item.pending) > 1:
            item.pending.sort(key=_name_key)

    def _add_replica(self, item: Item, replica: Replica) -> bool:
        """Take a replica in; whether it is still to get a place, or to get one again."""
        if replica.state is ReplicaState.RUNNING:
            self._add_running(item, replica)
            return False
        if replica.state is ReplicaState.SUCCEEDED:
            item.num_succeeded += 1
            return False
        if replica.state is ReplicaState.RELEASING:
            self._add_leaving(item, replica)
        else:
            item.pending.append(replica)
        if replica.held is not None:
            self._kept_places.append((item, replica, replica.held))
        return True

    def _spot(self, item: Item, placement: Placement | None) -> Spot:
        if placement is None:
            raise SnapshotError(f"a replica of workload {item.id!r} runs nowhere")
        room = self.ledger.rooms.get(placement.node)
        if room is None:
            raise SnapshotError(
                f"workload {item.id!r} is on node {placement.node!r}, which is not there"
            )
        if any(device >= len(room.devices) for device in placement.devices):
            raise SnapshotError(
                f"workload {item.id!r} is on a device that node {placement.node!r} does not have"
            )
        return self.ledger.spot_of(placement, item.shape.ask)

    def _add_running(self, item: Item, replica: Replica) -> None:
        spot = self._spot(item, replica.placement)
        self.ledger.take(spot, item.shape.ask)
        amounts = self.amounts(item.shape, spot)
        item.running.append(Placed(replica, spot, amounts, is_new=False))
        self.accounts.charge(item.account, amounts, 1, is_preemptible=item.is_preemptible)
        self.accounts.request(item.account, amounts)

    def _add_leaving(self, item: Item, replica: Replica) -> None:
        spot = self._spot(item, replica.placement)
        self._load(self._leaving, spot.room).add(spot, item.shape.ask)

    def _keep_places(self) -> None:
        """Keep what was held for claimants, where it still is theirs to have."""
        self._kept_places.sort(
            key=lambda kept: (-kept[0].priority, kept[0].submitted, kept[0].id, _name_key(kept[1]))
        )
        for item, replica, placement in self._kept_places:
            not_before = item.workload.not_before_s
            room = self.ledger.rooms.get(placement.node)
            if room is None or not room.node.is_ready or placement.node in item.shape.avoided:
                continue
            if not_before is not None and not_before > self.now_s:
                continue
            spot = self._spot(item, placement)
            if not _fits(room, spot, item.shape.ask):
                continue
            amounts = self.amounts(item.shape, spot)
            if refusal(item.account, amounts, is_preemptible=item.is_preemptible) is None:
                self.ledger.take(spot, item.shape.ask)
                self._keep(item, replica, spot, amounts)

    def _keep(self, item: Item, replica: Replica, spot: Spot, amounts: Amounts) -> None:
        """Keep a place for a pending replica, or for one that is being moved to it."""
        if replica.state is ReplicaState.PENDING:
            item.pending.remove(replica)
            self._promise(item, replica, spot, amounts)
        else:
            self._load(self._held, spot.room).add(spot, item.shape.ask)
            self._charge(item, amounts, 1)

    def open(self) -> None:
        """Open the nodes for placement; what is promised to nobody but still occupied stays
        hidden.
        """
        for name, leaving in self._leaving.items():
            room = self.ledger.rooms[name]
            held = self._held.get(name) or Load(len(room.devices))
            shadow = Load(len(room.devices))
            shadow.cpu = max(0, leaving.cpu - held.cpu)
            shadow.memory = max(0, leaving.memory - held.memory)
            shadow.slots = max(0, leaving.slots - held.slots)
            shadow.devices = [
                max(0, mine - other)
                for mine, other in zip(leaving.devices, held.devices, strict=True)
            ]
            self._shadows.append((room, shadow))
            self.ledger.shade(room, shadow, 1)
        self.ledger.index()

    def lift_shadows(self) -> None:
        """From here on, what victims still occupy may be promised to claimants."""
        for room, shadow in self._shadows:
            self.ledger.shade(room, shadow, -1)
        self._shadows.clear()

    def _load(self, loads: dict[NodeName, Load], room: Room) -> Load:
        load = loads.get(room.node.name)
        if load is None:
            load = loads[room.node.name] = Load(len(room.devices))
        return load

    # Placing.

    def amounts(self, shape: Shape, spot: Spot) -> Amounts:
        """What one replica of this shape counts for at this spot."""
        pool = spot.room.pool
        for option in shape.options:
            amounts = option.by_pool.get(pool)
            if amounts is not None:
                return amounts
        return self.shapes.amounts(shape, pool)

    def find(self, item: Item, option: Option, count: int) -> list[Spot] | None:
        """Places for `count` replicas, taken in the ledger; None, and nothing taken, if not all
        fit.
        """
        shape, spots = item.shape, list[Spot]()
        mark = self.ledger.mark()
        for _ in range(count):
            spot = self.ledger.find(
                shape.ask, option.pools, shape.avoided, is_packed=shape.is_interactive
            )
            if spot is None:
                self.ledger.rewind(mark)
                return None
            self.ledger.take(spot, shape.ask)
            spots.append(spot)
        return spots

    def start(self, item: Item, spots: Sequence[Spot]) -> None:
        """Give the next pending replicas these places, already taken in the ledger."""
        for spot in spots:
            replica = item.pending.pop(0)
            amounts = self.amounts(item.shape, spot)
            item.running.append(Placed(replica, spot, amounts, is_new=True))
            self._charge(item, amounts, 1)

    def hold(self, item: Item, spots: Sequence[Spot]) -> None:
        """Keep these places, already taken in the ledger, for the next pending replicas."""
        for spot in spots:
            self._promise(item, item.pending.pop(0), spot, self.amounts(item.shape, spot))

    def _promise(self, item: Item, replica: Replica, spot: Spot, amounts: Amounts) -> None:
        item.held.append(Placed(replica, spot, amounts, is_new=True))
        self._load(self._held, spot.room).add(spot, item.shape.ask)
        self._charge(item, amounts, 1)

    def start_held(self, item: Item) -> bool:
        """Start a claimant if all its held places are free by now. Before `open` only."""
        ask = item.shape.ask
        if not self.is_free_now([placed.spot for placed in item.held], ask, is_held=True):
            return False
        for placed in item.held:
            self._load(self._held, placed.spot.room).add(placed.spot, ask, -1)
        item.running.extend(item.held)
        item.held.clear()
        return True

    def is_free_now(self, spots: Sequence[Spot], ask: Ask, *, is_held: bool = False) -> bool:
        """Whether places taken in the ledger are free at present, too.

        Present room is promised room, plus what is only held, minus what has not left yet.
        """
        for name in {spot.room.node.name for spot in spots} & self._leaving.keys():
            room, leaving = self.ledger.rooms[name], self._leaving[name]
            spare = Load(len(room.devices))
            if name in self._held:
                held = self._held[name]
                spare.cpu, spare.memory, spare.slots = held.cpu, held.memory, held.slots
                spare.devices = held.devices.copy()
            if is_held:
                for spot in spots:
                    if spot.room is room:
                        spare.add(spot, ask, -1)
            if (
                room.cpu + spare.cpu < leaving.cpu
                or room.memory + spare.memory < leaving.memory
                or room.slots + spare.slots < leaving.slots
                or any(
                    room.devices[i] + spare.devices[i] < leaving.devices[i]
                    for spot in spots
                    if spot.room is room
                    for i in spot.devices
                )
            ):
                return False
        return True

    def _charge(self, item: Item, amounts: Amounts, sign: int) -> None:
        self.accounts.charge(item.account, amounts, sign, is_preemptible=item.is_preemptible)

    # Evicting.

    def remove(self, victim: Victim) -> None:
        """Suppose that a victim is gone; `put_back` undoes it."""
        item = victim.item
        for placed in victim.replicas:
            self.ledger.give_back(placed.spot, item.shape.ask)
            item.running.remove(placed)
            self._charge(item, placed.amounts, -1)
        for placed in victim.held:
            self.ledger.give_back(placed.spot, item.shape.ask)
            item.held.remove(placed)
            self._load(self._held, placed.spot.room).add(placed.spot, item.shape.ask, -1)
            self._charge(item, placed.amounts, -1)

    def put_back(self, victim: Victim) -> None:
        item = victim.item
        for placed in victim.replicas:
            self.ledger.take(placed.spot, item.shape.ask)
            item.running.append(placed)
            self._charge(item, placed.amounts, 1)
        for placed in victim.held:
            self.ledger.take(placed.spot, item.shape.ask)
            item.held.append(placed)
            self._load(self._held, placed.spot.room).add(placed.spot, item.shape.ask)
            self._charge(item, placed.amounts, 1)
        item.running.sort(
            key=lambda placed: (placed.is_new, placed.replica.started_s, *_name_key(placed.replica))
        )

    def evict(self, victim: Victim, rule: str, claimant: Item | None) -> None:
        """A removed victim really stops: what ran leaves, what was only planned is planned no
        more.
        """
        item = victim.item
        self._heaps.pop(item.account.id, None)
        leaving = tuple(placed for placed in victim.replicas if not placed.is_new)
        for placed in victim.replicas:
            if placed.is_new:
                item.pending.append(placed.replica)
            else:
                self._load(self._leaving, placed.spot.room).add(placed.spot, item.shape.ask)
                item.evicted.append(placed)
        item.pending.extend(placed.replica for placed in victim.held)
        item.pending.sort(key=_name_key)
        if leaving:
            kept = Victim(item, leaving, (), victim.numbers)
            self.evictions.append(Eviction(kept, rule, claimant))

    def move(self, item: Item, placed: Placed, spot: Spot, claimant: Item) -> None:
        """A running replica leaves for a new place, already taken in the ledger and kept for it."""
        ask = item.shape.ask
        self._load(self._leaving, placed.spot.room).add(placed.spot, ask)
        self._load(self._held, spot.room).add(spot, ask)
        amounts = self.amounts(item.shape, spot)
        self._charge(item, placed.amounts, -1)
        self._charge(item, amounts, 1)
        item.running.remove(placed)
        item.evicted.append(placed)
        item.moved[placed.replica.id] = spot.placement(ask)
        if all(mover is not item for mover, _ in self.movers):
            self.movers.append((item, claimant))

    def next_victim(self, item: Item) -> Victim | None:
        """What this workload would give up next: a surplus replica, or else everything."""
        if not item.running or item.moved:
            return None
        if item.num_surplus:
            return Victim(item, (item.running[-1],))
        return Victim(item, tuple(item.running), tuple(item.held))

    def victims_by_project(self) -> dict[ProjectId, list[Item]]:
        """Preemptible workloads that ran, or were to start, when this was first asked."""
        if self._victims is None:
            self._victims = {}
            for item in self.items:
                if item.is_preemptible and item.running:
                    self._victims.setdefault(item.account.id, []).append(item)
        return self._victims

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
        minimum = self.policy.min_runtime_s
        if minimum and not item.num_surplus:
            for placed in item.running:
                node_type = placed.spot.room.pool.node_type
                if not placed.is_new and node_type is not None and node_type in minimum:
                    until = max(until, placed.replica.started_s + minimum[node_type])
        return until

    def side_of(self, claimant: Account, other: Account) -> Side:
        """The pair where another project's path and a claimant's part."""
        known = self._sides.setdefault(claimant.id, {})
        side = known.get(other.id)
        if side is None:
            pair = parting(claimant, other)
            assert pair is not None
            side = known[other.id] = Side(*pair)
        return side

    def losers(
        self, claimant: Account, lacking: tuple[int, ...], may_lose: Callable[[Side], bool]
    ) -> list[Loser]:
        """Other projects that may lose, those that yield first in front: a heap of lower bounds.

        From outside a tree all see its projects with the same ratios, so these are kept from one
        claim to the next, tree by tree.
        """
        home = claimant.path[0]
        heap: list[Loser] = []
        for root, accounts in self._losing_accounts().items():
            if root is not home:
                if may_lose(self.side_of(claimant, root)):
                    heap.extend(self._ranks_of(root, lacking))
                continue
            for account in accounts:
                if parting(claimant, account) is not None:
                    side = self.side_of(claimant, account)
                    if may_lose(side):
                        heap.extend(self._rank(account, side.theirs, lacking))
        heap.sort()
        return heap

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
                account = self.accounts.by_id[project]
                self._by_root.setdefault(account.path[0], []).append(account)
        return self._by_root

    def rank_again(self, accounts: Iterable[Account]) -> None:
        """What these hold has changed: so has the order in which their trees' projects yield."""
        roots = {account.path[0].id for account in accounts}
        for key in [key for key in self._ranks if key[0] in roots]:
            del self._ranks[key]

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
        if self._on_node is None:
            self._on_node = {}
            for items in self.victims_by_project().values():
                for item in items:
                    for placed in item.running:
                        node = placed.spot.room.node.name
                        self._on_node.setdefault(node, []).append((item, placed))
        return self._on_node.get(name, [])

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

    def forget_ceilings(self, spots: Iterable[Spot]) -> None:
        """Places were given away for good: what their nodes could have free is less now."""
        for spot in spots:
            self._ceilings.pop(spot.room.node.name, None)
            for known in self._hosts.values():
                known.pop(spot.room.rank, None)


def _fits(room: Room, spot: Spot, ask: Ask) -> bool:
    return room.fits_beside_gpus(ask) and all(
        room.devices[device] >= spot.units for device in spot.devices
    )


def _name_key(replica: Replica) -> tuple[int, str]:
    """Names of one workload in counting order: w-2 before w-10."""
    return (len(replica.id), replica.id)


def _never() -> bool:
    return False
