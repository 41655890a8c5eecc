"""Why something starts, stops or moves."""

from __future__ import annotations

from collections.abc import Mapping

from scheduling.core.decisions import Reason
from scheduling.core.demand import Item
from scheduling.core.reasons.words import Details, main_resource, quantity
from scheduling.core.state import Eviction, State
from scheduling.core.types import ResourceKey


def started(state: State, item: Item) -> tuple[Reason, bool]:
    """Why a workload starts, and whether its project borrows for it.

    What is not preemptible never borrows: of it a project has no more than its quota, and where the
    project is above it, what is preemptible gives back.
    """
    amounts = item.running[-1].amounts
    r = main_resource(amounts)
    if r == 1:
        r = 0
    account = item.account
    is_borrowed = item.is_preemptible and any(account.is_above_quota(q) for q, _ in amounts)
    held = account.allocated[r] if item.is_preemptible else account.non_preemptible[r]
    asked = dict(amounts).get(r, 0) * sum(1 for placed in item.running if placed.is_new)
    details: Details = {
        "resource": state.resources.keys[r],
        "requested": asked,
        "allocated": held,
        "quota": account.quota[r],
        "fair_share": account.fair[r],
    }
    near = _together(state, item, details)
    have = f"{account.id} then held {quantity(state, r, held)}"
    quota = quantity(state, r, account.quota[r])
    if is_borrowed:
        return Reason(
            "started_borrowing",
            f"{have} of {quota} quota: the rest is borrowed until its owner asks.{near}",
            details,
        ), True
    return Reason("started_in_quota", f"{have} of {quota} quota.{near}", details), False


def _together(state: State, item: Item, details: Details) -> str:
    """Where a gang was gathered, in words; noted in the details, too."""
    if not state.topology or len(item.running) < 2:
        return ""
    level = state.topology.level_of([placed.spot.room for placed in item.running])
    if level == len(state.topology.levels):
        details["together"] = None
        return " Its replicas are spread over several of the widest domains."
    details["together"] = state.topology.levels[level]
    return f" All its replicas are on one {state.topology.levels[level]}."


def evicted(state: State, eviction: Eviction) -> Reason:
    """Why a workload stops, who gains, and what was compared."""
    victim, claimant = eviction.victim, eviction.claimant
    numbers = dict(victim.numbers)
    if claimant is not None:
        numbers["claimant"] = claimant.id
        numbers["claimant_project"] = claimant.account.id
    cost = victim.item.workload.eviction_cost
    if cost is not None:
        numbers["checkpoint_age_s"] = cost.lost_progress_s
    if eviction.rule == "stale_gang":
        message = (
            f"Stops because only {numbers['running']} of {numbers['minimum']} replicas were left"
            f" for more than {numbers['grace_s']:.0f} s."
        )
        return Reason("stale_gang", message, numbers)
    if eviction.rule == "preempt":
        message = (
            f"Gives way to {numbers['claimant']} of the same project, whose priority"
            f" {numbers['claimant_priority']} is above {numbers['victim_priority']}."
        )
        return Reason("preempted", message, numbers)
    r = state.resources.number[_key(numbers["resource"])]

    def told(name: str) -> str:
        return quantity(state, r, _amount(numbers, name))

    message = (
        f"Gives way to {numbers['claimant']} of {numbers['claimant_project']}:"
        f" {numbers['victim_side']} held {told('victim_allocated')},"
        f" {told('victim_borrowed')} beyond its quota of {told('victim_quota')},"
        f" with a fair share of {told('victim_share')};"
        f" {numbers['claimant_side']} held {told('claimant_allocated')}"
        f" of {told('claimant_quota')} quota and asked for {told('claimant_requested')}."
    )
    return Reason("reclaimed", message, numbers)


def moved(item: Item, claimant: Item | None) -> Reason:
    """Why a workload is moved."""
    who = "another workload" if claimant is None else claimant.id
    return Reason(
        "moved",
        f"Moves so that scattered free capacity becomes usable for {who}.",
        {
            "claimant": None if claimant is None else claimant.id,
            "from": sorted({placed.spot.room.node.name for placed in item.evicted}),
            "to": sorted({placement.node for placement in item.moved.values()}),
        },
    )


def _key(value: object) -> ResourceKey:
    assert isinstance(value, str)
    return ResourceKey(value)


def _amount(numbers: Mapping[str, object], name: str) -> int | None:
    value = numbers[name]
    assert value is None or isinstance(value, int)
    return value
