"""What happened to a workload, and why its waits began."""

from __future__ import annotations

from collections.abc import Callable

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from scheduling import formats
from scheduling.texts import idle_events, limit_events, swap
from scheduling.texts.reasons import REASONS, memory_or_dash, out_of_memory, preempted, reclaimed
from scheduling.texts.words import Details, Sentence, last_error, sentence_of


def _by(text: str, by: str) -> Sentence:
    """One sentence where a person is known, another where nobody is."""
    return lambda d: by % {"who": d["actor"]} if d.get("actor") else text


def _grown(d: Details) -> str:
    n = d["num_replicas"]
    text = ngettext("Grown: %(n)s replica now.", "Grown: %(n)s replicas now.", n)
    return text % {"n": n}


def _shrunk(d: Details) -> str:
    n = d["num_replicas"]
    text = ngettext(
        "Gives replicas up and goes on with %(n)s.",
        "Gives replicas up and goes on with %(n)s.",
        n,
    )
    gained = {"reclaimed": reclaimed, "preempted": preempted}.get(str(d.get("cause", "")))
    return text % {"n": n} + (f" {gained(d)}." if gained else "")


def _replica_ended(d: Details) -> str:
    n = d["num_replicas"]
    others = ngettext("%(n)s other goes on.", "%(n)s others go on.", n) % {"n": n}
    return f"{_end_of_replica(d)} {others}"


def _end_of_replica(d: Details) -> str:
    values = {
        "replica": d["replica"],
        "code": d.get("exit_code"),
        "limit": memory_or_dash(d.get("memory_limit_mib")),
    }
    cause = str(d.get("cause", ""))
    text = _REPLICA_ENDS.get(cause, lambda: _("Replica %(replica)s ended with exit code %(code)s."))
    return text() % values + (last_error(d) if cause == "refused" else "")


_REPLICA_ENDS: dict[str, Callable[[], str]] = {
    "out_of_memory": lambda: _("Replica %(replica)s was killed at its memory limit of %(limit)s."),
    "refused": lambda: _("Replica %(replica)s could not be started."),
    "stopped": lambda: _("Replica %(replica)s stopped."),
    "evicted": lambda: _("Replica %(replica)s saved and stopped."),
    "node_shutdown": lambda: _("Replica %(replica)s: its node was shut down."),
    "lease_expired": lambda: _("Replica %(replica)s: its agent was away for too long."),
    "vanished": lambda: _("Replica %(replica)s: its processes are gone without a trace."),
    "node_lost": lambda: _("Replica %(replica)s: its node was lost."),
}


def _placed(d: Details) -> str:
    n = len(d.get("replicas") or ())
    if int(d.get("max_replicas") or 1) == 1:
        return _("Placed on %(node)s.") % {"node": d["node"]}
    text = ngettext(
        "%(n)s replica placed, the leader on %(node)s.",
        "%(n)s replicas placed, the leader on %(node)s.",
        n,
    )
    return text % {"n": n, "node": d["node"]}


def _started_event(d: Details) -> str:
    sentence = sentence_of(REASONS, str(d.get("code", "")), d)
    return _placed(d) + (f" {sentence}." if sentence else "")


def _resumed_event(d: Details) -> str:
    if d.get("step") is None:
        return _started_event(d)
    text = _("Placed on %(node)s, goes on from step %(step)s.")
    sentence = sentence_of(REASONS, str(d.get("code", "")), d)
    values = {"node": d["node"], "step": formats.decimal(d["step"], 0)}
    return text % values + (f" {sentence}." if sentence else "")


def _ended(d: Details) -> str:
    cause = str(d.get("cause", ""))
    if cause == "out_of_memory":
        return (
            out_of_memory(
                {"limit_mib": d.get("memory_limit_mib"), "peak_mib": d.get("peak_memory_mib")}
            )
            + "."
        )
    if cause == "refused":
        return _("Could not be started.") + last_error(d)
    if cause in _END_CAUSES:
        return _END_CAUSES[cause]() + _lost_progress(d)
    return _("Ended with exit code %(code)s.") % {"code": d["exit_code"]}


_END_CAUSES: dict[str, Callable[[], str]] = {
    "stopped": lambda: _("Stopped."),
    "evicted": lambda: _("Gave way; back in the queue at its old place."),
    "node_shutdown": lambda: _("Its node was shut down; it goes back to the queue."),
    "lease_expired": lambda: _("Its agent was away for too long; it goes back to the queue."),
    "vanished": lambda: _("Its processes are gone without a trace; it goes back to the queue."),
    "node_lost": lambda: _("Its node has been away for too long; it goes back to the queue."),
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


def around_share(d: Details) -> str:
    """What a workload takes of a device past the library that holds it to its share."""
    sizes = {name: formats.memory(int(d[f"{name}_mib"])) for name in ("used", "share", "uncounted")}
    if d["uncounted_mib"]:
        return (
            _(
                "A program opened the GPU’s driver past the library that holds it to its share: "
                "nothing counts the %(uncounted)s that it takes. All its programs take %(used)s, "
                "the share is %(share)s."
            )
            % sizes
        )
    return (
        _(
            "Its programs take %(used)s of a GPU, and the share is %(share)s: one of them uses the "
            "driver past the library that holds it to its share."
        )
        % sizes
    )


EVENTS: dict[str, Sentence] = {
    "submitted": lambda d: _by(_("Submitted."), _("Submitted by %(who)s."))(d),
    "started": _started_event,
    "resumed": _resumed_event,
    "ready": lambda d: _("Running."),
    "grown": _grown,
    "shrunk": _shrunk,
    "replica_ended": _replica_ended,
    "replica_restarts": lambda d: _end_of_replica(d) + " " + _("It starts again after a pause."),
    "replica_failed": lambda d: _end_of_replica(d) + " " + _("The others save and stop, too."),
    "whole_again": lambda d: _("Enough of its replicas run again."),
    "checkpoint_asked": lambda d: _by(_("Asked to save."), _("%(who)s asked it to save."))(d),
    "checkpointed": _checkpointed,
    "stop_asked": lambda d: _by(_("Asked to stop."), _("%(who)s asked it to stop."))(d),
    "stopped": lambda d: _by(_("Taken out of the queue."), _("%(who)s took it out of the queue."))(
        d
    ),
    "retried": lambda d: _by(
        _("Put back into the queue."), _("%(who)s put it back into the queue.")
    )(d),
    "reclaimed": lambda d: _("Asked to save and give way.") + f" {reclaimed(d)}.",
    "preempted": lambda d: _("Asked to save and give way.") + f" {preempted(d)}.",
    "moved": lambda d: REASONS["moved"](d) + ".",
    "stale_gang": lambda d: _("Stopped, since too few of its replicas were left."),
    "ended": _ended,
    "node_lost": lambda d: _("Node %(node)s no longer reports.") % {"node": d["node"]},
    "node_back": lambda d: _("Its node reports again."),
    "around_share": around_share,
    "given_up": lambda d: _("Its node has been away for too long; it goes back to the queue."),
    **swap.EVENTS,
    **idle_events.EVENTS,
    **limit_events.EVENTS,
}

WAITS: dict[str, Sentence] = {
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
    "lender_woke": lambda d: _("Gave a GPU on loan back"),
    "lender_gone": lambda d: _("Gave a GPU on loan back"),
    "lending_off": lambda d: _("Gave a GPU on loan back"),
    "room_taken": lambda d: _("Gave a GPU on loan back"),
    "over_limit": lambda d: _("Gave a GPU on loan back"),
}

DISPLACED: dict[str, Sentence] = {
    "reclaimed": lambda d: reclaimed(d) + ".",
    "preempted": lambda d: preempted(d) + ".",
}
