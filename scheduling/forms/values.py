"""Values of a form before anybody types: defaults, a template's, or an existing workload's (clone).

Integers are amounts as Allot keeps them; the fields write them in the person's unit and language.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import fields
from decimal import Decimal, InvalidOperation

from django.core.exceptions import ValidationError
from django.forms import Field
from django.http import QueryDict

from projects.models import Template, WorkloadKind
from scheduling.forms.amounts import AmountField, written
from scheduling.forms.base import WorkloadForm
from scheduling.forms.modes import GpuMode
from scheduling.forms.training import DEFAULT_CHECKPOINT_PATH, PRIORITIES, SIGNALS, TrainingForm
from scheduling.models import CheckpointMode, Workload
from scheduling.services import WorkloadSpec

# What a new form of each kind begins with: a quarter of a GPU, and enough beside it for Jupyter.
COMMON_DEFAULTS: Mapping[str, object] = {
    "gpu_mode": GpuMode.FRACTION.value,
    "gpu_fraction": 250,
    "gpu_count": 1,
    "cpu_cores": 2000,
    "memory_gib": 2048,
}
TRAINING_DEFAULTS: Mapping[str, object] = {
    "gpu_mode": GpuMode.WHOLE.value,
    "is_preemptible": True,
    "priority": "medium",
    "checkpoint_mode": CheckpointMode.SIGNAL.value,
    "checkpoint_signal": SIGNALS[0],
    "checkpoint_path": DEFAULT_CHECKPOINT_PATH,
    "grace_s": 60,
    "backoff_limit": 3,
    "min_replicas": 1,
}
# Never part of a template: they belong to one submission.
OWN_FIELDS = frozenset({"name", "from_template"})


def defaults(kind: str) -> dict[str, object]:
    """What a form begins with that nobody filled in; the name is new each time."""
    values = dict(COMMON_DEFAULTS)
    if kind == WorkloadKind.TRAINING:
        values.update(TRAINING_DEFAULTS)
    values["name"] = new_name("session" if kind == WorkloadKind.INTERACTIVE else "training")
    return values


def new_name(prefix: str) -> str:
    """A name that is most likely free."""
    return f"{prefix}-{secrets.token_hex(2)}"


def template_values(template: Template, form_class: type[WorkloadForm]) -> dict[str, object]:
    """A template's values that the form knows; numbers are in the units of the page."""
    values: dict[str, object] = {}
    for name, value in template.spec.items():
        field = form_class.base_fields.get(name)
        if field is None or name in OWN_FIELDS:
            continue
        values[name] = _number(value) if isinstance(field, AmountField) else value
    values["from_template"] = template.name
    return values


def _number(value: object) -> object:
    """A number of the page's unit, which the field writes in the person's language."""
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return value


def linked_values(query: QueryDict, form_class: type[WorkloadForm]) -> dict[str, object]:
    """Values that a link to the form names: any field, or the planner's offers in its own terms."""
    values = _named(query, form_class.base_fields)
    milli = str(query.get("gpu_milli", ""))
    if milli.isdecimal():
        values.update(_gpu_choice(int(milli)))
    return values


def _named(query: QueryDict, known: Mapping[str, Field]) -> dict[str, object]:
    values: dict[str, object] = {
        name: field.widget.value_from_datadict(query, {}, name)
        for name, field in known.items()
        if name in query
    }
    if "node_type" in query:
        values["node_types"] = [query["node_type"]]
    return values


def linked_problems(query: QueryDict, form: WorkloadForm) -> list[str]:
    """What a link names that its form does not know, in the words of each field."""
    named = _named(query, form.fields)
    if not str(query.get("gpu_milli", "0")).isdecimal():
        named["gpu_fraction"] = query["gpu_milli"]
    found = []
    for name, value in named.items():
        field = form.fields[name]
        try:
            clean = field.clean(value)
            if name == "project" and clean:
                form.find_project(clean)
        except ValidationError as error:
            found += [f"{field.label}: {text}" for text in error.messages]
    return found


def _gpu_choice(milli: int) -> dict[str, object]:
    """Whole GPUs where it is a whole number of them, else a part of one."""
    if milli and milli % 1000 == 0:
        return {"gpu_mode": GpuMode.WHOLE.value, "gpu_count": milli // 1000}
    return {"gpu_mode": GpuMode.FRACTION.value, "gpu_fraction": milli}


def clone_values(workload: Workload) -> dict[str, object]:
    """Form values that lead to a workload with an equal spec, under a new name."""
    values: dict[str, object] = {
        "project": workload.project.name,
        "name": _next_name(workload.name),
        "from_template": workload.template_name,
        "node_types": list(workload.node_types),
        **_gpu_values(workload),
        "cpu_cores": workload.cpu_milli,
        "memory_gib": workload.memory_mib,
        "working_dir": workload.working_dir,
        "env": dict(workload.env),
        "max_run_min": workload.max_run_s,
    }
    if workload.kind == WorkloadKind.TRAINING:
        values.update(_training_values(workload))
    return values


def _gpu_values(source: Workload | WorkloadSpec) -> dict[str, object]:
    if source.num_devices == 0:
        return {"gpu_mode": GpuMode.NONE.value}
    if source.gpu_memory_mib is not None:
        return {"gpu_mode": GpuMode.MEMORY.value, "gpu_memory_gib": source.gpu_memory_mib}
    if source.gpu_milli == 1000:
        return {"gpu_mode": GpuMode.WHOLE.value, "gpu_count": source.num_devices}
    return {"gpu_mode": GpuMode.FRACTION.value, "gpu_fraction": source.gpu_milli}


def _training_values(source: Workload | WorkloadSpec) -> dict[str, object]:
    priorities = {value.value: key for key, value in PRIORITIES.items()}
    return {
        "command": shlex.join(source.command),
        "arguments": "",
        "is_preemptible": source.is_preemptible,
        "priority": priorities.get(source.priority, "medium"),
        "checkpoint_mode": source.checkpoint_mode,
        "checkpoint_signal": source.checkpoint_signal,
        "checkpoint_command": source.checkpoint_command,
        "checkpoint_path": source.checkpoint_path,
        "checkpoint_every_min": source.checkpoint_every_s,
        "grace_s": source.grace_s,
        "backoff_limit": source.backoff_limit,
        "min_replicas": source.min_replicas,
        "max_replicas": source.max_replicas,
    }


def fingerprint(source: Workload | WorkloadSpec) -> str:
    """Everything that was asked for, as text: equal for equal requests."""
    values = {item.name: getattr(source, item.name) for item in fields(WorkloadSpec)}
    values["project"] = source.project.name
    values["env"] = dict(source.env)
    values["node_types"] = list(source.node_types)
    values["node_labels"] = dict(source.node_labels)
    values["command"] = list(source.command)
    return json.dumps(values, sort_keys=True)


def _next_name(name: str) -> str:
    """`run` → `run-2`, `run-2` → `run-3`; shortened to what a name may have."""
    stem, _hyphen, number = name.rpartition("-")
    if stem and number.isascii() and number.isdigit() and len(number) < 6:
        suffix = f"-{int(number) + 1}"
    else:
        stem, suffix = name, "-2"
    return stem[: 40 - len(suffix)].rstrip("-") + suffix


def template_spec(spec: WorkloadSpec, form: WorkloadForm) -> dict[str, object]:
    """A filled-in form as a template keeps it: units of the page, no locale."""
    kept: dict[str, object] = {
        "project": spec.project.name,
        "node_types": list(spec.node_types),
        **_gpu_values(spec),
        "cpu_cores": spec.cpu_milli,
        "memory_gib": spec.memory_mib,
        "working_dir": spec.working_dir,
        "env": dict(spec.env),
        "max_run_min": spec.max_run_s,
    }
    if isinstance(form, TrainingForm):
        kept.update(_training_values(spec))
    return dict(_unlocalised(kept, form))


def _unlocalised(values: Mapping[str, object], form: WorkloadForm) -> Iterable[tuple[str, object]]:
    for name, value in values.items():
        field = form.fields[name]
        if isinstance(field, AmountField) and isinstance(value, int):
            yield name, written(value, field.unit, localised=False)
        elif value is not None:
            yield name, value
