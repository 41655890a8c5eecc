"""What a cycle has decided, told from the state in which it has left everything.

Nothing is decided here: each workload gets its decision with the reason, and what waits its place
in the queue and an estimate of its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from scheduling.core import reasons
from scheduling.core.decisions import Decision, Eta, Evict, Hold, Move, Plan, Start
from scheduling.core.demand import Item, Placed
from scheduling.core.lending import Lending
from scheduling.core.passes import likeness
from scheduling.core.predict.eta import Estimates, Waits
from scheduling.core.queue_places import queue_places
from scheduling.core.reservation import Reservations
from scheduling.core.search import Effort
from scheduling.core.state import State
from scheduling.core.types import Placement, ReplicaId, ReplicaState, WorkloadId


class Conclusion:
    """The decisions of one cycle, to be asked for when all is decided."""

    def __init__(
        self,
        state: State,
        reservations: Reservations,
        lending: Lending,
        efforts: Mapping[object, Effort],
    ) -> None:
        """Args:
        state: After all steps.
        reservations: The room kept for a gang.
        lending: What was lent and called back.
        efforts: What the search for victims came to, for each likeness.
        """
        self._state = state
        self._reservations = reservations
        self._lending = lending
        self._efforts = efforts

    def plan(self, *, with_estimates: bool) -> Plan:
        """Everything that was decided; with estimates of starts, if these are wanted."""
        state = self._state
        decisions: list[Decision] = [*self.departures(), *self._lending.recalls()]
        holds: list[tuple[Waits, Hold]] = []
        waiting = reasons.Waiting(state, self._reservations)
        for item in state.items:
            if item.running and item.running[-1].is_new:
                decisions.append(self.started(item))
            elif not item.pending and not item.held:
                continue
            elif (loan := self._lending.loan(item)) is not None:
                decisions.append(loan)
            elif item.held or not item.is_on_loan:
                hold = self.hold(item, waiting)
                holds.append((Waits(item, hold.reason), hold))
        decisions += self._estimated(holds) if with_estimates else (hold for _, hold in holds)
        for workload, problem in state.set_aside:
            if any(replica.state is ReplicaState.PENDING for replica in workload.replicas):
                decisions.append(Hold(workload.id, reasons.set_aside(problem)))
        return Plan(
            tuple(decisions),
            state.accounts.numbers(),
            queue_places(waits.item for waits, _ in holds),
            with_estimates,
            state.cordons,
            {workload.id: problem for workload, problem in state.set_aside},
            self._lending.not_lent(),
        )

    def _estimated(self, holds: list[tuple[Waits, Hold]]) -> Iterator[Hold]:
        """These with the time of their start, where something is known of it."""
        estimates = Estimates(self._state, self._reservations)
        etas: Mapping[str, Eta] = estimates.of([waits for waits, _ in holds])
        for _, hold in holds:
            eta = etas.get(hold.workload)
            yield hold if eta is None else replace(hold, eta=eta)

    def departures(self) -> Iterator[Decision]:
        """Evictions, those of one workload for one claimant as one; then moves."""
        merged: dict[tuple[WorkloadId, str, WorkloadId | None], Evict] = {}
        for eviction in self._state.evictions:
            item, claimant = eviction.victim.item, eviction.claimant
            key = (item.id, eviction.rule, None if claimant is None else claimant.id)
            replicas = tuple(placed.replica.id for placed in eviction.victim.replicas)
            if key in merged:
                merged[key] = replace(merged[key], replicas=merged[key].replicas + replicas)
            else:
                reason = reasons.evicted(self._state, eviction)
                merged[key] = Evict(item.id, replicas, eviction.rule, key[2], reason)
        yield from merged.values()
        for item, claimant in self._state.movers:
            yield Move(item.id, dict(item.moved), claimant.id, reasons.moved(item, claimant))

    def started(self, item: Item) -> Start:
        """Of a workload of which something starts in this cycle."""
        reason, is_borrowed = reasons.started(self._state, item)
        return Start(
            item.id,
            _placements(placed for placed in item.running if placed.is_new),
            reason,
            is_borrowed,
            _placements(item.held),
            tuple(victim.id for victim in item.waits_for),
            bool(item.settled),
        )

    def hold(self, item: Item, waiting: reasons.Waiting) -> Hold:
        """Why it waits; workloads of one batch share their reason, where no time of their own or
        room kept for another comes in."""
        shared = item.batch
        if item.held or item.waits_for or self._reservations.kept is not None:
            shared = None
        if shared is not None and shared.reason is not None:
            return Hold(item.id, shared.reason)
        reason = waiting.reason(item, self._efforts.get(likeness(item)))
        if shared is not None and self._state.delayed_until(item) is None:
            shared.reason = reason
        victims = tuple(victim.id for victim in item.waits_for)
        return Hold(item.id, reason, _placements(item.held), victims)


def _placements(places: Iterable[Placed]) -> dict[ReplicaId, Placement]:
    return {placed.replica.id: placed.spot.placement() for placed in places}
