"""What a period cost: by project, user, node type or template, with the idle part, and prices.

Everybody sees what they may see of it (`scheduling.analytics.sight`). Where that is everything, the
groups and what nobody held add up to the whole cluster.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from projects.access import managed_projects, visible_projects
from projects.models import PriceChange, User
from scheduling.analytics.answer import Answer
from scheduling.analytics.metrics import GROUP_TITLES, Group, Words
from scheduling.analytics.sight import UNALLOCATED
from scheduling.analytics.table import BOM, harmless
from scheduling.views import periods
from scheduling.views.analytics import chart_of, department_choices, period_context
from scheduling.views.choices import refusal
from scheduling.views.pages import PageRequest, page
from telemetry.csp import allows_charts

OWN_GROUPS = (Group.PROJECT, Group.DEPARTMENT, Group.USER)
GROUPS = (*OWN_GROUPS, Group.NODE_TYPE, Group.TEMPLATE)
DEFAULTS = {"metric": "cost", "group_by": "project", "period": "month"}
MAX_PRICES = 100


@dataclass(frozen=True, slots=True)
class Row:
    """What one group cost.

    Attributes:
        idle: The part while it did nothing; None is no data.
        share: Of the whole that the reader sees.
    """

    key: str
    label: str
    cost: float
    idle: float | None
    share: float | None

    @property
    def idle_fraction(self) -> float | None:
        """Which part of its cost was idle."""
        return self.idle / self.cost if self.idle is not None and self.cost else None


@dataclass(frozen=True, slots=True)
class Bill:
    """Rows, and what they add up to: for who sees everything, the whole cluster."""

    rows: list[Row]
    total: Row
    is_whole: bool


def bill_of(cost: Answer, idle: Answer) -> Bill:
    """Cost of each group beside the idle part of it."""
    idle_by_key = {one.key: one.total for one in idle.series}
    whole = cost.capacity or cost.whole
    total = whole.total or 0.0
    rows = [
        Row(
            key=one.key,
            label=one.label,
            cost=one.total or 0.0,
            idle=None if one.key == UNALLOCATED else idle_by_key.get(one.key),
            share=(one.total or 0.0) / total if total else None,
        )
        for one in cost.series
    ]
    label = _("Whole cluster") if cost.capacity else _("In all")
    return Bill(
        rows=rows,
        total=Row("all", label, total, idle.whole.total, 1.0 if total else None),
        is_whole=cost.capacity is not None,
    )


def groups_for(viewer: User) -> tuple[Group, ...]:
    """By what the reader may tell cost apart."""
    sees_all = viewer.is_superuser or managed_projects(viewer).exists()
    return GROUPS if sees_all else OWN_GROUPS


@login_required
@require_safe
@allows_charts
def cost(request: PageRequest) -> HttpResponse:
    """The bill of a period, a chart of it and the history of prices."""
    asked, bill, outcome = _read(request)
    groups: list[tuple[str, Words]] = [
        (group.value, GROUP_TITLES[group]) for group in groups_for(request.user)
    ]
    context = {
        "asked": asked,
        "problems": outcome.problems,
        "groups": groups,
        "projects": list(visible_projects(request.user)),
        "departments": department_choices(request.user),
        "bill": bill,
        "chart": chart_of(outcome.answer, asked) if outcome.answer else None,
        "prices": _prices(),
        "now": timezone.now(),
        **period_context(request, asked),
        "csv_address": reverse("scheduling:analytics-csv"),
        "csv_query": urlencode({"period": asked.period, **request.GET.dict(), "metric": "cost"}),
        "bill_address": f"{reverse('scheduling:cost-csv')}?{request.GET.urlencode()}",
    }
    return page(request, "scheduling/cost.html", context, outcome.status)


def _read(request: PageRequest) -> tuple[periods.Asked, Bill | None, periods.Outcome]:
    now = timezone.now()
    address = request.GET.copy()
    address["metric"] = "cost"
    asked = periods.read(address, now, **DEFAULTS)
    outcome = periods.ask(asked, request.user, now)
    if outcome.answer is None:
        return asked, None, outcome
    idle = periods.ask(asked, request.user, now, metric="idle_cost", step="all")
    if idle.answer is None:
        return asked, None, idle
    return asked, bill_of(outcome.answer, idle.answer), outcome


def _prices() -> list[PriceChange]:
    newest_first = PriceChange.objects.select_related("node_type").order_by("-valid_from", "-id")
    return list(newest_first[:MAX_PRICES])


@login_required
@require_safe
def cost_csv(request: PageRequest) -> HttpResponse:
    """The bill as CSV: groups, what nobody held, and the sum."""
    _asked, bill, outcome = _read(request)
    if bill is None:
        return refusal(outcome.problems)
    for_spreadsheets = request.GET.get("for") == "spreadsheets"
    text = io.StringIO()
    writer = csv.writer(text, delimiter=";" if for_spreadsheets else ",", lineterminator="\r\n")
    writer.writerow([_("Group"), _("Cost"), _("Cost while idle")])
    for row in (*bill.rows, bill.total):
        idle = "" if row.idle is None else f"{row.idle:.4f}"
        writer.writerow([harmless(row.label), f"{row.cost:.4f}", idle])
    content = (BOM if for_spreadsheets else "") + text.getvalue()
    response = HttpResponse(content, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="cost.csv"'
    return response
