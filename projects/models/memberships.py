"""Who has which role where."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from projects.models.owners import Department, Project
from projects.models.people import Role, User


class Membership(models.Model):
    user = models.ForeignKey(
        User, on_delete=models.CASCADE, related_name="memberships", verbose_name=_("person")
    )
    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, related_name="memberships", verbose_name=_("project")
    )
    role = models.CharField(_("role"), max_length=16, choices=Role.choices, default=Role.RESEARCHER)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)

    class Meta:
        verbose_name = _("membership")
        verbose_name_plural = _("memberships")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "project"], name="membership_unique"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} · {self.project} · {self.get_role_display()}"


class DepartmentMembership(models.Model):
    """A role in all projects of a department and of the departments below it."""

    user = models.ForeignKey(
        User,
        on_delete=models.CASCADE,
        related_name="department_memberships",
        verbose_name=_("person"),
    )
    department = models.ForeignKey(
        Department,
        on_delete=models.CASCADE,
        related_name="memberships",
        verbose_name=_("department"),
    )
    role = models.CharField(_("role"), max_length=16, choices=Role.choices, default=Role.RESEARCHER)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)

    class Meta:
        verbose_name = _("membership of a department")
        verbose_name_plural = _("memberships of departments")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["user", "department"], name="department_membership_unique"
            ),
            models.CheckConstraint(
                condition=Q(role__in=Role.values), name="department_membership_role_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user} · {self.department} · {self.get_role_display()}"
