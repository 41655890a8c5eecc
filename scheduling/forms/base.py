"""What the forms of sessions and trainings share: one validation for page, API and all other ways.

A form turns what was sent into a `WorkloadSpec` of clean integers, or says at the field what is
wrong, naming the value and the limit. `Spelling.PEOPLE` reads GPUs as decimals, cores and GiB;
`Spelling.PROGRAM` reads the integers of the API. Nothing else differs between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from projects.access import projects_for_submit
from projects.idle_rules import max_run_s
from projects.models import NodeType, Project, User, WorkloadKind
from projects.node_types import allowed_node_types
from projects.templates import templates_for
from scheduling.capacity import Supply, supplies
from scheduling.forms.amounts import (
    CORES,
    GIB,
    GPU,
    INTEGER,
    AmountField,
    Unit,
    shown,
    time_limit_field,
    written,
)
from scheduling.forms.fields import (
    EnvironmentField,
    NameField,
    NodeTypesField,
    OptionField,
    TextField,
)
from scheduling.forms.fit import UNITS, Request, misfit
from scheduling.forms.labels import LabelsField, labels_for
from scheduling.forms.modes import (
    DRAFT_NAME,
    GPU_FIELD,
    GPU_MODES,
    PLANNED_FIELDS,
    SPEC_NAMES,
    GpuMode,
    Spelling,
)
from scheduling.forms.node_problems import node_error
from scheduling.services import SubmissionRefusedError, WorkloadSpec, check_on_node

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

# Below a twentieth a GPU's memory holds little more than the CUDA context.
MIN_FRACTION_MILLI = 50
MAX_GPUS = 8
# Bounds of what is a number at all; the machines' sizes are checked apart.
MAX_CPU_MILLI = 1_024_000
MAX_MEMORY_MIB = 16 * 1024 * 1024
MIN_CPU_MILLI = 100
MIN_MEMORY_MIB = 64


class WorkloadForm(forms.Form):
    """Fields and checks of every workload.

    Args:
        user: Who submits.
        spelling: Whose units the values are in.
        is_repeat: The same request was accepted before: only read it, do not hold it against
            today's world.
    """

    kind: ClassVar[WorkloadKind]

    project = TextField(max_chars=40, required=True, label=_("Project"))
    name = NameField(required=True, label=_("Name"))
    from_template = TextField(max_chars=80, widget=forms.HiddenInput)
    node_types = NodeTypesField(label=_("Node type"))
    node_labels = LabelsField(label=_("Node labels"))
    gpu_mode = OptionField(
        choices=GPU_MODES, required=True, widget=forms.RadioSelect, label=_("GPU")
    )
    gpu_fraction = AmountField(
        unit=GPU, minimum=MIN_FRACTION_MILLI, maximum=1000, label=_("Part of one GPU")
    )
    gpu_count = AmountField(unit=INTEGER, minimum=1, maximum=MAX_GPUS, label=_("GPUs on one node"))
    gpu_memory_gib = AmountField(
        unit=GIB, minimum=512, maximum=MAX_MEMORY_MIB, label=_("GPU memory, GiB")
    )
    cpu_cores = AmountField(
        unit=CORES,
        minimum=MIN_CPU_MILLI,
        maximum=MAX_CPU_MILLI,
        required=True,
        label=_("CPU, cores"),
    )
    memory_gib = AmountField(
        unit=GIB,
        minimum=MIN_MEMORY_MIB,
        maximum=MAX_MEMORY_MIB,
        required=True,
        label=_("Memory, GiB"),
    )
    max_run_min = time_limit_field(
        _("Time limit, minutes"),
        _(
            "Of running; waits do not count. Empty: as the project says. With a limit it may start "
            "earlier."
        ),
    )
    working_dir = TextField(
        max_chars=1000,
        label=_("Working folder"),
        help_text=_("In your home folder on the node; empty means the home folder itself."),
    )
    env = EnvironmentField(
        max_chars=8000,
        label=_("Environment variables"),
        help_text=_("One NAME=value a line."),
    )

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,  # a QueryDict or decoded JSON
        *,
        user: User,
        spelling: Spelling = Spelling.PEOPLE,
        initial: Mapping[str, object] | None = None,
        is_repeat: bool = False,
    ) -> None:
        super().__init__(
            data, initial=dict(initial or {}), prefix=None, use_required_attribute=False
        )
        self.user = user
        self.spelling = spelling
        self.is_repeat = is_repeat
        self.projects: Sequence[Project] = list(projects_for_submit(user))
        self.spec: WorkloadSpec | None = None
        node_types_field = self.fields["node_types"]
        if isinstance(node_types_field, NodeTypesField):
            node_types_field.known = list(NodeType.objects.values_list("name", flat=True))
        if spelling is Spelling.PROGRAM:
            for field in self.fields.values():
                if isinstance(field, AmountField):
                    field.unit = INTEGER

    # ------------------------------------------------------------ single fields

    def clean_project(self) -> Project:
        """Find the project.

        Raises:
            ValidationError: as `find_project`.
        """
        return self.find_project(str(self.cleaned_data["project"]))

    def find_project(self, name: str) -> Project:
        """The project of this name in which the person may submit.

        Raises:
            ValidationError: `unknown_project`, or `not_a_member` where it exists.
        """
        for project in self.projects:
            if project.name == name:
                return project
        params = {"value": shown(name), "limit": ", ".join(p.name for p in self.projects) or "—"}
        if Project.objects.filter(name=name).exists():
            message = _("You may not submit work in project “%(value)s”; you may in: %(limit)s.")
            raise ValidationError(message, code="not_a_member", params=params)
        message = _("There is no project “%(value)s”; yours are: %(limit)s.")
        raise ValidationError(message, code="unknown_project", params=params)

    def clean_working_dir(self) -> str:
        """Refuse a relative folder that climbs out of the home folder.

        Raises:
            ValidationError: `outside`.
        """
        return self._inside("working_dir", _("a folder inside your home, or an absolute path"))

    def _inside(self, field: str, limit: StrOrPromise) -> str:
        value = str(self.cleaned_data[field])
        if ".." in PurePosixPath(value).parts:
            message = _("“%(value)s” leads outside by “..”; allowed is %(limit)s.")
            params = {"value": shown(value), "limit": limit}
            raise ValidationError(message, code="outside", params=params)
        return value

    def clean_from_template(self) -> str:
        """Keep the name of a template that the person may use.

        Raises:
            ValidationError: `unknown_template`.
        """
        name = str(self.cleaned_data["from_template"])
        names = [item.name for item in templates_for(self.user, self.kind)] if name else []
        if name and name not in names:
            message = _("There is no template “%(value)s” for you; there are: %(limit)s.")
            params = {"value": shown(name), "limit": ", ".join(names) or "—"}
            raise ValidationError(message, code="unknown_template", params=params)
        return name

    # ------------------------------------------------------------ fields together

    def clean(self) -> dict[str, Any]:  # what Django declares
        """Check what depends on several fields, then make the spec."""
        self._check_gpu_mode()
        self.check_modes()
        steps: tuple[Callable[[], None], ...] = (self._choose_node_types, self._take_labels)
        if not self.is_repeat:
            steps += (self.check_permissions, self._check_fit, self._check_time)
        for step in steps:
            step()
        if not self.errors:
            self.spec = self.make_spec()
        return self.cleaned_data

    def check_modes(self) -> None:
        """What a chosen mode needs, and which fields it leaves out; for subclasses."""

    def check_permissions(self) -> None:
        """What this person may not ask for; for subclasses."""

    def check_crew(self, request: Request, found: Sequence[Supply]) -> None:
        """How many of these may be asked for; for subclasses."""

    def _check_gpu_mode(self) -> None:
        mode = self.cleaned_data.get("gpu_mode")
        for name in GPU_FIELD.values():
            self.need_or_ignore(
                name, is_needed=mode is not None and GPU_FIELD.get(GpuMode(mode)) == name
            )

    def need_or_ignore(self, name: str, *, is_needed: bool) -> None:
        """Ask for a field that a mode needs; forget one that it hides, wrong or not."""
        if not is_needed:
            self.errors.pop(name, None)
            self.cleaned_data[name] = None
        elif name not in self.errors and self.cleaned_data.get(name) in (None, ""):
            field = self.fields[name]
            try:
                field.required = True
                field.clean("")
            except ValidationError as error:
                self.add_error(name, error)

    def _choose_node_types(self) -> None:
        """Fill in what may be used where the form leaves it open; refuse what may not."""
        project = self.cleaned_data.get("project")
        chosen: tuple[str, ...] | None = self.cleaned_data.get("node_types")
        if not isinstance(project, Project) or chosen is None:
            return
        allowed = allowed_node_types(project, self.kind)
        needs_gpu = self.cleaned_data.get("gpu_mode") not in (GpuMode.NONE, None)
        usable = [item for item in allowed if item.has_gpu or not needs_gpu]
        if not needs_gpu:
            # Work without a GPU leaves nodes with GPUs to others as long as it can.
            usable.sort(key=lambda item: item.has_gpu)
        if not chosen:
            self.cleaned_data["node_types"] = tuple(item.name for item in usable)
            if not usable:
                self._refuse_node_type("required", "", allowed)
            return
        if not needs_gpu and self.spelling is Spelling.PEOPLE:
            # The page ticks types for GPUs; without one they come last, and only as a way out.
            without = [item.name for item in usable if not item.has_gpu]
            chosen = (*without, *(name for name in chosen if name not in without))
            self.cleaned_data["node_types"] = chosen
        if self.is_repeat:
            return
        for name in chosen:
            if name not in {item.name for item in allowed}:
                self._refuse_node_type("node_type_not_allowed", name, usable)
            elif name not in {item.name for item in usable}:
                self._refuse_node_type("node_type_without_gpu", name, usable)

    def _take_labels(self) -> None:
        values = self.cleaned_data
        asked, template = values.get("node_labels") or {}, values.get("from_template") or ""
        try:
            values["node_labels"] = labels_for(self.user, self.kind, template, asked)
        except ValidationError as error:
            self.add_error("node_labels", error)

    def _refuse_node_type(self, code: str, name: str, usable: Sequence[NodeType]) -> None:
        messages: Mapping[str, StrOrPromise] = {
            "required": _("This project may use no node type for this; there are: %(limit)s."),
            "node_type_not_allowed": _(
                "“%(value)s” is closed to this kind of work in this project; open: %(limit)s."
            ),
            "node_type_without_gpu": _("“%(value)s” has no GPU; with a GPU there are: %(limit)s."),
        }
        params = {"value": name, "limit": ", ".join(item.name for item in usable) or "—"}
        self.add_error("node_types", ValidationError(messages[code], code=code, params=params))

    def _check_fit(self) -> None:
        """Refuse what no node of the chosen types could ever hold."""
        names = self.cleaned_data.get("node_types") or ()
        if "node_types" in self.errors or not names:
            return
        types = list(NodeType.objects.filter(name__in=names))
        request = Request(
            num_devices=self.num_devices,
            gpu_memory_mib=self.cleaned_data.get("gpu_memory_gib") or 0,
            cpu_milli=self.cleaned_data.get("cpu_cores") or 0,
            memory_mib=self.cleaned_data.get("memory_gib") or 0,
        )
        nodes = supplies(types)
        self.check_crew(request, nodes)
        found = misfit(request, nodes)
        if found is None:
            return
        field = {spec: name for name, spec in SPEC_NAMES.items()}[found.amount]
        unit = self.unit_of(field)
        params = {
            "value": written(getattr(request, found.amount), unit),
            "limit": written(found.largest, unit),
            "unit": UNITS.get((found.amount, unit is not INTEGER), ""),
            "node": found.node,
            "types": ", ".join(item.title for item in types),
        }
        self.add_error(field, ValidationError(found.message, code=found.code, params=params))

    def _check_time(self) -> None:
        """A time limit of its own may only be tighter than the project's."""
        project, asked = self.cleaned_data.get("project"), self.cleaned_data.get("max_run_min")
        if not isinstance(project, Project) or asked is None:
            return
        allowed = max_run_s(project, self.kind)
        if allowed is not None and asked > allowed:
            unit = self.unit_of("max_run_min")
            message = _("%(value)s is too large: project %(project)s allows %(limit)s at most.")
            params = {
                "value": written(asked, unit),
                "limit": written(allowed, unit),
                "project": project,
            }
            error = ValidationError(message, code="above_project", params=params)
            self.add_error("max_run_min", error)

    def unit_of(self, name: str) -> Unit:
        """The unit in which this form's sender writes an amount."""
        field = self.fields[name]
        return field.unit if isinstance(field, AmountField) else INTEGER

    # ------------------------------------------------------------ the spec

    @property
    def num_devices(self) -> int:
        """GPUs asked for on one node; 0 while the GPU fields are wrong."""
        match self.cleaned_data.get("gpu_mode"):
            case GpuMode.WHOLE:
                return int(self.cleaned_data.get("gpu_count") or 0)
            case GpuMode.FRACTION | GpuMode.MEMORY:
                return 1
        return 0

    def make_spec(self) -> WorkloadSpec:
        """The clean values; call only without errors."""
        values = self.cleaned_data
        return replace(
            self._planned_spec(),
            name=values["name"],
            working_dir=values["working_dir"],
            env=tuple(sorted(values["env"].items())),
            template_name=values["from_template"],
            **self.kind_values(),
        )

    def draft(self) -> WorkloadSpec | None:
        """The spec as far as a planner looks at it, whatever else is still missing or wrong."""
        if any(name in self.errors for name in PLANNED_FIELDS):
            return None
        return replace(self._planned_spec(), **self.planned_values())

    def _planned_spec(self) -> WorkloadSpec:
        values = self.cleaned_data
        is_whole = values["gpu_mode"] == GpuMode.WHOLE
        return WorkloadSpec(
            project=values["project"],
            kind=self.kind.value,
            name=DRAFT_NAME,
            node_types=values["node_types"],
            node_labels=tuple(sorted((values.get("node_labels") or {}).items())),
            num_devices=self.num_devices,
            gpu_milli=1000 if is_whole else values["gpu_fraction"],
            gpu_memory_mib=values["gpu_memory_gib"],
            cpu_milli=values["cpu_cores"],
            memory_mib=values["memory_gib"],
            max_run_s=values["max_run_min"],
        )

    def planned_values(self) -> dict[str, Any]:  # keyword arguments of different types
        """What of the kind's own values a planner looks at."""
        return {}

    def kind_values(self) -> dict[str, Any]:  # keyword arguments of different types
        """The part of the spec that depends on the kind."""
        return {}

    # ------------------------------------------------------------ what others say

    def check_on_node(self) -> bool:
        """Ask the node about command and folders.

        Its answers become errors. True when all is well.
        """
        if self.spec is None:
            return False
        for problem in check_on_node(self.spec, self.user):
            field, error = node_error(problem)
            self.add_error(field if field in self.fields else None, error)
        return not self.errors

    def add_refusal(self, refusal: SubmissionRefusedError) -> None:
        """Show at its field why the services refused the clean spec; everything typed stays."""
        self.add_error(
            self.field_of(refusal.field), ValidationError(refusal.message, code=refusal.code)
        )

    def field_of(self, spec_name: str) -> str | None:
        """The form field behind a field of the spec."""
        mode = self.cleaned_data.get("gpu_mode")
        if spec_name in ("gpu_milli", "num_devices", "gpu_memory_mib") and mode in GPU_FIELD:
            return GPU_FIELD[mode]
        names = {spec: name for name, spec in SPEC_NAMES.items()}
        name = names.get(spec_name, spec_name)
        return name if name in self.fields else None
