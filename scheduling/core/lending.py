"""Lending: idle sessions' devices to trainings that still wait, when everything else is decided.

A session that is swapped out keeps its fraction: it stays allocated to its project, and whoever
borrows it is promised nothing. So quota, fair share and every other decision are as if there were
no loans; use on loan counts for the borrower's limit (and its cost) only. In exchange a borrower
yields at once, whatever its share or minimum runtime: to the session, which its node's agent wakes
without asking anybody, and to every decision that gives the room beside the session to somebody
else.

`Lending.run` first calls back what can stay lent no longer, then lends what is idle:

* *lenders*: sessions idle for their window, which can be swapped, have had their device for a
  minimum time since they last woke, and are expected to stay idle for longer than copying their
  memory to the host and back takes, by a margin. For a whole device all who hold it must be such;
  for a part of one, as many as are needed.
* *borrowers*: preemptible trainings of which nothing runs, whole gangs; projects in the order of
  the part that they use of what they may have, loans included, and inside a project in the order of
  its queue. One that was given a loan is not exchanged for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from scheduling.core.accounts import Account, gpu_milli
from scheduling.core.decisions import Lend, Reason, Recall
from scheduling.core.demand import Item
from scheduling.core.lenders import LENDING_OFF
from scheduling.core.lent import Lent
from scheduling.core.loans import add_body
from scheduling.core.offers import Obstacle, Offer, Offers
from scheduling.core.ordering import workload_key
from scheduling.core.reasons.lending import lent, recalled
from scheduling.core.rooms import Loads
from scheduling.core.state import State
from scheduling.core.types import WHOLE_GPU_MILLI, WorkloadId


class Lending:
    """The loans of one cycle: what is called back, what is lent, and what is not, and why."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._lent = Lent(state)
        self._offers = Offers(state, self._lent)
        self._recalls: dict[WorkloadId, Recall] = {}
        self._loans: dict[WorkloadId, list[Offer]] = {}

    def run(self, waiting: Iterable[Item]) -> None:
        """Call back, then lend.

        Args:
            waiting: Whatever may be tried in this cycle.
        """
        self._call_back()
        if self._state.policy.lends:
            self._offers.find_lenders()
            if self._offers.num_free:
                borrowers = [
                    item for item in waiting if _may_borrow(item) and item.id not in self._recalls
                ]
                while self._lend(borrowers) and self._offers.num_free:
                    # What a loan has left over may suit one whom it did not suit before.
                    borrowers = [item for item in borrowers if item.id not in self._loans]

    def recall(self, item: Item, code: str, numbers: Mapping[str, object]) -> None:
        """End what a workload borrows, or waits for in memory."""
        replicas = tuple(body.replica.id for body in item.bodies)
        lenders = sorted({lender.id for body in item.bodies for lender, _ in body.lenders})
        reason = recalled(item, code, {**numbers, "lenders": lenders})
        self._recalls.setdefault(item.id, Recall(item.id, replicas, reason))

    def recalls(self) -> Iterator[Recall]:
        """What was called back in this cycle."""
        yield from self._recalls.values()

    def borrowers(self) -> Iterator[Item]:
        """To whom something was lent in this cycle."""
        return (item for item in self._state.items if item.id in self._loans)

    def loan(self, item: Item) -> Lend | None:
        """What was lent to a workload in this cycle."""
        offers = self._loans.get(item.id)
        if offers is None:
            return None
        pairs = list(zip(item.pending, offers, strict=False))
        amounts = self._lent.amounts(item, [offer.spot for offer in offers])
        return Lend(
            item.id,
            {replica.id: offer.spot.placement() for replica, offer in pairs},
            {
                replica.id: tuple(lender.placed.replica.id for lender in offer.lenders)
                for replica, offer in pairs
            },
            lent(
                [lender.item.id for _, offer in pairs for lender in offer.lenders],
                min(offer.left_s for _, offer in pairs),
                gpu_milli(amounts),
            ),
        )

    def not_lent(self) -> Mapping[WorkloadId, Reason]:
        """Why idle sessions lend nothing, in order of their names."""
        return self._offers.not_lent()

    # Calling back.

    def _call_back(self) -> None:
        """End loans that can stay no longer; of those that do not fit together, the newest."""
        oldest = sorted(
            self._state.presence.bodies.items,
            key=lambda item: (item.bodies[0].replica.started_s, item.id),
        )
        for item in oldest:
            if item.id in self._recalls:
                continue
            obstacle = self._why_not_longer(item)
            if obstacle is not None:
                self.recall(item, *obstacle)
                continue
            for body in item.bodies:
                self._lent.note(body)

    def _why_not_longer(self, item: Item) -> Obstacle | None:
        """Why what a workload borrows, or waits for in memory, has to end; None if it need not."""
        if item.running or item.held:
            return "placed_elsewhere", {}
        if item.is_on_loan:
            obstacle = _why_lenders_end(item)
            if obstacle is not None:
                return obstacle
            amounts = self._lent.amounts(item, [body.spot for body in item.bodies])
            over = self._lent.over_limit(item.account, amounts)
            if over is not None:
                return "over_limit", over
        wanted = Loads()
        for body in item.bodies:
            add_body(wanted[body.spot.room], body)
        if all(self._lent.has_room(room, load) for room, load in wanted.items()):
            return None
        return "room_taken", {"nodes": sorted(room.node.name for room in wanted)}

    # Lending.

    def _lend(self, borrowers: Sequence[Item]) -> bool:
        """Give loans in order, until nobody waits or nothing is left to lend; whether any was
        given.

        What failed for one is not tried for another that asks for the same.
        """
        num_before = len(self._loans)
        queues: dict[Account, list[Item]] = {}
        for item in borrowers:
            queues.setdefault(item.account, []).append(item)
        for queue in queues.values():
            queue.sort(key=workload_key, reverse=True)
        turns = [(self._turn(queue[-1]), account) for account, queue in queues.items()]
        heap = [(key, account.id, account) for key, account in turns]
        heapify(heap)
        hopeless: set[object] = set()
        while heap and self._offers.num_free:
            _, name, account = heappop(heap)
            queue = queues[account]
            item = queue.pop()
            likeness = (item.shape.number, item.num_next, item.home)
            if likeness not in hopeless and not self._lend_to(item):
                hopeless.add(likeness)
            if queue:
                heappush(heap, (self._turn(queue[-1]), name, account))
        return len(self._loans) > num_before

    def _turn(self, item: Item) -> tuple[float, int]:
        """Smaller part of what the project may have, loans and this workload included; older.

        A share of less than a GPU counts as one, so that a project without any gets its turn.
        """
        account, share = item.account, 0.0
        for r, amount in item.shape.first:
            if r < 2:
                continue
            bound = account.allocatable[r]
            if bound is None:
                bound = self._state.resources.capacity[r]
            used = account.allocated[r] + self._lent.amount(account, r) + amount * item.num_next
            share = max(share, used / max(bound, WHOLE_GPU_MILLI))
        return share, account.created

    def _lend_to(self, item: Item) -> bool:
        """Whether this workload, or one like it, could be lent what it asks for."""
        is_only_limited = False
        for option in item.options():
            if not option.is_possible:
                continue
            offers = self._offers.take(item, option)
            if offers is None:
                continue
            amounts = self._lent.amounts(item, [offer.spot for offer in offers])
            if self._lent.over_limit(item.account, amounts) is not None:
                is_only_limited = True
                self._offers.give_back(item, offers)
                continue
            self._lent.note_amounts(item.account, amounts)
            self._loans[item.id] = offers
            self._offers.accept(offers)
            return True
        return is_only_limited


def _why_lenders_end(item: Item) -> Obstacle | None:
    """Why one of a borrower's lenders lends no longer, and which; None if all do."""
    for body in item.bodies:
        if body.is_parked:
            return "lender_woke", {}  # one replica of a gang: it has left its device already
        if not body.lenders:
            return "lender_gone", {}
        for lender, _ in body.lenders:
            idle = lender.workload.idle
            if idle is not None and idle.obstacle == LENDING_OFF:
                return LENDING_OFF, {"lender": lender.id}
            if idle is None or idle.since_s is None:
                return "lender_woke", {"lender": lender.id}
    return None


def _may_borrow(item: Item) -> bool:
    """A preemptible training with GPUs of which nothing runs or is coming."""
    is_still = not (item.running or item.held or item.evicted or item.moved or item.num_succeeded)
    return (
        item.is_preemptible
        and is_still
        and item.shape.ask.gpu.num_devices > 0
        and len(item.pending) >= item.num_next
        and (not item.bodies or len(item.bodies) == item.num_next)
    )
