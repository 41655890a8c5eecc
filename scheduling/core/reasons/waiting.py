"""Why something waits: the first barrier that a person could do something about."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.accounts import gpu_milli
from scheduling.core.admission import barrier_to, is_within_share
from scheduling.core.decisions import Reason
from scheduling.core.demand import Item, Option
from scheduling.core.reasons import timing
from scheduling.core.reasons.behind import Behind
from scheduling.core.reasons.bounds import Bounds
from scheduling.core.reasons.node_types import NodeTypes
from scheduling.core.reasons.words import (
    Details,
    gpus,
    moment,
    other_types,
    quantity,
)
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
        self._node_types = NodeTypes()
        self._bounds = Bounds(state)
        self._misfits: dict[object, Reason] = {}

    def reason(self, item: Item, effort: Effort | None) -> Reason:
        """Why this workload waits: the first barrier that a person could do something about."""
        state = self._state
        not_before = item.workload.not_before_s
        if not_before is not None and not_before > state.now_s:
            return timing.not_yet(item, not_before, state.now_s)
        if item.held:
            return timing.awaiting_release(item, state.policy.hold_deadline_s)
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
            return timing.in_delay(until_s, state.now_s, reason)
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
        entries = self._node_types.entries(item, options, barriers)
        if not any(option.pools for option in options):
            return self._offline(item, entries)
        first = barriers[0]
        if first is not None and None not in barriers:
            return self._bounds.refused(item, first, entries)
        allowed = [o for o, barrier in zip(options, barriers, strict=True) if barrier is None]
        if not any(option.is_possible for option in allowed):
            return self._no_fit(item, allowed[0], entries)
        if item.shape.avoided and all(
            self._node_types.entry(item, o).get("constraint") == "failed_here" for o in allowed
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
        kept, now_s = self._reservations.kept, self._state.now_s
        if kept is not None and any(
            self._reservations.would_fit_without(item, option) for option in allowed
        ):
            return timing.behind_reservation(kept, item, now_s, entries)
        if effort.protected_until is not None:
            return timing.protected(effort.protected_until, now_s, entries)
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
        if not is_in_share and not self._node_types.is_scattered(item, option):
            free, fitting = self._node_types.free(item, option), 0
            if item.num_next > 1 and gpu_milli(option.amounts) <= free.block:
                # What no free block can hold needs no search.
                fitting = self._num_fitting(item, option)
            return self._bounds.over_share(item, option, free, entries, num_fitting=fitting)
        return None

    def _unplaced(self, item: Item, option: Option, entries: tuple[Details, ...]) -> Reason:
        """What its project may have, but no node can give."""
        if item is not self._kept_item():
            entry = self._node_types.entry(item, option)
            promised = self._bounds.overpromised(item, option, entry)
            if promised is not None:
                return promised
        if item.num_next > 1:
            return self._gang(item, option, entries)
        return self._no_fit(item, option, entries)

    def _kept_item(self) -> Item | None:
        kept = self._reservations.kept
        return None if kept is None else kept.item

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
        """So many of its next replicas fit."""
        state, fitting = self._state, 0
        with self._reservations.open_to(item), state.ledger.supposing():
            while fitting < item.num_next and state.find(item, option, 1) is not None:
                fitting += 1
        return fitting

    def _no_fit(self, item: Item, option: Option, entries: tuple[Details, ...]) -> Reason:
        """Told alike to all that ask for the same, where limits and quota let them in."""
        if not self._node_types.is_unbarred(item, entries):
            return self._misfit(item, option, entries)
        key = (item.shape.number, item.chosen_type, option.number, item.num_next)
        reason = self._misfits.get(key)
        if reason is None:
            reason = self._misfits[key] = self._misfit(item, option, entries)
        return reason

    def _misfit(self, item: Item, option: Option, entries: tuple[Details, ...]) -> Reason:
        entry = self._node_types.entry(item, option)
        name = option.node_type or "the cluster"
        ask = item.shape.ask
        free, block = entry["free_gpu_milli"], entry["largest_free_gpu_milli"]
        assert isinstance(free, int)
        assert isinstance(block, int)
        asked = gpu_milli(option.amounts)
        offers = list(other_types(item))
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


def set_aside(problem: str) -> Reason:
    """Why a workload is planned around."""
    return Reason(
        "set_aside",
        f"It cannot be planned: {problem}. Everything else goes on.",
        {"problem": problem},
        ({"id": "notify_admin"},),
    )
