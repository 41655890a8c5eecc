"""Why something is lent, why a loan ends, and why an idle device is not lent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduling.core.decisions import Reason
from scheduling.core.demand import Item
from scheduling.core.reasons.words import gpus


def lent(lenders: Sequence[str], left_s: float, gpu_milli: int) -> Reason:
    """Why a training starts on devices of idle sessions."""
    who = "an idle session" if len(lenders) == 1 else f"{len(lenders)} idle sessions"
    return Reason(
        "lent",
        f"Runs on {gpus(gpu_milli)} GPU of {who}, until one is used again;"
        f" they are expected to stay idle for {left_s:.0f} s.",
        {"lenders": list(lenders), "expected_left_s": round(left_s, 1), "gpu_milli": gpu_milli},
    )


def _woke(numbers: Mapping[str, object]) -> str:
    who = numbers.get("lender", "the session that lent it")
    return f"Gives the device back to {who}, which is used again."


def lender_woke(lender: str, numbers: Mapping[str, object]) -> Reason:
    """Why a training loses what it was to have on loan: its lender refused."""
    details = {**numbers, "lender": lender}
    return Reason("lender_woke", _woke(details), details)


def recalled(item: Item, code: str, numbers: Mapping[str, object]) -> Reason:
    """Why a training loses what it has on loan."""
    messages = {
        "lender_woke": _woke(numbers),
        "lending_off": f"Gives the device back to {numbers.get('lender')}, which lends no longer.",
        "lender_gone": "Stops: the session that lent is gone, and the place is not to be had.",
        "room_taken": "Gives way: what it used beside its lenders is wanted as of right.",
        "placed_elsewhere": "Stops to go on at a place of its own.",
        "over_limit": (f"Gives way: {numbers.get('level')} would pass its limit, loans included."),
    }
    return Reason(code, messages[code], dict(numbers))


_NOT_LENT = {
    "nobody_waits": "No training waits that could use it.",
    "within_window": "It has not been idle for long enough.",
    "just_woken": "It has only just come back to its session.",
    "short_idleness": "It will probably be used again before a loan would pay.",
    "part_too_small": "What is idle of the device is less than any waiting training asks for.",
    "no_room_beside": "The node has no CPU or memory left for a borrower.",
    "swap_reserve_full": "The node has no host memory left for swapping.",
    "node_not_ready": "Its node takes nothing new.",
    "several_devices": "A session on several devices cannot be swapped.",
    "lending_off": "Its project does not lend.",
}


def not_lent(code: str, numbers: Mapping[str, object]) -> Reason:
    """Why an idle session's device is not lent; codes of nodes and agents pass through."""
    message = _NOT_LENT.get(code, f"It cannot be swapped: {code.replace('_', ' ')}.")
    if code == "short_idleness" and numbers["expected_left_s"] is not None:
        message = (
            f"It is expected to stay idle for {numbers['expected_left_s']} s;"
            f" a loan pays from {numbers['needed_s']} s on."
        )
    return Reason(code, message, dict(numbers))
