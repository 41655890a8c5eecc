"""The working copy of a snapshot during one cycle.

Replicas are placed, evicted and moved in it, really or on trial. Sums of projects (`accounts`),
free capacity (`ledger`) and what is present beyond the promises (`presence`) follow each change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduling.core.accounts import Accounts, Amounts, Resources
from scheduling.core.admission import refusal
from scheduling.core.demand import Body, Item, Option, Placed, Shape, Shapes
from scheduling.core.failing_nodes import failing_nodes, without
from scheduling.core.intake import Intake, name_key
from scheduling.core.ledger import Ledger
from scheduling.core.presence import Presence
from scheduling.core.rooms import Spot
from scheduling.core.topology import Topology, gather
from scheduling.core.types import (
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
        self.evictions: list[Eviction] = []
        self.movers: list[tuple[Item, Item]] = []
        self.presence = Presence(self.ledger)
        self._intake = Intake(self.accounts, self.ledger, self.shapes, self.presence)
        self.items = self._intake.of(snapshot.workloads, policy, now_s)
        self.set_aside = self._intake.set_aside
        self.presence.bodies.settle(self.items, snapshot.loans)
        self.accounts.sum_up()
        self._keep_places()
        self.accounts.settle_shares()

    # Taking in.

    def enter(self, workload: Workload) -> Item:
        """Take in a workload that only waits after all has been summed up, its request included;
        the caller puts it among `items` and settles shares."""
        item = self._intake.add(workload, self.policy, self.now_s)
        requested = [(r, amount * len(item.pending)) for r, amount in item.shape.first]
        for level in item.account.path[:-1]:
            for r, amount in requested:
                level.requested[r] += amount
        return item

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

    def _keep_places(self) -> None:
        """Keep what was held for claimants, where it still is theirs to have."""
        kept_places = sorted(
            self._intake.kept_places,
            key=lambda kept: (
                -kept.item.priority,
                kept.item.submitted,
                kept.item.id,
                name_key(kept.replica),
            ),
        )
        for kept in kept_places:
            item, placement = kept.item, kept.placement
            room = self.ledger.rooms.get(placement.node)
            if room is None or not room.node.is_ready or placement.node in item.shape.avoided:
                continue
            if not self.is_due(item):
                continue
            spot = self._intake.spot(item.shape.ask, placement)
            is_whole = len(spot.devices) == len(placement.devices)
            if not is_whole or not spot.is_free(item.shape.ask):
                continue
            amounts = self.amounts(item.shape, spot)
            if refusal(item.account, amounts, is_preemptible=item.is_preemptible) is None:
                self.ledger.take(spot, item.shape.ask)
                self._keep(item, kept.replica, spot, amounts)

    def _keep(self, item: Item, replica: Replica, spot: Spot, amounts: Amounts) -> None:
        """Keep a place for a pending replica, or for one that is being moved to it."""
        if replica.state is not ReplicaState.RELEASING:
            item.pending.remove(replica)
            self._promise(item, replica, spot, amounts)
        else:
            self.presence.hold(spot, item.shape.ask)
            self.charge(item, amounts, 1)

    # Placing.

    def amounts(self, shape: Shape, spot: Spot) -> Amounts:
        """What one replica of this shape counts for at this spot."""
        return self.shapes.amounts(shape, spot.room.pool)

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

    def find_at_home(self, item: Item) -> list[Spot] | None:
        """Places just where a borrower's next replicas run or wait in memory, taken in the ledger;
        None, and nothing taken, if not all of them are free at present.
        """
        if not item.bodies or len(item.bodies) != item.num_next:
            return None
        mark = self.ledger.mark()
        self.presence.lift_bodies(item)
        spots: list[Spot] | None
        spots = [spot for body in item.bodies if (spot := self._take_home(body)) is not None]
        if len(spots) < len(item.bodies) or not self.presence.is_free_now(spots, item.shape.ask):
            self.ledger.rewind(mark)
            spots = None
        self.presence.lay_bodies(item)
        return spots

    def _take_home(self, body: Body) -> Spot | None:
        room, ask = body.spot.room, body.item.shape.ask
        spot = self.ledger.spot_on(room, ask) if body.is_parked else body.spot
        if spot is None or not spot.is_free(ask) or not room.node.is_ready:
            return None
        self.ledger.take(spot, ask)
        return spot

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
        self.presence.hold(spot, item.shape.ask)
        self.charge(item, amounts, 1)

    def start_held(self, item: Item) -> bool:
        """Start a claimant if all its held places are free by now. Before the nodes are
        opened only."""
        ask = item.shape.ask
        if not self.presence.is_free_now([placed.spot for placed in item.held], ask, is_held=True):
            return False
        for placed in item.held:
            self.presence.hold(placed.spot, ask, -1)
        item.running.extend(item.held)
        item.held.clear()
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
            self.presence.hold(placed.spot, item.shape.ask, -1)
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
            self.presence.hold(placed.spot, item.shape.ask)
            self.charge(item, placed.amounts, 1)
        item.running.sort(
            key=lambda placed: (placed.is_new, placed.replica.started_s, *name_key(placed.replica))
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
                    self.presence.bodies.restore(item, placed.replica)
            else:
                self.presence.leave(placed.spot, item.shape.ask)
                item.evicted.append(placed)
        item.pending.extend(placed.replica for placed in victim.held)
        item.pending.sort(key=name_key)
        if leaving:
            kept = Victim(item, leaving, (), victim.numbers)
            self.evictions.append(Eviction(kept, rule, claimant))

    def move(self, item: Item, placed: Placed, spot: Spot, claimant: Item) -> None:
        """A running replica leaves for a new place, already taken in the ledger and kept for it."""
        ask = item.shape.ask
        self.presence.leave(placed.spot, ask)
        self.presence.hold(spot, ask)
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

    def dissolve(self) -> None:
        """Take apart what refers to itself in circles, so that all of it goes at once, and not
        only when Python's collector has looked through it."""
        for account in self.accounts.by_id.values():
            account.path, account.children, account.parent = (), [], None
        for pool in self.ledger.pools:
            pool.nodes = []
        for item in self.items:
            item.batch, item.waits_for, item.bodies, item.settled = None, [], [], []


def _never() -> bool:
    return False
