"""Words and amounts inside sentences: what reasons, events and offers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from scheduling import formats

Details = Mapping[str, Any]
Sentence = Callable[[Details], str]


def sentence_of(table: Mapping[str, Sentence], code: str, details: Details) -> str:
    """The sentence of a code; empty where code or numbers are not what the table expects."""
    make = table.get(code)
    if make is None:
        return ""
    try:
        return make(details)
    except (KeyError, TypeError, ValueError):
        return ""


def amount(details: Details, name: str) -> str:
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
    return gpu_text(amount)


def gpu_text(milli: int) -> str:
    return _("%(count)s GPU") % {"count": formats.gpus(milli)}


def type_word(name: object) -> str:
    """A node type inside a sentence: names are slugs of models, which people write in capitals."""
    return str(name).removeprefix("gpu:").upper() if name else _("The cluster")


def where(details: Details) -> str:
    """`Vision, T4` for what is counted per node type, `Vision` for the rest."""
    resource = str(details.get("resource", ""))
    level = level_word(details["level"], details)
    return f"{level}, {type_word(resource)}" if resource.startswith("gpu:") else level


def level_word(name: object, details: Details | None = None) -> str:
    """A project, or the department above it, by what it is called, where the details say so."""
    kind, _colon, rest = str(name).partition(":")
    title = ((details or {}).get("titles") or {}).get(str(name))
    if kind == "department" and rest:
        return _("department %(name)s") % {"name": title or rest}
    return str(title or name)


def unit_amount(details: Details, prefix: str) -> str:
    """`used_gpu_milli`, `used_cpu_milli` or `used_memory_mib`, whichever is there."""
    for suffix, resource in (("gpu_milli", "gpu"), ("cpu_milli", "cpu"), ("memory_mib", "memory")):
        if f"{prefix}_{suffix}" in details:
            return amount_of(resource, details[f"{prefix}_{suffix}"])
    raise KeyError(prefix)


def until(details: Details) -> str:
    """The time left until a moment given in Unix seconds or as text."""
    moment = moment_of(details.get("until_s") or details.get("until"))
    return formats.duration(max((moment - timezone.now()).total_seconds(), 0))


def moment_of(value: object) -> datetime:
    """A moment given in Unix seconds or as text.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    moment = parse_datetime(str(value))
    if moment is None:
        raise ValueError(value)
    return moment


def last_error(details: Details) -> str:
    text = str(details.get("last_error") or details.get("error") or "").strip()
    return f" {text}" if text else ""
