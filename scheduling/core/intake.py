"""Taking in a snapshot's workloads: each replica where it runs, waits, is leaving or is on loan.

What contradicts itself in one workload does not stop the planner: it is set aside, and what it
occupies stays occupied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduling.core.accounts import Accounts
from scheduling.core.demand import Item, Placed, Shapes
from scheduling.core.ledger import Ledger
from scheduling.core.presence import Presence
from scheduling.core.rooms import Ask, Spot
from scheduling.core.types import (
    Placement,
    Policy,
    Replica,
    ReplicaState,
    Workload,
)

_THERE = (
    ReplicaState.RUNNING,
    ReplicaState.RELEASING,
    ReplicaState.LENT,
    ReplicaState.PARKED,
)


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """A place held for a replica when the snapshot was taken."""

    item: Item
    replica: Replica
    placement: Placement


class Intake:
    """The workloads of a snapshot, as they are taken in.

    Attributes:
        kept_places: What was held for them.
        set_aside: Workloads that contradict themselves, and how.
    """

    def __init__(
        self, accounts: Accounts, ledger: Ledger, shapes: Shapes, presence: Presence
    ) -> None:
        self._accounts = accounts
        self._ledger = ledger
        self._shapes = shapes
        self._presence = presence
        self.kept_places: list[KeptPlace] = []
        self.set_aside: list[tuple[Workload, str]] = []

    def of(self, workloads: Iterable[Workload], policy: Policy, now_s: float) -> list[Item]:
        """Those that do not contradict themselves, in order of their names."""
        items: list[Item] = []
        for workload in sorted(workloads, key=lambda w: w.id):
            problem = self._problem(workload)
            if problem:
                self._set_aside(workload, problem)
            else:
                items.append(self.add(workload, policy, now_s))
        return items

    def add(self, workload: Workload, policy: Policy, now_s: float) -> Item:
        """A workload that does not contradict itself, noted with its project alone."""
        account = self._accounts.by_id[workload.project]
        shape = self._shapes.of(workload)
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
            item.rank += _aging(workload, policy, now_s)
        if len(item.running) > 1:
            item.running.sort(
                key=lambda placed: (placed.replica.started_s, *name_key(placed.replica))
            )
        if len(item.pending) > 1:
            item.pending.sort(key=name_key)
        return item

    def spot(self, ask: Ask, placement: Placement) -> Spot:
        """The place on a known node that something takes; without devices that have fallen off it:
        what runs on those stays counted, nothing more."""
        num_devices = len(self._ledger.rooms[placement.node].devices)
        devices = placement.devices
        if devices and max(devices) >= num_devices:
            there = tuple(device for device in devices if device < num_devices)
            placement = replace(placement, devices=there)
        return self._ledger.spot_of(placement, ask)

    def _problem(self, workload: Workload) -> str:
        """What contradicts itself in a workload; empty where nothing does."""
        if workload.project not in self._accounts.by_id:
            return f"it names the project {workload.project!r}, which is not there"
        for replica in workload.replicas:
            has_left = replica.state is ReplicaState.RELEASING and replica.placement is None
            if replica.state in _THERE and not has_left:
                if replica.placement is None:
                    return f"its replica {replica.id!r} runs nowhere"
                if replica.placement.node not in self._ledger.rooms:
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
            if placement is None or placement.node not in self._ledger.rooms:
                continue
            if replica.state in (ReplicaState.LENT, ReplicaState.PARKED):
                placement = Placement(placement.node, (), 0)  # its device is somebody else's
            self._ledger.occupy(self.spot(ask, placement), ask)

    def _add_running(self, item: Item, replica: Replica) -> None:
        assert replica.placement is not None
        spot = self.spot(item.shape.ask, replica.placement)
        self._ledger.occupy(spot, item.shape.ask)
        amounts = self._shapes.amounts(item.shape, spot.room.pool)
        item.running.append(Placed(replica, spot, amounts, is_new=False))
        item.account.note(amounts, 1, is_allocated=True, is_preemptible=item.is_preemptible)

    def _add_waiting(self, item: Item, replica: Replica) -> bool:
        """Take in one that does not run; whether it is to get a place, or to get one again."""
        if replica.state is ReplicaState.SUCCEEDED:
            item.num_succeeded += 1
            return False
        if replica.state is not ReplicaState.RELEASING:
            item.pending.append(replica)
        if replica.placement is not None:
            spot = self.spot(item.shape.ask, replica.placement)
            if replica.state is ReplicaState.RELEASING:
                self._presence.add_leaver(item, spot)
            else:
                self._presence.bodies.add(item, replica, spot)
        if replica.held is not None:
            self.kept_places.append(KeptPlace(item, replica, replica.held))
        return True


def _aging(workload: Workload, policy: Policy, now_s: float) -> int:
    """By how much waiting has raised a workload's priority among those that start."""
    period, since = policy.aging_period_s, workload.waiting_since_s
    if not period or since is None:
        return 0
    return min(int(max(0.0, now_s - since) // period), policy.aging_bound)


def name_key(replica: Replica) -> tuple[int, str]:
    """Names of one workload in counting order: w-2 before w-10."""
    return (len(replica.id), replica.id)
