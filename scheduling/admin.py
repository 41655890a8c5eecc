"""Django's admin for what runs: to look at, never to change; and the admins' templates.

Rows of the scheduler obey invariants over several tables, which only its services keep. Templates
are edited here because only this app knows the names of the form's fields; projects and departments
because only it knows what they hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import models
from django.forms import BaseModelFormSet
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from projects.admin import AuditedAdmin, DepartmentAdmin, OwnerAdmin, ProjectAdmin, ReadOnlyAdmin
from projects.admin.audited import QUOTAS
from projects.models import Department, Project, Template, WorkloadKind
from scheduling.core.types import CPU, MEMORY, ResourceKey
from scheduling.forms import SessionForm, TrainingForm, WorkloadForm
from scheduling.models import (
    Allocation,
    Attempt,
    Checkpoint,
    Command,
    CycleRecord,
    Device,
    DeviceHold,
    Event,
    Node,
    PlannerPolicy,
    ProjectUsage,
    Wait,
    Workload,
    Zone,
)
from scheduling.organisation import gpu_key
from scheduling.quota_notes import notes_on
from scheduling.services.events import wake_planner

FORMS: Mapping[str, type[WorkloadForm]] = {
    WorkloadKind.INTERACTIVE: SessionForm,
    WorkloadKind.TRAINING: TrainingForm,
}


UNSTORABLE = re.compile(r"(?<!\\)(\\\\)*\\u0000|[\ud800-\udfff]")
"""In JSON: an escaped NUL, not an escaped backslash before digits; half of a pair of surrogates."""

COUNTED_FIELDS = {
    "cpu_quota_milli": CPU,
    "cpu_limit_milli": CPU,
    "memory_quota_mib": MEMORY,
    "memory_limit_mib": MEMORY,
}


class NotedAdmin(OwnerAdmin):
    """Of what has quota; says of changed bounds what does not hold at once."""

    def save_related(
        self,
        request: HttpRequest,
        form: forms.ModelForm[Any],
        formsets: Iterable[BaseModelFormSet[Any, Any]],  # of any inline
        change: bool,
    ) -> None:
        """Save, and look at what is held and offered then."""
        super().save_related(request, form, formsets, change)
        for note in notes_on(form.instance, frozenset(_changed(form, formsets))):
            messages.warning(request, note)


def _changed(
    form: forms.ModelForm[Any], formsets: Iterable[BaseModelFormSet[Any, Any]]
) -> Iterator[ResourceKey]:
    """Resources of which a bound was given or changed."""
    for name in form.changed_data:
        if name in COUNTED_FIELDS:
            yield COUNTED_FIELDS[name]
    for formset in formsets:
        if formset.model in QUOTAS:
            for row in [*formset.new_objects, *(row for row, _fields in formset.changed_objects)]:
                yield gpu_key(row.node_type.name)


@admin.register(Project)
class NotedProjectAdmin(NotedAdmin, ProjectAdmin):
    pass


@admin.register(Department)
class NotedDepartmentAdmin(NotedAdmin, DepartmentAdmin):
    pass


class StorableJson(json.JSONDecoder):
    """JSON that PostgreSQL takes: without NUL, without half of a pair of surrogates, and of no more
    levels than can be read."""

    def decode(self, s: str, *args: Any) -> Any:  # decoded JSON
        """Decode a text.

        Raises:
            JSONDecodeError: it is no JSON, or cannot be stored.
        """
        try:
            value = super().decode(s, *args)
            unstorable = UNSTORABLE.search(json.dumps(value, ensure_ascii=False))
        except RecursionError as error:
            raise json.JSONDecodeError("It is nested too deeply", s, 0) from error
        if unstorable:
            raise json.JSONDecodeError("It has a character that cannot be stored", s, 0)
        return value


class TemplateAdminForm(forms.ModelForm):  # type: ignore[type-arg]  # generic when checked
    """A template whose values the workload form really has."""

    spec = forms.JSONField(
        label=capfirst(_("form values")),
        required=False,
        initial=dict,
        decoder=StorableJson,
        error_messages={
            "invalid": _(
                "This is no JSON, has a character that cannot be stored, or is nested too deeply."
            )
        },
        help_text=_("Initial values by name of the form's field, as JSON, as the page shows them."),
    )

    class Meta:
        model = Template
        fields = ("name", "description", "kind", "scope", "owner", "project", "spec", "is_active")

    def clean_spec(self) -> dict[str, object]:
        """Refuse a misspelt field, which would be ignored for ever.

        Raises:
            ValidationError: `not_an_object` or `unknown_field`.
        """
        spec = self.cleaned_data["spec"] or {}
        if not isinstance(spec, dict):
            raise ValidationError(_("Form values are an object by field name."), "not_an_object")
        form_class = FORMS.get(self.cleaned_data.get("kind", ""), TrainingForm)
        unknown = sorted(set(spec) - set(form_class.base_fields))
        if unknown:
            message = _("The form has no field “%(value)s”; it has: %(limit)s.")
            params = {"value": ", ".join(unknown), "limit": ", ".join(form_class.base_fields)}
            raise ValidationError(message, code="unknown_field", params=params)
        return spec


@admin.register(Template)
class TemplateAdmin(AuditedAdmin):
    form = TemplateAdminForm
    list_display = ("name", "kind", "scope", "project", "owner", "is_active")
    list_filter = ("kind", "scope", "is_active")
    search_fields = ("name",)
    # Django joins by itself only what no row lacks.
    list_select_related = ("project", "owner")
    autocomplete_fields = ("owner", "project")


@admin.register(Zone)
class ZoneAdmin(ReadOnlyAdmin):
    list_display = ("name", "last_report_at", "clock_skew_s", "is_stopping")
    exclude = ("token_hash", "relay_secret")


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = ("name", "zone", "node_type", "state", "cpu_milli", "memory_mib", "is_simulated")
    list_filter = ("state", "node_type", "zone")
    search_fields = ("name",)
    list_select_related = ("zone", "node_type")


@admin.register(Device)
class DeviceAdmin(ReadOnlyAdmin):
    list_display = ("uuid", "node", "index", "model", "memory_mib", "allocated_milli", "is_healthy")


@admin.register(Workload)
class WorkloadAdmin(ReadOnlyAdmin):
    list_display = ("name", "project", "owner", "kind", "phase", "submitted_at")
    list_filter = ("phase", "kind", "project")
    search_fields = ("name", "id")
    list_select_related = ("project", "owner")
    exclude = ("session_secret",)


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    list_display = ("workload", "number", "node", "phase", "goal", "exit_code", "placed_at")
    list_filter = ("phase",)


@admin.register(Allocation)
class AllocationAdmin(ReadOnlyAdmin):
    list_display = ("workload", "node", "gpu_milli", "cpu_milli", "started_at", "ended_at")


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    list_display = ("at", "workload", "code", "phase", "actor")
    list_filter = ("code",)
    list_select_related = ("workload", "actor")


@admin.register(Wait)
class WaitAdmin(ReadOnlyAdmin):
    list_display = ("workload", "cause", "claimant", "started_at", "ended_at")
    list_filter = ("cause",)
    list_select_related = ("workload", "claimant")


@admin.register(Command)
class CommandAdmin(ReadOnlyAdmin):
    list_display = ("key", "zone", "kind", "num_tries", "available_at", "done_at", "is_dead")
    list_filter = ("is_dead", "kind")


@admin.register(PlannerPolicy)
class PlannerPolicyAdmin(AuditedAdmin):
    """The planner's policy: one row, which can be changed and not multiplied."""

    list_display = ("__str__", "topology", "cordon_failures", "history_factor_milli")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Once."""
        return super().has_add_permission(request) and not PlannerPolicy.objects.exists()

    def save_model(
        self, request: HttpRequest, obj: models.Model, form: forms.ModelForm[Any], change: bool
    ) -> None:
        """Save it as the only one, and have the planner look again."""
        obj.pk = PlannerPolicy.ONLY
        super().save_model(request, obj, form, change)
        wake_planner("policy")


@admin.register(CycleRecord)
class CycleRecordAdmin(ReadOnlyAdmin):
    list_display = ("started_at", "snapshot_s", "plan_s", "record_s")

    def get_queryset(self, request: object) -> object:  # type: ignore[override]  # narrower rows
        """A scenario may be large; lists leave it in the database."""
        return CycleRecord.objects.defer("packed_scenario", "decisions", "numbers")


for model in (Checkpoint, DeviceHold, ProjectUsage):
    admin.site.register(model, ReadOnlyAdmin)
