"""The working copy of a snapshot during one cycle.

What runs on the nodes has two faces. *Promised* is what the plan has given away: running replicas,
those started now, and capacity held for claimants. *Present* is what is really there: running
replicas and victims that have not left yet. A replica may start only where both leave room; a
claimant may be promised what victims still occupy. The ledger holds the promised side; `_leaving`,
`_held` and the bodies of borrowers (`loans.py`) per node tell the difference to the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from scheduling.core.accounts import Accounts, Amounts, Resources
from scheduling.core.admission import refusal
from scheduling.core.demand import Item, Option, Placed, Shape, Shapes
from scheduling.core.failing_nodes import failing_nodes, without
from scheduling.core.ledger import Ledger
from scheduling.core.loans import Bodies
from scheduling.core.rooms import Ask, Load, Room, Spot
from scheduling.core.topology import Topology, gather
from scheduling.core.types import (
    WHOLE_GPU_MILLI,
    NodeName,
    Placement,
    Policy,
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


_THERE = (
    ReplicaState.RUNNING,
    ReplicaState.RELEASING,
    ReplicaState.LENT,
    ReplicaState.PARKED,
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
        self.cordons = failing_nodes(snapshot.nodes, policy, now_s)
        nodes = without(snapshot.nodes, self.cordons)
        self.resources = Resources(nodes, snapshot.projects)
        factor_milli = policy.history_factor_milli
        self.accounts = Accounts(snapshot.projects, self.resources, factor_milli)
        self.ledger = Ledger(nodes, placement=policy.placement)
        self.shapes = Shapes(self.ledger, self.resources)
        self.topology = Topology(policy.topology)
        self.items: list[Item] = []
        self.evictions: list[Eviction] = []
        self.movers: list[tuple[Item, Item]] = []
        self.bodies = Bodies()
        self._leaving: dict[NodeName, Load] = {}
        self._held: dict[NodeName, Load] = {}
        self._leavers: dict[NodeName, list[tuple[Item, Spot]]] = {}
        self._shadows: list[tuple[Room, Load]] = []
        self._loan_shadows: dict[NodeName, Load] | None = None
        self._kept_places: list[tuple[Item, Replica, Placement]] = []
        self.set_aside: list[tuple[Workload, str]] = []
        for workload in sorted(snapshot.workloads, key=lambda w: w.id):
            problem = self._problem(workload)
            if problem:
                self._set_aside(workload, problem)
            else:
                self.items.append(self._add(workload))
        self.bodies.settle(self.items, snapshot.loans)
        self.accounts.sum_up()
        self._keep_places()
        self.accounts.settle_shares()

    # Building.

    def _problem(self, workload: Workload) -> str:
        """What contradicts itself in a workload; empty where nothing does."""
        if workload.project not in self.accounts.by_id:
            return f"it names the project {workload.project!r}, which is not there"
        for replica in workload.replicas:
            has_left = replica.state is ReplicaState.RELEASING and replica.placement is None
            if replica.state in _THERE and not has_left:
                if replica.placement is None:
                    return f"its replica {replica.id!r} runs nowhere"
                if replica.placement.node not in self.ledger.rooms:
                    return (
                        f"its replica {replica.id!r} is on node {replica.placement.node!r},"
                        " which is not there"
                    )
        return ""

    def _set_aside(self, workload: Workload, problem: str) -> None:
        """Plan without a workload; what it occupies stays occupied, but counts for nobody."""
        self.set_aside.append((workload, problem))
        ask = Ask(workload.gpu, workload.cpu_milli, workload.memory_mib)
        for replica in workload.replicas:
            placement = replica.placement
            if placement is None or placement.node not in self.ledger.rooms:
                continue
            if replica.state in (ReplicaState.LENT, ReplicaState.PARKED):
                placement = Placement(placement.node, (), 0)  # its device is somebody else's
            self.ledger.occupy(self._spot(ask, placement), ask)

    def enter(self, workload: Workload) -> Item:
        """Take in a workload that only waits after all has been summed up, its request included;
        the caller puts it among `items` and settles shares."""
        item = self._add(workload)
        requested = [(r, amount * len(item.pending)) for r, amount in item.shape.first]
        for level in item.account.path[:-1]:
            for r, amount in requested:
                level.requested[r] += amount
        return item

    def _add(self, workload: Workload) -> Item:
        account = self.accounts.by_id[workload.project]
        shape = self.shapes.of(workload)
        item = Item(workload, account, shape)
        num_waiting = 0
        for replica in workload.replicas:
            if replica.state is ReplicaState.RUNNING:
                self._add_running(item, replica)
            elif self._add_waiting(item, replica):
                num_waiting += 1
        if num_waiting:
            account.note(shape.first, num_waiting, is_allocated=False, is_preemptible=True)
        if not item.running:
            item.rank += self._aging(workload)
        if len(item.running) > 1:
            item.running.sort(
                key=lambda placed: (placed.replica.started_s, *_name_key(placed.replica))
            )
        if len(item.pending) > 1:
            item.pending.sort(key=_name_key)
        return item

    def _aging(self, workload: Workload) -> int:
        """By how much waiting has raised a workload's priority among those that start."""
        period, since = self.policy.aging_period_s, workload.waiting_since_s
        if not period or since is None:
            return 0
        return min(int(max(0.0, self.now_s - since) // period), self.policy.aging_bound)

    def delayed_until(self, item: Item) -> float | None:
        """Until when a waiting workload may cause no eviction; None when it may."""
        since = item.workload.waiting_since_s
        if since is None or since + self.policy.preemption_delay_s <= self.now_s:
            return None
        return since + self.policy.preemption_delay_s

    def is_due(self, item: Item) -> bool:
        """Whether a workload may be tried by now, being neither in back-off nor asked for later."""
        not_before = item.workload.not_before_s
        return not_before is None or not_before <= self.now_s

    def _add_waiting(self, item: Item, replica: Replica) -> bool:
        """Take in one that does not run; whether it is to get a place, or to get one again."""
        if replica.state is ReplicaState.SUCCEEDED:
            item.num_succeeded += 1
            return False
        if replica.state is not ReplicaState.RELEASING:
            item.pending.append(replica)
            if replica.placement is not None:
                self.bodies.add(item, replica, self._spot(item.shape.ask, replica.placement))
        elif replica.placement is not None:
            self._add_leaving(item, replica)
        if replica.held is not None:
            self._kept_places.append((item, replica, replica.held))
        return True

    def _spot(self, ask: Ask, placement: Placement) -> Spot:
        room = self.ledger.rooms[placement.node]
        devices, num_devices = placement.devices, len(room.devices)
        if devices and max(devices) >= num_devices:
            # A device that has fallen off its node: what runs on it stays counted, nothing more.
            there = tuple(device for device in devices if device < num_devices)
            placement = replace(placement, devices=there)
        return self.ledger.spot_of(placement, ask)

    def _add_running(self, item: Item, replica: Replica) -> None:
        assert replica.placement is not None
        spot = self._spot(item.shape.ask, replica.placement)
        self.ledger.occupy(spot, item.shape.ask)
        amounts = self.amounts(item.shape, spot)
        item.running.append(Placed(replica, spot, amounts, is_new=False))
        item.account.note(amounts, 1, is_allocated=True, is_preemptible=item.is_preemptible)

    def _add_leaving(self, item: Item, replica: Replica) -> None:
        assert replica.placement is not None
        spot = self._spot(item.shape.ask, replica.placement)
        self._load(self._leaving, spot.room).add(spot, item.shape.ask)
        self._leavers.setdefault(spot.room.node.name, []).append((item, spot))

    def leavers_from(self, spots: Iterable[Spot]) -> list[Item]:
        """Who, told to leave before this cycle or there on loan, is still where these places
        are.
        """
        found = {item.id: item for item in self.bodies.at(spots)} if self.bodies.items else {}
        for spot in spots:
            for item, theirs in self._leavers.get(spot.room.node.name, ()):
                if not spot.devices or set(spot.devices) & set(theirs.devices):
                    found[item.id] = item
        return [found[name] for name in sorted(found)]

    def _keep_places(self) -> None:
        """Keep what was held for claimants, where it still is theirs to have."""
        self._kept_places.sort(
            key=lambda kept: (-kept[0].priority, kept[0].submitted, kept[0].id, _name_key(kept[1]))
        )
        for item, replica, placement in self._kept_places:
            room = self.ledger.rooms.get(placement.node)
            if room is None or not room.node.is_ready or placement.node in item.shape.avoided:
                continue
            if not self.is_due(item):
                continue
            spot = self._spot(item.shape.ask, placement)
            is_whole = len(spot.devices) == len(placement.devices)
            if not is_whole or not spot.is_free(item.shape.ask):
                continue
            amounts = self.amounts(item.shape, spot)
            if refusal(item.account, amounts, is_preemptible=item.is_preemptible) is None:
                self.ledger.take(spot, item.shape.ask)
                self._keep(item, replica, spot, amounts)

    def _keep(self, item: Item, replica: Replica, spot: Spot, amounts: Amounts) -> None:
        """Keep a place for a pending replica, or for one that is being moved to it."""
        if replica.state is not ReplicaState.RELEASING:
            item.pending.remove(replica)
            self._promise(item, replica, spot, amounts)
        else:
            self._load(self._held, spot.room).add(spot, item.shape.ask)
            self.charge(item, amounts, 1)

    def open(self) -> None:
        """Open the nodes for placement; what is promised to nobody but still occupied stays
        hidden.
        """
        for name, leaving in self._leaving.items():
            room = self.ledger.rooms[name]
            shadow = _beyond(leaving, self._held.get(name) or Load(len(room.devices)))
            self._shadows.append((room, shadow))
            self.ledger.shade(room, shadow, 1)
        self.ledger.index()
        self.lower_loan_shadows()

    def lift_shadows(self) -> None:
        """From here on, what victims still occupy may be promised to claimants."""
        for room, shadow in self._shadows:
            self.ledger.shade(room, shadow, -1)

    def lower_shadows(self) -> None:
        """Hide it again: a newcomer looks for what is free at present."""
        for room, shadow in self._shadows:
            self.ledger.shade(room, shadow, 1)

    def lift_loan_shadows(self) -> None:
        """From here on, what borrowers occupy may be promised as if they were not there."""
        for name, shadow in (self._loan_shadows or {}).items():
            self.ledger.shade(self.ledger.rooms[name], shadow, -1)
        self._loan_shadows = None

    def lower_loan_shadows(self) -> None:
        """Hide what borrowers occupy, until it is lifted."""
        self._loan_shadows = {}
        for name in self.bodies.loads:
            self._shade_loans(name)

    def _shade_loans(self, name: NodeName) -> None:
        """Hide, while loan shadows are kept, what borrowers take on a node beside what is leaving
        or held there.
        """
        if self._loan_shadows is None:
            return
        room = self.ledger.rooms[name]
        old = self._loan_shadows.pop(name, None)
        if old is not None:
            self.ledger.shade(room, old, -1)
        load, empty = self.bodies.loads[name], Load(len(room.devices))
        leaving, held = self._leaving.get(name) or empty, self._held.get(name) or empty
        shadow = _beyond(_beyond(_sum(load, leaving), held), _beyond(leaving, held))
        self._loan_shadows[name] = shadow
        self.ledger.shade(room, shadow, 1)

    # Borrowers.

    def lift(self, item: Item) -> None:
        """Suppose that a borrower's bodies are not there; `lay` undoes it."""
        self.bodies.lift(item)
        self._reshade(item)

    def lay(self, item: Item) -> None:
        self.bodies.lay(item)
        self._reshade(item)

    def _reshade(self, item: Item) -> None:
        for name in sorted({body.spot.room.node.name for body in item.bodies}):
            self._shade_loans(name)

    def find_at_home(self, item: Item, count: int) -> list[Spot] | None:
        """Places, taken in the ledger, just where a borrower's next replicas run or wait."""
        ask, spots = item.shape.ask, list[Spot]()
        mark = self.ledger.mark()
        for body in item.bodies[:count]:
            spot: Spot | None = body.spot
            if body.is_parked:
                spot = self._spot_on(body.spot.room, ask)
            if spot is None or not spot.is_free(ask) or not spot.room.node.is_ready:
                self.ledger.rewind(mark)
                return None
            self.ledger.take(spot, ask)
            spots.append(spot)
        return spots

    def _spot_on(self, room: Room, ask: Ask) -> Spot | None:
        units = ask.units_per_device(room.pool.gpu_memory_mib)
        devices = room.choose_devices(units, ask.gpu.num_devices)
        if devices is None:
            return None
        left = min(WHOLE_GPU_MILLI - room.milli[device] for device in devices)
        return Spot(room, devices, units, min(ask.milli_per_device(room.pool.gpu_memory_mib), left))

    def present_load(self, room: Room) -> Load:
        """What is on a node beyond what is promised there: victims and borrowers."""
        empty, name = Load(len(room.devices)), room.node.name
        return _sum(self._leaving.get(name) or empty, self.bodies.loads.get(name) or empty)

    def held_load(self, room: Room) -> Load:
        return self._held.get(room.node.name) or Load(len(room.devices))

    def leaving_load(self, room: Room) -> Load:
        return self._leaving.get(room.node.name) or Load(len(room.devices))

    def _load(self, loads: dict[NodeName, Load], room: Room) -> Load:
        load = loads.get(room.node.name)
        if load is None:
            load = loads[room.node.name] = Load(len(room.devices))
        return load

    def dissolve(self) -> None:
        """Take apart what refers to itself in circles, so that all of it goes at once, and not
        only when Python's collector has looked through it."""
        for account in self.accounts.by_id.values():
            account.path, account.children, account.parent = (), [], None
        for pool in self.ledger.pools:
            pool.nodes = []
        for item in self.items:
            item.batch, item.waits_for, item.bodies, item.settled = None, [], [], []

    # Placing.

    def amounts(self, shape: Shape, spot: Spot) -> Amounts:
        """What one replica of this shape counts for at this spot."""
        pool = spot.room.pool
        amounts = shape.by_pool.get(pool)
        if amounts is None:
            amounts = shape.by_pool[pool] = self.shapes.amounts(shape, pool)
        return amounts

    def find(self, item: Item, option: Option, count: int) -> list[Spot] | None:
        """Places for `count` replicas, taken in the ledger; None, and nothing taken, if not all
        fit.

        First difference decides: the node type's order; for a gang the smallest domain that holds
        it whole; a node with a shared device that has room; the fullest (or emptiest); the name.
        """
        mark = self.ledger.mark()
        spots = self._find_one_by_one(item, option, count)
        if spots is None or not self.topology or count + len(item.running) + len(item.held) < 2:
            return spots
        beside = [placed.spot.room for placed in (*item.running, *item.held)]
        self.ledger.rewind(mark)
        rooms = (
            room
            for pool in option.pools
            for room in pool.nodes
            if room.is_indexed and room.node.name not in item.shape.avoided
        )
        gathered = gather(self.ledger, self.topology, item.shape.ask, rooms, beside, spots)
        if gathered is None:
            for spot in spots:
                self.ledger.take(spot, item.shape.ask)
        return gathered or spots

    def _find_one_by_one(self, item: Item, option: Option, count: int) -> list[Spot] | None:
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
            self.charge(item, amounts, 1)

    def hold(self, item: Item, spots: Sequence[Spot]) -> None:
        """Keep these places, already taken in the ledger, for the next pending replicas."""
        for spot in spots:
            self._promise(item, item.pending.pop(0), spot, self.amounts(item.shape, spot))

    def _promise(self, item: Item, replica: Replica, spot: Spot, amounts: Amounts) -> None:
        item.held.append(Placed(replica, spot, amounts, is_new=True))
        self._load(self._held, spot.room).add(spot, item.shape.ask)
        self.charge(item, amounts, 1)

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
        for name in {spot.room.node.name for spot in spots}:
            if name not in self._leaving and name not in self.bodies.loads:
                continue
            room = self.ledger.rooms[name]
            leaving = self.present_load(room)
            spare = Load(len(room.devices))
            if name in self._held:
                held = self._held[name]
                spare.cpu, spare.memory, spare.slots = held.cpu, held.memory, held.slots
                spare.devices, spare.milli = held.devices.copy(), held.milli.copy()
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
                    or room.milli[i] - spare.milli[i] + leaving.milli[i] > WHOLE_GPU_MILLI
                    for spot in spots
                    if spot.room is room
                    for i in spot.devices
                )
            ):
                return False
        return True

    def charge(self, item: Item, amounts: Amounts, sign: int) -> None:
        """Count amounts as held by a workload's project (1), or no longer (-1)."""
        self.accounts.charge(item.account, amounts, sign, is_preemptible=item.is_preemptible)

    # Evicting.

    def remove(self, victim: Victim) -> None:
        """Suppose that a victim is gone; `put_back` undoes it."""
        item = victim.item
        for placed in victim.replicas:
            self.ledger.give_back(placed.spot, item.shape.ask)
            item.running.remove(placed)
            self.charge(item, placed.amounts, -1)
        for placed in victim.held:
            self.ledger.give_back(placed.spot, item.shape.ask)
            item.held.remove(placed)
            self._load(self._held, placed.spot.room).add(placed.spot, item.shape.ask, -1)
            self.charge(item, placed.amounts, -1)

    def put_back(self, victim: Victim) -> None:
        item = victim.item
        for placed in victim.replicas:
            self.ledger.take(placed.spot, item.shape.ask)
            item.running.append(placed)
            self.charge(item, placed.amounts, 1)
        for placed in victim.held:
            self.ledger.take(placed.spot, item.shape.ask)
            item.held.append(placed)
            self._load(self._held, placed.spot.room).add(placed.spot, item.shape.ask)
            self.charge(item, placed.amounts, 1)
        item.running.sort(
            key=lambda placed: (placed.is_new, placed.replica.started_s, *_name_key(placed.replica))
        )

    def evict(self, victim: Victim, rule: str, claimant: Item | None) -> None:
        """A removed victim really stops: what ran leaves, what was only planned is planned no
        more.
        """
        item = victim.item
        leaving = tuple(placed for placed in victim.replicas if not placed.is_new)
        for placed in victim.replicas:
            if placed.is_new:
                item.pending.append(placed.replica)
                if item.settled:
                    self.bodies.restore(item, placed.replica)
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
        self.charge(item, placed.amounts, -1)
        self.charge(item, amounts, 1)
        item.running.remove(placed)
        item.evicted.append(placed)
        item.moved[placed.replica.id] = spot.placement()
        if all(mover is not item for mover, _ in self.movers):
            self.movers.append((item, claimant))

    def next_victim(self, item: Item) -> Victim | None:
        """What this workload would give up next: a surplus replica, or else everything."""
        if not item.running or item.moved:
            return None
        if item.num_surplus:
            return Victim(item, (item.running[-1],))
        return Victim(item, tuple(item.running), tuple(item.held))


def _beyond(load: Load, other: Load) -> Load:
    """What of a load is left when another is taken off, nowhere less than nothing."""
    rest = Load(len(load.devices))
    rest.cpu = max(0, load.cpu - other.cpu)
    rest.memory = max(0, load.memory - other.memory)
    rest.slots = max(0, load.slots - other.slots)
    rest.devices = [max(0, a - b) for a, b in zip(load.devices, other.devices, strict=True)]
    rest.milli = [max(0, a - b) for a, b in zip(load.milli, other.milli, strict=True)]
    return rest


def _sum(one: Load, other: Load) -> Load:
    total = Load(len(one.devices))
    total.cpu, total.memory = one.cpu + other.cpu, one.memory + other.memory
    total.slots = one.slots + other.slots
    total.devices = [a + b for a, b in zip(one.devices, other.devices, strict=True)]
    total.milli = [a + b for a, b in zip(one.milli, other.milli, strict=True)]
    return total


def _name_key(replica: Replica) -> tuple[int, str]:
    """Names of one workload in counting order: w-2 before w-10."""
    return (len(replica.id), replica.id)


def _never() -> bool:
    return False
