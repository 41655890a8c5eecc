"""Why it waits, starts or stops; in the order of the codes in `docs/scheduler.md`."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from scheduling import formats
from scheduling.texts import idle_events, limit_events, swap
from scheduling.texts.words import (
    Details,
    Sentence,
    amount,
    gpu_text,
    last_error,
    level_word,
    type_word,
    unit_amount,
    until,
    where,
)


def _no_fit(d: Details) -> str:
    values = {
        "type": type_word(d.get("node_type")),
        "asked": formats.gpus(d["requested_gpu_milli"]),
        "free": formats.gpus(d["free_gpu_milli"]),
        "max": formats.gpus(d["largest_free_gpu_milli"]),
    }
    if d.get("constraint") == "labels":
        values["labels"] = ", ".join(f"{key}={value}" for key, value in d["labels"].items())
        return _("%(type)s: no node has the labels it requires: %(labels)s") % values
    if d.get("constraint") == "failed_here":
        return _("%(type)s: its start failed on every node that would do") % values
    if d.get("constraint") == "node_size":
        return _("%(type)s: no node is large enough, even with nothing on it") % values
    if not d["requested_gpu_milli"]:
        return _("%(type)s: no node has the cores and the memory free") % values
    if d["free_gpu_milli"] < d["requested_gpu_milli"]:
        return _("%(type)s: %(asked)s GPU asked, %(free)s free") % values
    if d["largest_free_gpu_milli"] < d["requested_gpu_milli"]:
        return _("%(type)s: %(free)s GPU free, at most %(max)s together") % values
    return _("%(type)s: %(free)s GPU free, but no node has the CPU and memory beside them") % values


def _over_quota(d: Details) -> str:
    return _("%(where)s: %(used)s of %(quota)s of quota in use, %(asked)s asked") % {
        "where": where(d),
        "used": unit_amount(d, "used"),
        "quota": unit_amount(d, "quota"),
        "asked": unit_amount(d, "requested"),
    }


def _over_limit(d: Details) -> str:
    return _("%(where)s is at its limit: %(used)s of %(limit)s held, %(asked)s asked") % {
        "where": where(d),
        "used": unit_amount(d, "used"),
        "limit": unit_amount(d, "limit"),
        "asked": unit_amount(d, "requested"),
    }


def _over_share(d: Details) -> str:
    values = {
        "type": type_word(d["resource"]),
        "share": amount(d, "fair_share"),
        "held": amount(d, "allocated"),
        "asked": amount(d, "requested"),
    }
    text = _(
        "%(type)s: the project's fair share is %(share)s; it holds %(held)s and asks for %(asked)s"
    )
    if "placeable" in d:
        values |= {"ready": str(d["placeable"]), "need": str(d["minimum"])}
        text += _("; %(ready)s of %(need)s replicas could be placed now")
    return text % values


def _awaiting_release(d: Details) -> str:
    time = formats.duration(d["deadline_s"])
    if d.get("gpu_milli"):
        values = {"gpu": gpu_text(d["gpu_milli"]), "time": time}
        return _("%(gpu)s kept for it is being freed, within %(time)s") % values
    return _("Room kept for it is being freed, within %(time)s") % {"time": time}


def _backing_off(d: Details) -> str:
    values = {"n": d["attempts"], "time": until(d)}
    if d.get("exit_code") is not None:
        text = ngettext(
            "Ended with exit code %(code)s, %(n)s time; again in %(time)s.",
            "Ended with exit code %(code)s, %(n)s times; again in %(time)s.",
            d["attempts"],
        )
        return text % {**values, "code": d["exit_code"]} + last_error(d)
    text = ngettext(
        "Start failed %(n)s time; again in %(time)s.",
        "Start failed %(n)s times; again in %(time)s.",
        d["attempts"],
    )
    return text % values + last_error(d)


def _exited(d: Details) -> str:
    values = {"code": d["exit_code"], "replica": d.get("replica")}
    text = _("Ended with exit code %(code)s.")
    if values["replica"] is not None:
        text = _("Replica %(replica)s ended with exit code %(code)s.")
    text %= values
    if d.get("until"):
        again = _("Failed %(n)s in a row; tried again in %(time)s.")
        text += " " + again % {"n": d["attempts"], "time": until(d)}
    return text


def out_of_memory(d: Details) -> str:
    values = {
        "limit": memory_or_dash(d.get("limit_mib")),
        "peak": memory_or_dash(d.get("peak_mib")),
    }
    return _("Killed at its memory limit: %(limit)s allowed, peak %(peak)s") % values


def memory_or_dash(value: int | None) -> str:
    return "—" if value is None else formats.memory(value)


def _started(d: Details) -> str:
    values = {"held": amount(d, "allocated"), "quota": amount(d, "quota")}
    if d.get("quota") is None:
        return _("After the cycle that started it the project held %(held)s") % values
    return (
        _("Inside quota: after the cycle that started it the project held %(held)s of %(quota)s")
        % values
    )


def _started_borrowing(d: Details) -> str:
    values = {"held": amount(d, "allocated"), "quota": amount(d, "quota")}
    return (
        _(
            "Borrows: after the cycle that started it the project held %(held)s at a "
            "quota of %(quota)s; the rest goes back on demand"
        )
        % values
    )


def reclaimed(d: Details) -> str:
    values = {
        "project": level_word(d["claimant_project"], d),
        "side": level_word(d["claimant_side"], d),
        "victim": level_word(d["victim_side"], d),
        "held": amount(d, "victim_allocated"),
        "borrowed": amount(d, "victim_borrowed"),
        "quota": amount(d, "claimant_quota"),
        "theirs": amount(d, "claimant_allocated"),
        "asked": amount(d, "claimant_requested"),
    }
    return (
        _(
            "Project %(project)s gained: %(side)s held %(theirs)s of %(quota)s of quota "
            "and asked for %(asked)s, "
            "while %(victim)s held %(held)s, %(borrowed)s of that borrowed"
        )
        % values
    ) + _checkpoint_age(d)


def preempted(d: Details) -> str:
    values = {
        "project": level_word(d["claimant_project"], d),
        "own": d["victim_priority"],
        "other": d["claimant_priority"],
    }
    return (
        _("Gave way inside project %(project)s to work of priority %(other)s; its own is %(own)s")
        % values
    ) + _checkpoint_age(d)


def _checkpoint_age(d: Details) -> str:
    age, step = d.get("checkpoint_age_s"), d.get("checkpoint_step")
    if age is None:
        return ""
    if step is None:
        return _("; last checkpoint %(age)s before") % {"age": formats.duration(age)}
    values = {"age": formats.duration(age), "step": formats.decimal(step, 0)}
    return _("; last checkpoint %(age)s before, at step %(step)s") % values


def _promised(d: Details) -> str:
    values = {
        "type": type_word(d["resource"]),
        "sum": amount(d, "promised"),
        "have": amount(d, "capacity"),
    }
    return _("%(type)s: %(sum)s promised, %(have)s alive") % values


def _offline(d: Details) -> str:
    names = ", ".join(type_word(name) for name in d["node_types"])
    return _("%(type)s: no node online") % {"type": names or _("The cluster")}


def _failing_starts(d: Details) -> str:
    return _(
        "Closed by the planner: %(n)s different workloads failed to start here within %(time)s, "
        "and none started in between. What runs here goes on."
    ) % {"n": d["failures"], "time": formats.duration(d["window_s"])}


REASONS: dict[str, Sentence] = {
    "not_evaluated": lambda d: _("Not examined yet"),
    "no_fit": _no_fit,
    "awaiting_release": _awaiting_release,
    "behind_priority": lambda d: _("%(n)s ahead by priority") % {"n": d["ahead"]},
    "behind_reservation": lambda d: (
        _("%(type)s is kept for %(name)s for %(time)s more")
        % {"type": type_word(d["node_type"]), "name": d["name"], "time": until(d)}
    ),
    "over_share": _over_share,
    "in_delay": lambda d: _("May displace others in %(time)s") % {"time": until(d)},
    "in_min_runtime": lambda d: _("Others may run %(time)s more") % {"time": until(d)},
    "gang_incomplete": lambda d: (
        _("%(ready)s of %(need)s replicas fit") % {"ready": d["placeable"], "need": d["minimum"]}
    ),
    "waiting_volume": lambda d: _("Volume %(name)s is not ready") % {"name": d["name"]},
    "pulling_image": lambda d: _("Downloading %(image)s") % {"image": d["image"]},
    "backing_off": _backing_off,
    "swap_reserve_full": lambda d: _("No memory for Swap on %(node)s") % {"node": d["node"]},
    "search_cut_short": lambda d: _("Search unfinished, goes on next cycle"),
    "start_after": lambda d: _("Starts in %(time)s at the earliest") % {"time": until(d)},
    "dependency": lambda d: _("Waits for %(name)s") % {"name": d["name"]},
    "interactive_over_quota": _over_quota,
    "over_limit": _over_limit,
    "node_type_not_allowed": lambda d: (
        _("%(type)s is closed to this kind of work here") % {"type": type_word(d["node_type"])}
    ),
    "held_by_user": lambda d: _("Held by you"),
    "node_type_offline": _offline,
    "quota_exceeds_capacity": _promised,
    "unknown_project": lambda d: _("No project %(project)s") % {"project": d["project"]},
    "started_in_quota": _started,
    "started_borrowing": _started_borrowing,
    "reclaimed": reclaimed,
    "preempted": preempted,
    "moved": lambda d: (
        _("Moves from %(old)s to %(new)s so that free capacity becomes usable")
        % {"old": ", ".join(d["from"]), "new": ", ".join(d["to"])}
    ),
    "stale_gang": lambda d: (
        _("Only %(running)s of %(minimum)s replicas were left for longer than its grace")
        % {"running": d["running"], "minimum": d["minimum"]}
    ),
    "failing_starts": _failing_starts,
    "set_aside": lambda d: _("It cannot be planned: %(problem)s") % {"problem": d["problem"]},
    "node_lost": lambda d: _("Node %(node)s no longer reports") % {"node": d["node"]},
    "exited": _exited,
    "start_failed": lambda d: _("Could not be started.") + last_error(d),
    "out_of_memory": out_of_memory,
    "idle_stopped": idle_events.stopped,
    "time_limit": limit_events.stopped,
    **swap.REASONS,
}


CORDONS: dict[str, Sentence] = {
    "failing_starts": _failing_starts,
    "by_admin": lambda d: (
        _("Closed by %(actor)s: nothing new starts here, what runs goes on.")
        % {"actor": d["actor"]}
    ),
}


@dataclass(frozen=True, slots=True)
class TypeEntry:
    """Why one node type does not take it."""

    node_type: str
    sentence: str
    free: str


def type_entry(entry: Details) -> TypeEntry:
    code = str(entry.get("code", "no_fit"))
    short = {
        "over_limit": _("the project's limit would be passed"),
        "interactive_over_quota": _("the project's quota would be passed"),
        "node_type_offline": _("no node online"),
    }
    return TypeEntry(
        node_type=type_word(entry.get("node_type")),
        sentence=short.get(code) or _constraint(entry),
        free=formats.gpus(int(entry.get("free_gpu_milli") or 0)),
    )


def _constraint(entry: Details) -> str:
    return {
        "node_size": _("no node is large enough"),
        "labels": _("no node has the labels it requires"),
        "failed_here": _("its start failed on every node"),
        "cpu_or_memory": _("no node has the CPU and memory beside the free GPU"),
    }.get(str(entry.get("constraint", "")), _("too little is free together"))
