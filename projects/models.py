"""Who owns what: departments, projects, people, quotas, node types, templates, tokens and the audit
trail.

Amounts are integers (`_gpu_milli` are thousandths of a GPU). The schema refuses what a row alone
can show to be wrong; sums over rows (quotas against capacity) are refused by `projects.quotas`,
under a lock.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, ClassVar

from django.contrib.auth.models import AbstractUser
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from projects import tree

if TYPE_CHECKING:
    from django_stubs_ext.db.models.manager import RelatedManager

DEFAULT_LABEL_KEY = "allot/node-type"
SLUG_PATTERN = r"^[a-z][a-z0-9-]{1,39}$"
validate_slug = RegexValidator(
    SLUG_PATTERN,
    message=_("Use 2 to 40 characters: a to z, 0 to 9 and hyphens, beginning with a letter."),
    code="invalid_name",
)


class User(AbstractUser):
    """A person. `number` (the primary key) is what the agent maps to a uid."""

    time_zone = models.CharField(_("time zone"), max_length=64, blank=True, default="")

    class Meta(AbstractUser.Meta):
        constraints: ClassVar = []

    def __str__(self) -> str:
        return self.get_full_name() or self.username


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


class NodeType(models.Model):
    """A kind of node, for quota, price and choice.

    Attributes:
        capacity_gpu_milli: What the registered nodes of this type offer; written by `scheduling`
            when nodes register, read here so that quotas cannot promise more.
        shares_strictly: A workload alone on a device keeps to its share of the device's time as
            well, instead of using what nobody else asks for.
        swap_enabled: Idle sessions may be swapped out on its nodes.
        swap_host_mib: Of a node's memory, so much may hold what was swapped out.
    """

    name = models.CharField(_("name"), max_length=40, unique=True, validators=[validate_slug])
    title = models.CharField(_("title"), max_length=80)
    label_key = models.CharField(_("label key"), max_length=63, default=DEFAULT_LABEL_KEY)
    label_value = models.CharField(_("label value"), max_length=63)
    gpu_model = models.CharField(_("GPU model"), max_length=80, blank=True)
    gpu_memory_mib = models.PositiveIntegerField(_("usable memory of a GPU, MiB"), default=0)
    capacity_gpu_milli = models.PositiveIntegerField(default=0, editable=False)
    min_runtime_s = models.PositiveIntegerField(_("minimum runtime, s"), default=0)
    shares_strictly = models.BooleanField(
        _("a share of a GPU's time is never exceeded"), default=False, db_default=False
    )
    swap_enabled = models.BooleanField(_("swaps idle sessions out"), default=False)
    swap_host_mib = models.PositiveIntegerField(
        _("memory for what is swapped out, MiB a node"), default=102_400
    )
    gpu_price_per_hour = models.DecimalField(
        _("price of a GPU per hour"),
        max_digits=10,
        decimal_places=2,
        default=0,
        validators=[MinValueValidator(0)],
    )
    cpu_price_per_hour = models.DecimalField(
        _("price of a core per hour"),
        max_digits=10,
        decimal_places=4,
        default=0,
        validators=[MinValueValidator(0)],
    )
    memory_price_per_hour = models.DecimalField(
        _("price of a GiB per hour"),
        max_digits=10,
        decimal_places=4,
        default=0,
        validators=[MinValueValidator(0)],
    )
    rank = models.PositiveSmallIntegerField(_("order"), default=100)

    class Meta:
        ordering = ("rank", "name")
        verbose_name = _("node type")
        verbose_name_plural = _("node types")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["label_key", "label_value"], name="node_type_selector_unique"
            ),
            models.CheckConstraint(
                condition=Q(
                    gpu_price_per_hour__gte=0,
                    cpu_price_per_hour__gte=0,
                    memory_price_per_hour__gte=0,
                ),
                name="node_type_prices_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def has_gpu(self) -> bool:
        return bool(self.gpu_model)


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
    priority = models.PositiveSmallIntegerField(_("priority"), default=100)
    is_personal = models.BooleanField(_("belongs to one person"), default=False)
    cpu_quota_milli = models.PositiveIntegerField(_("CPU quota, millicores"), null=True, blank=True)
    cpu_limit_milli = models.PositiveIntegerField(_("CPU limit, millicores"), null=True, blank=True)
    memory_quota_mib = models.PositiveIntegerField(_("memory quota, MiB"), null=True, blank=True)
    memory_limit_mib = models.PositiveIntegerField(_("memory limit, MiB"), null=True, blank=True)
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
            models.CheckConstraint(
                condition=Q(cpu_limit_milli__isnull=True)
                | Q(cpu_quota_milli__isnull=True)
                | Q(cpu_limit_milli__gte=F("cpu_quota_milli")),
                name="project_cpu_limit_not_below_quota",
            ),
            models.CheckConstraint(
                condition=Q(memory_limit_mib__isnull=True)
                | Q(memory_quota_mib__isnull=True)
                | Q(memory_limit_mib__gte=F("memory_quota_mib")),
                name="project_memory_limit_not_below_quota",
            ),
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


class Role(models.TextChoices):
    """What a member may do in a project. Admins of the platform are `User.is_superuser`."""

    MANAGER = "manager", _("Manager")
    RESEARCHER = "researcher", _("Researcher")
    VIEWER = "viewer", _("Viewer")


class Membership(models.Model):
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
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


class GpuQuota(models.Model):
    """A project's GPUs of one node type: guaranteed, never above, and weight for the surplus."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="gpu_quotas")
    node_type = models.ForeignKey(NodeType, on_delete=models.PROTECT, related_name="gpu_quotas")
    quota_milli = models.PositiveIntegerField(_("quota, thousandths of a GPU"), default=0)
    limit_milli = models.PositiveIntegerField(
        _("limit, thousandths of a GPU"), null=True, blank=True
    )
    weight = models.PositiveSmallIntegerField(_("weight"), default=2)

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

    department = models.ForeignKey(Department, on_delete=models.CASCADE, related_name="gpu_quotas")
    node_type = models.ForeignKey(NodeType, on_delete=models.PROTECT, related_name="+")
    quota_milli = models.PositiveIntegerField(
        _("quota, thousandths of a GPU"), null=True, blank=True
    )
    limit_milli = models.PositiveIntegerField(
        _("limit, thousandths of a GPU"), null=True, blank=True
    )
    weight = models.PositiveSmallIntegerField(_("weight"), null=True, blank=True)

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


class DepartmentMembership(models.Model):
    """A role in all projects of a department and of the departments below it."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="department_memberships")
    department = models.ForeignKey(Department, on_delete=models.CASCADE, related_name="memberships")
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


class PriceChange(models.Model):
    """What a node type costs from a moment on. Append-only, written by the database itself.

    A node type's first price holds from the beginning, a new one never rewrites the past.
    """

    id = models.BigAutoField(primary_key=True)
    node_type = models.ForeignKey(
        NodeType, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+"
    )
    valid_from = models.DateTimeField()
    gpu_price_per_hour = models.DecimalField(max_digits=10, decimal_places=2)
    cpu_price_per_hour = models.DecimalField(max_digits=10, decimal_places=4)
    memory_price_per_hour = models.DecimalField(max_digits=10, decimal_places=4)

    class Meta:
        ordering = ("valid_from", "id")
        verbose_name = _("change of price")
        verbose_name_plural = _("changes of price")

    def __str__(self) -> str:
        return f"{self.node_type_id} {self.valid_from:%Y-%m-%d %H:%M}"


class QuotaChange(models.Model):
    """A project's quota from a moment on. Append-only, written by the database itself.

    Attributes:
        node_type: Whose GPUs `gpu_milli` counts; null for CPU and memory.
        cpu_milli, memory_mib: Null means that none is counted.
    """

    id = models.BigAutoField(primary_key=True)
    project = models.ForeignKey(
        Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+"
    )
    node_type = models.ForeignKey(
        NodeType, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+", null=True
    )
    valid_from = models.DateTimeField()
    gpu_milli = models.PositiveIntegerField(null=True)
    cpu_milli = models.PositiveIntegerField(null=True)
    memory_mib = models.PositiveIntegerField(null=True)

    class Meta:
        ordering = ("valid_from", "id")
        verbose_name = _("change of quota")
        verbose_name_plural = _("changes of quota")

    def __str__(self) -> str:
        return f"{self.project_id} {self.valid_from:%Y-%m-%d %H:%M}"


class WorkloadKind(models.TextChoices):
    INTERACTIVE = "interactive", _("session")
    TRAINING = "training", _("training")


class AllowedNodeType(models.Model):
    """A node type that a project's sessions or trainings may use, in order of preference.

    A project and kind without any row may use all.
    """

    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, related_name="allowed_node_types"
    )
    node_type = models.ForeignKey(NodeType, on_delete=models.PROTECT, related_name="+")
    kind = models.CharField(max_length=16, choices=WorkloadKind.choices)
    rank = models.PositiveSmallIntegerField(default=100)

    class Meta:
        ordering = ("rank", "node_type__rank", "node_type__name")
        verbose_name = _("allowed node type")
        verbose_name_plural = _("allowed node types")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["project", "node_type", "kind"], name="allowed_node_type_unique"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=WorkloadKind.values), name="allowed_node_type_kind_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.project} · {self.kind} · {self.node_type}"


class TemplateScope(models.TextChoices):
    PRIVATE = "private", _("private")
    PROJECT = "project", _("project")
    PLATFORM = "platform", _("platform")


class Template(models.Model):
    """A saved workload form.

    Attributes:
        spec: Initial values by form field name (see `scheduling.forms`); every field is optional.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(_("name"), max_length=80)
    description = models.CharField(_("description"), max_length=250, blank=True)
    kind = models.CharField(_("kind"), max_length=16, choices=WorkloadKind.choices)
    scope = models.CharField(
        _("scope"), max_length=16, choices=TemplateScope.choices, default=TemplateScope.PRIVATE
    )
    owner = models.ForeignKey(
        User, on_delete=models.PROTECT, null=True, blank=True, related_name="templates"
    )
    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, null=True, blank=True, related_name="templates"
    )
    spec = models.JSONField(_("form values"), default=dict, blank=True)
    is_active = models.BooleanField(_("offered"), default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)
        verbose_name = _("template")
        verbose_name_plural = _("templates")
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(scope="platform", project__isnull=True)
                | Q(scope="project", project__isnull=False)
                | Q(scope="private", owner__isnull=False),
                name="template_scope_columns_agree",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=WorkloadKind.values), name="template_kind_known"
            ),
            models.UniqueConstraint(
                fields=["name", "scope", "project", "owner"],
                nulls_distinct=False,
                name="template_name_unique",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Token(models.Model):
    """A bearer token of a person for the API; only its hash is stored."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(_("name"), max_length=80)
    prefix = models.CharField(max_length=20)
    secret_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(_("expires"))
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True)
    revoked_at = models.DateTimeField(_("revoked"), null=True, blank=True)

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("token")
        verbose_name_plural = _("tokens")

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class AuditEntry(models.Model):
    """Who changed what. Append-only:

    the database refuses updates and deletions (a trigger, see the migration).
    """

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    channel = models.CharField(max_length=16)
    action = models.CharField(max_length=64)
    entity = models.CharField(max_length=64)
    entity_id = models.CharField(max_length=64)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        ordering = ("-at",)
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        indexes: ClassVar = [models.Index(fields=["entity", "entity_id"], name="audit_entity")]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.action} {self.entity} {self.entity_id}"
