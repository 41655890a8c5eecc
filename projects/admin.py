"""Django's admin for the organisation; it serves until these things have pages of their own.

Quotas go through `projects.quotas`, so that no admin can promise more than there is, and what
changes is audited. Amounts are the integers of the database: thousandths of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import QuerySet
from django.forms import BaseInlineFormSet, BaseModelFormSet
from django.forms.models import ModelChoiceIterator, ModelChoiceIteratorValue
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from projects import audit, tokens
from projects.departments import DepartmentTree
from projects.idle_rules import RULE
from projects.models import (
    AllowedNodeType,
    AuditEntry,
    Department,
    DepartmentMembership,
    DepartmentQuota,
    GpuQuota,
    Membership,
    NodeType,
    Project,
    Token,
    User,
)
from projects.quotas import (
    check_gpu_quota,
    check_move,
    set_department_quota,
    set_gpu_quota,
    wake_planner,
)

QUOTAS = (GpuQuota, DepartmentQuota)


class AuditedAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # one class for several models
    """Records every change in the audit trail, beside Django's own log."""

    def save_model(
        self, request: HttpRequest, obj: models.Model, form: forms.ModelForm[Any], change: bool
    ) -> None:
        """Save, and say who changed which fields to what."""
        super().save_model(request, obj, form, change)
        before = {name: _initial(form, name) for name in form.changed_data} if change else None
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

    def _record_rows(
        self,
        request: HttpRequest,
        owner: Project | Department,
        formset: BaseModelFormSet[Any, Any],  # of any inline
    ) -> None:
        """What was added, changed and taken away beside the owner's own fields."""
        kind = str(formset.model._meta.model_name) if formset.model else ""
        is_quota = formset.model in QUOTAS
        rows = {
            "added": [] if is_quota else formset.new_objects,
            "changed": [] if is_quota else [row for row, _fields in formset.changed_objects],
            "removed": formset.deleted_objects,
        }
        after = {what: [str(row) for row in found] for what, found in rows.items() if found}
        owner_kind = str(owner._meta.model_name)
        if after:
            audit.record(
                _actor(request),
                action=f"{owner_kind}.{kind}s",
                entity=(owner_kind, owner.name),
                after=after,
                channel="admin",
            )

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


def _initial(form: forms.ModelForm[Any], name: str) -> object:
    """What a field held; of a row that it named the row, as afterwards, and not its number."""
    value, field = form.initial.get(name), form.fields.get(name)
    if value is None or isinstance(field, forms.ModelMultipleChoiceField):
        return value
    if isinstance(field, forms.ModelChoiceField) and field.queryset is not None:
        return field.queryset.filter(pk=value).first() or value
    return value


def _as_text(values: dict[str, object] | None) -> dict[str, str] | None:
    """Field values as the audit keeps them; a password never, not even its hash."""
    if values is None:
        return None
    return {name: "…" if "password" in name else str(value) for name, value in values.items()}


def _actor(request: HttpRequest) -> User | None:
    return request.user if isinstance(request.user, User) else None


class DepartmentIterator(ModelChoiceIterator):  # type: ignore[type-arg]  # generic at check time
    """Departments by their paths, each below the one that it belongs to."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:  # of Django's own types
        """The empty choice, then the tree."""
        if self.field.empty_label is not None:
            yield ("", self.field.empty_label)
        tree = DepartmentTree()
        for row in tree.in_order():
            yield (ModelChoiceIteratorValue(row.pk, row), tree.title(row.pk))


class DepartmentField(forms.ModelChoiceField):  # type: ignore[type-arg]  # generic at check time only
    iterator = DepartmentIterator


class ProjectForm(forms.ModelForm):  # type: ignore[type-arg]  # generic at check time only
    """A project whose promises fit where it belongs."""

    department = DepartmentField(
        Department.objects.all(), required=False, label=capfirst(_("department"))
    )

    def clean(self) -> dict[str, Any]:  # what Django declares
        """Refuse a department that has no room for what the project is promised.

        Raises:
            ValidationError: keyed by `department`.
        """
        values = super().clean() or self.cleaned_data
        if "department" in self.changed_data and self.instance.pk is not None:
            moved = copy(self.instance)
            moved.department = values.get("department")
            check_move(moved, "department")
        return values


class DepartmentForm(forms.ModelForm):  # type: ignore[type-arg]  # generic at check time only
    """A department that is not below itself, and whose promises fit where it belongs."""

    parent = DepartmentField(
        Department.objects.all(), required=False, label=capfirst(_("belongs to"))
    )

    def clean(self) -> dict[str, Any]:  # what Django declares
        """Refuse a loop, and a place that has no room for what is promised below it.

        Raises:
            ValidationError: keyed by `parent`.
        """
        values = super().clean() or self.cleaned_data
        if "parent" in self.changed_data and self.instance.pk is not None:
            moved = copy(self.instance)
            moved.parent = values.get("parent")
            check_move(moved, "parent")
        return values


class QuotaFormSet(BaseInlineFormSet):  # type: ignore[type-arg]  # generic at check time only
    """Quotas whose owner may be new, or be moved by the same page."""

    def get_form_kwargs(self, index: int | None) -> dict[str, Any]:  # what Django declares
        """Also the owner, as the form of the page has left it."""
        return {**super().get_form_kwargs(index), "owner": self.instance}


class GpuQuotaForm(forms.ModelForm):  # type: ignore[type-arg]  # generic at check time only
    """A quota that promises no more than there is for it."""

    class Meta:
        model = GpuQuota
        fields = ("node_type", "quota_milli", "limit_milli", "weight")

    def __init__(self, *args: Any, owner: Project | Department, **kwargs: Any) -> None:
        """As Django's, for quotas of `owner`."""
        super().__init__(*args, **kwargs)
        self._owner = owner
        # Quotas are saved by owner and node type: another type is another row.
        self.fields["node_type"].disabled = self.instance.pk is not None

    def clean(self) -> dict[str, Any]:  # what Django declares
        """Refuse over-commitment at the field, in words.

        Raises:
            ValidationError: as `check_gpu_quota`.
        """
        values = super().clean() or self.cleaned_data
        node_type = values.get("node_type")
        if isinstance(node_type, NodeType) and "quota_milli" in values:
            bounds = values["quota_milli"], values.get("limit_milli")
            check_gpu_quota(self._owner, node_type, *bounds)
        return values


class DepartmentQuotaForm(GpuQuotaForm):
    class Meta:
        model = DepartmentQuota
        fields = GpuQuotaForm.Meta.fields


class GpuQuotaInline(admin.TabularInline):  # type: ignore[type-arg]  # generic at check time only
    model = GpuQuota
    form = GpuQuotaForm
    formset = QuotaFormSet
    extra = 0


class DepartmentQuotaInline(admin.TabularInline):  # type: ignore[type-arg]  # as above
    model = DepartmentQuota
    form = DepartmentQuotaForm
    formset = QuotaFormSet
    extra = 0


class DepartmentMembershipInline(admin.TabularInline):  # type: ignore[type-arg]  # as above
    model = DepartmentMembership
    extra = 0
    autocomplete_fields = ("user",)


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg]  # generic at check time only
    model = Membership
    extra = 0
    autocomplete_fields = ("user",)


class AllowedNodeTypeInline(admin.TabularInline):  # type: ignore[type-arg]  # as above
    model = AllowedNodeType
    extra = 0


class DepartmentFilter(admin.SimpleListFilter):
    """Projects of a department and of those below it."""

    title = _("department")
    parameter_name = "department"

    def lookups(
        self,
        request: HttpRequest,
        model_admin: admin.ModelAdmin[Any],  # of projects
    ) -> list[tuple[str, str]]:
        """Departments by their paths."""
        tree = DepartmentTree()
        return [(str(row.pk), tree.title(row.pk)) for row in tree.in_order()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Project]) -> QuerySet[Project]:
        """What is anywhere below the chosen one."""
        value = self.value() or ""
        if not value.isdecimal():
            return queryset
        return queryset.filter(department__in=DepartmentTree().below(int(value)))


class OwnerAdmin(AuditedAdmin):
    """Of what has quota: a change of quota goes through its service, a new place wakes the
    planner."""

    place: ClassVar[str]
    """The field that says where it belongs."""

    def save_model(
        self, request: HttpRequest, obj: models.Model, form: forms.ModelForm[Any], change: bool
    ) -> None:
        """Save and audit."""
        super().save_model(request, obj, form, change)
        if self.place in form.changed_data:
            wake_planner()

    def save_formset(
        self,
        request: HttpRequest,
        form: forms.ModelForm[Any],
        formset: BaseModelFormSet[Any, Any],  # of any inline
        change: bool,
    ) -> None:
        """Quotas go through their service; the rest is saved and audited."""
        if formset.model not in QUOTAS:
            super().save_formset(request, form, formset, change)
            self._record_rows(request, form.instance, formset)
            return
        quotas = formset.save(commit=False)
        for quota in formset.deleted_objects:
            quota.delete()
        if formset.deleted_objects:
            wake_planner()
        for quota in quotas:
            self._save_quota(request, quota)
        self._record_rows(request, form.instance, formset)

    def _save_quota(self, request: HttpRequest, quota: GpuQuota | DepartmentQuota) -> None:
        actor = _actor(request)
        try:
            if isinstance(quota, GpuQuota):
                set_gpu_quota(
                    quota.project,
                    quota.node_type,
                    quota_milli=quota.quota_milli,
                    limit_milli=quota.limit_milli,
                    weight=quota.weight,
                    actor=actor,
                )
            else:
                set_department_quota(
                    quota.department,
                    quota.node_type,
                    quota_milli=quota.quota_milli,
                    limit_milli=quota.limit_milli,
                    weight=quota.weight,
                    actor=actor,
                )
        except ValidationError as error:
            # Two admins at once: the form was right when it was checked.
            messages.error(request, " ".join(error.messages))


@admin.register(Project)
class ProjectAdmin(OwnerAdmin):
    place = "department"
    form = ProjectForm
    list_filter = (DepartmentFilter, "is_personal")
    search_fields = ("name", "title")
    inlines = (GpuQuotaInline, AllowedNodeTypeInline, MembershipInline)
    # These have a page of their own, at the project's.
    exclude = RULE

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        """With the path of its department, read once a page."""
        return ("name", "title", _path_column("department_id"), "priority", "is_personal")

    def get_readonly_fields(
        self, request: HttpRequest, obj: models.Model | None = None
    ) -> tuple[str, ...]:
        """A project's name is fixed once it exists."""
        return ("name",) if obj else ()


@admin.register(Department)
class DepartmentAdmin(OwnerAdmin):
    place = "parent"
    form = DepartmentForm
    fields = ("name", "title", "parent")
    search_fields = ("name", "title")
    inlines = (DepartmentQuotaInline, DepartmentMembershipInline)

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        """With its path, read once a page."""
        return ("name", _path_column("pk"))


def _path_column(attribute: str) -> Callable[[models.Model], str]:
    """A column with the path of the department that an attribute of the row names."""
    tree = DepartmentTree()

    @admin.display(description=_("department"))
    def path(row: models.Model) -> str:
        return tree.title(getattr(row, attribute)) or "—"

    return path


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
