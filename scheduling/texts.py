"""Reasons and events as sentences in the reader's language.

The core says *why* with a code and numbers (`core.reasons`), services say *what happened* with a
code and numbers (`models.Event`). Here both become sentences; the tables are in order of the codes
in `docs/scheduler.md`. A code or a number that is not known here falls back to the core's English
sentence, so that nobody is ever left without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from scheduling import formats
from scheduling.models import Event, Phase, Wait, Workload

Details = Mapping[str, Any]
Sentence = Callable[[Details], str]


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that the person could do; without an address it is advice."""

    label: str
    url: str


@dataclass(frozen=True, slots=True)
class TypeEntry:
    """Why one node type does not take it."""

    node_type: str
    sentence: str
    free: str


def reason_sentence(reason: Mapping[str, Any]) -> str:
    """Why it waits, starts or stops: one sentence with its numbers."""
    return _sentence(_REASONS, str(reason.get("code", "")), reason.get("details") or {}) or str(
        reason.get("message", "")
    )


def why(workload: Workload) -> str:
    """Why a workload is in its state; its recorded reason, except where a lost node says more."""
    if workload.phase == Phase.LOST:
        node = workload.node.name if workload.node else "—"
        if workload.is_session:
            return _("Node %(node)s no longer reports; the session is left alone") % {"node": node}
        return _(
            "Node %(node)s no longer reports; it is started elsewhere once its lease is over"
        ) % {"node": node}
    return reason_sentence(workload.reason) if workload.reason else ""


def event_sentence(event: Event) -> str:
    """What happened to a workload: one sentence with its numbers."""
    details = {
        **event.details,
        "actor": str(event.actor) if event.actor else "",
        "is_session": event.workload.is_session,
    }
    return _sentence(_EVENTS, event.code, details) or event.code.replace("_", " ")


def wait_cause(wait: Wait) -> str:
    """Why a wait began, with who gained where it was displaced."""
    text = _sentence(_WAITS, wait.cause, wait.details) or wait.cause.replace("_", " ")
    numbers = _sentence(_DISPLACED, wait.cause, wait.details)
    return f"{text}. {numbers}" if numbers else text


def per_node_type(reason: Mapping[str, Any]) -> list[TypeEntry]:
    """One line per node type that was tried."""
    return [_type_entry(entry) for entry in reason.get("per_node_type") or ()]


def offers(reason: Mapping[str, Any], workload: Workload | None) -> list[Offer]:
    """What the person could do about it, as links."""
    found = (_offer(item, workload) for item in reason.get("offers") or ())
    return [offer for offer in found if offer is not None]


def _sentence(table: Mapping[str, Sentence], code: str, details: Details) -> str:
    """The sentence of a code; empty where code or numbers are not what the table expects."""
    make = table.get(code)
    if make is None:
        return ""
    try:
        return make(details)
    except (KeyError, TypeError, ValueError):
        return ""


# ---------------------------------------------------------------- amounts inside sentences


def _amount(details: Details, name: str) -> str:
    """An amount of the resource that the details are about, with its unit."""
    return amount_of(str(details.get("resource", "")), details[name])


def amount_of(resource: str, amount: int | None) -> str:
    """An amount of a resource of the planner (`cpu`, `memory`, `gpu:…`) with its unit."""
    if amount is None:
        return _("no bound")
    if resource == "cpu":
        return formats.cores_text(amount)
    if resource == "memory":
        return formats.memory(amount)
    return _gpu(amount)


def _gpu(milli: int) -> str:
    return _("%(count)s GPU") % {"count": formats.gpus(milli)}


def type_word(name: object) -> str:
    """A node type inside a sentence: names are slugs of models, which people write in capitals."""
    return str(name).removeprefix("gpu:").upper() if name else _("The cluster")


def _where(details: Details) -> str:
    """`vision, T4` for what is counted per node type, `vision` for the rest."""
    resource = str(details.get("resource", ""))
    level = level_word(details["level"])
    return f"{level}, {type_word(resource)}" if resource.startswith("gpu:") else level


def level_word(name: object) -> str:
    """A project, or the department above it."""
    kind, _colon, rest = str(name).partition(":")
    return _("department %(name)s") % {"name": rest} if kind == "department" and rest else str(name)


def _unit_amount(details: Details, prefix: str) -> str:
    """`used_gpu_milli`, `used_cpu_milli` or `used_memory_mib`, whichever is there."""
    for suffix, resource in (("gpu_milli", "gpu"), ("cpu_milli", "cpu"), ("memory_mib", "memory")):
        if f"{prefix}_{suffix}" in details:
            return amount_of(resource, details[f"{prefix}_{suffix}"])
    raise KeyError(prefix)


def _until(details: Details) -> str:
    """The time left until a moment given in Unix seconds or as text."""
    moment = _moment(details.get("until_s") or details.get("until"))
    return formats.duration(max((moment - timezone.now()).total_seconds(), 0))


def _moment(value: object) -> datetime:
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    moment = parse_datetime(str(value))
    if moment is None:
        raise ValueError(value)
    return moment


def _last_error(details: Details) -> str:
    text = str(details.get("last_error") or details.get("error") or "").strip()
    return f" {text}" if text else ""


# ---------------------------------------------------------------- why it waits


def _no_fit(d: Details) -> str:
    values = {
        "type": type_word(d.get("node_type")),
        "asked": formats.gpus(d["requested_gpu_milli"]),
        "free": formats.gpus(d["free_gpu_milli"]),
        "max": formats.gpus(d["largest_free_gpu_milli"]),
    }
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
        "where": _where(d),
        "used": _unit_amount(d, "used"),
        "quota": _unit_amount(d, "quota"),
        "asked": _unit_amount(d, "requested"),
    }


def _over_limit(d: Details) -> str:
    return _("%(where)s is at its limit: %(used)s of %(limit)s held, %(asked)s asked") % {
        "where": _where(d),
        "used": _unit_amount(d, "used"),
        "limit": _unit_amount(d, "limit"),
        "asked": _unit_amount(d, "requested"),
    }


def _over_share(d: Details) -> str:
    values = {
        "type": type_word(d["resource"]),
        "share": _amount(d, "fair_share"),
        "held": _amount(d, "allocated"),
        "asked": _amount(d, "requested"),
    }
    return (
        _(
            "%(type)s: the project's fair share is %(share)s; "
            "it holds %(held)s and asks for %(asked)s"
        )
        % values
    )


def _awaiting_release(d: Details) -> str:
    time = formats.duration(d["deadline_s"])
    if d.get("gpu_milli"):
        values = {"gpu": _gpu(d["gpu_milli"]), "time": time}
        return _("%(gpu)s kept for it is being freed, within %(time)s") % values
    return _("Room kept for it is being freed, within %(time)s") % {"time": time}


def _backing_off(d: Details) -> str:
    text = ngettext(
        "Start failed %(n)s time; again in %(time)s.",
        "Start failed %(n)s times; again in %(time)s.",
        d["attempts"],
    )
    return text % {"n": d["attempts"], "time": _until(d)} + _last_error(d)


def _exited(d: Details) -> str:
    text = _("Ended with exit code %(code)s.") % {"code": d["exit_code"]}
    if d.get("until"):
        again = _("Failed %(n)s in a row; tried again in %(time)s.")
        text += " " + again % {"n": d["attempts"], "time": _until(d)}
    return text


def _out_of_memory(d: Details) -> str:
    values = {"limit": _mib(d.get("limit_mib")), "peak": _mib(d.get("peak_mib"))}
    return _("Killed at its memory limit: %(limit)s allowed, peak %(peak)s") % values


def _mib(value: int | None) -> str:
    return "—" if value is None else formats.memory(value)


def _started(d: Details) -> str:
    values = {"held": _amount(d, "allocated"), "quota": _amount(d, "quota")}
    if d.get("quota") is None:
        return _("With it the project holds %(held)s") % values
    return _("Inside quota: with it the project holds %(held)s of %(quota)s") % values


def _started_borrowing(d: Details) -> str:
    values = {"held": _amount(d, "allocated"), "quota": _amount(d, "quota")}
    return (
        _(
            "Borrows: with it the project holds %(held)s at a quota of %(quota)s; "
            "the rest goes back on demand"
        )
        % values
    )


def _reclaimed(d: Details) -> str:
    values = {
        "project": d["claimant_project"],
        "side": level_word(d["claimant_side"]),
        "victim": level_word(d["victim_side"]),
        "held": _amount(d, "victim_allocated"),
        "borrowed": _amount(d, "victim_borrowed"),
        "quota": _amount(d, "claimant_quota"),
        "theirs": _amount(d, "claimant_allocated"),
        "asked": _amount(d, "claimant_requested"),
    }
    return (
        _(
            "Project %(project)s gained: %(side)s held %(theirs)s of %(quota)s of quota "
            "and asked for %(asked)s, "
            "while %(victim)s held %(held)s, %(borrowed)s of that borrowed"
        )
        % values
    ) + _checkpoint_age(d)


def _preempted(d: Details) -> str:
    values = {
        "project": d["claimant_project"],
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
        "sum": _amount(d, "promised"),
        "have": _amount(d, "capacity"),
    }
    return _("%(type)s: %(sum)s promised, %(have)s alive") % values


def _offline(d: Details) -> str:
    names = ", ".join(type_word(name) for name in d["node_types"])
    return _("%(type)s: no node online") % {"type": names or _("The cluster")}


_REASONS: dict[str, Sentence] = {
    "not_evaluated": lambda d: _("Not examined yet"),
    "no_fit": _no_fit,
    "awaiting_release": _awaiting_release,
    "behind_priority": lambda d: _("%(n)s ahead by priority") % {"n": d["ahead"]},
    "behind_reservation": lambda d: (
        _("%(type)s is kept for %(name)s for %(time)s more")
        % {"type": type_word(d["node_type"]), "name": d["name"], "time": _until(d)}
    ),
    "over_share": _over_share,
    "in_delay": lambda d: _("May displace others in %(time)s") % {"time": _until(d)},
    "in_min_runtime": lambda d: _("Others may run %(time)s more") % {"time": _until(d)},
    "gang_incomplete": lambda d: (
        _("%(ready)s of %(need)s replicas fit") % {"ready": d["placeable"], "need": d["minimum"]}
    ),
    "waiting_volume": lambda d: _("Volume %(name)s is not ready") % {"name": d["name"]},
    "pulling_image": lambda d: _("Downloading %(image)s") % {"image": d["image"]},
    "backing_off": _backing_off,
    "swap_reserve_full": lambda d: _("No memory for Swap on %(node)s") % {"node": d["node"]},
    "search_cut_short": lambda d: _("Search unfinished, goes on next cycle"),
    "start_after": lambda d: _("Starts in %(time)s at the earliest") % {"time": _until(d)},
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
    "reclaimed": _reclaimed,
    "preempted": _preempted,
    "moved": lambda d: (
        _("Moves from %(old)s to %(new)s so that free capacity becomes usable")
        % {"old": ", ".join(d["from"]), "new": ", ".join(d["to"])}
    ),
    "node_lost": lambda d: _("Node %(node)s no longer reports") % {"node": d["node"]},
    "exited": _exited,
    "start_failed": lambda d: _("Could not be started.") + _last_error(d),
    "out_of_memory": _out_of_memory,
}


def _type_entry(entry: Details) -> TypeEntry:
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
        "cpu_or_memory": _("no node has the CPU and memory beside the free GPU"),
    }.get(str(entry.get("constraint", "")), _("too little is free together"))


# ---------------------------------------------------------------- what the person could do


def _form_address(workload: Workload | None, **changes: object) -> str:
    """The form filled in like this workload, with some fields changed."""
    if workload is None:
        return ""
    view = "scheduling:new-session" if workload.is_session else "scheduling:new-training"
    return f"{reverse(view)}?{urlencode({'clone': workload.pk, **changes})}"


def _offer(item: Mapping[str, Any], workload: Workload | None) -> Offer | None:
    make = _OFFERS.get(str(item.get("id", "")))
    return make(item, workload) if make else None


def _smaller(item: Mapping[str, Any], workload: Workload | None) -> Offer:
    milli = int(item["gpu_milli"])
    return Offer(
        _("Ask for %(gpu)s") % {"gpu": _gpu(milli)},
        _form_address(workload, gpu_milli=milli),
    )


def _other_type(item: Mapping[str, Any], workload: Workload | None) -> Offer:
    name = str(item["node_type"])
    return Offer(
        _("Take %(type)s") % {"type": type_word(name)}, _form_address(workload, node_type=name)
    )


def _stop_own(_item: Mapping[str, Any], workload: Workload | None) -> Offer:
    query = {"state": "active", "owner": "me"} | (
        {"project": workload.project.name} if workload else {}
    )
    return Offer(
        _("Stop something of yours"), f"{reverse('scheduling:workloads')}?{urlencode(query)}"
    )


def _request_quota(_item: Mapping[str, Any], workload: Workload | None) -> Offer:
    if workload is None:
        return Offer(_("Ask for more quota"), reverse("scheduling:projects"))
    return Offer(
        _("Ask for more quota"), reverse("scheduling:project", args=[workload.project.name])
    )


_OFFERS: dict[str, Callable[[Mapping[str, Any], Workload | None], Offer]] = {
    "smaller": _smaller,
    "choose_node_type": _other_type,
    "stop_own": _stop_own,
    "request_quota": _request_quota,
    "make_preemptible": lambda item, workload: Offer(
        _("Make it preemptible"), _form_address(workload, is_preemptible="on")
    ),
    "fewer_replicas": lambda item, workload: Offer(
        _("Ask for fewer replicas"), _form_address(workload)
    ),
    "notify_admin": lambda item, workload: Offer(_("Tell an administrator"), ""),
    "retry": lambda item, workload: Offer(
        _("Read its log"),
        reverse("scheduling:workload", args=[workload.pk]) + "#log" if workload else "",
    ),
}


# ---------------------------------------------------------------- what happened


def _by(text: str, by: str) -> Sentence:
    """One sentence where a person is known, another where nobody is."""
    return lambda d: by % {"who": d["actor"]} if d.get("actor") else text


def _started_event(d: Details) -> str:
    sentence = _sentence(_REASONS, str(d.get("code", "")), d)
    return _("Placed on %(node)s.") % {"node": d["node"]} + (f" {sentence}." if sentence else "")


def _resumed_event(d: Details) -> str:
    if d.get("step") is None:
        return _started_event(d)
    text = _("Placed on %(node)s, goes on from step %(step)s.")
    sentence = _sentence(_REASONS, str(d.get("code", "")), d)
    values = {"node": d["node"], "step": formats.decimal(d["step"], 0)}
    return text % values + (f" {sentence}." if sentence else "")


def _ended(d: Details) -> str:
    cause = str(d.get("cause", ""))
    if cause == "out_of_memory":
        return (
            _out_of_memory(
                {"limit_mib": d.get("memory_limit_mib"), "peak_mib": d.get("peak_memory_mib")}
            )
            + "."
        )
    if cause == "refused":
        return _("Could not be started.") + _last_error(d)
    if cause in _END_CAUSES:
        return _END_CAUSES[cause]() + _lost_progress(d)
    return _("Ended with exit code %(code)s.") % {"code": d["exit_code"]}


_END_CAUSES: dict[str, Callable[[], str]] = {
    "stopped": lambda: _("Stopped."),
    "evicted": lambda: _("Gave way; back in the queue at its old place."),
    "node_shutdown": lambda: _("Its node was shut down; it goes back to the queue."),
    "lease_expired": lambda: _("Its agent was away for too long; it goes back to the queue."),
    "vanished": lambda: _("Its processes are gone without a trace; it goes back to the queue."),
}


def _lost_progress(d: Details) -> str:
    lost = d.get("lost_progress_s")
    if lost is None or d["is_session"]:
        return ""
    return " " + _("Progress since the last checkpoint: %(time)s.") % {
        "time": formats.duration(lost)
    }


def _checkpointed(d: Details) -> str:
    size = formats.size(d["size_bytes"])
    if d.get("step") is None:
        return _("Saved a checkpoint, %(size)s.") % {"size": size}
    values = {"step": formats.decimal(d["step"], 0), "size": size}
    return _("Saved a checkpoint at step %(step)s, %(size)s.") % values


_EVENTS: dict[str, Sentence] = {
    "submitted": lambda d: _by(_("Submitted."), _("Submitted by %(who)s."))(d),
    "started": _started_event,
    "resumed": _resumed_event,
    "ready": lambda d: _("Running."),
    "checkpoint_asked": lambda d: _by(_("Asked to save."), _("%(who)s asked it to save."))(d),
    "checkpointed": _checkpointed,
    "stop_asked": lambda d: _by(_("Asked to stop."), _("%(who)s asked it to stop."))(d),
    "stopped": lambda d: _by(_("Taken out of the queue."), _("%(who)s took it out of the queue."))(
        d
    ),
    "retried": lambda d: _by(
        _("Put back into the queue."), _("%(who)s put it back into the queue.")
    )(d),
    "reclaimed": lambda d: _("Asked to save and give way.") + f" {_reclaimed(d)}.",
    "preempted": lambda d: _("Asked to save and give way.") + f" {_preempted(d)}.",
    "moved": lambda d: _REASONS["moved"](d) + ".",
    "stale_gang": lambda d: _("Stopped, since too few of its replicas were left."),
    "ended": _ended,
    "node_lost": lambda d: _("Node %(node)s no longer reports.") % {"node": d["node"]},
    "node_back": lambda d: _("Its node reports again."),
    "given_up": lambda d: _("Its node has been away for too long; it goes back to the queue."),
}

_WAITS: dict[str, Sentence] = {
    "submitted": lambda d: _("Submitted"),
    "reclaimed": lambda d: _("Gave borrowed GPUs back"),
    "preempted": lambda d: _("Gave way to higher priority"),
    "moved": lambda d: _("Moved to another node"),
    "stale_gang": lambda d: _("Lost too many replicas"),
    "failed": lambda d: _("Failed, to be tried again"),
    "node_shutdown": lambda d: _("Its node was shut down"),
    "node_lost": lambda d: _("Its node was lost"),
    "lease_expired": lambda d: _("Its agent was away for too long"),
    "vanished": lambda d: _("Its processes vanished"),
    "retried": lambda d: _("Started again"),
}

_DISPLACED: dict[str, Sentence] = {
    "reclaimed": lambda d: _reclaimed(d) + ".",
    "preempted": lambda d: _preempted(d) + ".",
}


def known_codes() -> dict[str, Iterable[str]]:
    """Every code that has a sentence, by table: for tests."""
    return {"reasons": _REASONS, "events": _EVENTS, "waits": _WAITS}
