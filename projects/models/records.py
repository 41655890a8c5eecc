"""What people keep and what is kept about them: templates, tokens, the audit trail."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from projects.models.node_types import WorkloadKind
from projects.models.owners import Project
from projects.models.people import User


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
        User,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="templates",
        verbose_name=_("owner"),
    )
    project = models.ForeignKey(
        Project,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="templates",
        verbose_name=_("project"),
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

    def clean(self) -> None:
        """Refuse at the field what the schema would.

        Raises:
            ValidationError: keyed by `owner` or `project`: the scope needs it, or has none.
        """
        if self.scope == TemplateScope.PRIVATE and self.owner is None:
            message = _("A private template has an owner.")
            raise ValidationError({"owner": ValidationError(message, "owner_missing")})
        if self.scope == TemplateScope.PROJECT and self.project is None:
            message = _("A template of a project names the project.")
            raise ValidationError({"project": ValidationError(message, "project_missing")})
        if self.scope == TemplateScope.PLATFORM and self.project is not None:
            message = _("A template for everybody belongs to no project, “%(value)s” neither.")
            params = {"value": str(self.project)}
            raise ValidationError({"project": ValidationError(message, "has_project", params)})


class Token(models.Model):
    """A bearer token of a person for the API; only its hash is stored."""

    user = models.ForeignKey(
        User, on_delete=models.CASCADE, related_name="tokens", verbose_name=_("person")
    )
    name = models.CharField(_("name"), max_length=80)
    prefix = models.CharField(_("begins with"), max_length=20)
    secret_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
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

    at = models.DateTimeField(_("time"), auto_now_add=True, db_index=True)
    actor = models.ForeignKey(
        User, on_delete=models.PROTECT, null=True, related_name="+", verbose_name=_("person")
    )
    channel = models.CharField(_("channel"), max_length=16)
    action = models.CharField(_("action"), max_length=64)
    entity = models.CharField(_("kind of thing"), max_length=64)
    entity_id = models.CharField(_("thing"), max_length=64)
    before = models.JSONField(_("before"), null=True)
    after = models.JSONField(_("after"), null=True)

    class Meta:
        ordering = ("-at",)
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        indexes: ClassVar = [models.Index(fields=["entity", "entity_id"], name="audit_entity")]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.action} {self.entity} {self.entity_id}"
