"""Django's admin for the organisation; it serves until these things have pages of their own.

Quotas go through `projects.quotas`, so that no admin can promise more than there is, and what
changes is audited. Amounts are the integers of the database: thousandths of a GPU.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import QuerySet
from django.forms import BaseModelFormSet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from projects import audit, tokens
from projects.idle_rules import IDLE_RULE
from projects.models import (
    AllowedNodeType,
    AuditEntry,
    Department,
    GpuQuota,
    Membership,
    NodeType,
    Project,
    Token,
    User,
)
from projects.quotas import check_gpu_quota, set_gpu_quota


class AuditedAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # one class for several models
    """Records every change in the audit trail, beside Django's own log."""

    def save_model(
        self, request: HttpRequest, obj: models.Model, form: forms.ModelForm[Any], change: bool
    ) -> None:
        """Save, and say who changed which fields to what."""
        super().save_model(request, obj, form, change)
        before = {name: form.initial.get(name) for name in form.changed_data} if change else None
        after = {name: form.cleaned_data.get(name) for name in form.changed_data}
        self._record(request, obj, "changed" if change else "created", (before, after))

    def delete_model(self, request: HttpRequest, obj: models.Model) -> None:
        """Delete, and say who did."""
        self._record(request, obj, "deleted", (None, None))
        super().delete_model(request, obj)

    def delete_queryset(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any],  # rows of the admin's model
    ) -> None:
        """Delete one by one, so that each is recorded."""
        for obj in queryset:
            self.delete_model(request, obj)

    def _record(
        self,
        request: HttpRequest,
        obj: models.Model,
        what: str,
        values: tuple[dict[str, object] | None, dict[str, object] | None],
    ) -> None:
        kind = str(obj._meta.model_name)
        before, after = (_as_text(value) for value in values)
        audit.record(
            _actor(request),
            action=f"{kind}.{what}",
            entity=(kind, str(obj.pk)),
            before=before,
            after=after,
            channel="admin",
        )


def _as_text(values: dict[str, object] | None) -> dict[str, str] | None:
    """Field values as the audit keeps them; a password never, not even its hash."""
    if values is None:
        return None
    return {name: "…" if "password" in name else str(value) for name, value in values.items()}


def _actor(request: HttpRequest) -> User | None:
    return request.user if isinstance(request.user, User) else None


class GpuQuotaForm(forms.ModelForm):  # type: ignore[type-arg]  # generic at check time only
    """A quota that promises no more than the nodes of its type offer."""

    class Meta:
        model = GpuQuota
        fields = ("node_type", "quota_milli", "limit_milli", "weight")

    def clean(self) -> dict[str, Any]:  # what Django declares
        """Refuse over-commitment at the field, in words.

        Raises:
            ValidationError: as `check_gpu_quota`.
        """
        values = super().clean() or self.cleaned_data
        node_type, quota_milli = values.get("node_type"), values.get("quota_milli")
        if isinstance(node_type, NodeType) and quota_milli is not None:
            # A project that is only being added holds nothing yet.
            project = self.instance.project if self.instance.project_id else Project()
            check_gpu_quota(project, node_type, quota_milli, values.get("limit_milli"))
        return values


class GpuQuotaInline(admin.TabularInline):  # type: ignore[type-arg]  # generic at check time only
    model = GpuQuota
    form = GpuQuotaForm
    extra = 0


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg]  # generic at check time only
    model = Membership
    extra = 0
    autocomplete_fields = ("user",)


class AllowedNodeTypeInline(admin.TabularInline):  # type: ignore[type-arg]  # as above
    model = AllowedNodeType
    extra = 0


@admin.register(Project)
class ProjectAdmin(AuditedAdmin):
    list_display = ("name", "title", "department", "priority", "is_personal")
    list_filter = ("department", "is_personal")
    search_fields = ("name", "title")
    inlines = (GpuQuotaInline, AllowedNodeTypeInline, MembershipInline)
    # These have a page of their own, at the project's.
    exclude = IDLE_RULE

    def get_readonly_fields(
        self, request: HttpRequest, obj: models.Model | None = None
    ) -> tuple[str, ...]:
        """A project's name is fixed once it exists."""
        return ("name",) if obj else ()

    def save_formset(
        self,
        request: HttpRequest,
        form: forms.ModelForm[Any],
        formset: BaseModelFormSet[Any, Any],  # of any inline
        change: bool,
    ) -> None:
        """Quotas go through their service; the rest is saved and audited."""
        if formset.model is not GpuQuota:
            super().save_formset(request, form, formset, change)
            self._record_rows(request, form.instance, formset)
            return
        quotas = formset.save(commit=False)
        for quota in formset.deleted_objects:
            quota.delete()
        for quota in quotas:
            self._save_quota(request, quota)
        self._record_rows(request, form.instance, formset)

    def _save_quota(self, request: HttpRequest, quota: GpuQuota) -> None:
        try:
            set_gpu_quota(
                quota.project,
                quota.node_type,
                quota_milli=quota.quota_milli,
                limit_milli=quota.limit_milli,
                weight=quota.weight,
                actor=_actor(request),
            )
        except ValidationError as error:
            # Two admins at once: the form was right when it was checked.
            messages.error(request, " ".join(error.messages))

    def _record_rows(
        self,
        request: HttpRequest,
        project: Project,
        formset: BaseModelFormSet[Any, Any],  # of any inline
    ) -> None:
        """What was added, changed and taken away beside the project's own fields."""
        kind = str(formset.model._meta.model_name) if formset.model else ""
        is_quota = formset.model is GpuQuota
        rows = {
            "added": [] if is_quota else formset.new_objects,
            "changed": [] if is_quota else [row for row, _fields in formset.changed_objects],
            "removed": formset.deleted_objects,
        }
        after = {what: [str(row) for row in found] for what, found in rows.items() if found}
        if after:
            audit.record(
                _actor(request),
                action=f"project.{kind}s",
                entity=("project", project.name),
                after=after,
                channel="admin",
            )


@admin.register(Department)
class DepartmentAdmin(AuditedAdmin):
    list_display = ("name", "title")
    search_fields = ("name", "title")


@admin.register(NodeType)
class NodeTypeAdmin(AuditedAdmin):
    list_display = (
        "name",
        "title",
        "gpu_model",
        "capacity_gpu_milli",
        "gpu_price_per_hour",
        "rank",
    )
    readonly_fields = ("capacity_gpu_milli",)


@admin.register(User)
class PersonAdmin(UserAdmin, AuditedAdmin):  # type: ignore[type-arg]  # generic at check time only
    list_display = ("username", "first_name", "last_name", "email", "is_active", "is_superuser")
    fieldsets = (*(UserAdmin.fieldsets or ()), (_("Display"), {"fields": ("time_zone",)}))


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # one class for several models
    """Shows rows that only Allot itself writes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Nobody changes."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Nobody deletes."""
        return False


@admin.register(Token)
class TokenAdmin(ReadOnlyAdmin):
    list_display = (
        "name",
        "user",
        "prefix",
        "created_at",
        "last_used_at",
        "expires_at",
        "revoked_at",
    )
    search_fields = ("name", "user__username")
    exclude = ("secret_hash",)
    actions = ("revoke",)

    @admin.action(description=_("Revoke the chosen tokens"), permissions=["view"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        """End tokens of any person."""
        actor = _actor(request)
        if actor is None or not actor.is_superuser:
            messages.error(request, _("Only an admin revokes another person's token."))
            return
        for token in queryset:
            tokens.revoke(token, actor=actor)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ("at", "actor", "channel", "action", "entity", "entity_id")
    list_filter = ("action", "entity", "channel")
    search_fields = ("entity_id", "actor__username")
    date_hierarchy = "at"
