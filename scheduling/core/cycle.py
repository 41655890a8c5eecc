"""One cycle: a snapshot in, a plan out. Begin reading here.

`plan` is the table of contents of the algorithm; each step lies in a module of its own. Nothing
here reads a clock, a database or a random number: the same snapshot, policy and time give the same
plan.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from scheduling.core import reasons
from scheduling.core.admission import Bound, Refusal, refusal
from scheduling.core.consolidate import consolidate
from scheduling.core.decisions import Decision, Eta, Evict, Hold, Lend, Move, Plan, Start
from scheduling.core.demand import Item, Option
from scheduling.core.lending import Lending
from scheduling.core.ordering import Batch, Queue, WorkloadKey, workload_key
from scheduling.core.predict.eta import Estimates, Waits
from scheduling.core.preempt import PreemptVictims
from scheduling.core.prospects import Prospects
from scheduling.core.reclaim import ReclaimVictims, may_claim
from scheduling.core.reservation import Reservations
from scheduling.core.rooms import Spot
from scheduling.core.search import Effort, Found, search
from scheduling.core.state import State, Victim
from scheduling.core.types import Policy, ReplicaState, Snapshot, Workload, WorkloadId


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one pass tries with each workload.

    Attributes:
        attempt: Does it; whether more replicas of the workload wait for another turn.
        key: What makes two tries alike, so that the second need not be made if the first failed.
        is_worth_trying: Whether it may be tried at all, judged before the pass for all alike.
    """

    attempt: Callable[[Item], bool]
    key: Callable[[Item, Option, int], object]
    is_worth_trying: Callable[[Item], bool]
    may_evict: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to make room for a claimant.

    Attributes:
        may: Whether a workload may claim by it on a node type.
        claim: Finds what is needed, and takes it in the state; None if nothing does.
    """

    name: str
    may: Callable[[Prospects, Item, Option], bool]
    claim: Callable[[State, Prospects, Item, Option, Effort], Found | None]


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
        with_estimates: Also say when what waits will start; it changes nothing else.
        on_step: Told the name of each step when it is done, for whoever measures.

    Returns:
        Evictions and moves in the order decided, then one start or hold for each workload with a
        pending replica.

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

    Returns:
        Start, Lend, or Hold with the reason; its `victims` are those whose capacity would be freed
        for it.
    """
    supposed = replace(snapshot, workloads=(*snapshot.workloads, workload))
    for decision in plan(supposed, policy, now_s).decisions:
        if decision.workload == workload.id and isinstance(decision, Start | Hold | Lend):
            return decision
    raise AssertionError("a workload with a pending replica has a Start, a Hold or a Lend")


def _consolidate(
    state: State, prospects: Prospects, item: Item, option: Option, effort: Effort
) -> Found | None:
    return consolidate(state, prospects, item, option)


def _reclaim(
    state: State, prospects: Prospects, item: Item, option: Option, effort: Effort
) -> Found | None:
    if not may_claim(item, option) or not prospects.could_ever_fit(item, option):
        return None
    victims = ReclaimVictims(state, prospects, item, option, effort)
    return search(state, item, option, victims, effort)


def _preempt(
    state: State, prospects: Prospects, item: Item, option: Option, effort: Effort
) -> Found | None:
    if not prospects.could_ever_fit(item, option):
        return None
    is_allowed = _barrier(item, option) is None
    if is_allowed and not prospects.could_fit_without_lower(item, option):
        return None
    victims = PreemptVictims(state, prospects, item, option, effort)
    return search(state, item, option, victims, effort)


def _may_reclaim(prospects: Prospects, item: Item, option: Option) -> bool:
    """Within share, and held back by nothing that another project's victims could not change."""
    barrier = _barrier(item, option)
    is_own = barrier is not None and (barrier.bound is Bound.QUOTA or barrier.level is item.account)
    return not is_own and may_claim(item, option)


def _may_preempt(prospects: Prospects, item: Item, option: Option) -> bool:
    """Some work of its project has lower priority, and no quota is full of steady work."""
    heap = prospects.victim_heap(item.account.id)
    if not heap or heap[0][1].priority >= item.priority:
        return False
    barrier = _barrier(item, option)
    return barrier is None or barrier.bound is Bound.LIMIT


def _barrier(item: Item, option: Option) -> Refusal | None:
    return refusal(
        item.account,
        option.amounts,
        is_preemptible=item.is_preemptible,
        count=item.num_next,
    )


CONSOLIDATE = Rule("consolidate", lambda _, item, option: item.is_preemptible, _consolidate)
RECLAIM = Rule("reclaim", _may_reclaim, _reclaim)
PREEMPT = Rule("preempt", _may_preempt, _preempt)


def likeness(item: Item) -> object:
    """What makes two workloads alike to every rule."""
    tie = item.chosen_type if item.running or item.held else None
    shape, count = item.shape.number, item.num_next
    return (item.account.id, shape, count, item.priority, item.is_preemptible, tie, item.home)


class Cycle:
    """The steps of one cycle over its state.

    Attributes:
        batches: What waits, alike workloads together, by what they have in common.
        hopeless: What has failed in the pass under way.
        efforts: What the search for victims came to, for each likeness.
        num_changes: Workloads for which something starts, stops, moves or is newly kept so far.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.prospects = Prospects(state)
        self.reservations = Reservations(state)
        self._lending = Lending(state)
        self._queue = Queue(state.accounts, ())
        self.batches: dict[object, Batch] = {}
        self._loose: list[Item] = [item for item in state.items if self._is_ready(item)]
        self._left: dict[int, Batch] = {}
        self.hopeless: set[object] = set()
        self.efforts: dict[object, Effort] = {}
        self.num_changes = 0

    def decide(self, done: Callable[[str], None], *, with_estimates: bool = True) -> Plan:
        """All steps after the sums, in order."""
        state = self.state
        # 2. Claimants whose held capacity has come free start.
        self.start_claimants()
        state.open()
        done("start_claimants")
        # 3. Whatever fits into free capacity starts, in order of projects and workloads.
        self.run(self.start_in_free_capacity())
        self.take_back()
        done("place")
        # 4. Scattered free capacity is brought together by moving running work.
        state.lift_shadows()
        self.run(self.claim_by(CONSOLIDATE))
        done("consolidate")
        # 5. Projects below their share take back from those above.
        self.run(self.claim_by(RECLAIM))
        done("reclaim")
        # 6. Inside a project the higher priority takes from the lower.
        self.run(self.claim_by(PREEMPT))
        done("preempt")
        # 7. Gangs that have been incomplete for too long stop.
        self.stop_stale_gangs()
        done("stale_gangs")
        # 8. What idle sessions do not use is lent to trainings that still wait, and called back.
        self.lend()
        done("lend")
        # 9. Say what was decided, and why the rest waits.
        decided = self.conclude(with_estimates=with_estimates)
        done("reasons")
        return decided

    def _is_ready(self, item: Item) -> bool:
        not_before = item.workload.not_before_s
        if not item.pending or item.is_on_loan:
            return False
        return not_before is None or not_before <= self.state.now_s

    def run(self, step: Attempt) -> None:
        """One pass over everything that still waits, in order."""
        self._gather()
        self.take_turns(step, list(self.batches.values()))

    def take_turns(self, step: Attempt, batches: list[Batch]) -> None:
        """One pass over these, in order."""
        self.hopeless.clear()
        if step.may_evict:
            batches = [batch for batch in batches if self.state.delayed_until(batch.first) is None]
        self._queue = Queue(
            self.state.accounts,
            [batch for batch in batches if step.is_worth_trying(batch.first)],
        )

        def is_hopeless(item: Item) -> bool:
            """Every way to place it has failed for one like it in this pass."""
            count = item.num_next
            for option in item.options():
                if option.is_possible and step.key(item, option, count) not in self.hopeless:
                    return False
            return True

        self._queue.run(step.attempt, is_hopeless)

    def _gather(self) -> None:
        """Put what waits, and has changed since the last pass, among what is like it."""
        for batch in self._left.values():
            batch.entries = [entry for entry in batch.entries if entry[1].batch is batch]
            if not batch.entries:
                del self.batches[batch.alike]
        self._left.clear()
        grown: dict[int, Batch] = {}
        for item in self._loose:
            if item.pending and not item.evicted:
                alike = (likeness(item), self.state.delayed_until(item) is None)
                theirs = self.batches.get(alike)
                if theirs is None:
                    theirs = self.batches[alike] = Batch(alike)
                theirs.add(item)
                grown[id(theirs)] = theirs
        self._loose.clear()
        for batch in grown.values():
            batch.entries.sort()

    def _set_apart(self, item: Item) -> None:
        """A workload has changed: it is like its batch no more."""
        batch = item.batch
        if batch is not None:
            item.batch = None
            self._loose.append(item)
            self._left[id(batch)] = batch

    # Step 2.

    def start_claimants(self) -> None:
        for item in sorted((i for i in self.state.items if i.held), key=workload_key):
            if self.state.start_held(item):
                self.num_changes += 1
            else:
                item.waits_for = self.state.leavers_from(placed.spot for placed in item.held)

    # Step 3.

    def start_in_free_capacity(self) -> Attempt:
        """Starts a workload's next replicas if they fit."""

        def attempt(item: Item) -> bool:
            count = item.num_next
            if len(item.pending) < count:
                return False
            for option in item.options():
                if not option.is_possible or self._is_refused(item, option, count):
                    continue
                with self.reservations.open_to(item):
                    spots = self._at_home(item) or self.state.find(item, option, count)
                if spots is not None:
                    self._begin(item, spots, may_start=True)
                    self._set_apart(item)
                    return bool(item.pending)
                self.hopeless.add(key(item, option, count))
            self.reservations.consider(item)
            return False

        def key(item: Item, option: Option, count: int) -> object:
            is_open = self.reservations.is_open_to(item)
            return (item.shape.number, option.number, count, is_open, item.home)

        return Attempt(attempt, key, lambda item: True, may_evict=False)

    def _is_refused(self, item: Item, option: Option, count: int) -> bool:
        """Whether the same found no place before, or limit or quota forbid it.

        Both stay as they are during this step: capacity and quota only shrink.
        """
        is_open = self.reservations.is_open_to(item)
        shape = (item.shape.number, option.number, count, is_open, item.home)
        admission = (item.account.id, shape, item.is_preemptible)
        if shape in self.hopeless or admission in self.hopeless:
            return True
        barrier = refusal(
            item.account, option.amounts, is_preemptible=item.is_preemptible, count=count
        )
        if barrier is not None:
            self.hopeless.add(admission)
        return barrier is not None

    def take_back(self) -> None:
        """Borrowers whose place has become free stay there as of right; what others took beside
        their lenders goes to whoever waits for it, as if they were not there.
        """
        if not self.state.bodies.items:
            return
        for item in sorted(self.state.bodies.items, key=workload_key):
            if item.is_on_loan:
                self._settle_at_home(item)
        self.state.lift_loan_shadows()
        self.run(self.start_in_free_capacity())

    def _settle_at_home(self, item: Item) -> None:
        count, not_before = item.num_next, item.workload.not_before_s
        option = next((o for o in item.options() if item.bodies[0].spot.room.pool in o.pools), None)
        if option is None or (not_before is not None and not_before > self.state.now_s):
            return
        if refusal(item.account, option.amounts, is_preemptible=True, count=count) is None:
            with self.reservations.open_to(item):
                spots = self._at_home(item)
            if spots is not None:
                self._begin(item, spots, may_start=True)

    def _at_home(self, item: Item) -> list[Spot] | None:
        """Places where a borrower is already, taken in the ledger."""
        if not item.bodies or len(item.bodies) != item.num_next:
            return None
        self.state.lift(item)
        spots = self.state.find_at_home(item, item.num_next)
        if spots is None or not self.state.is_free_now(spots, item.shape.ask):
            if spots is not None:
                for spot in spots:
                    self.state.ledger.give_back(spot, item.shape.ask)
            self.state.lay(item)
            return None
        self.state.lay(item)
        return spots

    def _begin(self, item: Item, spots: list[Spot], *, may_start: bool) -> None:
        """Start at places taken in the ledger, if they are free by now and no body of its own is
        elsewhere; else they are held.
        """
        state = self.state
        self.num_changes += 1
        if item.bodies:
            is_home = [spot.room for spot in spots] == [body.spot.room for body in item.bodies]
            if not is_home:
                self._lending.recall(item, "placed_elsewhere", {})
                state.hold(item, spots)
                return
            state.lift(item)
            if may_start and state.is_free_now(spots, item.shape.ask):
                state.start(item, spots)
                state.bodies.drop(item)
                return
            state.lay(item)
        elif may_start and state.is_free_now(spots, item.shape.ask):
            state.start(item, spots)
            return
        for other in state.leavers_from(spots):
            if other is not item and other not in item.waits_for:
                item.waits_for.append(other)
        state.hold(item, spots)

    # Steps 4 to 6.

    def claim_by(self, rule: Rule) -> Attempt:
        """Makes room for a workload by one rule."""

        def attempt(item: Item) -> bool:
            count = item.num_next
            if len(item.pending) < count:
                return False
            effort = self.efforts.setdefault(likeness(item), Effort())
            for option in item.options():
                claim = key(item, option, count)
                if not option.is_possible or claim in self.hopeless:
                    continue
                with self.reservations.open_to(item):
                    found = rule.claim(self.state, self.prospects, item, option, effort)
                if found is not None:
                    self._settle(item, found, rule.name)
                    return bool(item.pending)
                self.hopeless.add(claim)
            return False

        def key(item: Item, option: Option, count: int) -> object:
            is_open = self.reservations.is_open_to(item)
            shape = (item.shape.number, option.number, count, is_open)
            if rule is CONSOLIDATE:
                # It does not matter whose claim it is, except that it must be admitted.
                is_admitted = not refusal(
                    item.account, option.amounts, is_preemptible=True, count=count
                )
                return (shape, is_admitted)
            priority = item.priority if rule is PREEMPT else 0
            return (shape, item.account.id, priority, item.is_preemptible)

        def is_worth_trying(item: Item) -> bool:
            return any(
                option.is_possible and rule.may(self.prospects, item, option)
                for option in item.options()
            )

        return Attempt(attempt, key, is_worth_trying, may_evict=True)

    def _settle(self, item: Item, found: Found, rule: str) -> None:
        """Victims leave; the claimant starts if its places are free already, else they are held for
        it.
        """
        state = self.state
        for victim in found.victims:
            state.evict(victim, rule, item)
            if victim.item not in item.waits_for:
                item.waits_for.append(victim.item)
            self._queue.refresh(victim.item.account)
        self._begin(item, found.spots, may_start=not item.held)
        self._set_apart(item)
        for other in item.waits_for:
            self._leave_queue(other)
        self.prospects.update(item, found.victims, found.spots, movers=item.waits_for)

    def _leave_queue(self, item: Item) -> None:
        """A workload that lost something, and waits with the rest, is tried by itself."""
        if item.batch is not None:
            self._queue.set_apart(item)
            self._set_apart(item)

    # Step 7.

    def stop_stale_gangs(self) -> None:
        """Stop what lost replicas, and did not get them back within its grace."""
        state = self.state
        for item in state.items:
            since = item.workload.incomplete_since_s
            if since is None or since + state.policy.gang_grace_s > state.now_s:
                continue
            is_alone = not item.held and not item.evicted and not item.moved
            if item.is_preemptible and item.running and item.num_missing and is_alone:
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
        state = self.state
        if state.bodies.items or any(item.workload.idle is not None for item in state.items):
            with self.reservations.lifted():
                self._lending.run(
                    item
                    for item in state.items
                    if self._is_ready(item) and not self.reservations.is_kept_for(item)
                )
            for item in self._lending.borrowers():
                self._set_apart(item)

    # Step 9.

    def conclude(self, *, with_estimates: bool) -> Plan:
        state = self.state
        waiting = reasons.Waiting(state, self.reservations)
        decisions: list[Decision] = [*self.departures(), *self._lending.recalls()]
        holds: list[tuple[Waits, Hold]] = []
        for item in state.items:
            running = item.running
            if running and running[-1].is_new:
                decisions.append(self.started(item))
            elif not item.pending and not item.held:
                continue
            elif (loan := self._lending.loan(item)) is not None:
                decisions.append(loan)
            elif item.held or not item.is_on_loan:
                hold = self.hold(item, waiting)
                holds.append((Waits(item, hold.reason), hold))
        etas: Mapping[str, Eta] = {}
        if with_estimates:
            etas = Estimates(state, self.reservations).of([waits for waits, _ in holds])
        for _, hold in holds:
            eta = etas.get(hold.workload)
            decisions.append(hold if eta is None else replace(hold, eta=eta))
        for workload, problem in state.set_aside:
            if any(replica.state is ReplicaState.PENDING for replica in workload.replicas):
                decisions.append(Hold(workload.id, reasons.set_aside(problem)))
        return Plan(
            tuple(decisions),
            state.accounts.numbers(),
            _positions(waits.item for waits, _ in holds),
            with_estimates,
            state.cordons,
            {workload.id: problem for workload, problem in state.set_aside},
            self._lending.not_lent(),
        )

    def started(self, item: Item) -> Start:
        new = {p.replica.id: p.spot.placement() for p in item.running if p.is_new}
        held = {p.replica.id: p.spot.placement() for p in item.held}
        victims = tuple(victim.id for victim in item.waits_for)
        reason, is_borrowed = reasons.started(self.state, item)
        return Start(item.id, new, reason, is_borrowed, held, victims, bool(item.settled))

    def hold(self, item: Item, waiting: reasons.Waiting) -> Hold:
        """Why it waits; workloads of one batch share their reason, where no time of their own or
        room kept for another comes in."""
        batch = item.batch
        if batch is None or item.held or item.waits_for or self.reservations.kept is not None:
            held = {p.replica.id: p.spot.placement() for p in item.held}
            victims = tuple(victim.id for victim in item.waits_for)
            own = waiting.reason(item, self.efforts.get(likeness(item)))
            return Hold(item.id, own, held, victims)
        reason = batch.reason
        if reason is None:
            reason = waiting.reason(item, self.efforts.get(likeness(item)))
            if self.state.delayed_until(item) is None:
                batch.reason = reason
        return Hold(item.id, reason)

    def departures(self) -> Iterable[Decision]:
        """Evictions, those of one workload for one claimant as one; then moves."""
        merged: dict[tuple[WorkloadId, str, WorkloadId | None], Evict] = {}
        for eviction in self.state.evictions:
            item, claimant = eviction.victim.item, eviction.claimant
            key = (item.id, eviction.rule, None if claimant is None else claimant.id)
            replicas = tuple(placed.replica.id for placed in eviction.victim.replicas)
            if key in merged:
                merged[key] = replace(merged[key], replicas=merged[key].replicas + replicas)
            else:
                reason = reasons.evicted(self.state, eviction)
                merged[key] = Evict(item.id, replicas, eviction.rule, key[2], reason)
        yield from merged.values()
        for item, claimant in self.state.movers:
            yield Move(item.id, dict(item.moved), claimant.id, reasons.moved(item, claimant))


def queue_of(item: Item) -> tuple[str, int]:
    """Those who wait with it: of its project, for its first choice of GPUs."""
    r = item.shape.first[-1][0] if item.shape.first else 0
    return item.account.id, 0 if r == 1 else r


def _only_waits(item: Item, batch: Batch) -> bool:
    """Still one of its batch, and nothing of it starts just now."""
    return item.batch is batch and not (item.running and item.running[-1].is_new)


def _positions(holds: Iterable[Item]) -> dict[WorkloadId, tuple[int, int]]:
    """Place of each waiting workload among those of its project and first choice of GPUs."""
    queues: dict[tuple[str, int], list[tuple[WorkloadKey, Item]]] = {}
    batches: set[Batch] = set()
    for item in holds:
        batch = item.batch
        if batch is None:
            entries = [(workload_key(item), item)]
        elif batch in batches:
            continue
        else:
            batches.add(batch)
            entries = [entry for entry in batch.entries if _only_waits(entry[1], batch)]
        queues.setdefault(queue_of(item), []).extend(entries)
    positions = {}
    for queue in queues.values():
        queue.sort()
        length = len(queue)
        for place, (_, item) in enumerate(queue, 1):
            positions[item.id] = (place, length)
    return positions
