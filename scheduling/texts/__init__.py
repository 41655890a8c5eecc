"""Reasons and events as sentences in the reader's language.

The core says *why* with a code and numbers (`core.reasons`), services say *what happened* with a
code and numbers (`models.Event`). Here both become sentences; the tables are in order of the codes
in `docs/scheduler.md`. A code or a number that is not known here falls back to the core's English
sentence, so that nobody is ever left without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.translation import gettext as _

from scheduling.models import Attempt, Event, Node, Phase, Wait, Workload
from scheduling.texts.events import DISPLACED, EVENTS, WAITS
from scheduling.texts.reasons import CORDONS, REASONS, TypeEntry, type_entry
from scheduling.texts.remedies import Offer, offer_of
from scheduling.texts.words import amount_of, level_word, sentence_of, type_word

__all__ = [
    "Offer",
    "TypeEntry",
    "amount_of",
    "around_share",
    "cordon",
    "event_sentence",
    "known_codes",
    "level_word",
    "offers",
    "per_node_type",
    "reason_sentence",
    "type_word",
    "wait_cause",
    "why",
]


def reason_sentence(reason: Mapping[str, Any]) -> str:
    """Why it waits, starts or stops: one sentence with its numbers."""
    return sentence_of(REASONS, str(reason.get("code", "")), reason.get("details") or {}) or str(
        reason.get("message", "")
    )


def cordon(node: Node) -> str:
    """Why a node is closed for new work; empty where it is not."""
    reason = node.cordon
    if not reason:
        return ""
    details = reason.get("details") or {}
    return sentence_of(CORDONS, str(reason.get("code", "")), details) or str(reason["message"])


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
    return sentence_of(EVENTS, event.code, details) or event.code.replace("_", " ")


def around_share(attempt: Attempt) -> str:
    """What an attempt takes of a device around the library that holds it to its share."""
    return sentence_of(EVENTS, "around_share", attempt.around_share)


def wait_cause(wait: Wait) -> str:
    """Why a wait began, with who gained where it was displaced."""
    text = sentence_of(WAITS, wait.cause, wait.details) or wait.cause.replace("_", " ")
    numbers = sentence_of(DISPLACED, wait.cause, wait.details)
    return f"{text}. {numbers}" if numbers else text


def per_node_type(reason: Mapping[str, Any]) -> list[TypeEntry]:
    """One line per node type that was tried."""
    return [type_entry(entry) for entry in reason.get("per_node_type") or ()]


def offers(reason: Mapping[str, Any], workload: Workload | None) -> list[Offer]:
    """What the person could do about it, as links."""
    found = (offer_of(item, workload) for item in reason.get("offers") or ())
    return [offer for offer in found if offer is not None]


def known_codes() -> dict[str, Iterable[str]]:
    """Every code that has a sentence, by table: for tests."""
    return {"reasons": REASONS, "events": EVENTS, "waits": WAITS}
