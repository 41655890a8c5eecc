"""The page *Why?*: a fair share's arithmetic, the numbers compared, what would have to happen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.utils.translation import gettext as _

from scheduling import formats
from scheduling.core.outlook import ShareStep
from scheduling.texts.words import (
    Details,
    Sentence,
    amount_of,
    gpu_text,
    sentence_of,
    type_word,
    unit_amount,
    where,
)


def share_sum(step: ShareStep) -> str:
    """6 + 10 = 16 GPU: guarantee and part by weight."""
    values = {
        "guarantee": formats.gpus(step.guarantee),
        "weight": formats.gpus(step.by_weight),
        "share": gpu_text(step.fair_share),
    }
    return "{guarantee} + {weight} = {share}".format(**values)


def share_label(step: ShareStep) -> str:
    """The bar, for people who cannot see it."""
    return _(
        "%(guarantee)s guaranteed and %(weight)s by weight: fair share %(share)s; "
        "%(held)s held, %(asked)s asked for in all"
    ) % {
        "guarantee": gpu_text(step.guarantee),
        "weight": gpu_text(step.by_weight),
        "share": gpu_text(step.fair_share),
        "held": gpu_text(step.allocated),
        "asked": gpu_text(step.requested),
    }


def share_sentences(step: ShareStep) -> Iterator[str]:
    """The arithmetic in words: quota, part by weight of what is left, capped by the request."""
    if step.limit is not None and step.wanted == step.limit < step.requested:
        yield _("Asked for in all: %(asked)s, of which its limit allows %(limit)s.") % {
            "asked": gpu_text(step.requested),
            "limit": gpu_text(step.limit),
        }
    if not step.wanted:
        yield _("It holds nothing and asks for nothing, so nothing is set aside for it.")
        return
    yield _(
        "Guaranteed: the smaller of its quota, %(quota)s, and what it could use, %(wanted)s."
    ) % {
        "quota": amount_of("gpu", step.quota),
        "wanted": gpu_text(step.wanted),
    }
    yield from _weight_sentences(step)


def _weight_sentences(step: ShareStep) -> Iterator[str]:
    if step.wanted == step.guarantee:
        yield _("It asks for no more than that.")
    elif not step.surplus and not step.by_weight:
        yield _("Nothing is left when everybody has what is guaranteed to them.")
    elif not step.weight:
        yield _("Its weight is 0: it has no part of what is left.")
    else:
        yield from _history_sentences(step)
        yield _(
            "Left when everybody has what is guaranteed to them: %(surplus)s; "
            "its weight is %(weight)s of %(weights)s among those who ask for more."
        ) % {
            "surplus": gpu_text(step.surplus),
            "weight": step.weight,
            "weights": step.weights,
        }
        yield _given(step)


def _history_sentences(step: ShareStep) -> Iterator[str]:
    """What its use of late changes, where the policy counts it."""
    if step.history_factor_milli:
        yield _(
            "Of late it used %(part)s of all there is, which counts %(factor)s times: the more "
            "that is against its weight, the smaller its part."
        ) % {
            "part": formats.percent(step.past_use_ppm / 1_000_000),
            "factor": formats.decimal(step.history_factor_milli / 1000, 3),
        }


def _given(step: ShareStep) -> str:
    """What that came to, and why it is not just its part by weight."""
    values = {"given": gpu_text(step.by_weight)}
    if step.fair_share == step.wanted:
        return _("That makes %(given)s: no more than it asks for.") % values
    if step.by_weight * step.weights == step.surplus * step.weight:
        return _("That makes %(given)s.") % values
    return _("That makes %(given)s, with rounding and what others do not need.") % values


# ---------------------------------------------------------------- numbers compared


def numbers(reason: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was compared, each with its name."""
    details = reason.get("details") or {}
    return [(name, text) for name, text in _numbers(details) if text]


def _numbers(d: Details) -> Iterator[tuple[str, str]]:
    names = {
        "requested": _("Asked"),
        "allocated": _("Held"),
        "used": _("In use"),
        "quota": _("Quota"),
        "limit": _("Limit"),
        "fair_share": _("Fair share"),
        "free": _("Free"),
        "largest_free": _("Free together"),
        "promised": _("Promised"),
        "capacity": _("In service"),
    }
    for key, name in names.items():
        yield name, _number(d, key)


def _number(d: Details, key: str) -> str:
    """An amount of the details' resource, or one with its unit in its name; empty where absent."""
    if isinstance(d.get(key), int) and "resource" in d:
        return amount_of(str(d["resource"]), d[key])
    try:
        return unit_amount(d, key)
    except (KeyError, TypeError):
        return ""


# ---------------------------------------------------------------- what would have to happen


def condition(reason: Mapping[str, Any]) -> str:
    """What would have to happen before it starts."""
    code, details = str(reason.get("code", "")), reason.get("details") or {}
    return sentence_of(_CONDITIONS, code, details) or _(
        "Nothing else: the planner looks again at every change."
    )


def _room(d: Details) -> str:
    asked, together = d["requested_gpu_milli"], d["largest_free_gpu_milli"]
    values = {
        "type": type_word(d.get("node_type")),
        "asked": gpu_text(asked),
        "missing": gpu_text(max(asked - together, 0)),
    }
    if d.get("constraint") == "labels":
        return _("It cannot start on %(type)s until a node there has these labels.") % values
    if d.get("constraint") == "failed_here":
        return _("A node of %(type)s on which its start has not failed must be free.") % values
    if d.get("constraint") == "node_size":
        return _("It cannot start on %(type)s: no node there is large enough.") % values
    if together < asked:
        return (
            _("%(asked)s must be free together on one node of %(type)s: %(missing)s more than now.")
            % values
        )
    return _("One node of %(type)s must have the cores and the memory free beside them.") % values


def _excess(d: Details, bound: str) -> dict[str, str]:
    """How far used and asked together lie above a bound."""
    for suffix, resource in (("gpu_milli", "gpu"), ("cpu_milli", "cpu"), ("memory_mib", "memory")):
        if f"used_{suffix}" in d:
            over = d[f"used_{suffix}"] + d[f"requested_{suffix}"] - d[f"{bound}_{suffix}"]
            return {"amount": amount_of(resource, over), "where": where(d)}
    raise KeyError(bound)


def _over_share(d: Details) -> str:
    over = d["allocated"] + d["requested"] - d["fair_share"]
    return _(
        "It may not take from others, as its project would be %(amount)s above its fair share; "
        "it starts when enough comes free by itself."
    ) % {"amount": amount_of(str(d["resource"]), over)}


def _time_passes(d: Details) -> str:
    return _("The time named has to pass.")


_CONDITIONS: dict[str, Sentence] = {
    "no_fit": _room,
    "interactive_over_quota": lambda d: (
        _(
            "%(where)s: %(amount)s of what its sessions and other protected work hold must come "
            "free, or its quota grow by as much."
        )
        % _excess(d, "quota")
    ),
    "over_limit": lambda d: (
        _("%(where)s: %(amount)s must come free, or its limit grow by as much.")
        % _excess(d, "limit")
    ),
    "over_share": _over_share,
    "behind_priority": lambda d: _(
        "What those before it hold has to come free again, or its priority to be raised."
    ),
    "set_aside": lambda d: _("An administrator has to put its record right."),
    "awaiting_release": lambda d: _("It starts as soon as those who give way have stopped."),
    "in_delay": _time_passes,
    "in_min_runtime": _time_passes,
    "backing_off": _time_passes,
    "start_after": _time_passes,
    "behind_reservation": _time_passes,
    "gang_incomplete": lambda d: _("All its replicas have to fit at once."),
    "node_type_offline": lambda d: _("A node of a type that it accepts has to come back."),
    "quota_exceeds_capacity": lambda d: _(
        "Nodes have to come back, or quotas shrink to what is there."
    ),
    "search_cut_short": lambda d: _("The next cycle has to finish the search."),
}
