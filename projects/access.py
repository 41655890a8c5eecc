"""Who may see or change what: the only place that answers.

An admin of the platform is a superuser. Everybody else acts through memberships, which may expire:
of a project, or of a department, whose role holds in every project at any depth below it. Who has
several roles in a project may do what any of them may.
Functions about workloads take the ids they need, so that this app knows nothing of workloads.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet
from django.db.models.expressions import RawSQL
from django.utils import timezone

from projects.departments import DepartmentTree
from projects.models import Department, Project, Role, User


class OwnedInProject(Protocol):
    """Something that a person owns inside a project, such as a workload."""

    owner_id: int
    project_id: int


SUBMIT_ROLES = (Role.MANAGER, Role.RESEARCHER)


_WITH_A_ROLE = """
WITH RECURSIVE reached AS (
    SELECT department_id FROM projects_departmentmembership
    WHERE user_id = %s AND role = ANY(%s)
        AND (expires_at IS NULL OR expires_at > %s)
    UNION
    SELECT department.id FROM projects_department department
    JOIN reached ON department.parent_id = reached.department_id
)
SELECT project_id FROM projects_membership
WHERE user_id = %s AND role = ANY(%s)
    AND (expires_at IS NULL OR expires_at > %s)
UNION
SELECT project.id FROM projects_project project
JOIN reached ON project.department_id = reached.department_id
"""
"""Projects in which a person has a role, there or in a department anywhere above. One list inside
another query: each question stays one, and the database reads it once (as alternatives of a
condition it would read them anew for each row)."""


def projects_of(
    user: User | AnonymousUser, roles: Collection[Role] = tuple(Role)
) -> QuerySet[Project]:
    """Projects in which the person has one of these roles now; an admin has none by being one."""
    if not user.is_authenticated:
        return Project.objects.none()
    own = (user.pk, [role.value for role in roles], timezone.now())
    return Project.objects.filter(pk__in=RawSQL(_WITH_A_ROLE, own * 2))


def managed_projects(user: User | AnonymousUser) -> QuerySet[Project]:
    """Projects of which the person is a manager."""
    return projects_of(user, (Role.MANAGER,))


def visible_projects(user: User | AnonymousUser) -> QuerySet[Project]:
    """Projects whose workloads the person may see by name; others appear as totals."""
    if not user.is_authenticated or not user.is_active:
        return Project.objects.none()
    if user.is_superuser:
        return Project.objects.all()
    return projects_of(user)


def visible_departments(user: User | AnonymousUser, tree: DepartmentTree) -> list[Department]:
    """Departments on the way to a project that the person may see, each after the one above it;
    all for an admin."""
    if user.is_authenticated and user.is_superuser:
        return tree.in_order()
    named = visible_projects(user).filter(department__isnull=False)
    own = set(named.values_list("department", flat=True))
    reached = {row.pk for pk in own for row in tree.path(pk)}
    return [row for row in tree.in_order() if row.pk in reached]


def projects_for_submit(user: User | AnonymousUser) -> QuerySet[Project]:
    """Projects in which the person may create workloads."""
    return projects_of(user, SUBMIT_ROLES).order_by("name")


def may_view_project(user: User | AnonymousUser, project_id: int) -> bool:
    return visible_projects(user).filter(pk=project_id).exists()


def may_administer_project(user: User | AnonymousUser, project_id: int) -> bool:
    """Change a project's own rules: its managers, admins. Quota is an admin's alone."""
    if not user.is_authenticated:
        return False
    return user.is_superuser or managed_projects(user).filter(pk=project_id).exists()


def may_submit(user: User | AnonymousUser, project_id: int) -> bool:
    return projects_for_submit(user).filter(pk=project_id).exists()


def may_view_workload(user: User | AnonymousUser, workload: OwnedInProject) -> bool:
    return may_view_project(user, workload.project_id)


def may_change_workload(user: User | AnonymousUser, workload: OwnedInProject) -> bool:
    """Stop, retry, save now: its owner while a member, a manager of the project, an admin."""
    if not user.is_authenticated:
        return False
    if user.is_superuser:
        return True
    roles = SUBMIT_ROLES if workload.owner_id == user.pk else (Role.MANAGER,)
    return projects_of(user, roles).filter(pk=workload.project_id).exists()


def may_connect(user: User | AnonymousUser, workload: OwnedInProject) -> bool:
    """Enter a session: its owner only, and only while a member of its project.

    No role opens another's session.
    """
    return (
        user.is_authenticated
        and workload.owner_id == user.pk
        and may_submit(user, workload.project_id)
    )


def may_see_cost(user: User | AnonymousUser, workload: OwnedInProject) -> bool:
    """Cost: the owner, the project's managers, admins."""
    if not user.is_authenticated:
        return False
    return workload.owner_id == user.pk or may_change_workload(user, workload)
