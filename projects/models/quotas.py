"""What is promised to whom, of each node type."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from projects.models.node_types import NodeType
from projects.models.owners import Department, Project


class GpuQuota(models.Model):
    """A project's GPUs of one node type: guaranteed, never above, and weight for the surplus."""

    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, related_name="gpu_quotas", verbose_name=_("project")
    )
    node_type = models.ForeignKey(
        NodeType, on_delete=models.PROTECT, related_name="gpu_quotas", verbose_name=_("node type")
    )
    quota_milli = models.PositiveIntegerField(_("quota, thousandths of a GPU"), default=0)
    limit_milli = models.PositiveIntegerField(
        _("limit, thousandths of a GPU"),
        null=True,
        blank=True,
        help_text=_("It never holds more. Empty: no limit."),
    )
    weight = models.PositiveSmallIntegerField(
        _("weight"),
        default=2,
        help_text=_(
            "Its part of what others leave, beside their weights: 0 none, 1 low, 2 medium, 3 high."
        ),
    )

    class Meta:
        verbose_name = _("GPU quota")
        verbose_name_plural = _("GPU quotas")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "node_type"], name="gpu_quota_unique"),
            models.CheckConstraint(
                condition=Q(limit_milli__isnull=True) | Q(limit_milli__gte=F("quota_milli")),
                name="gpu_quota_limit_not_below_quota",
                violation_error_code="limit_below_quota",
                violation_error_message=_("The limit may not be below the quota."),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.project} · {self.node_type} · {self.quota_milli / 1000:g}"


class DepartmentQuota(models.Model):
    """A department's GPUs of one node type, where it has bounds of its own.

    Attributes:
        quota_milli: Guaranteed to all below it together; what is promised there is at most this.
            Null: what they are promised, added up.
        limit_milli: All below it together never hold more. Null: no bound of its own.
        weight: Its part of the surplus among its siblings. Null: the weights below it, added up.
    """

    department = models.ForeignKey(
        Department,
        on_delete=models.CASCADE,
        related_name="gpu_quotas",
        verbose_name=_("department"),
    )
    node_type = models.ForeignKey(
        NodeType, on_delete=models.PROTECT, related_name="+", verbose_name=_("node type")
    )
    quota_milli = models.PositiveIntegerField(
        _("quota, thousandths of a GPU"),
        null=True,
        blank=True,
        help_text=_("Promised to all below it together. Empty: what they are promised, added up."),
    )
    limit_milli = models.PositiveIntegerField(
        _("limit, thousandths of a GPU"),
        null=True,
        blank=True,
        help_text=_("All below it together never hold more. Empty: no limit of its own."),
    )
    weight = models.PositiveSmallIntegerField(
        _("weight"),
        null=True,
        blank=True,
        help_text=_(
            "Its part of what others leave, beside their weights. Empty: the weights below it, "
            "added up."
        ),
    )

    class Meta:
        verbose_name = _("GPU quota of a department")
        verbose_name_plural = _("GPU quotas of departments")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["department", "node_type"], name="department_quota_unique"
            ),
            models.CheckConstraint(
                condition=Q(limit_milli__isnull=True)
                | Q(quota_milli__isnull=True)
                | Q(limit_milli__gte=F("quota_milli")),
                name="department_quota_limit_not_below_quota",
                violation_error_code="limit_below_quota",
                violation_error_message=_("The limit may not be below the quota."),
            ),
        ]

    def __str__(self) -> str:
        quota = "—" if self.quota_milli is None else f"{self.quota_milli / 1000:g}"
        return f"{self.department} · {self.node_type} · {quota}"
