"""One new workload on a warm planner: the answer of a full cycle, by local work.

Why it exists: on a large cluster a full cycle takes seconds, and hardly anything in it depends on
one arrival. So the state of a full cycle that changed nothing is kept, and a newcomer is put into
it: its request is summed up the tree, the shares of the resources it asks for are divided anew, and
the steps of the cycle are taken for it alone.

Why that is right: in the kept state everything else that waits has failed at every step. A
newcomer can change that only by what `others` looks at: shares that rise (their projects may
claim more) or fall (their projects may lose more), and what the newcomer then holds (its own
project may lose more). Whoever could profit is tried for real; if one would succeed, the newcomer
has its answer only where that cannot change it (`contest`), else `arrive` gives up and a full cycle
decides. Room given away, and sums that grow, never help anybody else.

What it leaves to the next full cycle: what others get by the arrival, gathering scattered room for
others, what victims free beyond the need, and the places in the queue of those behind the newcomer.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduling.core import reasons
from scheduling.core.accounts import Account
from scheduling.core.contest import claim_in_turn, is_certain
from scheduling.core.cycle import Cycle, without_collector
from scheduling.core.decisions import Decision, Hold, Plan, ProjectNumbers
from scheduling.core.demand import Item
from scheduling.core.ordering import WorkloadKey, workload_key
from scheduling.core.others import MAX_TRIED, Others
from scheduling.core.passes import Attempt, likeness
from scheduling.core.queue_places import queue_of
from scheduling.core.rules import CONSOLIDATE, PREEMPT, RECLAIM, Rule
from scheduling.core.stakes import Shares, borrowers
from scheduling.core.state import State
from scheduling.core.types import (
    Policy,
    ProjectId,
    Replica,
    ReplicaState,
    ResourceKey,
    Snapshot,
    Workload,
    WorkloadId,
)


@dataclass(frozen=True, slots=True)
class Increment:
    """What a full cycle would decide about a newcomer, and for it.

    Attributes:
        decisions: Evictions and moves for it, then its start or hold.
        numbers: Of the projects whose sums or shares it changed.
        position: Its place among those who wait with it, and their number; None when it starts.
        is_settled: A full cycle now would start, stop or take back nothing more.
    """

    decisions: tuple[Decision, ...]
    numbers: Mapping[ProjectId, Mapping[ResourceKey, ProjectNumbers]]
    position: tuple[int, int] | None
    is_settled: bool


class WarmPlanner:
    """The state of a full cycle, kept for newcomers.

    Attributes:
        plan: That cycle's plan.
        is_warm: Newcomers may be asked about; else a new planner is needed.
    """

    def __init__(
        self, snapshot: Snapshot, policy: Policy, now_s: float, *, with_estimates: bool = False
    ) -> None:
        with without_collector():
            self._cycle = Cycle(State(snapshot, policy, now_s))
            self._state = self._cycle.state
            self.plan: Plan = self._cycle.decide(lambda _: None, with_estimates=with_estimates)
            self._is_open = self.is_warm = self._has_settled()
            if self.is_warm:
                self._prepare(now_s)
            else:
                self._state.dissolve()

    def _has_settled(self) -> bool:
        """Whether that plan leaves all as it is."""
        plan = self.plan
        return (
            self._cycle.num_changes == 0
            and all(isinstance(decision, Hold) for decision in plan.decisions)
            and not self._state.set_aside
            and not plan.cordons
        )

    @property
    def has_loans(self) -> bool:
        """Something is lent, and only what starts beside it is answered."""
        return bool(self._state.presence.bodies.items)

    def _prepare(self, now_s: float) -> None:
        """Note who could claim, who waits where, and until when time alone changes nothing."""
        cycle = self._cycle
        cycle.prospects.prepare()
        self._others = Others(cycle)
        self._queues: dict[tuple[str, int], list[WorkloadKey]] = {}
        self._asking: dict[Account, list[Item]] = {}
        for item in self._state.items:
            if item.pending or item.held:
                self._asking.setdefault(item.account, []).append(item)
                self._queues.setdefault(queue_of(item), []).append(workload_key(item))
        for queue in self._queues.values():
            queue.sort()
        self._ids = [item.id for item in self._state.items]
        self._has_gangs = any(item.pending and item.num_missing > 1 for item in self._state.items)
        idle = (item.workload.idle for item in self._state.items)
        self._has_idle = any(one and one.since_s is not None and not one.obstacle for one in idle)
        self._valid_until_s = min(self._turning_points(now_s), default=float("inf"))

    def _turning_points(self, now_s: float) -> Iterator[float]:
        """When time by itself could make a full cycle decide otherwise."""
        policy = self._state.policy
        for effort in self._cycle.efforts.values():
            if effort.protected_until is not None:
                yield effort.protected_until
        for item in self._state.items:
            workload = item.workload
            if workload.incomplete_since_s is not None:
                yield workload.incomplete_since_s + policy.gang_grace_s
            if not item.pending:
                continue
            if workload.not_before_s is not None and workload.not_before_s > now_s:
                yield workload.not_before_s
            delayed_until = self._state.delayed_until(item)
            if delayed_until is not None:
                yield delayed_until
            since, period = workload.waiting_since_s, policy.aging_period_s
            if since is not None and period:
                step = (now_s - since) // period + 1
                if step <= policy.aging_bound:
                    yield since + step * period

    def close(self) -> None:
        """Let go of the state; newcomers can be asked about no more. To be called in any case, once
        what was answered is on its way: it takes as long as an answer.
        """
        self.is_warm = False
        if self._is_open:
            self._is_open = False
            self._state.dissolve()

    def is_valid(self, now_s: float) -> bool:
        """Whether time alone has changed nothing by now."""
        return self.is_warm and now_s < min(self._valid_until_s, self._others.protected_until_s)

    def workload(self, name: WorkloadId) -> Workload:
        """One of the kept state, as it was planned with."""
        return self._state.items[bisect_left(self._ids, name)].workload

    def arrive(self, workload: Workload, now_s: float) -> Increment | None:
        """Decide about a new workload.

        Args:
            workload: Not in the snapshot, all of its replicas pending.
            now_s: Not before the cycle.

        Returns:
            What a full cycle of the snapshot with this workload would decide about it; None, and
            the planner is no longer warm, where only a full cycle can tell.
        """
        if not self.is_warm:
            return None
        with without_collector():
            increment = self._arrive(workload, now_s) if self._is_simple(workload, now_s) else None
            self.is_warm = increment is not None and increment.is_settled
            return increment

    def _is_simple(self, workload: Workload, now_s: float) -> bool:
        state = self._state
        return (
            self.is_valid(now_s)
            and workload.project in state.accounts.by_id
            and bool(workload.replicas)
            and all(r.state is ReplicaState.PENDING and r.held is None for r in workload.replicas)
            and (workload.not_before_s is None or workload.not_before_s <= now_s)
            and self._keeps_no_room(workload)
            and workload.expected_end_s is None
            and not self._is_known(workload.id)
        )

    def _keeps_no_room(self, workload: Workload) -> bool:
        """Whether no room is kept for a gang, nor might be with this workload."""
        self._has_gangs = self._has_gangs or workload.min_replicas > 1
        reservations = self._cycle.reservations
        return reservations.kept is None and not (self._has_gangs and reservations.may_come())

    def _is_known(self, name: WorkloadId) -> bool:
        place = bisect_left(self._ids, name)
        return place < len(self._ids) and self._ids[place] == name

    def _arrive(self, workload: Workload, now_s: float) -> Increment | None:
        state = self._state
        state.now_s = now_s
        item = self._enter(workload)
        risen, fallen = self._divide_anew(r for r, _ in item.shape.first)
        if self.has_loans:
            return self._start_beside_loans(item, [*item.account.path, *risen, *fallen])
        is_alone = self._others.fail(risen, fallen)
        self._place(item)
        is_alone = is_alone and self._others.nobody_gains(item)
        if item.pending and is_alone:
            is_alone = self._claim(item) and self._others.nobody_gains(item)
        elif item.pending and (item.running or not self._claim_first(item, risen, fallen)):
            return None
        if not is_alone and not is_certain(item):
            return None
        has_victims = bool(state.evictions or state.movers)
        if item.pending and item.is_preemptible and self._has_idle:
            return None  # something might be lent to it
        increment = self._conclude(item, [*item.account.path, *risen, *fallen])
        if not is_alone or has_victims:
            return increment
        is_protected = self._settle_in(item, now_s)
        # What is protected from now on is spared, and a search may find what it did not before.
        is_settled = not is_protected or self._others.nobody_could_take(borrowers(item))
        return replace(increment, is_settled=is_settled and self._move_request(item))

    def _start_beside_loans(self, item: Item, touched: Sequence[Account]) -> Increment | None:
        """While something is lent, only what starts in free capacity and stays there is certain:
        borrowers come after that, and a full cycle looks at them next."""
        self._state.presence.lower_loan_shadows()
        self._place(item)
        self._state.presence.lift_loan_shadows()
        if item.held or not item.running or not is_certain(item):
            return None
        return self._conclude(item, touched)

    # The newcomer in the sums.

    def _enter(self, workload: Workload) -> Item:
        state, place = self._state, bisect_left(self._ids, workload.id)
        item = state.enter(workload)
        state.items.insert(place, item)
        self._ids.insert(place, workload.id)
        self._asking.setdefault(item.account, []).append(item)
        return item

    def _move_request(self, item: Item) -> bool:
        """What started elsewhere than on its first choice is asked for there from now on; whether
        all others fail under these shares, too."""
        first, changes = item.shape.first, dict[int, int]()
        for placed in item.running:
            if placed.amounts != first:
                for sign, amounts in ((1, placed.amounts), (-1, first)):
                    for r, amount in amounts:
                        changes[r] = changes.get(r, 0) + sign * amount
        changed = [r for r, amount in changes.items() if amount]
        if not changed:
            return True
        for level in item.account.path:
            for r in changed:
                level.requested[r] += changes[r]
        return self._others.fail(*self._divide_anew(changed))

    def _divide_anew(self, resources: Iterable[int]) -> tuple[Shares, Shares]:
        """Set the shares of these resources; those that rose, and those that fell."""
        accounts, asked = self._state.accounts, list(resources)
        everybody = list(accounts.by_id.values())
        before = [[account.fair[r] for r in asked] for account in everybody]
        accounts.settle_shares(asked)
        risen: Shares = {}
        fallen: Shares = {}
        for account, shares in zip(everybody, before, strict=True):
            for r, was in zip(asked, shares, strict=True):
                if account.fair[r] != was:
                    changed = risen if account.fair[r] > was else fallen
                    changed.setdefault(account, {})[r] = was
        if risen or fallen:
            self._cycle.prospects.forget_order()
        return risen, fallen

    # What it gets.

    def _place(self, item: Item) -> None:
        """Into what is free at present."""
        cycle, presence = self._cycle, self._state.presence
        cycle.passes.hopeless.clear()
        cycle.efforts.pop(likeness(item), None)
        presence.lower_shadows()
        _try(cycle.start_in_free_capacity(), item)
        presence.lift_shadows()
        cycle.prospects.enter(item, item.running)

    def _claim(self, item: Item) -> bool:
        """By moving others, from other projects, from its own, as in a cycle; whether nobody else
        would have taken from its own before it."""
        cycle = self._cycle
        placed, alike = len(item.running), likeness(item)
        self._claim_by(CONSOLIDATE, item)
        self._claim_by(RECLAIM, item)
        is_alone = not item.pending or self._others.nobody_gains(item)
        if is_alone:
            self._claim_by(PREEMPT, item)
        for effort in (cycle.efforts.get(alike), cycle.efforts.get(likeness(item))):
            if effort is not None and effort.protected_until is not None:
                self._valid_until_s = min(self._valid_until_s, effort.protected_until)
        cycle.prospects.enter(item, item.running[placed:])
        return is_alone

    def _claim_by(self, rule: Rule, item: Item) -> None:
        step = self._cycle.claim_by(rule)
        self._cycle.passes.hopeless.clear()
        is_delayed = self._state.delayed_until(item) is not None
        if item.pending and not item.evicted and not is_delayed and step.is_worth_trying(item):
            _try(step, item)

    def _claim_first(self, item: Item, risen: Shares, fallen: Shares) -> bool:
        """By moving others, or from other projects before anybody else claims; whether it has all
        that it asks for."""
        self._claim_by(CONSOLIDATE, item)
        if not item.pending:
            return True
        gaining = self._others.gaining(risen, fallen)
        if item.running or item.held or len(item.pending) > item.num_next:
            return False
        if len(gaining) > MAX_TRIED:
            return False
        return claim_in_turn(
            self._cycle,
            item,
            self._others.waiting(),
            gaining,
            lambda other: self._others.would_get(other, RECLAIM),
        )

    def _conclude(self, item: Item, touched: Sequence[Account]) -> Increment:
        cycle = self._cycle
        decisions = list(cycle.conclusion.departures())
        position = None
        if item.running:
            decisions.append(cycle.conclusion.started(item))
        else:
            among = self._asking[item.account]
            waiting = reasons.Waiting(self._state, cycle.reservations, among)
            decisions.append(cycle.conclusion.hold(item, waiting))
            queue = self._queues.setdefault(queue_of(item), [])
            insort(queue, key := workload_key(item))
            position = (bisect_left(queue, key) + 1, len(queue))
        return Increment(
            decisions=tuple(decisions),
            numbers=self._state.accounts.numbers(dict.fromkeys(touched)),
            position=position,
            is_settled=False,
        )

    def _settle_in(self, item: Item, now_s: float) -> bool:
        """From now on it is one of those who run or wait; whether it may not be stopped yet."""
        cycle, is_protected = self._cycle, False
        if item.running:
            for placed in item.running:
                placed.is_new = False
                placed.replica = Replica(
                    placed.replica.id,
                    ReplicaState.RUNNING,
                    placed.spot.placement(),
                    started_s=now_s,
                )
            if item.pending:
                insort(self._queues.setdefault(queue_of(item), []), workload_key(item))
            is_protected = self._protect(item)
        elif item.held:
            cycle.prospects.update(item, [], [placed.spot for placed in item.held])
        if item.pending:
            self._others.join(item)
        return is_protected

    def _protect(self, item: Item) -> bool:
        until_s = self._cycle.prospects.protected_until(item)
        is_protected = until_s > self._state.now_s
        if is_protected:
            self._valid_until_s = min(self._valid_until_s, until_s)
        return is_protected


def _try(attempt: Attempt, item: Item) -> None:
    """Turn after turn, as long as it gets something and wants more."""
    while attempt.make(item):
        pass
