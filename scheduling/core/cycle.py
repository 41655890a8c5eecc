"""One cycle: a snapshot in, a plan out. Begin reading here.

`plan` is the table of contents of the algorithm; each step lies in a module of its own. Nothing
here reads a clock, a database or a random number: the same snapshot, policy and time give the same
plan.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from scheduling.core.admission import barrier_to
from scheduling.core.conclusion import Conclusion
from scheduling.core.decisions import Hold, Lend, Plan, Start
from scheduling.core.demand import Item, Option
from scheduling.core.lending import Lending
from scheduling.core.ordering import workload_key
from scheduling.core.passes import Attempt, Passes, likeness
from scheduling.core.prospects import Prospects
from scheduling.core.reservation import Reservations
from scheduling.core.rooms import Spot
from scheduling.core.rules import CONSOLIDATE, PREEMPT, RECLAIM, Rule
from scheduling.core.search import Effort, Found
from scheduling.core.state import State, Victim
from scheduling.core.types import Policy, Snapshot, Workload


@contextmanager
def without_collector() -> Iterator[None]:
    """A cycle makes a hundred thousand small objects and hardly any that refer to each other in
    circles; Python's collector would look through all of them again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_collector()
def plan(
    snapshot: Snapshot,
    policy: Policy,
    now_s: float,
    should_stop: Callable[[], bool] | None = None,
    on_step: Callable[[str], None] | None = None,
    *,
    with_estimates: bool = True,
) -> Plan:
    """Decide what starts, what stops and why the rest waits.

    Args:
        snapshot: What there is.
        policy: What an admin chose.
        now_s: The time, on the clock of the snapshot's `started_s` and `not_before_s`.
        should_stop: Asked between tries; True ends the search for victims early, and the reasons
            say so.
        on_step: Told the name of each step when it is done, for whoever measures.
        with_estimates: Also say when what waits will start; it changes nothing else.

    Returns:
        Evictions and moves in the order decided and loans called back, then what starts or is
        lent, then what waits: for each workload with a pending replica one decision, unless it
        goes on running on loan.

    Raises:
        SnapshotError: The tree of projects contradicts itself. A workload that does is set aside.

    Invariant: planning again on the result changes nothing.
    """
    done = on_step or _ignore
    # 1. Sums of what runs and waits; fair shares from the top of the tree down.
    cycle = Cycle(State(snapshot, policy, now_s, should_stop))
    done("sums_and_shares")
    decided = cycle.decide(done, with_estimates=with_estimates)
    cycle.state.dissolve()
    return decided


def _ignore(step: str) -> None:
    """Nobody measures."""


def would_start(
    snapshot: Snapshot, policy: Policy, now_s: float, workload: Workload
) -> Start | Hold | Lend:
    """What the next cycle would decide about a workload that is not there yet.

    Args:
        snapshot: What there is, without the workload.
        policy: What an admin chose.
        now_s: The time, as for `plan`.
        workload: With at least one pending replica.

    Returns:
        Start, Lend, or Hold with the reason; its `victims` are those whose capacity would be freed
        for it.

    Raises:
        SnapshotError: As `plan`.
    """
    supposed = replace(snapshot, workloads=(*snapshot.workloads, workload))
    for decision in plan(supposed, policy, now_s).decisions:
        if decision.workload == workload.id and isinstance(decision, Start | Hold | Lend):
            return decision
    raise AssertionError("a workload with a pending replica has a Start, a Hold or a Lend")


class Cycle:
    """The steps of one cycle over its state.

    Attributes:
        passes: What waits, and has failed in the pass under way.
        efforts: What the search for victims came to, for each likeness.
        conclusion: Tells what was decided.
        num_changes: Workloads for which something starts, stops, moves or is newly kept so far;
            loans are not counted.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.prospects = Prospects(state)
        self.reservations = Reservations(state)
        self.passes = Passes(state, (item for item in state.items if self._is_ready(item)))
        self.efforts: dict[object, Effort] = {}
        self._lending = Lending(state)
        self.conclusion = Conclusion(state, self.reservations, self._lending, self.efforts)
        self.num_changes = 0

    def decide(self, done: Callable[[str], None], *, with_estimates: bool = True) -> Plan:
        """All steps after the sums, in order."""
        state = self.state
        # 2. Claimants whose held capacity has come free start.
        self.start_claimants()
        state.presence.open()
        done("start_claimants")
        # 3. Whatever fits into free capacity starts, in order of projects and workloads.
        self.passes.run(self.start_in_free_capacity())
        self.take_back()
        done("place")
        # 4. Scattered free capacity is brought together by moving running work.
        state.presence.lift_shadows()
        self.passes.run(self.claim_by(CONSOLIDATE))
        done("consolidate")
        # 5. Projects below their share take back from those above.
        self.passes.run(self.claim_by(RECLAIM))
        done("reclaim")
        # 6. Inside a project the higher priority takes from the lower.
        self.passes.run(self.claim_by(PREEMPT))
        done("preempt")
        # 7. Gangs that have been incomplete for too long stop.
        self.stop_stale_gangs()
        done("stale_gangs")
        # 8. What idle sessions do not use is lent to trainings that still wait, and called back.
        self.lend()
        done("lend")
        # 9. Say what was decided, and why the rest waits.
        decided = self.conclusion.plan(with_estimates=with_estimates)
        done("reasons")
        return decided

    def _is_ready(self, item: Item) -> bool:
        return bool(item.pending) and not item.is_on_loan and self.state.is_due(item)

    # Step 2.

    def start_claimants(self) -> None:
        """Start what places were kept for, if these are free by now; else note who is there yet."""
        for item in sorted((i for i in self.state.items if i.held), key=workload_key):
            if self.state.start_held(item):
                self.num_changes += 1
            else:
                held = (placed.spot for placed in item.held)
                item.waits_for = self.state.presence.leavers_from(held)

    # Step 3.

    def start_in_free_capacity(self) -> Attempt:
        """Starts a workload's next replicas if they fit."""

        hopeless = self.passes.hopeless

        def make(item: Item) -> bool:
            if len(item.pending) < item.num_next:
                return False
            for option in item.options():
                request = key(item, option)
                if not option.is_possible or request in hopeless:
                    continue
                if is_refused(item, option, request):
                    continue
                with self.reservations.open_to(item):
                    spots = self.state.find_at_home(item) or self.state.find(
                        item, option, item.num_next
                    )
                if spots is not None:
                    self._begin(item, spots, may_start=True)
                    self.passes.set_apart(item)
                    return bool(item.pending)
                hopeless.add(request)
            self.reservations.consider(item)
            return False

        def is_refused(item: Item, option: Option, request: object) -> bool:
            """Whether limit or quota forbid it: if once, then in the whole pass, in which they only
            fill up."""
            admission = (item.account.id, request, item.is_preemptible)
            if admission not in hopeless and barrier_to(item, option) is not None:
                hopeless.add(admission)
            return admission in hopeless

        def key(item: Item, option: Option) -> object:
            is_open = self.reservations.is_open_to(item)
            return (item.shape.number, option.number, item.num_next, is_open, item.home)

        return Attempt(make, key, lambda item: True, may_evict=False)

    def take_back(self) -> None:
        """Borrowers whose place has become free stay there as of right; what others took beside
        their lenders goes to whoever waits for it, as if they were not there.
        """
        presence = self.state.presence
        if not presence.bodies.items:
            return
        for item in sorted(presence.bodies.items, key=workload_key):
            if item.is_on_loan:
                self._settle_at_home(item)
        presence.lift_loan_shadows()
        self.passes.run(self.start_in_free_capacity())

    def _settle_at_home(self, item: Item) -> None:
        pool = item.bodies[0].spot.room.pool
        option = next((option for option in item.options() if pool in option.pools), None)
        if option is None or not self.state.is_due(item) or barrier_to(item, option) is not None:
            return
        with self.reservations.open_to(item):
            spots = self.state.find_at_home(item)
        if spots is not None:
            self._begin(item, spots, may_start=True)

    def _begin(self, item: Item, spots: list[Spot], *, may_start: bool) -> None:
        """Start at places taken in the ledger, if they are free by now and no body of its own is
        elsewhere; else they are held.
        """
        state, presence = self.state, self.state.presence
        self.num_changes += 1
        if item.bodies:
            is_home = [spot.room for spot in spots] == [body.spot.room for body in item.bodies]
            if not is_home:
                self._lending.recall(item, "placed_elsewhere", {})
                state.hold(item, spots)
                return
            presence.lift_bodies(item)
            if may_start and presence.is_free_now(spots, item.shape.ask):
                state.start(item, spots)
                presence.bodies.drop(item)
                return
            presence.lay_bodies(item)
        elif may_start and presence.is_free_now(spots, item.shape.ask):
            state.start(item, spots)
            return
        for other in presence.leavers_from(spots):
            if other is not item and other not in item.waits_for:
                item.waits_for.append(other)
        state.hold(item, spots)

    # Steps 4 to 6.

    def claim_by(self, rule: Rule) -> Attempt:
        """Makes room for a workload by one rule."""

        hopeless = self.passes.hopeless

        def make(item: Item) -> bool:
            if len(item.pending) < item.num_next:
                return False
            effort = self.efforts.setdefault(likeness(item), Effort())
            for option in item.options():
                claim = key(item, option)
                if not option.is_possible or claim in hopeless:
                    continue
                with self.reservations.open_to(item):
                    found = rule.claim(self.state, self.prospects, item, option, effort)
                if found is not None:
                    self._settle(item, found, rule.name)
                    return bool(item.pending)
                hopeless.add(claim)
            return False

        def key(item: Item, option: Option) -> object:
            is_open = self.reservations.is_open_to(item)
            request = (item.shape.number, option.number, item.num_next, is_open)
            return request, rule.whose(item, option)

        def is_worth_trying(item: Item) -> bool:
            return any(
                option.is_possible and rule.may(self.prospects, item, option)
                for option in item.options()
            )

        return Attempt(make, key, is_worth_trying, may_evict=True)

    def _settle(self, item: Item, found: Found, rule: str) -> None:
        """Victims leave; the claimant starts if its places are free already, else they are held for
        it.
        """
        state = self.state
        for victim in found.victims:
            state.evict(victim, rule, item)
            if victim.item not in item.waits_for:
                item.waits_for.append(victim.item)
            self.passes.refresh(victim.item.account)
        self._begin(item, found.spots, may_start=not item.held)
        self.passes.set_apart(item)
        for other in item.waits_for:
            self.passes.set_apart_in_queue(other)
        self.prospects.update(item, found.victims, found.spots, movers=item.waits_for)

    # Step 7.

    def stop_stale_gangs(self) -> None:
        """Stop what lost replicas, and did not get them back within its grace."""
        state = self.state
        for item in state.items:
            since = item.workload.incomplete_since_s
            if since is None or since + state.policy.gang_grace_s > state.now_s:
                continue
            is_as_before = not (item.held or item.evicted or item.moved)
            if item.is_preemptible and item.running and item.num_missing and is_as_before:
                ran = len(item.running) + item.num_succeeded
                numbers: dict[str, object] = {
                    "running": ran,
                    "minimum": item.minimum,
                    "grace_s": state.policy.gang_grace_s,
                }
                victim = Victim(item, tuple(item.running), (), numbers)
                state.remove(victim)
                state.evict(victim, "stale_gang", None)
                self.num_changes += 1

    # Step 8.

    def lend(self) -> None:
        """Call back and lend, if there is something to lend or on loan; a gang for which room is
        kept does not borrow."""
        state = self.state
        if state.presence.bodies.items or any(
            item.workload.idle is not None for item in state.items
        ):
            with self.reservations.lifted():
                self._lending.run(
                    item
                    for item in state.items
                    if self._is_ready(item) and not self.reservations.is_kept_for(item)
                )
            for item in self._lending.borrowers():
                self.passes.set_apart(item)
