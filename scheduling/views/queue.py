"""Who waits, in order, per project and node type; other projects in totals."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from django.contrib.auth.decorators import login_required
from django.db.models import Count, F, QuerySet
from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from projects import access
from projects.models import NodeType, Project
from scheduling.live import QUEUE_TOPIC
from scheduling.models import Workload
from scheduling.selectors import NOTHING_WAITED, Waited, waited
from scheduling.views.pages import PageRequest, page

# More than a person reads; the rest is a number and a link to the filtered list.
MAX_ROWS = 200


@dataclass(frozen=True, slots=True)
class Entry:
    workload: Workload
    waited: Waited


@dataclass(frozen=True, slots=True)
class Line:
    """Those of one project who wait for the same node type first."""

    project: Project
    node_type: str
    entries: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Total:
    """How many wait for a node type, whoever they are."""

    node_type: str
    count: int


@login_required
@require_safe
def queue(request: PageRequest) -> HttpResponse:
    """The waiting workloads of the person's projects, and totals of all."""
    waiting = Workload.objects.waiting()
    visible = waiting.filter(project__in=access.visible_projects(request.user))
    rows = list(
        visible.for_list()
        .select_related("node", "claimant__project")
        .order_by("project__name", F("queue_position").asc(nulls_last=True), "submitted_at", "id")[
            :MAX_ROWS
        ]
    )
    titles = dict(NodeType.objects.values_list("name", "title"))
    totals = _totals(waiting, titles)
    context = {
        "topics": [QUEUE_TOPIC],
        "lines": _lines(rows, titles),
        "totals": totals,
        "num_waiting": sum(total.count for total in totals),
        "num_visible": visible.count(),
        "num_shown": len(rows),
    }
    return page(request, "scheduling/queue.html", context)


def _lines(rows: list[Workload], titles: dict[str, str]) -> list[Line]:
    waits = waited([row.pk for row in rows], timezone.now())
    lines: dict[tuple[int, str], Line] = {}
    for row in rows:
        first = row.node_types[0] if row.node_types else ""
        line = lines.setdefault(
            (row.project_id, first), Line(row.project, titles.get(first, first))
        )
        line.entries.append(Entry(row, waits.get(row.pk, NOTHING_WAITED)))
    return list(lines.values())


def _totals(waiting: QuerySet[Workload], titles: dict[str, str]) -> list[Total]:
    counts: dict[str, int] = defaultdict(int)
    for first, count in waiting.values_list("node_types__0").annotate(count=Count("pk")).order_by():
        counts[titles.get(first, first or "")] += count
    return [Total(title, count) for title, count in sorted(counts.items())]
