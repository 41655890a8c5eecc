"""Lending and waking in words: why a device is not lent, what ended a loan, what may be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from scheduling import formats
from scheduling.texts.idleness import NAMES
from scheduling.texts.words import Details, Sentence

NOT_LENT: dict[str, Sentence] = {
    "nobody_waits": lambda d: _("No training waits that could use it."),
    "within_window": lambda d: _("It has not been idle for long enough yet."),
    "just_woken": lambda d: _("It has only just got its GPU back."),
    "short_idleness": lambda d: _short(d),
    "part_too_small": lambda d: _(
        "Less of its GPU is idle than any waiting training asks for: others use it, too."
    ),
    "no_room_beside": lambda d: _("Its node has no CPU or memory left for a training."),
    "swap_reserve_full": lambda d: _("Its node has no memory left for what is swapped out."),
    "node_not_ready": lambda d: _("Its node takes nothing new."),
}
OBSTACLES: dict[str, Callable[[], str]] = {
    "lending_off": lambda: _("Its project does not lend idle GPUs."),
    "switched_off": lambda: _("Swap is switched off for its node type."),
    "no_mechanism": lambda: _("Its node cannot swap: driver or device lack what is needed."),
    "mig": lambda: _("Parts of a GPU cut by MIG cannot be swapped."),
    "several_gpus": lambda: _("A session on several GPUs cannot be swapped."),
    "several_devices": lambda: _("A session on several GPUs cannot be swapped."),
    "managed_memory": lambda: _("It uses managed GPU memory, which cannot be swapped."),
    "ipc_memory": lambda: _("It shares GPU memory between processes, which cannot be swapped."),
    "shared_memory": lambda: _("It exports GPU memory, which cannot be swapped."),
    "no_host_memory": lambda: _("Its node has no memory left for what would be swapped out."),
    "no_device": lambda: _("It has no GPU."),
    "failed": lambda: _("Its GPU memory could not be brought back; it must be restarted."),
}
"""Why a session cannot be swapped, told before anybody tries."""

ENDS: dict[str, Callable[[], str]] = {
    "cell": lambda: _("a cell"),
    "cuda_call": lambda: _("a CUDA call"),
    "button": lambda: _("the button"),
    "activity": lambda: _("a kernel or terminal that became busy"),
    "borrower_ended": lambda: _("the training's end"),
    "lender_ended": lambda: _("the session's end"),
    "other_lender": lambda: _("the return of another session that lent to the same training"),
    "lending_off": lambda: _("its project's ceasing to lend"),
    "room_taken": lambda: _("others' need, as of right, of what the training used beside it"),
    "over_limit": lambda: _("the limit of the training's project"),
    "placed_elsewhere": lambda: _("a place of its own for the training"),
    "orchestrator": lambda: _("the scheduler"),
    "failed": lambda: _("a failure"),
}

SHORT_S = 0.1
"""Shorter wakes are told with two digits."""


def _short(d: Details) -> str:
    left, needed = d.get("expected_left_s"), d.get("needed_s")
    if left is None:
        return _("Nothing is known yet of how long it will stay idle.")
    values = {"left": formats.duration(left), "needed": formats.duration(needed or 0)}
    return _("It will probably be used again in %(left)s; a loan pays from %(needed)s on.") % values


def obstacle(code: str) -> str:
    """Why it cannot be swapped; empty if it can."""
    if not code:
        return ""
    known = OBSTACLES.get(code)
    return known() if known else code.replace("_", " ")


def not_lent(reason: Mapping[str, object]) -> str:
    """Why an idle session's GPU is not lent; empty where there is nothing to say."""
    code = str(reason.get("code", ""))
    known = NOT_LENT.get(code)
    details = reason.get("details")
    if known:
        return known(details if isinstance(details, dict) else {})
    return obstacle(code)


def ended_by(code: str) -> str:
    """What ended a loan."""
    known = ENDS.get(code)
    return known() if known else code.replace("_", " ")


def lent(d: Details) -> str:
    n = len(d.get("lenders") or ())
    text = ngettext(
        "On loan: %(gpu)s GPU in all, until %(n)s idle session is used again",
        "On loan: %(gpu)s GPU in all, until one of %(n)s idle sessions is used again",
        n,
    )
    return text % {"n": n, "gpu": formats.gpus(int(d.get("gpu_milli") or 0))}


def swapped_out(d: Details) -> str:
    values = {"size": formats.size(int(d.get("bytes") or 0)), "other": d.get("other")}
    if not values["other"]:
        return _("Swapped out (%(size)s); its GPU is lent to another project.") % values
    return _("Swapped out (%(size)s); its GPU is lent to %(other)s.") % values


def parked(d: Details) -> str:
    values = {"size": formats.size(int(d.get("bytes") or 0)), "replica": d.get("replica")}
    if values["replica"] is None:
        text = _(
            "Left the GPU: its GPU memory (%(size)s) is on the host. Its program goes on until it "
            "needs the GPU."
        )
    else:
        text = _(
            "Replica %(replica)s left its GPU: its GPU memory (%(size)s) is on the host. Its "
            "program goes on until it needs the GPU."
        )
    return text % values


def unparked(d: Details) -> str:
    if d.get("replica") is None:
        return _("Back on a GPU, with what it had in GPU memory.")
    return _("Replica %(replica)s is back on a GPU, with what it had in GPU memory.") % {
        "replica": d["replica"]
    }


def swapped_in(d: Details) -> str:
    wake_s = d.get("wake_s")
    values = {"cause": ended_by(str(d.get("ended_by", "")))}
    if wake_s is None:
        return _("Back on its GPU after %(cause)s.") % values
    # A tenth is the finest that matters, except where nothing would be left of it.
    values["time"] = formats.decimal(float(wake_s), 1 if wake_s >= SHORT_S else 2)
    return _("Back on its GPU %(time)s s after %(cause)s.") % values


def refused(d: Details) -> str:
    values = {"other": d.get("other")}
    if not values["other"]:
        return _("A session of another project could not lend its GPU after all.")
    return _("%(other)s could not lend its GPU after all.") % values


def withdrawn(d: Details) -> str:
    names = [NAMES[name]() for name in d.get("signals") or () if name in NAMES]
    return _("It is not swapped out after all: it is in use (%(signals)s).") % {
        "signals": ", ".join(names) or "—"
    }


def lend_refused(d: Details) -> str:
    error = str(d.get("error", ""))
    if error == "not_idle":
        return _("It is not swapped out after all: it was used in that moment.")
    values = {"reason": obstacle(error) or error or "—"}
    return _("It is not swapped out after all. %(reason)s") % values


REASONS: dict[str, Sentence] = {
    "lent": lent,
    "lender_woke": lambda d: _("Gave the GPU back to the session that lent it"),
    "lender_gone": lambda d: _("The session that lent its GPU does not lend it any more"),
    "lending_off": lambda d: _("Gave the GPU back: its project lends no longer"),
    "room_taken": lambda d: _("Gave way: what it used beside the session was wanted as of right"),
    "placed_elsewhere": lambda d: _("Stopped to go on at a place of its own"),
}
EVENTS: dict[str, Sentence] = {
    "lent": lambda d: lent(d) + ".",
    "settled": lambda d: _("The GPU that was lent to it is its own now."),
    "swapped_out": swapped_out,
    "swapped_in": swapped_in,
    "parked": parked,
    "unparked": unparked,
    "loan_refused": refused,
    "loan_recalled": lambda d: _("Asked to save and to give back what it has on loan."),
    "lend_asked": lambda d: _("Its GPU may be lent at once."),
    "lend_withdrawn": withdrawn,
    "lend_refused": lend_refused,
    "wake_asked": lambda d: _("Asked to wake up."),
}
