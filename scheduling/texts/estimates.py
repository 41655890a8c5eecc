"""When it will start, in words: a range, and what it rests on; plainly unknown without data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _

from scheduling import formats
from scheduling.models import Workload

SOON_S = 60


def eta_text(workload: Workload) -> str:
    """Empty where it does not wait."""
    if not workload.is_waiting:
        return ""
    return told(workload.eta)


def told(eta: Mapping[str, Any]) -> str:
    """An estimate of something that waits."""
    return _range(eta) if eta else _("start not predictable")


def eta_basis(workload: Workload) -> str:
    """What the range rests on, as a sentence; empty without one."""
    sentences = {
        "history": _("By how long runs like those before it took."),
        "time_limits": _("By the time limits of what runs."),
        "prediction": _("By predicted ends of what runs."),
        "reservation": _("By the room that is kept for it."),
        "release": _("By the time that those who give way have."),
        "policy": _("By the time until others may be asked to give way."),
        "schedule": _("By the time that is set for it."),
    }
    if not workload.is_waiting or not workload.eta:
        return ""
    return sentences.get(str(workload.eta.get("basis", "")), "")


def _range(eta: Mapping[str, Any]) -> str:
    now_s = timezone.now().timestamp()
    earliest = max(0.0, eta["min_at_s"] - now_s)
    if eta["max_at_s"] is None:
        return _("not before %(time)s") % {"time": formats.duration(earliest)}
    latest = max(0.0, eta["max_at_s"] - now_s)
    if latest < SOON_S:
        return _("starts within a minute")
    if earliest < SOON_S:
        return _("starts within %(time)s") % {"time": formats.duration(latest)}
    values = {"early": formats.duration(earliest), "late": formats.duration(latest)}
    if values["early"] == values["late"]:
        return _("starts in %(time)s") % {"time": values["late"]}
    return _("starts in %(early)s to %(late)s") % values
