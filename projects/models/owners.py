"""Who owns quota: projects, in a tree of departments."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from projects import tree
from projects.models.names import validate_slug

if TYPE_CHECKING:
    from django_stubs_ext.db.models.manager import RelatedManager

    from projects.models.memberships import Membership
    from projects.models.node_types import AllowedNodeType
    from projects.models.quotas import DepartmentQuota, GpuQuota


class Department(models.Model):
    """A group of projects and of further departments: the tree over which the core divides.

    The database refuses a department that would be its own ancestor, and one below the lowest
    level, whatever code tries (a trigger, see the migration).
    """

    name = models.CharField(_("name"), max_length=40, unique=True, validators=[validate_slug])
    title = models.CharField(_("title"), max_length=80, blank=True)
    parent = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="children",
        verbose_name=_("belongs to"),
    )
    created_at = models.DateTimeField(auto_now_add=True)

    if TYPE_CHECKING:
        children: RelatedManager[Department]
        gpu_quotas: RelatedManager[DepartmentQuota]

    class Meta:
        ordering = ("name",)
        verbose_name = _("department")
        verbose_name_plural = _("departments")

    def __str__(self) -> str:
        return self.title or self.name

    def clean(self) -> None:
        """Refuse at the field what the trigger would.

        Raises:
            ValidationError: keyed by `parent`: it is this department or below it, or too low.
        """
        if self.parent is None:
            return
        parents = dict(Department.objects.values_list("pk", "parent"))
        if self.pk is not None and self.parent.pk in tree.below(self.pk, parents):
            message = _("“%(value)s” is “%(name)s” itself or a department below it.")
            names = {"value": str(self.parent), "name": str(self)}
            raise ValidationError({"parent": ValidationError(message, "own_ancestor", names)})
        own = 1 if self.pk is None else tree.num_levels(self.pk, parents)
        levels = len(tree.path(self.parent.pk, parents)) + own
        if levels > tree.MAX_LEVELS:
            message = _(
                "Below “%(value)s” there would be %(levels)s levels of departments; "
                "at most %(limit)s."
            )
            params: dict[str, object] = {
                "value": str(self.parent),
                "levels": levels,
                "limit": tree.MAX_LEVELS,
            }
            raise ValidationError({"parent": ValidationError(message, "too_deep", params)})


def _max_run_in_range(kind: str) -> models.CheckConstraint:
    """A comparison with null is unknown, which a constraint lets pass."""
    name = f"max_run_{kind}_s"
    values = {
        f"{name}__gte": 60,
        f"{name}__lte": 30 * 86_400,
        f"{name}__gt": F("idle_stop_after_s"),
    }
    return models.CheckConstraint(condition=Q(**values), name=f"project_max_run_{kind}_range")


def _limit_not_below(resource: str, unit: str) -> models.CheckConstraint:
    quota, limit = f"{resource}_quota_{unit}", f"{resource}_limit_{unit}"
    return models.CheckConstraint(
        condition=Q(**{f"{limit}__isnull": True})
        | Q(**{f"{quota}__isnull": True})
        | Q(**{f"{limit}__gte": F(quota)}),
        name=f"project_{resource}_limit_not_below_quota",
    )


class Project(models.Model):
    """Who owns quota: a team, or a single person.

    Attributes:
        priority: Bucket for the surplus, 0 to 1000, higher first.
        cpu_quota_milli, memory_quota_mib: None means not counted (no guarantee needed, no ceiling).
        lends_idle: Idle sessions' devices are lent to waiting trainings, of any project.
        lending_window_s: So long a session must have been idle before.
        idle_window_s: What has been quiet for so long counts as idle.
        idle_gpu_percent, idle_cpu_percent, idle_network_kib_s: Below this, use counts as none: of
            the devices, of the cores asked for, in and out.
        idle_may_lack_network: Where the network cannot be measured the other signals do.
        idle_stop_after_s: Idle for so long, a session or training is saved and stopped; None:
            never.
        idle_first_warning_s, idle_last_warning_s: So long before that its owner is warned.
        idle_max_extension_s: For so long at most may it be kept by one *Extend*.
        max_run_interactive_s, max_run_training_s: So long a session or training may run, waits
            apart; None: without limit.
    """

    name = models.CharField(_("name"), max_length=40, unique=True, validators=[validate_slug])
    title = models.CharField(_("title"), max_length=80, blank=True)
    description = models.CharField(_("description"), max_length=250, blank=True)
    department = models.ForeignKey(
        Department,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="projects",
        verbose_name=_("department"),
    )
    priority = models.PositiveSmallIntegerField(
        _("priority"),
        default=100,
        validators=[MaxValueValidator(1000)],
        help_text=_("Who is served first of what others leave: 0 to 1000, higher first."),
    )
    is_personal = models.BooleanField(_("belongs to one person"), default=False)
    cpu_quota_milli = models.PositiveIntegerField(
        _("CPU quota, millicores"),
        null=True,
        blank=True,
        help_text=_("Of all node types together. Empty: not counted."),
    )
    cpu_limit_milli = models.PositiveIntegerField(
        _("CPU limit, millicores"),
        null=True,
        blank=True,
        help_text=_("It never holds more. Empty: no limit."),
    )
    memory_quota_mib = models.PositiveIntegerField(
        _("memory quota, MiB"),
        null=True,
        blank=True,
        help_text=_("Of all node types together. Empty: not counted."),
    )
    memory_limit_mib = models.PositiveIntegerField(
        _("memory limit, MiB"),
        null=True,
        blank=True,
        help_text=_("It never holds more. Empty: no limit."),
    )
    lends_idle = models.BooleanField(_("lends idle devices"), default=False)
    lending_window_s = models.PositiveIntegerField(
        _("idle before lending, seconds"),
        default=120,
        validators=[MinValueValidator(30), MaxValueValidator(86_400)],
    )
    idle_window_s = models.PositiveIntegerField(_("idle after, seconds"), default=1800)
    idle_gpu_percent = models.FloatField(
        _("idle below GPU use, %"),
        default=2.0,
        validators=[MinValueValidator(0), MaxValueValidator(100)],
    )
    idle_cpu_percent = models.FloatField(
        _("idle below CPU use, %"),
        default=10.0,
        validators=[MinValueValidator(0), MaxValueValidator(100)],
    )
    idle_network_kib_s = models.FloatField(
        _("idle below network use, KiB/s"), default=50.0, validators=[MinValueValidator(0)]
    )
    idle_may_lack_network = models.BooleanField(_("idle without network figures"), default=True)
    idle_stop_after_s = models.PositiveIntegerField(
        _("stopped after idle, seconds"), null=True, blank=True, default=8 * 3600
    )
    idle_first_warning_s = models.PositiveIntegerField(_("first warning, seconds"), default=900)
    idle_last_warning_s = models.PositiveIntegerField(_("last warning, seconds"), default=300)
    idle_max_extension_s = models.PositiveIntegerField(
        _("longest extension, seconds"), default=8 * 3600
    )
    max_run_interactive_s = models.PositiveIntegerField(
        _("time limit of sessions, seconds"), null=True, blank=True
    )
    max_run_training_s = models.PositiveIntegerField(
        _("time limit of trainings, seconds"), null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)

    if TYPE_CHECKING:
        gpu_quotas: RelatedManager[GpuQuota]
        memberships: RelatedManager[Membership]
        allowed_node_types: RelatedManager[AllowedNodeType]

    class Meta:
        ordering = ("name",)
        verbose_name = _("project")
        verbose_name_plural = _("projects")
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(priority__lte=1000), name="project_priority_range"),
            models.CheckConstraint(
                condition=Q(lending_window_s__gte=30, lending_window_s__lte=86_400),
                name="project_lending_window_range",
            ),
            models.CheckConstraint(
                condition=Q(idle_window_s__gte=300, idle_window_s__lte=86_400),
                name="project_idle_window_range",
            ),
            models.CheckConstraint(
                condition=Q(
                    idle_gpu_percent__gte=0,
                    idle_gpu_percent__lte=100,
                    idle_cpu_percent__gte=0,
                    idle_cpu_percent__lte=100,
                    idle_network_kib_s__gte=0,
                ),
                name="project_idle_thresholds_range",
            ),
            models.CheckConstraint(
                condition=Q(
                    idle_last_warning_s__gte=60,
                    idle_first_warning_s__gt=F("idle_last_warning_s"),
                    idle_first_warning_s__lte=86_400,
                    idle_max_extension_s__gte=3600,
                    idle_max_extension_s__lte=7 * 86_400,
                ),
                name="project_idle_warnings_range",
            ),
            models.CheckConstraint(
                condition=Q(idle_stop_after_s__isnull=True)
                | Q(
                    idle_stop_after_s__gte=F("idle_window_s") + F("idle_first_warning_s"),
                    idle_stop_after_s__lte=30 * 86_400,
                ),
                name="project_idle_stop_after_warnings",
            ),
            *(_max_run_in_range(kind) for kind in ("interactive", "training")),
            _limit_not_below("cpu", "milli"),
            _limit_not_below("memory", "mib"),
        ]

    def __str__(self) -> str:
        return self.title or self.name

    def clean(self) -> None:
        """Refuse at the field what the schema would, with both values.

        Raises:
            ValidationError: keyed by `cpu_limit_milli` or `memory_limit_mib`.
        """
        pairs = {"cpu_limit_milli": "cpu_quota_milli", "memory_limit_mib": "memory_quota_mib"}
        errors = {}
        for limit_name, quota_name in pairs.items():
            limit, quota = getattr(self, limit_name), getattr(self, quota_name)
            if limit is not None and quota is not None and limit < quota:
                message = _("The limit %(limit)s is below the quota %(quota)s.")
                params = {"limit": limit, "quota": quota}
                errors[limit_name] = ValidationError(message, "limit_below_quota", params)
        if errors:
            raise ValidationError(errors)
