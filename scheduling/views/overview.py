"""The first page: own projects first, then the whole cluster in totals."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.db.models import Sum
from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from projects import access
from projects.models import Project, User
from scheduling import idle_now, selectors
from scheduling.live import NODES_TOPIC, QUEUE_TOPIC
from scheduling.models import Allocation, Workload
from scheduling.views.pages import PageRequest, page
from scheduling.views.sum_charts import cluster_charts
from telemetry.csp import allows_charts

NUM_RECENT = 6
NUM_PROJECTS = 8


@login_required
@require_safe
@allows_charts
def overview(request: PageRequest) -> HttpResponse:
    """Tiles, own projects, node types, own recent work."""
    types = selectors.type_summaries()
    mine = list(_own_projects(request.user))
    held = selectors.holdings(mine)
    with_gpu = [item for item in types if item.has_gpu]
    wait = selectors.longest_wait()
    context = {
        "topics": [NODES_TOPIC, QUEUE_TOPIC],
        "types": types,
        "total_milli": sum(item.total_milli for item in with_gpu),
        "allocated_milli": sum(item.allocated_milli for item in with_gpu),
        "idle_milli": _idle_milli(),
        "counts": selectors.workload_counts(Workload.objects.all()),
        "wait": wait,
        "may_see_wait": wait is not None and access.may_view_workload(request.user, wait.workload),
        "projects": [(project, held.get(project.pk, [])) for project in mine],
        "recent": _recent(request.user),
        "now": timezone.now(),
        # A part that asks for itself again has no charts: those hear of samples themselves.
        "charts": [] if request.htmx else cluster_charts(request.user),
    }
    return page(request, "scheduling/overview.html", context)


def _idle_milli() -> int:
    """GPUs that are held and do nothing; two queries."""
    held = Allocation.objects.filter(pk__in=idle_now.found(timezone.now()))
    return held.aggregate(idle=Sum("gpu_milli"))["idle"] or 0


def _own_projects(user: User) -> list[Project]:
    """Those of which the person is a member; an admin without any sees the first few of all."""
    found = list(access.projects_of(user)[:NUM_PROJECTS])
    return found or list(access.visible_projects(user)[:NUM_PROJECTS])


def _recent(user: User) -> list[Workload]:
    rows = (
        Workload.objects.filter(owner=user)
        .for_list()
        .select_related("node", "current")
        .order_by("-phase_changed_at")
    )
    return list(rows[:NUM_RECENT])


@login_required
@require_safe
def banners(request: PageRequest) -> HttpResponse:
    """The lines above each page, asked for again from time to time."""
    return render(request, "scheduling/banners.html")
