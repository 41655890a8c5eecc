"""What the person could do about it, as links to a form filled in or to a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _

from scheduling.models import Workload
from scheduling.texts.words import gpu_text, type_word


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that the person could do; without an address it is advice."""

    label: str
    url: str


def _form_address(workload: Workload | None, **changes: object) -> str:
    """The form filled in like this workload, with some fields changed."""
    if workload is None:
        return ""
    view = "scheduling:new-session" if workload.is_session else "scheduling:new-training"
    return f"{reverse(view)}?{urlencode({'clone': workload.pk, **changes})}"


def offer_of(item: Mapping[str, Any], workload: Workload | None) -> Offer | None:
    make = _OFFERS.get(str(item.get("id", "")))
    return make(item, workload) if make else None


def _smaller(item: Mapping[str, Any], workload: Workload | None) -> Offer:
    milli = int(item["gpu_milli"])
    return Offer(
        _("Ask for %(gpu)s") % {"gpu": gpu_text(milli)},
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
    "ask_manager": lambda item, workload: Offer(
        _("Ask a manager of the project for a higher priority"),
        reverse("scheduling:project", args=[workload.project.name]) if workload else "",
    ),
    "notify_admin": lambda item, workload: Offer(_("Tell an administrator"), ""),
    "retry": lambda item, workload: Offer(
        _("Read its log"),
        reverse("scheduling:workload", args=[workload.pk]) + "#log" if workload else "",
    ),
}
