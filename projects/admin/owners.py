"""Projects and departments: quotas go through their service, places in the tree are checked.

They are registered in `scheduling.admin`, which knows also what is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import QuerySet
from django.forms import BaseInlineFormSet, BaseModelFormSet
from django.forms.models import ModelChoiceIterator, ModelChoiceIteratorValue
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from projects.admin.audited import QUOTAS, NamedAdmin, actor_of
from projects.departments import DepartmentTree
from projects.idle_rules import RULE
from projects.models import (
    AllowedNodeType,
    Department,
    DepartmentMembership,
    DepartmentQuota,
    GpuQuota,
    Membership,
    NodeType,
    Project,
)
from projects.quotas import (
    check_gpu_quota,
    check_move,
    set_department_quota,
    set_gpu_quota,
    wake_planner,
)


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


class PlacedForm(forms.ModelForm):  # type: ignore[type-arg]  # generic at check time only
    """Of what belongs to a department: its promises fit where it belongs."""

    place: ClassVar[str]
    """The field that says where."""

    def clean(self) -> dict[str, Any]:  # what Django declares
        """Refuse a department that has no room for what is promised here, or is below it.

        Raises:
            ValidationError: keyed by the field that says where it belongs.
        """
        values = super().clean() or self.cleaned_data
        if self.place in self.changed_data and self.instance.pk is not None:
            moved = copy(self.instance)
            setattr(moved, self.place, values.get(self.place))
            check_move(moved, self.place)
        return values


class ProjectForm(PlacedForm):
    place = "department"
    department = DepartmentField(
        Department.objects.all(), required=False, label=capfirst(_("department"))
    )


class DepartmentForm(PlacedForm):
    place = "parent"
    parent = DepartmentField(
        Department.objects.all(), required=False, label=capfirst(_("belongs to"))
    )


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


class OwnerAdmin(NamedAdmin):
    """Of what has quota: a change of quota goes through its service."""

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
        given: dict[str, Any] = {  # the form has made them right
            "quota_milli": quota.quota_milli,
            "limit_milli": quota.limit_milli,
            "weight": quota.weight,
            "actor": actor_of(request),
        }
        try:
            if isinstance(quota, GpuQuota):
                set_gpu_quota(quota.project, quota.node_type, **given)
            else:
                set_department_quota(quota.department, quota.node_type, **given)
        except ValidationError as error:
            # Two admins at once: the form was right when it was checked.
            messages.error(request, " ".join(error.messages))


class ProjectAdmin(OwnerAdmin):
    form = ProjectForm
    list_filter = (DepartmentFilter, "is_personal")
    search_fields = ("name", "title")
    inlines = (GpuQuotaInline, AllowedNodeTypeInline, MembershipInline)
    # These have a page of their own, at the project's.
    exclude = RULE

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        """With the path of its department, read once a page."""
        return ("name", "title", _path_column("department_id"), "priority", "is_personal")


class DepartmentAdmin(OwnerAdmin):
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
