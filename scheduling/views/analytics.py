"""Analytics: any metric by any group over any period, as a chart, a table and CSV."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode
from zoneinfo import available_timezones

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from projects import access
from projects.departments import DepartmentTree
from projects.models import User
from scheduling import formats, palette
from scheduling.analytics.answer import Answer
from scheduling.analytics.metrics import GROUP_TITLES, METRICS, Form, Group, Metric, Words
from scheduling.analytics.table import csv_lines
from scheduling.palette import Tint
from scheduling.views import figures, periods
from scheduling.views.choices import refusal
from scheduling.views.figures import Drawn
from scheduling.views.pages import PageRequest, page
from scheduling.views.periods import Asked, bucket_words, number
from telemetry.csp import allows_charts
from telemetry.figures import zone_label

MAX_TABLE_ROWS = 200
DEFAULTS = {"metric": "allocated_gpu_hours", "group_by": "project"}


@login_required
@require_safe
@allows_charts
def analytics(request: PageRequest) -> HttpResponse:
    """The chart builder."""
    now = timezone.now()
    asked = periods.read(request.GET, now, **DEFAULTS)
    outcome = periods.ask(asked, request.user, now)
    metric = METRICS.get(asked.params["metric"])
    context = {
        "asked": asked,
        "problems": outcome.problems,
        "metric": metric,
        "metrics": metric_choices(),
        "groups": [(group, GROUP_TITLES[group]) for group in (metric.groups if metric else Group)],
        "steps": periods.STEP_WORDS.items(),
        "projects": list(access.visible_projects(request.user)),
        "departments": department_choices(request.user),
        "chart": chart_of(outcome.answer, asked) if outcome.answer else None,
        "csv_address": reverse("scheduling:analytics-csv"),
        **period_context(request, asked),
    }
    return page(request, "scheduling/analytics.html", context, outcome.status)


def department_choices(viewer: User) -> list[tuple[str, str]]:
    """Names and paths of the departments by which the reader may choose."""
    tree = DepartmentTree()
    rows = access.visible_departments(viewer, tree)
    return [(row.name, tree.title(row.pk)) for row in rows]


def period_context(request: HttpRequest, asked: Asked) -> dict[str, object]:
    """What the fields of the period need."""
    presets = [
        (name, words, "?" + _address(request, period=name))
        for name, words in periods.PERIODS.items()
    ]
    return {
        "presets": presets,
        "from_input": asked.input("from"),
        "to_input": asked.input("to"),
        "zones": sorted(available_timezones()),
        "csv_query": request.GET.urlencode(),
    }


def _address(request: HttpRequest, period: str) -> str:
    """This page with another period."""
    kept = {name: value for name, value in request.GET.items() if name not in ("from", "to")}
    return urlencode({**kept, "period": period})


_CPU_WORDS, _MEMORY_WORDS = ("core", "cpu", "throttled"), ("gib", "memory")


def metric_choices() -> list[tuple[Words, list[Metric]]]:
    """The metrics under headings."""
    found: dict[str, list[Metric]] = {name: [] for name in ("gpu", "cpu", "memory", "cost", "work")}
    for metric in METRICS.values():
        found[_heading(metric)].append(metric)
    titles = {
        "gpu": _("GPU"),
        "cpu": _("CPU"),
        "memory": _("Memory"),
        "cost": _("Cost"),
        "work": _("Waits, runs and checkpoints"),
    }
    return [(titles[name], metrics) for name, metrics in found.items()]


def _heading(metric: Metric) -> str:
    if metric.is_cost:
        return "cost"
    if metric.form is Form.ENDED:
        return "work"
    if any(word in metric.name for word in _CPU_WORDS):
        return "cpu"
    return "memory" if any(word in metric.name for word in _MEMORY_WORDS) else "gpu"


# ---------------------------------------------------------------- the chart


@dataclass(frozen=True, slots=True)
class Entry:
    """A group in the list beside the chart."""

    drawn: Drawn
    total: str
    coverage: str
    project: str


@dataclass(frozen=True, slots=True)
class Row:
    start: str
    is_partial: bool
    cells: list[str]


@dataclass(frozen=True, slots=True)
class Chart:
    """What `_analytics_chart.html` shows."""

    title: Words
    sentence: Words
    unit: str
    group: Words
    period: str
    zone: str
    entries: list[Entry]
    whole: str
    capacity: str
    coverage: str
    has_data: bool
    has_partial: bool
    is_restricted: bool
    is_cost: bool
    num_buckets: int
    headings: list[str]
    rows: list[Row]
    figure: dict[str, object]

    @property
    def is_cut(self) -> bool:
        """Whether the table on the page lacks some rows."""
        return len(self.rows) < self.num_buckets


def chart_of(answer: Answer, asked: Asked) -> Chart:
    """An answer for reading."""
    query, metric = answer.query, answer.query.metric
    groups = figures.drawn(answer, _tints(answer), asked.hidden)
    is_by_project = query.group_by is Group.PROJECT
    entries = [
        Entry(
            drawn=one,
            total=number(one.series.total, metric),
            coverage=periods.coverage_words(one.series),
            project=one.series.key if is_by_project and one.tint.series else "",
        )
        for one in groups
    ]
    is_sum = metric.form is Form.SUM
    return Chart(
        title=metric.title,
        sentence=metric.sentence,
        unit=periods.unit_words(metric),
        group=GROUP_TITLES[query.group_by],
        period=periods.period_words(query),
        zone=zone_label(query.zone, query.until),
        entries=entries,
        whole=number(answer.whole.total, metric) if is_sum or len(groups) > 1 else "",
        capacity=number(answer.capacity.total, metric) if answer.capacity else "",
        coverage=periods.coverage_words(answer.whole),
        has_data=any(value is not None for one in groups for value in one.series.values),
        has_partial=any(bucket.is_partial for bucket in answer.buckets),
        is_restricted=answer.is_restricted,
        is_cost=metric.is_cost,
        num_buckets=len(answer.buckets),
        headings=_headings(groups),
        rows=_rows(answer, groups),
        figure=figures.figure(answer, groups, periods.unit_words(metric)),
    )


def _tints(answer: Answer) -> dict[str, Tint]:
    if answer.query.group_by is Group.PROJECT:
        return palette.project_tints_by_name()
    return dict(palette.tints_of(one.key for one in answer.series))


def _headings(groups: list[Drawn]) -> list[str]:
    headings = []
    for one in groups:
        headings.append(one.series.label)
        if one.series.coverage is not None:
            headings.append(str(_("measured")))
    return headings


def _rows(answer: Answer, groups: list[Drawn]) -> list[Row]:
    """The newest first."""
    metric = answer.query.metric
    rows = []
    for index in range(len(answer.buckets) - 1, -1, -1)[:MAX_TABLE_ROWS]:
        bucket, cells = answer.buckets[index], []
        for one in groups:
            cells.append(number(one.series.values[index], metric))
            if one.series.coverage is not None:
                part = one.series.coverage[index]
                cells.append("—" if part is None else formats.percent(part))
        rows.append(Row(bucket_words(bucket, answer.query), bucket.is_partial, cells))
    return rows


@login_required
@require_safe
def analytics_csv(request: PageRequest) -> HttpResponse:
    """The whole answer of the same address as CSV, every group by itself."""
    now = timezone.now()
    asked = periods.read(request.GET, now, **DEFAULTS)
    outcome = periods.ask(asked, request.user, now)
    if outcome.answer is None:
        return refusal(outcome.problems)
    for_spreadsheets = request.GET.get("for") == "spreadsheets"
    lines_of_csv = csv_lines(outcome.answer, for_spreadsheets=for_spreadsheets)
    response = HttpResponse(lines_of_csv, content_type="text/csv; charset=utf-8")
    name = f"{asked.params['metric']}-by-{asked.params['group_by']}.csv"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
