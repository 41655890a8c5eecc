"""Why something waits that time alone will change: back-off, delays, minimum runtimes, releases.

Times are on the snapshot's clock, in seconds; `lasting` says the same without counting down.
"""

from __future__ import annotations

from scheduling.core.accounts import gpu_milli
from scheduling.core.decisions import Reason
from scheduling.core.demand import Item
from scheduling.core.reasons.words import Details, gpus, moment, other_types
from scheduling.core.reservation import Reservation


def not_yet(item: Item, not_before_s: float, now_s: float) -> Reason:
    """It backs off from a failed start, or its owner asked for a later one."""
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


def in_delay(until_s: float, now_s: float, barrier: Reason) -> Reason:
    """It has not waited for long enough to cause evictions, which might help."""
    return Reason(
        "in_delay",
        f"May displace others in {until_s - now_s:.0f} s.",
        {"until_s": until_s},
        barrier.offers,
        barrier.per_node_type,
        f"May displace others from {moment(until_s)} on.",
    )


def awaiting_release(item: Item, deadline_s: float) -> Reason:
    """A place is kept for it, and who is there has not left yet.

    Args:
        item: With places held.
        deadline_s: How long they are held at most, in seconds from the decision.
    """
    coming = sum(gpu_milli(placed.amounts) for placed in item.held)
    victims = [victim.id for victim in item.waits_for]
    who = f" by {', '.join(victims)}" if victims else ""
    what = f"{gpus(coming)} GPU" if coming else "room"
    return Reason(
        "awaiting_release",
        f"{what} kept for it is being freed{who}, within {deadline_s:.0f} s.",
        {"victims": victims, "gpu_milli": coming, "deadline_s": deadline_s},
    )


def protected(until_s: float, now_s: float, entries: tuple[Details, ...]) -> Reason:
    """Those who could give way are in their minimum runtime."""
    seconds = max(0.0, until_s - now_s)
    return Reason(
        "in_min_runtime",
        f"Those who could give way may run {seconds:.0f} s more.",
        {"until_s": until_s},
        per_node_type=entries,
        lasting=f"Those who could give way may run until {moment(until_s)}.",
    )


def behind_reservation(
    kept: Reservation, item: Item, now_s: float, entries: tuple[Details, ...]
) -> Reason:
    """Room is kept for a gang, and it would not end before."""
    seconds = kept.until_s - now_s
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
        ({"id": "shorter"}, *other_types(item)),
        entries,
        lasting=f"Room on {name} is kept for {kept.item.id} until {moment(kept.until_s)};"
        " only what ends before may start there.",
    )
