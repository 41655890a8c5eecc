"""Who is promised what and who holds what, per project and node type."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db.models import Count
from django.http import Http404, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from projects import access
from projects.models import Membership, Project, User
from scheduling.live import QUEUE_TOPIC, project_topic
from scheduling.models import WAITS, Workload
from scheduling.selectors import Holding, holdings
from scheduling.texts import idleness
from scheduling.views.pages import PageRequest, page

NUM_WORKLOADS = 30


@dataclass(frozen=True, slots=True)
class Row:
    project: Project
    holdings: list[Holding]
    num_members: int
    num_active: int
    num_waiting: int


@login_required
@require_safe
def projects(request: PageRequest) -> HttpResponse:
    """The person's projects by name; all others as one sum."""
    visible = set(access.visible_projects(request.user).values_list("pk", flat=True))
    found = list(Project.objects.select_related("department"))
    held = holdings(found)
    members, active, waiting = _counts()
    rows = [
        Row(item, held.get(item.pk, []), members[item.pk], active[item.pk], waiting[item.pk])
        for item in found
        if item.pk in visible
    ]
    others = [item for item in found if item.pk not in visible]
    context = {
        "topics": [QUEUE_TOPIC],
        "rows": rows,
        "num_others": len(others),
        "others": sum_up([held.get(item.pk, []) for item in others]),
    }
    return page(request, "scheduling/projects.html", context)


def _counts() -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Members, active and waiting workloads per project; two queries."""
    members, active, waiting = Counter[int](), Counter[int](), Counter[int]()
    for project, count in Membership.objects.values_list("project").annotate(count=Count("pk")):
        members[project] += count
    unfinished = Workload.objects.unfinished().order_by()
    for counter, rows in ((waiting, unfinished.filter(WAITS)), (active, unfinished.exclude(WAITS))):
        for project, count in rows.values_list("project").annotate(count=Count("pk")):
            counter[project] += count
    return members, active, waiting


def sum_up(groups: list[list[Holding]]) -> list[Holding]:
    """One holding per node type for projects whose names stay hidden."""
    by_type: dict[str, list[Holding]] = defaultdict(list)
    for group in groups:
        for item in group:
            by_type[item.name].append(item)
    return [
        replace(
            items[0],
            quota=sum(item.quota for item in items),
            limit=None,
            fair_share=sum(item.fair_share for item in items),
            requested=sum(item.requested for item in items),
            allocated=sum(item.allocated for item in items),
        )
        for items in by_type.values()
    ]


def find_project(user: User, name: str) -> Project:
    """The project, if the person may see it.

    Raises:
        Http404: there is none.
        PermissionDenied: the person is no member.
    """
    row = Project.objects.select_related("department").filter(name=name).first()
    if row is None:
        raise Http404
    if not access.may_view_project(user, row.pk):
        raise PermissionDenied(_("You are not a member of this project."))
    return row


@login_required
@require_safe
def project(request: PageRequest, name: str) -> HttpResponse:
    """One project: quota per node type, members, newest work."""
    row = find_project(request.user, name)
    context = {
        "topics": [project_topic(row.name)],
        "project": row,
        "holdings": holdings([row]).get(row.pk, []),
        "members": list(row.memberships.select_related("user").order_by("role", "user__username")),
        "workloads": list(row.workloads.for_list().select_related("node")[:NUM_WORKLOADS]),
        "allowed": _allowed(row),
        "rule": idleness.rule_in_words(row),
        "may_administer": access.may_administer_project(request.user, row.pk),
    }
    return page(request, "scheduling/project.html", context)


def _allowed(row: Project) -> dict[str, list[str]]:
    """Titles of the node types open to each kind; a kind that may use all is absent."""
    found: dict[str, list[str]] = defaultdict(list)
    for rule in row.allowed_node_types.select_related("node_type"):
        found[rule.kind].append(rule.node_type.title)
    return dict(found)
