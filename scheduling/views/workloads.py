"""The list of workloads: filtered, and cut by value so that ten thousand cost what fifty do."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import HttpResponse, QueryDict
from django.utils import timezone
from django.views.decorators.http import require_safe

from projects import access
from projects.models import Project, User, WorkloadKind
from scheduling import costs
from scheduling.live import QUEUE_TOPIC, project_topic
from scheduling.models import Phase, Workload, WorkloadQuerySet
from scheduling.selectors import (
    NOTHING_WAITED,
    PHASE_GROUPS,
    Waited,
    managed_project_ids,
    visible_workloads,
    waited,
)
from scheduling.views.choices import Choices
from scheduling.views.pages import Cursor, PageRequest, page, read_cursor

ROWS = 50
MAX_TOPICS = 20
MAX_SEARCH_CHARS = 80


@dataclass(frozen=True, slots=True)
class Filters:
    """What the address asks for."""

    state: str
    kind: str
    project: str
    owner: str
    search: str

    @property
    def is_empty(self) -> bool:
        return not (self.state or self.kind or self.project or self.owner or self.search)

    def apply(self, rows: WorkloadQuerySet, user: User) -> WorkloadQuerySet:
        if self.state in PHASE_GROUPS:
            rows = rows.filter(PHASE_GROUPS[self.state])
        elif self.state:
            rows = rows.filter(phase=self.state)
        if self.kind:
            rows = rows.filter(kind=self.kind)
        if self.project:
            rows = rows.filter(project__name=self.project)
        if self.owner:
            rows = rows.filter(owner=user)
        if self.search:
            rows = rows.filter(
                Q(name__icontains=self.search) | Q(owner__username__icontains=self.search)
            )
        return rows


def read_filters(choices: Choices, viewer: User) -> Filters:
    """The filters of an address."""
    return Filters(
        state=choices.one_of("state", [*PHASE_GROUPS, *Phase.values]),
        kind=choices.one_of("kind", WorkloadKind.values),
        project=choices.project(viewer),
        owner=choices.one_of("owner", ["me"]),
        search=choices.text("search", MAX_SEARCH_CHARS),
    )


@dataclass(frozen=True, slots=True)
class Row:
    """A workload of the list; `cost` is None where the person may not see it."""

    workload: Workload
    waited: Waited
    cost: Decimal | None


@login_required
@require_safe
def workloads(request: PageRequest) -> HttpResponse:
    """One page of the list, newest first."""
    choices = Choices(request.GET)
    filters = read_filters(choices, request.user)
    found = visible_workloads(request.user)
    found = found.none() if choices.problems else filters.apply(found, request.user)
    after = read_cursor(request.GET.get("after", ""))
    rows = list(
        _after(found, after)
        .for_list()
        .select_related("node", "current")
        .order_by("-submitted_at", "-id")[: ROWS + 1]
    )
    shown = rows[:ROWS]
    projects = list(access.visible_projects(request.user))
    context = {
        "topics": _topics(request.user, projects),
        "rows": _rows(shown, request.user),
        "filters": filters,
        "problems": choices.problems,
        "total": found.count(),
        "projects": projects,
        "phases": Phase.choices,
        "kinds": WorkloadKind.choices,
        "is_first": after is None,
        "next": _next_address(request.GET, shown[-1]) if len(rows) > ROWS else "",
    }
    return page(request, "scheduling/workloads.html", context, choices.status)


def _after(rows: WorkloadQuerySet, cursor: Cursor | None) -> WorkloadQuerySet:
    if cursor is None:
        return rows
    return rows.filter(Q(submitted_at__lt=cursor.at) | Q(submitted_at=cursor.at, id__lt=cursor.id))


def _next_address(query: QueryDict, last: Workload) -> str:
    address = query.copy()
    address["after"] = Cursor(last.submitted_at, last.pk).encode()
    return "?" + address.urlencode()


def _rows(rows: list[Workload], user: User) -> list[Row]:
    now = timezone.now()
    ids = [row.pk for row in rows]
    waits = waited(ids, now)
    spent = costs.costs_so_far(ids, now)
    managed = managed_project_ids(user)
    return [
        Row(
            workload=row,
            waited=waits.get(row.pk, NOTHING_WAITED),
            cost=spent.get(row.pk, Decimal(0))
            if managed is None or row.owner_id == user.pk or row.project_id in managed
            else None,
        )
        for row in rows
    ]


def _topics(user: User, projects: list[Project]) -> list[str]:
    """What changes this list: the person's projects, or all work where those are many."""
    if user.is_superuser or len(projects) > MAX_TOPICS:
        return [QUEUE_TOPIC]
    return [project_topic(project.name) for project in projects]
