"""What the administration's pages share: changes are recorded, what Allot writes is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db import models
from django.db.models import QuerySet
from django.forms import BaseModelFormSet
from django.http import HttpRequest

from projects import audit
from projects.models import Department, DepartmentQuota, GpuQuota, Project, User
from projects.quotas import wake_planner

QUOTAS = (GpuQuota, DepartmentQuota)


class AuditedAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # one class for several models
    """Records every change in the audit trail, beside Django's own log."""

    identity: ClassVar[str] = "pk"
    """The field by which the trail names what was changed."""

    def save_model(
        self, request: HttpRequest, obj: models.Model, form: forms.ModelForm[Any], change: bool
    ) -> None:
        """Save, and say who changed which fields to what."""
        super().save_model(request, obj, form, change)
        if change and not form.changed_data:
            return
        before = {name: _initial(form, name) for name in form.changed_data} if change else None
        after = {name: form.cleaned_data.get(name) for name in form.changed_data}
        self.record(request, obj, "changed" if change else "created", (before, after))

    def delete_model(self, request: HttpRequest, obj: models.Model) -> None:
        """Delete, and say who did."""
        self.record(request, obj, "deleted", (None, None))
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
        before, after = _rows_told(formset)
        if before or after:
            kind = formset.model._meta.model_name if formset.model else ""
            owner_kind = owner._meta.model_name
            audit.record(
                actor_of(request),
                action=f"{owner_kind}.{kind}s",
                entity=(str(owner_kind), owner.name),
                before=before,
                after=after,
                channel="admin",
            )

    def record(
        self,
        request: HttpRequest,
        obj: models.Model,
        what: str,
        values: tuple[dict[str, object] | None, dict[str, object] | None],
    ) -> None:
        """Say who did what to a row: with the fields before and after, None where none is told."""
        kind = str(obj._meta.model_name)
        before, after = (_as_text(value) for value in values)
        audit.record(
            actor_of(request),
            action=f"{kind}.{what}",
            entity=(kind, str(getattr(obj, self.identity))),
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


def _rows_told(
    formset: BaseModelFormSet[Any, Any],  # of any inline
) -> tuple[dict[str, list[object]], dict[str, list[object]]]:
    """Before and after of its rows; of quotas only what was taken away, as their service records
    the rest."""
    added: list[object] = []
    changed: list[forms.ModelForm[Any]] = []
    if formset.model not in QUOTAS:
        added = [str(row) for row in formset.new_objects]
        rows = {row.pk for row, _fields in formset.changed_objects}
        changed = [form for form in formset.initial_forms if form.instance.pk in rows]
    before: dict[str, list[object]] = {
        "removed": [str(row) for row in formset.deleted_objects],
        "changed": [_row_told(form, _initial) for form in changed],
    }
    after: dict[str, list[object]] = {
        "added": added,
        "changed": [_row_told(form, _cleaned) for form in changed],
    }
    return _not_empty(before), _not_empty(after)


def _not_empty(values: dict[str, list[object]]) -> dict[str, list[object]]:
    return {what: rows for what, rows in values.items() if rows}


def _row_told(
    form: forms.ModelForm[Any], value_of: Callable[[forms.ModelForm[Any], str], object]
) -> dict[str, str]:
    """A row that was changed: which one, and the fields that were."""
    values = {name: _text(value_of(form, name)) for name in form.changed_data}
    return {"row": str(form.instance), **values}


def _cleaned(form: forms.ModelForm[Any], name: str) -> object:
    return form.cleaned_data.get(name)


def _as_text(values: dict[str, object] | None) -> dict[str, str] | None:
    """Field values as the audit keeps them; a password never, not even its hash."""
    if values is None:
        return None
    return {name: "…" if "password" in name else _text(value) for name, value in values.items()}


def _text(value: object) -> str:
    if isinstance(value, QuerySet | list):
        return ", ".join(str(item) for item in value)
    return str(value)


def actor_of(request: HttpRequest) -> User | None:
    return request.user if isinstance(request.user, User) else None


class NamedAdmin(AuditedAdmin):
    """Of what plans, requests and recorded use name: its name is fixed once it exists, and the
    planner is woken when anything else of it changes."""

    identity = "name"

    def get_readonly_fields(
        self, request: HttpRequest, obj: models.Model | None = None
    ) -> tuple[str, ...]:
        """With the name, but where it is only being added."""
        fixed = tuple(super().get_readonly_fields(request, obj))
        return ("name", *fixed) if obj else fixed

    def save_model(
        self, request: HttpRequest, obj: models.Model, form: forms.ModelForm[Any], change: bool
    ) -> None:
        """Save and audit, and plan with it."""
        super().save_model(request, obj, form, change)
        if form.changed_data:
            wake_planner()

    def delete_model(self, request: HttpRequest, obj: models.Model) -> None:
        """Delete and audit, and plan without it."""
        super().delete_model(request, obj)
        wake_planner()


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
