"""Who may see or change what: the only place that answers.

An admin of the platform is a superuser. Everybody else acts through memberships, which may expire.
Functions about workloads take the ids they need, so that this app knows nothing of workloads.
"""

from __future__ import annotations

from typing import Protocol

from django.contrib.auth.models import AnonymousUser
from django.db.models import Q, QuerySet
from django.utils import timezone

from projects.models import Membership, Project, Role, User


class OwnedInProject(Protocol):
    """Something that a person owns inside a project, such as a workload."""

    owner_id: int
    project_id: int


SUBMIT_ROLES = (Role.MANAGER, Role.RESEARCHER)


def memberships_of(user: User | AnonymousUser) -> QuerySet[Membership]:
    """Memberships in force now."""
    if not user.is_authenticated:
        return Membership.objects.none()
    return Membership.objects.filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now()), user=user
    )


def visible_projects(user: User | AnonymousUser) -> QuerySet[Project]:
    """Projects whose workloads the person may see by name; others appear as totals."""
    if not user.is_authenticated or not user.is_active:
        return Project.objects.none()
    if user.is_superuser:
        return Project.objects.all()
    return Project.objects.filter(pk__in=memberships_of(user).values("project"))


def projects_for_submit(user: User | AnonymousUser) -> QuerySet[Project]:
    """Projects in which the person may create workloads."""
    return Project.objects.filter(
        pk__in=memberships_of(user).filter(role__in=SUBMIT_ROLES).values("project")
    ).order_by("name")


def may_view_project(user: User | AnonymousUser, project_id: int) -> bool:
    return visible_projects(user).filter(pk=project_id).exists()


def may_administer_project(user: User | AnonymousUser, project_id: int) -> bool:
    """Change a project's own rules: its managers, admins. Quota is an admin's alone."""
    if not user.is_authenticated:
        return False
    managed = memberships_of(user).filter(project=project_id, role=Role.MANAGER)
    return user.is_superuser or managed.exists()


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
    role = (
        memberships_of(user)
        .filter(project=workload.project_id)
        .values_list("role", flat=True)
        .first()
    )
    return role == Role.MANAGER or (role == Role.RESEARCHER and workload.owner_id == user.pk)


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
