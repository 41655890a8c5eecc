"""Who is promised what and who holds what, per project and node type."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db.models import Count
from django.http import Http404, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from projects import access
from projects.departments import DepartmentTree
from projects.models import DepartmentMembership, Membership, Project, User
from scheduling.live import QUEUE_TOPIC, project_topic
from scheduling.models import WAITS, Workload
from scheduling.selectors import Holding, holdings
from scheduling.texts import idleness
from scheduling.views.pages import PageRequest, page

NUM_WORKLOADS = 30


@dataclass(frozen=True, slots=True)
class Row:
    """A project; `department` is the path of the one that it belongs to."""

    project: Project
    department: str
    holdings: list[Holding]
    num_members: int
    num_active: int
    num_waiting: int


@dataclass(frozen=True, slots=True)
class Member:
    """Who has a role in a project; `through` is the department that gives it, if one does."""

    user: User
    role: str
    through: str


@login_required
@require_safe
def projects(request: PageRequest) -> HttpResponse:
    """The person's projects by name; all others as one sum."""
    visible = set(access.visible_projects(request.user).values_list("pk", flat=True))
    found = list(Project.objects.all())
    held = holdings(found)
    tree = DepartmentTree()
    members = _members(found, tree)
    active, waiting = _counts()
    rows = [
        Row(
            project=item,
            department=tree.title(item.department_id),
            holdings=held.get(item.pk, []),
            num_members=len(members[item.pk]),
            num_active=active[item.pk],
            num_waiting=waiting[item.pk],
        )
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


def _members(found: list[Project], tree: DepartmentTree) -> Mapping[int, set[int]]:
    """Who has a role in each project, there or in a department above; two queries."""
    through: defaultdict[int, set[int]] = defaultdict(set)
    for department, user in DepartmentMembership.objects.values_list("department", "user"):
        through[department].add(user)
    members = {
        item.pk: set().union(*(through[row.pk] for row in tree.path(item.department_id)))
        for item in found
    }
    for project, user in Membership.objects.values_list("project", "user"):
        members.setdefault(project, set()).add(user)
    return members


def _counts() -> tuple[Counter[int], Counter[int]]:
    """Active and waiting workloads per project; two queries."""
    active, waiting = Counter[int](), Counter[int]()
    unfinished = Workload.objects.unfinished().order_by()
    for counter, rows in ((waiting, unfinished.filter(WAITS)), (active, unfinished.exclude(WAITS))):
        for project, count in rows.values_list("project").annotate(count=Count("pk")):
            counter[project] += count
    return active, waiting


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
    row = Project.objects.filter(name=name).first()
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
    tree = DepartmentTree()
    context = {
        "topics": [project_topic(row.name)],
        "project": row,
        "departments": tree.path(row.department_id),
        "holdings": holdings([row]).get(row.pk, []),
        "members": _members_of(row, tree),
        "workloads": list(row.workloads.for_list().select_related("node")[:NUM_WORKLOADS]),
        "allowed": _allowed(row),
        "rule": idleness.rule_in_words(row),
        "may_administer": access.may_administer_project(request.user, row.pk),
    }
    return page(request, "scheduling/project.html", context)


def _members_of(row: Project, tree: DepartmentTree) -> list[Member]:
    """Its own members, then those of the departments above, the nearest first; two queries."""
    above = [level.pk for level in reversed(tree.path(row.department_id))]
    inherited = list(
        DepartmentMembership.objects.filter(department__in=above).select_related("user")
    )
    inherited.sort(
        key=lambda each: (above.index(each.department_id), each.role, each.user.username)
    )
    own = row.memberships.select_related("user").order_by("role", "user__username")
    return [
        *(Member(each.user, each.get_role_display(), "") for each in own),
        *(
            Member(each.user, each.get_role_display(), tree.title(each.department_id))
            for each in inherited
        ),
    ]


def _allowed(row: Project) -> dict[str, list[str]]:
    """Titles of the node types open to each kind; a kind that may use all is absent."""
    found: dict[str, list[str]] = defaultdict(list)
    for rule in row.allowed_node_types.select_related("node_type"):
        found[rule.kind].append(rule.node_type.title)
    return dict(found)
