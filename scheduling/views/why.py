"""*Why?* for a workload and for a project: how its fair share came about, who holds what beyond
quota, who would give way next; and for what waits, what would have to happen.

Everything is read from one snapshot by the planner's own functions (`core.outlook`,
`core.what_if`), so that the page cannot say anything else than the planner does.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from projects import access
from projects.models import NodeType, Project, User
from projects.node_types import allowed_node_types
from scheduling import formats, texts
from scheduling.core import types as core
from scheduling.core.outlook import GivingWay, Holder, Outlook, ShareStep
from scheduling.core.types import WHOLE_GPU_MILLI
from scheduling.core.what_if import on_node_type, smaller_requests, starts_as, with_request
from scheduling.live import project_topic, workload_topic
from scheduling.models import WAITING_PHASES, Workload
from scheduling.organisation import gpu_key
from scheduling.replicas import workload_id
from scheduling.snapshot import Taken, take_snapshot
from scheduling.texts.explained import condition, numbers, share_label, share_sentences, share_sum
from scheduling.texts.remedies import offer_of
from scheduling.texts.words import gpu_text
from scheduling.views.pages import PageRequest, page
from scheduling.views.projects import find_project
from scheduling.views.workload import find_workload

MAX_HOLDERS = 12
MAX_LOSERS = 8
WHAT_IF_BUDGET_S = 2.0
"""Each question is a whole plan; on a large cluster the later ones are not asked."""


@dataclass(frozen=True, slots=True)
class ShareBar:
    """A fair share as guarantee + part by weight, on a line as long as the node type's capacity."""

    step: ShareStep
    total: int

    @property
    def label(self) -> str:
        return share_label(self.step)

    def _percent(self, amount: int) -> str:
        length = max(self.total, self.step.fair_share, 1)
        return f"{100 * min(amount, length) / length:.2f}%"

    @property
    def guarantee_width(self) -> str:
        return self._percent(self.step.guarantee)

    @property
    def weight_width(self) -> str:
        return self._percent(self.step.by_weight)

    @property
    def held_at(self) -> str:
        return self._percent(self.step.allocated)

    @property
    def asked_at(self) -> str:
        return self._percent(self.step.requested)


@dataclass(frozen=True, slots=True)
class Level:
    """A department or project on the path, with its share."""

    title: str
    step: ShareStep
    bar: ShareBar

    @property
    def sum(self) -> str:
        return share_sum(self.step)

    @property
    def sentences(self) -> list[str]:
        return list(share_sentences(self.step))


@dataclass(frozen=True, slots=True)
class HolderRow:
    """Who holds more than its quota; `project` is None where the reader may not know."""

    holder: Holder
    project: Project | None

    @property
    def ratio(self) -> str:
        ratio = self.holder.over_ratio
        return "∞" if ratio == float("inf") else formats.percent(ratio)


@dataclass(frozen=True, slots=True)
class LoserRow:
    """Who would give way; names only of the reader's projects."""

    loser: GivingWay
    project: Project | None
    workload: Workload | None


@dataclass(frozen=True, slots=True)
class Losses:
    """Who would give way to a claim from somewhere: the order depends on where it comes from.

    Attributes:
        claim: Says whose claim it is.
    """

    claim: str
    rows: list[LoserRow]


@dataclass(frozen=True, slots=True)
class TypeView:
    """One node type of the page.

    Attributes:
        num_more: Further holders that are not listed.
    """

    node_type: NodeType
    levels: list[Level]
    holders: list[HolderRow]
    num_more: int
    borrowed: int
    losses: list[Losses]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Something smaller or elsewhere with which it would start now."""

    sentence: str
    url: str


# Questions to the planner take long on a large cluster: the pages come at once, and each answer
# when it is there.


@login_required
@require_safe
def why_workload(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """Why a workload waits, or what it holds against its project's share."""
    row = find_workload(request.user, workload_id)
    is_waiting = row.is_waiting
    context = {
        "topics": [workload_topic(row.pk)],
        "workload": row,
        "project": row.project,
        "is_waiting": is_waiting,
        "reason": texts.why(row),
        "numbers": numbers(row.reason) if is_waiting else [],
        "per_node_type": texts.per_node_type(row.reason) if is_waiting else [],
        "condition": condition(row.reason) if is_waiting else "",
        "shares_url": reverse("scheduling:workload-shares", args=[row.pk]),
    }
    return page(request, "scheduling/why.html", context)


@login_required
@require_safe
def workload_shares(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """Of the node types that a workload may use: how its project came to its share, who holds what
    beyond quota, and who would give way next."""
    row = find_workload(request.user, workload_id)
    names = row.node_types or ([row.node_type.name] if row.node_type else [])
    types = list(NodeType.objects.filter(name__in=names)) if row.num_devices else []
    types.sort(key=lambda item: names.index(item.name))
    context = {
        "topics": [workload_topic(row.pk)],
        "workload": row,
        "types": _types(request.user, row.project, types),
    }
    return render(request, "scheduling/_why_shares.html", context)


@login_required
@require_safe
def what_if(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """With what it would start now."""
    row = find_workload(request.user, workload_id)
    found: list[WhatIf] = []
    if row.phase in WAITING_PHASES:
        found = list(what_ifs(take_snapshot(), time.time(), row, request.user))
    return render(request, "scheduling/_what_ifs.html", {"what_ifs": found})


@login_required
@require_safe
def why_project(request: PageRequest, name: str) -> HttpResponse:
    """Why a project may have what it may have, of each node type that concerns it."""
    row = find_project(request.user, name)
    context = {
        "topics": [project_topic(row.name)],
        "project": row,
        "shares_url": reverse("scheduling:project-shares", args=[row.name]),
    }
    return page(request, "scheduling/why.html", context)


@login_required
@require_safe
def project_shares(request: PageRequest, name: str) -> HttpResponse:
    """The same as `workload_shares`, of the node types that concern a project."""
    row = find_project(request.user, name)
    views = _types(request.user, row, list(NodeType.objects.order_by("rank", "name")))
    context = {
        "topics": [project_topic(row.name)],
        "types": [view for view in views if _concerns(view)],
    }
    return render(request, "scheduling/_why_shares.html", context)


def _concerns(view: TypeView) -> bool:
    """Whether the project has quota of the type, asks for it or holds it."""
    step = view.levels[-1].step
    return bool(step.quota or step.requested or step.allocated)


# ---------------------------------------------------------------- node types


def _types(user: User, project: Project, types: Sequence[NodeType]) -> list[TypeView]:
    """The tables of each node type; the number of queries does not depend on how many there are."""
    if not types:
        return []
    taken, own = take_snapshot(), core.ProjectId(project.name)
    outlook = Outlook(taken.snapshot, taken.policy, time.time())
    visible = {row.name: row for row in access.visible_projects(user)}
    claims = _claims(own, taken)
    found = {
        (item.pk, claim): outlook.next_to_give_way(gpu_key(item.name), beside, limit=MAX_LOSERS)
        for item in types
        for claim, beside in claims.items()
    }
    known = _named(visible, [loser for losers in found.values() for loser in losers])
    views: list[TypeView] = []
    for item in types:
        steps = outlook.share_steps(own, gpu_key(item.name))
        if not steps:
            continue
        holders = outlook.holders(gpu_key(item.name))
        shown = _shown(holders, own)
        views.append(
            TypeView(
                node_type=item,
                levels=_levels(project, steps, taken.titles),
                holders=[HolderRow(holder, visible.get(holder.project)) for holder in shown],
                num_more=len(holders) - len(shown),
                borrowed=sum(holder.borrowed for holder in holders),
                losses=[
                    Losses(claim, [_loser(loser, visible, known) for loser in losers])
                    for (pk, claim), losers in found.items()
                    if pk == item.pk
                ],
            )
        )
    return views


def _claims(own: core.ProjectId, taken: Taken) -> dict[str, core.ProjectId | None]:
    """Where a claim may come from: from beside the project, from elsewhere in each department above
    it, and from outside them all. Each sentence that says so, with whom the claimant is beside."""
    parents = {project.id: project.parent for project in taken.snapshot.projects}
    department = parents.get(own)
    if department is None:
        return {_("To a claim of another project inside its quota:"): own}
    found = {_("To a claim inside quota of another project of the department:"): own}
    while (above := parents[department]) is not None:
        claim = _("To a claim inside quota from elsewhere in %(department)s:") % {
            "department": texts.level_word(above, {"titles": taken.titles})
        }
        found[claim] = department
        department = above
    claim = _("To a claim inside quota from outside the department:")
    if len(found) > 1:
        claim = _("To a claim inside quota from outside %(department)s:") % {
            "department": texts.level_word(department, {"titles": taken.titles})
        }
    return {**found, claim: None}


def _loser(
    loser: GivingWay, visible: dict[str, Project], known: dict[core.WorkloadId, Workload]
) -> LoserRow:
    return LoserRow(loser, visible.get(loser.project), known.get(loser.workload))


def _shown(holders: Sequence[Holder], own: core.ProjectId) -> list[Holder]:
    """The first ones, and always the project that the page is about."""
    return [holder for i, holder in enumerate(holders) if i < MAX_HOLDERS or holder.project == own]


def _levels(project: Project, steps: Sequence[ShareStep], titles: Mapping[str, str]) -> list[Level]:
    """Departments from the top down and the project, drawn to the length of the whole node type."""
    return [
        Level(
            str(project)
            if step.id == project.name
            else capfirst(texts.level_word(step.id, {"titles": titles})),
            step,
            ShareBar(step, steps[0].capacity),
        )
        for step in steps
    ]


def _named(
    visible: dict[str, Project], losers: Iterable[GivingWay]
) -> dict[core.WorkloadId, Workload]:
    """The workloads whose names the reader may see; one query."""
    ids = [loser.workload for loser in losers if loser.project in visible]
    return {workload_id(row): row for row in Workload.objects.filter(pk__in=ids)}


# ---------------------------------------------------------------- what if


def what_ifs(taken: Taken, now_s: float, row: Workload, user: User) -> Iterator[WhatIf]:
    """The largest smaller request, and the other open node types, with which it would start now."""
    snapshot, policy = taken.snapshot, taken.policy
    wanted = workload_id(row)
    mine = next((item for item in snapshot.workloads if item.id == wanted), None)
    if mine is None or any(replica.placement for replica in mine.replicas):
        return
    deadline = time.monotonic() + WHAT_IF_BUDGET_S
    may_submit = access.may_submit(user, row.project_id)
    for gpu in _smaller(mine, row):
        if time.monotonic() > deadline:
            return
        if starts_as(snapshot, policy, now_s, with_request(mine, gpu)):
            milli = _total_milli(gpu)
            sentence = _("With %(gpu)s it would start now") % {"gpu": gpu_text(milli)}
            yield WhatIf(sentence, _form(row, may_submit, id="smaller", gpu_milli=milli))
            break
    for item in allowed_node_types(row.project, row.kind):
        if time.monotonic() > deadline:
            return
        if not row.node_types or item.name in row.node_types:
            continue
        if starts_as(snapshot, policy, now_s, on_node_type(mine, core.NodeTypeName(item.name))):
            sentence = _("On %(type)s it would start now") % {"type": item}
            yield WhatIf(
                sentence, _form(row, may_submit, id="choose_node_type", node_type=item.name)
            )


def _smaller(mine: core.Workload, row: Workload) -> list[core.GpuRequest]:
    """Round smaller requests, and the amount that the planner itself named; largest first."""
    found = set(smaller_requests(mine.gpu))
    for offer in row.reason.get("offers") or ():
        milli = offer.get("gpu_milli")
        if offer.get("id") == "smaller" and isinstance(milli, int) and 0 < milli < WHOLE_GPU_MILLI:
            found.add(core.GpuRequest(1, milli))
    return sorted(found, key=lambda gpu: (_total_milli(gpu), gpu.num_devices), reverse=True)


def _total_milli(gpu: core.GpuRequest) -> int:
    return gpu.num_devices * (gpu.milli_per_device or 0)


def _form(row: Workload, may_submit: bool, **offer: object) -> str:
    """The form filled in like that; empty for who may not submit."""
    found = offer_of(offer, row) if may_submit else None
    return found.url if found else ""
