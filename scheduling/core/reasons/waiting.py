"""Why something waits: the first barrier that a person could do something about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduling.core.accounts import Account, Amounts
from scheduling.core.admission import Bound, Refusal, barrier_to, is_within_quota, is_within_share
from scheduling.core.decisions import Reason
from scheduling.core.demand import Item, Option, Shape
from scheduling.core.reasons.behind import Behind
from scheduling.core.reasons.room_left import RoomLeft, constraint
from scheduling.core.reasons.words import Details, Offer, gpus, moment, quantity, unit_suffix
from scheduling.core.reservation import Reservations
from scheduling.core.search import Effort
from scheduling.core.state import State

_WHERE_ROOM_WOULD_HELP = (
    "no_fit",
    "gang_incomplete",
    "over_share",
    "over_limit",
    "interactive_over_quota",
    "quota_exceeds_capacity",
)
_WHERE_EVICTION_COULD_HELP = ("no_fit", "gang_incomplete", "quota_exceeds_capacity")


class Waiting:
    """Makes the reasons of everything that waits at the end of a cycle; alike workloads share
    one. Where only one project is asked about, `among` are those of it that wait or got something.
    """

    def __init__(
        self, state: State, reservations: Reservations, among: Sequence[Item] | None = None
    ) -> None:
        self._state = state
        self._reservations = reservations
        reservations.ask_anew()
        self._behind = Behind(state, among)
        self._cache: dict[object, Reason] = {}
        self._entries: dict[tuple[int, int, int], Details] = {}
        self._untouched: dict[object, tuple[Details, ...]] = {}
        self._misfits: dict[object, Reason] = {}
        self._room_left = RoomLeft()
        self._promised: dict[int, int] = {}

    def reason(self, item: Item, effort: Effort | None) -> Reason:
        """Why this workload waits: the first barrier that a person could do something about."""
        state = self._state
        not_before = item.workload.not_before_s
        if not_before is not None and not_before > state.now_s:
            return _not_yet(item, not_before, state.now_s)
        if item.held:
            return self._awaiting_release(item)
        key = (
            item.account.id,
            item.shape.number,
            item.num_next,
            item.is_preemptible,
            item.chosen_type,
            None if effort is None else (effort.protected_until, effort.was_cut_short),
            self._reservations.is_open_to(item),
            item is self._kept_item(),
        )
        reason = self._cache.get(key)
        if reason is None:
            reason = self._cache[key] = self._barrier(item, effort or Effort())
        if reason.code in _WHERE_ROOM_WOULD_HELP and self._behind.stands_before(item):
            return self._behind_priority(item, reason)
        until_s = state.delayed_until(item)
        if until_s is not None and reason.code in _WHERE_EVICTION_COULD_HELP:
            return _in_delay(until_s, state.now_s, reason)
        return reason

    def _behind_priority(self, item: Item, barrier: Reason) -> Reason:
        """Others of its project took what it could have had."""
        ahead = self._behind.num_ahead(item)
        details: Details = {"ahead": ahead, "priority": item.priority}
        return Reason(
            "behind_priority",
            f"{ahead} of {item.account.id} with a higher priority came first.",
            details,
            ({"id": "ask_manager"}, *barrier.offers),
            barrier.per_node_type,
        )

    def _barrier(self, item: Item, effort: Effort) -> Reason:
        options = item.options()
        barriers = [barrier_to(item, option) for option in options]
        entries = self._told_of_all(item, options, barriers)
        if not any(option.pools for option in options):
            return self._offline(item, entries)
        first = barriers[0]
        if first is not None and None not in barriers:
            return self._refused(item, first, entries)
        allowed = [o for o, barrier in zip(options, barriers, strict=True) if barrier is None]
        if not any(option.is_possible for option in allowed):
            return self._no_fit(item, allowed[0], entries)
        if item.shape.avoided and all(
            self._entry(item, o).get("constraint") == "failed_here" for o in allowed
        ):
            return self._no_fit(item, allowed[0], entries)
        option = next(option for option in allowed if option.is_possible)
        return (
            self._delayed(item, allowed, effort, entries)
            or self._unshared(item, allowed, option, entries)
            or self._unplaced(item, option, entries)
        )

    def _delayed(
        self, item: Item, allowed: list[Option], effort: Effort, entries: tuple[Details, ...]
    ) -> Reason | None:
        """What time alone will change."""
        if any(self._reservations.would_fit_without(item, option) for option in allowed):
            return self._behind_reservation(item, entries)
        if effort.protected_until is not None:
            return self._protected(effort.protected_until, entries)
        if effort.was_cut_short:
            return Reason(
                "search_cut_short",
                f"The search for room was cut short after {effort.num_tried} tries;"
                " it goes on in the next cycle.",
                {"tried": effort.num_tried},
                per_node_type=entries,
            )
        return None

    def _unshared(
        self, item: Item, allowed: list[Option], option: Option, entries: tuple[Details, ...]
    ) -> Reason | None:
        """What its project may not insist on."""
        is_in_share = any(is_within_share(item.account, o.amounts, item.num_next) for o in allowed)
        if not is_in_share and not self._is_scattered(item, option):
            return self._over_share(item, option, entries)
        return None

    def _unplaced(self, item: Item, option: Option, entries: tuple[Details, ...]) -> Reason:
        """What its project may have, but no node can give."""
        if item is not self._kept_item():
            promised = self._overpromised(item, option)
            if promised is not None:
                return promised
        if item.num_next > 1:
            return self._gang(item, option, entries)
        return self._no_fit(item, option, entries)

    def _kept_item(self) -> Item | None:
        kept = self._reservations.kept
        return None if kept is None else kept.item

    def _behind_reservation(self, item: Item, entries: tuple[Details, ...]) -> Reason:
        kept = self._reservations.kept
        assert kept is not None
        seconds = kept.until_s - self._state.now_s
        name = kept.option.node_type or "the cluster"
        return Reason(
            "behind_reservation",
            f"Room on {name} is kept for {kept.item.id} for {seconds:.0f} s more;"
            " only what ends before may start there.",
            {
                "name": kept.item.id,
                "node_type": kept.option.node_type,
                "until_s": kept.until_s,
                "own_run_s": item.workload.expected_run_s,
            },
            ({"id": "shorter"}, *_other_types(item)),
            entries,
            lasting=f"Room on {name} is kept for {kept.item.id} until {moment(kept.until_s)};"
            " only what ends before may start there.",
        )

    def _awaiting_release(self, item: Item) -> Reason:
        state = self._state
        coming = sum(amount for placed in item.held for r, amount in placed.amounts if r >= 2)
        victims = [victim.id for victim in item.waits_for]
        deadline_s = state.policy.hold_deadline_s
        who = f" by {', '.join(victims)}" if victims else ""
        what = f"{gpus(coming)} GPU" if coming else "room"
        return Reason(
            "awaiting_release",
            f"{what} kept for it is being freed{who}, within {deadline_s:.0f} s.",
            {"victims": victims, "gpu_milli": coming, "deadline_s": deadline_s},
        )

    def _offline(self, item: Item, entries: tuple[Details, ...]) -> Reason:
        wanted = item.workload.node_types
        names = ", ".join(wanted) if wanted else "any node type"
        return Reason(
            "node_type_offline",
            f"No node is online of {names}.",
            {"node_types": list(wanted or ())},
            ({"id": "notify_admin"},),
            entries,
        )

    def _refused(self, item: Item, barrier: Refusal, entries: tuple[Details, ...]) -> Reason:
        state, r, level = self._state, barrier.r, barrier.level
        details: Details = {
            "resource": state.resources.keys[r],
            "level": level.id,
            f"requested_{unit_suffix(r)}": barrier.requested,
            f"used_{unit_suffix(r)}": barrier.used,
        }
        used, allowed = quantity(state, r, barrier.used), quantity(state, r, barrier.allowed)
        asked = quantity(state, r, barrier.requested)
        other_types = _other_types(item)
        if barrier.bound is Bound.LIMIT:
            details[f"limit_{unit_suffix(r)}"] = barrier.allowed
            message = (
                f"{level.id} holds {used} and may never hold more than {allowed}; {asked} asked."
            )
            return Reason("over_limit", message, details, other_types, entries)
        details[f"quota_{unit_suffix(r)}"] = barrier.allowed
        message = (
            f"{level.id}: {used} of {allowed} quota in use by work that is never stopped;"
            f" {asked} asked."
        )
        offers: list[Offer] = []
        left = barrier.allowed - barrier.used
        if r >= 2 and left > 0 and item.num_next == 1 and item.shape.ask.gpu.num_devices == 1:
            offers.append({"id": "smaller", "gpu_milli": left})
        offers += other_types
        offers += [{"id": "stop_own"}, {"id": "request_quota"}]
        if not item.shape.is_interactive:
            offers.append({"id": "make_preemptible"})
        return Reason("interactive_over_quota", message, details, tuple(offers), entries)

    def _protected(self, until_s: float, entries: tuple[Details, ...]) -> Reason:
        seconds = max(0.0, until_s - self._state.now_s)
        return Reason(
            "in_min_runtime",
            f"Those who could give way may run {seconds:.0f} s more.",
            {"until_s": until_s},
            per_node_type=entries,
            lasting=f"Those who could give way may run until {moment(until_s)}.",
        )

    def _over_share(self, item: Item, option: Option, entries: tuple[Details, ...]) -> Reason:
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
        asked_gpu = _gpu_milli(option.amounts)
        free = self._room_left.of(item.shape, option)
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
        fitting = 0
        if count > 1:
            # What no free block can hold needs no search.
            fitting = self._num_fitting(item, option) if asked_gpu <= free.block else 0
            minimum = item.workload.min_replicas
            ready = minimum - item.num_missing + fitting
            details |= {"placeable": ready, "minimum": minimum}
            message += f" {ready} of {minimum} replicas could be placed now."
        offers: list[Offer] = []
        if account.allocated[r] + amount * count <= state.resources.capacity[r]:
            offers.append({"id": "request_quota"})
        elif account.allocated[r]:
            offers.append({"id": "stop_own"})
        if fitting:
            offers.append({"id": "fewer_replicas"})
        return Reason("over_share", message, details, (*offers, *_other_types(item)), entries)

    def _overpromised(self, item: Item, option: Option) -> Reason | None:
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
                    (self._entry(item, option),),
                )
        return None

    def _promised_of(self, r: int) -> int:
        """The sum of all quotas."""
        promised = self._promised.get(r)
        if promised is None:
            quotas = [root.quota[r] for root in self._state.accounts.roots]
            promised = self._promised[r] = sum(quota for quota in quotas if quota is not None)
        return promised

    def _gang(self, item: Item, option: Option, entries: tuple[Details, ...]) -> Reason:
        fitting = self._num_fitting(item, option)
        minimum = item.workload.min_replicas
        ready = minimum - item.num_missing + fitting
        details: Details = {"placeable": ready, "minimum": minimum}
        kept = self._reservations.kept
        until = lasting = ""
        if kept is not None and kept.item is item:
            details |= {"reserved_until_s": kept.until_s, "reserved_nodes": list(kept.nodes)}
            until = (
                f" Room is kept for it, expected free in {kept.until_s - self._state.now_s:.0f} s."
            )
            lasting = f" Room is kept for it, expected free at {moment(kept.until_s)}."
        fits = f"{ready} of {minimum} replicas fit; they start together or not at all."
        return Reason(
            "gang_incomplete",
            f"{fits}{until}",
            details,
            ({"id": "fewer_replicas"},),
            entries,
            lasting=lasting and f"{fits}{lasting}",
        )

    def _num_fitting(self, item: Item, option: Option) -> int:
        state, fitting = self._state, 0
        with self._reservations.open_to(item), state.ledger.supposing():
            while fitting < item.num_next and state.find(item, option, 1) is not None:
                fitting += 1
        return fitting

    def _no_fit(self, item: Item, option: Option, entries: tuple[Details, ...]) -> Reason:
        """Told alike to all that ask for the same, where limits and quota let them in."""
        if entries is not self._untouched.get(_alike(item)):
            return self._misfit(item, option, entries)
        key = (item.shape.number, item.chosen_type, option.number, item.num_next)
        reason = self._misfits.get(key)
        if reason is None:
            reason = self._misfits[key] = self._misfit(item, option, entries)
        return reason

    def _misfit(self, item: Item, option: Option, entries: tuple[Details, ...]) -> Reason:
        entry = self._entry(item, option)
        name = option.node_type or "the cluster"
        ask = item.shape.ask
        free, block = entry["free_gpu_milli"], entry["largest_free_gpu_milli"]
        assert isinstance(free, int)
        assert isinstance(block, int)
        asked = _gpu_milli(option.amounts)
        offers = list(_other_types(item))
        constraint = entry.get("constraint")
        if constraint == "labels":
            labels = dict(sorted(item.workload.required_labels.items()))
            entry = {**entry, "labels": labels}
            wanted = ", ".join(f"{key}={value}" for key, value in labels.items())
            message = f"{name}: no node has the labels {wanted}."
            offers.append({"id": "notify_admin"})
        elif constraint == "failed_here":
            message = f"{name}: its start failed on every node that would do."
        elif not option.is_possible:
            message = f"{name}: no node is large enough, even with nothing on it."
        elif ask.gpu.num_devices == 0:
            message = (
                f"{name}: no node has {gpus(ask.cpu_milli)} cores and"
                f" {quantity(self._state, 1, ask.memory_mib)} free."
            )
        elif free < asked * item.num_next:
            message = f"{name}: {gpus(asked * item.num_next)} GPU asked, {gpus(free)} free."
        elif block < asked:
            message = f"{name}: {gpus(free)} GPU free, but at most {gpus(block)} together."
        else:
            message = (
                f"{name}: {gpus(free)} GPU free, but no node has the CPU and memory beside them."
            )
        if 0 < block < asked:
            offers.append({"id": "smaller", "gpu_milli": block})
        return Reason("no_fit", message, entry, tuple(offers), entries)

    def _entry(self, item: Item, option: Option) -> Details:
        """The numbers of one node type."""
        return self._told(item, option, barrier_to(item, option))

    def _told_of_all(
        self, item: Item, options: Sequence[Option], barriers: Sequence[Refusal | None]
    ) -> tuple[Details, ...]:
        if any(barriers):
            return tuple(map(self._told, [item] * len(options), options, barriers))
        key = _alike(item)
        entries = self._untouched.get(key)
        if entries is None:
            entries = self._untouched[key] = tuple(self._told(item, o, None) for o in options)
        return entries

    def _told(self, item: Item, option: Option, barrier: Refusal | None) -> Details:
        key = (item.shape.number, option.number, item.num_next)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._free_numbers(item.shape, option, item.num_next)
        return entry if barrier is None else {**entry, "code": str(barrier.bound)}

    def _free_numbers(self, shape: Shape, option: Option, count: int) -> Details:
        asked = _gpu_milli(option.amounts)
        free = self._room_left.of(shape, option)
        entry: Details = {
            "node_type": option.node_type,
            "nodes": free.nodes,
            "requested_gpu_milli": asked,
            "free_gpu_milli": free.gpu_milli,
            "largest_free_gpu_milli": free.block,
            "free_cpu_milli": free.cpu_milli,
            "free_memory_mib": free.memory_mib,
            "code": "no_fit",
        }
        if option.pools:
            entry["constraint"] = constraint(shape, option, asked, count, free)
        else:
            entry["code"] = "node_type_offline"
        return entry

    def _is_scattered(self, item: Item, option: Option) -> bool:
        """Enough is free in all, but not together."""
        asked = _gpu_milli(option.amounts)
        return (
            asked > 0 and self._room_left.of(item.shape, option).gpu_milli >= asked * item.num_next
        )


def _alike(item: Item) -> tuple[object, ...]:
    """What decides the numbers of its node types: equal where as many of the same are asked."""
    return item.shape.number, item.chosen_type, item.num_next


def _gpu_milli(amounts: Amounts) -> int:
    return sum(amount for r, amount in amounts if r >= 2)


def _other_types(item: Item) -> tuple[Offer, ...]:
    """Node types of the shape beyond the first, as offers."""
    return tuple(
        {"id": "choose_node_type", "node_type": option.node_type}
        for option in item.shape.options[1:]
        if option.node_type is not None
    )


def _largest_ratio(state: State, account: Account, r: int) -> float | None:
    """The largest finite over-ratio of any other project; None where nobody borrows."""
    ratios: Iterable[float] = (
        other.over_ratio(r)
        for other in state.accounts.by_id.values()
        if other is not account and not other.children
    )
    largest = max((ratio for ratio in ratios if ratio != float("inf")), default=0.0)
    return round(largest, 3) or None


def set_aside(problem: str) -> Reason:
    """Why a workload is planned around."""
    return Reason(
        "set_aside",
        f"It cannot be planned: {problem}. Everything else goes on.",
        {"problem": problem},
        ({"id": "notify_admin"},),
    )


def _not_yet(item: Item, not_before_s: float, now_s: float) -> Reason:
    workload = item.workload
    if not workload.failures:
        return Reason(
            "start_after",
            f"Starts in {not_before_s - now_s:.0f} s at the earliest, as its owner asked.",
            {"until_s": not_before_s},
            ({"id": "edit_start_after"},),
            lasting=f"Starts at {moment(not_before_s)} at the earliest, as its owner asked.",
        )
    error = f": {workload.last_error}" if workload.last_error else ""
    details: Details = {
        "until_s": not_before_s,
        "attempts": workload.failures,
        "last_error": workload.last_error,
    }
    what = f"Its start failed {workload.failures} times"
    if workload.last_exit_code is not None:
        details["exit_code"] = workload.last_exit_code
        what = f"It ended with exit code {workload.last_exit_code}, {workload.failures} times"
    return Reason(
        "backing_off",
        f"{what}; again in {not_before_s - now_s:.0f} s{error}.",
        details,
        ({"id": "retry"},),
        lasting=f"{what}; again at {moment(not_before_s)}{error}.",
    )


def _in_delay(until_s: float, now_s: float, barrier: Reason) -> Reason:
    return Reason(
        "in_delay",
        f"May displace others in {until_s - now_s:.0f} s.",
        {"until_s": until_s},
        barrier.offers,
        barrier.per_node_type,
        f"May displace others from {moment(until_s)} on.",
    )
