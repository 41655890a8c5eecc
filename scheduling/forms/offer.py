"""What a form has to offer to this person for this project.

Projects, node types in order, quota left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import QueryDict
from django.utils.translation import gettext as _

from projects.models import NodeType, Project, WorkloadKind
from projects.node_types import allowed_node_types
from scheduling import formats
from scheduling.capacity import QuotaLeft, Supply, quotas_left, supplies
from scheduling.forms.amounts import GPU, written
from scheduling.forms.base import WorkloadForm


@dataclass(frozen=True, slots=True)
class NodeTypeRow:
    """One node type that the form offers."""

    supply: Supply
    is_chosen: bool
    quota: QuotaLeft | None

    @property
    def node_type(self) -> NodeType:
        """What is offered."""
        return self.supply.node_type


@dataclass(frozen=True, slots=True)
class Offer:
    """Everything beside the fields' own values that the page shows.

    Attributes:
        project: The chosen one; None while there is none to choose.
        rows: Node types that project and kind allow, in the form's order.
        quotas: What is left of the project's quota, per node type.
    """

    project: Project | None
    projects: Sequence[Project]
    rows: tuple[NodeTypeRow, ...]
    quotas: Sequence[QuotaLeft]


@dataclass(frozen=True, slots=True)
class FractionPart:
    """A share that people often take.

    Attributes:
        value: As the form's button sends it; `shown` as the person's language writes it.
        label: For people who cannot see the sign.
    """

    value: str
    shown: str
    sign: str
    label: str


def fraction_parts() -> tuple[FractionPart, ...]:
    """The shares on buttons, in the current language."""
    parts = (
        (500, "½", _("half of a GPU")),
        (333, "⅓", _("a third of a GPU")),
        (250, "¼", _("a quarter of a GPU")),
        (200, formats.percent(0.2), _("a fifth of a GPU")),
    )
    return tuple(
        FractionPart(written(milli, GPU, localised=False), written(milli, GPU), sign, label)
        for milli, sign, label in parts
    )


def offer_for(form: WorkloadForm) -> Offer:
    """Read what the form may offer now, in a fixed number of queries."""
    project = _chosen_project(form)
    if project is None:
        return Offer(None, form.projects, (), ())
    quotas = quotas_left(project, form.kind)
    by_type = {quota.node_type.pk: quota for quota in quotas}
    allowed = list(allowed_node_types(project, form.kind))
    chosen = _chosen_names(form, allowed)
    ordered = _in_order(form, allowed, chosen)
    rows = tuple(
        NodeTypeRow(supply, supply.node_type.name in chosen, by_type.get(supply.node_type.pk))
        for supply in supplies(ordered)
    )
    return Offer(project, form.projects, rows, quotas)


def _chosen_project(form: WorkloadForm) -> Project | None:
    name = form["project"].value()
    named = (project for project in form.projects if project.name == name)
    return next(named, form.projects[0] if form.projects else None)


def _chosen_names(form: WorkloadForm, allowed: Sequence[NodeType]) -> list[str]:
    """What is ticked, of what is allowed.

    At first the best type for a session, all for a training.
    """
    value = form["node_types"].value() or []
    names = [value] if isinstance(value, str) else [str(name) for name in value]
    known = {item.name for item in allowed}
    chosen = [name for name in names if name in known]
    if chosen or form.is_bound:
        return chosen
    with_gpu = [item.name for item in allowed if item.has_gpu]
    return with_gpu[:1] if form.kind == WorkloadKind.INTERACTIVE else with_gpu


def _in_order(
    form: WorkloadForm, allowed: Sequence[NodeType], chosen: Sequence[str]
) -> list[NodeType]:
    """Sessions keep the project's order; a training's rows stand as the person has put them."""
    if form.kind == WorkloadKind.INTERACTIVE:
        return list(allowed)
    placed = form.initial.get("node_type_order")
    if placed is None and isinstance(form.data, QueryDict):
        placed = form.data.getlist("node_type_order")
    order = {name: place for place, name in enumerate(placed or chosen)}
    return sorted(allowed, key=lambda item: order.get(item.name, len(order)))
