"""Why something waits that its project may not have: limits, quota, fair share, broken promises."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.core.accounts import Account, gpu_milli
from scheduling.core.admission import Bound, Refusal, is_within_quota
from scheduling.core.decisions import Reason
from scheduling.core.demand import Item, Option
from scheduling.core.reasons.room_left import Free
from scheduling.core.reasons.words import Details, Offer, gpus, other_types, quantity, unit_suffix
from scheduling.core.state import State


class Bounds:
    """What projects hold, and may."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._promised: dict[int, int] = {}

    def refused(self, item: Item, barrier: Refusal, entries: tuple[Details, ...]) -> Reason:
        """Limit or quota of its project, or of one above it, bar it."""
        state, r, level = self._state, barrier.r, barrier.level
        details: Details = {
            "resource": state.resources.keys[r],
            "level": level.id,
            f"requested_{unit_suffix(r)}": barrier.requested,
            f"used_{unit_suffix(r)}": barrier.used,
        }
        used, allowed = quantity(state, r, barrier.used), quantity(state, r, barrier.allowed)
        asked = quantity(state, r, barrier.requested)
        types = other_types(item)
        if barrier.bound is Bound.LIMIT:
            details[f"limit_{unit_suffix(r)}"] = barrier.allowed
            message = (
                f"{level.id} holds {used} and may never hold more than {allowed}; {asked} asked."
            )
            return Reason("over_limit", message, details, types, entries)
        details[f"quota_{unit_suffix(r)}"] = barrier.allowed
        message = (
            f"{level.id}: {used} of {allowed} quota in use by work that is never stopped;"
            f" {asked} asked."
        )
        offers: list[Offer] = []
        left = barrier.allowed - barrier.used
        if r >= 2 and left > 0 and item.num_next == 1 and item.shape.ask.gpu.num_devices == 1:
            offers.append({"id": "smaller", "gpu_milli": left})
        offers += types
        offers += [{"id": "stop_own"}, {"id": "request_quota"}]
        if not item.shape.is_interactive:
            offers.append({"id": "make_preemptible"})
        return Reason("interactive_over_quota", message, details, tuple(offers), entries)

    def over_share(
        self,
        item: Item,
        option: Option,
        free: Free,
        entries: tuple[Details, ...],
        *,
        num_fitting: int,
    ) -> Reason:
        """It would take its project beyond its fair share, and nothing is idle that suffices.

        Args:
            item: Who waits.
            option: The node type that is told of.
            free: What is free there.
            entries: The numbers of all its node types.
            num_fitting: So many of its next replicas would fit there; for a gang only.
        """
        state, account = self._state, item.account
        count = item.num_next
        r, amount = next(
            (r, amount)
            for r, amount in option.amounts
            if account.allocated[r] + amount * count > account.fair[r]
        )
        details: Details = {
            "resource": state.resources.keys[r],
            "requested": amount * count,
            "allocated": account.allocated[r],
            "quota": account.quota[r],
            "fair_share": account.fair[r],
            "largest_over_ratio_elsewhere": _largest_ratio(state, account, r),
        }
        asked_gpu = gpu_milli(option.amounts)
        idle = "nothing is idle that it could borrow"
        if not asked_gpu:
            idle = "what is idle is not enough for it"
        elif free.gpu_milli:
            idle = f"only {gpus(free.gpu_milli)} of {gpus(asked_gpu * count)} GPU asked are free"
        message = (
            f"{account.id} holds {quantity(state, r, account.allocated[r])}; with"
            f" {quantity(state, r, amount * count)} more it would pass its fair share of"
            f" {quantity(state, r, account.fair[r])}, and {idle}."
        )
        if count > 1:
            minimum = item.workload.min_replicas
            ready = minimum - item.num_missing + num_fitting
            details |= {"placeable": ready, "minimum": minimum}
            message += f" {ready} of {minimum} replicas could be placed now."
        offers: list[Offer] = []
        if account.allocated[r] + amount * count <= state.resources.capacity[r]:
            offers.append({"id": "request_quota"})
        elif account.allocated[r]:
            offers.append({"id": "stop_own"})
        if num_fitting:
            offers.append({"id": "fewer_replicas"})
        return Reason("over_share", message, details, (*offers, *other_types(item)), entries)

    def overpromised(self, item: Item, option: Option, entry: Details) -> Reason | None:
        """Quotas add up to more than there is, so that being within quota does not help."""
        state = self._state
        if not is_within_quota(item.account, option.amounts, item.num_next):
            return None
        for r, _ in option.amounts:
            promised, have = self._promised_of(r), state.resources.capacity[r]
            if r >= 2 and promised > have:
                return Reason(
                    "quota_exceeds_capacity",
                    f"{quantity(state, r, promised)} are promised,"
                    f" {quantity(state, r, have)} are there.",
                    {
                        "resource": state.resources.keys[r],
                        "promised": promised,
                        "capacity": have,
                    },
                    ({"id": "notify_admin"},),
                    (entry,),
                )
        return None

    def _promised_of(self, r: int) -> int:
        """The sum of all quotas."""
        promised = self._promised.get(r)
        if promised is None:
            quotas = [root.quota[r] for root in self._state.accounts.roots]
            promised = self._promised[r] = sum(quota for quota in quotas if quota is not None)
        return promised


def _largest_ratio(state: State, account: Account, r: int) -> float | None:
    """The largest finite over-ratio of any other project; None where nobody borrows."""
    ratios: Iterable[float] = (
        other.over_ratio(r)
        for other in state.accounts.by_id.values()
        if other is not account and not other.children
    )
    largest = max((ratio for ratio in ratios if ratio != float("inf")), default=0.0)
    return round(largest, 3) or None
