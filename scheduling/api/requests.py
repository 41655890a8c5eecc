"""A workload as JSON, read into the data of the form that checks it.

And the form's errors read back.

The API asks for the integers that Allot keeps (`gpu_milli`, `cpu_milli`, `memory_mib`, …). Here
they only get the names of the form's fields; what they mean, and whether they are good, is the
form's business, so that page and API refuse alike.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from projects.models import User, WorkloadKind
from scheduling.api.problems import FieldError, wrong_fields
from scheduling.forms import SPEC_NAMES, GpuMode, SessionForm, Spelling, TrainingForm, WorkloadForm
from scheduling.forms.amounts import shown
from scheduling.forms.values import TRAINING_DEFAULTS

FORMS: Mapping[str, type[WorkloadForm]] = {
    WorkloadKind.INTERACTIVE: SessionForm,
    WorkloadKind.TRAINING: TrainingForm,
}
WHOLE_GPU_MILLI = 1000
FORM_NAMES = {spec: name for name, spec in SPEC_NAMES.items()}


def _spelled(value: object) -> str:
    """A value as the caller wrote it: `null`, not Python's word."""
    return shown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_texts_by_name(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class JsonType:
    """What a field must be before the form looks at it."""

    name: str
    matches: Callable[[object], bool]


AMOUNT = JsonType("an integer", _is_amount)
TEXT = JsonType("a string", _is_text)
TEXTS = JsonType("an array of strings", _is_texts)
TEXTS_BY_NAME = JsonType("an object of strings", _is_texts_by_name)
BOOLEAN = JsonType("true or false", _is_boolean)

COMMON_FIELDS: Mapping[str, JsonType] = {
    "kind": TEXT,
    "project": TEXT,
    "name": TEXT,
    "template_name": TEXT,
    "node_types": TEXTS,
    "node_labels": TEXTS_BY_NAME,
    "num_devices": AMOUNT,
    "gpu_milli": AMOUNT,
    "gpu_memory_mib": AMOUNT,
    "cpu_milli": AMOUNT,
    "memory_mib": AMOUNT,
    "working_dir": TEXT,
    "env": TEXTS_BY_NAME,
    "max_run_s": AMOUNT,
}
TRAINING_FIELDS: Mapping[str, JsonType] = {
    "command": TEXTS,
    "is_preemptible": BOOLEAN,
    "priority": TEXT,
    "checkpoint_mode": TEXT,
    "checkpoint_signal": TEXT,
    "checkpoint_command": TEXT,
    "checkpoint_path": TEXT,
    "checkpoint_every_s": AMOUNT,
    "grace_s": AMOUNT,
    "backoff_limit": AMOUNT,
    "min_replicas": AMOUNT,
    "max_replicas": AMOUNT,
}
FIELDS: Mapping[str, Mapping[str, JsonType]] = {
    WorkloadKind.INTERACTIVE: COMMON_FIELDS,
    WorkloadKind.TRAINING: {**COMMON_FIELDS, **TRAINING_FIELDS},
}


@dataclass(slots=True)
class WorkloadRequest:
    """A body on its way into the form.

    Attributes:
        data: By form field name.
        errors: By API field name: what is no value for the form at all.
    """

    kind: str
    data: dict[str, object] = field(default_factory=dict)
    errors: dict[str, FieldError] = field(default_factory=dict)

    def form(self, user: User, *, is_repeat: bool) -> WorkloadForm:
        """The form that checks it."""
        return FORMS[self.kind](
            self.data, user=user, spelling=Spelling.PROGRAM, is_repeat=is_repeat
        )


def read(body: object) -> WorkloadRequest:
    """Read a body.

    Raises:
        ProblemError: 422, it is no object, or of no known kind.
    """
    body = object_of(body)
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        limit = ", ".join(FIELDS)
        message = _("“%(value)s” is none of: %(limit)s.") % {
            "value": _spelled(kind),
            "limit": limit,
        }
        raise wrong_fields([FieldError("kind", "invalid_choice", message, limit)])
    request = WorkloadRequest(kind)
    values = {name: value for name, value in body.items() if value is not None}
    good = {name: value for name, value in values.items() if _is_usable(request, name, value)}
    if kind == WorkloadKind.TRAINING:
        request.data.update(_training_data())
    request.data.update({FORM_NAMES.get(name, name): value for name, value in good.items()})
    if "command" in good:
        request.data["command"] = shlex.join(good["command"])
    request.data["gpu_mode"] = _gpu_mode(request, good)
    request.data.pop("kind", None)
    return request


def object_of(body: object) -> dict[str, Any]:  # decoded JSON
    """A body that is an object.

    Raises:
        ProblemError: 422, it is something else.
    """
    if not isinstance(body, dict):
        message = _("The body must be a JSON object.")
        raise wrong_fields([FieldError("", "wrong_type", message, "object")])
    return body


def _is_usable(request: WorkloadRequest, name: str, value: object) -> bool:
    error = problem_of(FIELDS[request.kind], name, value)
    if error is not None:
        request.errors[name] = error
    return error is None


def problem_of(known: Mapping[str, JsonType], name: str, value: object) -> FieldError | None:
    """What is wrong with a field of a body before any form looks at it."""
    if name not in known:
        message = _("There is no field “%(value)s”; there are: %(limit)s.")
        limit = ", ".join(known)
        words = message % {"value": _spelled(name), "limit": limit}
        return FieldError(name, "unknown_field", words, limit)
    if not known[name].matches(value):
        message = _("“%(value)s” has the wrong type: it must be %(limit)s.")
        words = message % {"value": _spelled(value), "limit": known[name].name}
        return FieldError(name, "wrong_type", words, known[name].name)
    return None


def _training_data() -> dict[str, object]:
    """What a training gets that does not say otherwise; the page begins with the same."""
    return {name: value for name, value in TRAINING_DEFAULTS.items() if name != "gpu_mode"}


def _gpu_mode(request: WorkloadRequest, good: Mapping[str, object]) -> str:
    """Which of the page's modes the three GPU fields mean."""
    by_memory, by_part = "gpu_memory_mib" in good, "gpu_milli" in good
    count = good.get("num_devices", 1)
    if by_memory and by_part:
        message = _("Ask by gpu_milli or by gpu_memory_mib (%(value)s), not by both.")
        words = message % {"value": _spelled(good["gpu_memory_mib"])}
        error = FieldError("gpu_memory_mib", "conflict", words, "gpu_milli")
        request.errors["gpu_memory_mib"] = error
    if not by_memory and not by_part:
        return GpuMode.NONE if good.get("num_devices", 0) == 0 else GpuMode.WHOLE
    if good.get("gpu_milli") == WHOLE_GPU_MILLI and not by_memory:
        request.data["gpu_count"] = count
        return GpuMode.WHOLE
    if count != 1:
        message = _("%(value)s: a part or an amount of memory is of one GPU; the limit is 1.")
        words = message % {"value": _spelled(count)}
        request.errors["num_devices"] = FieldError("num_devices", "part_of_one_gpu", words, "1")
    return GpuMode.MEMORY if by_memory else GpuMode.FRACTION


def errors_of(form: WorkloadForm, request: WorkloadRequest) -> list[FieldError]:
    """Everything that is wrong, by the API's names; one entry per field."""
    found = dict(request.errors)
    for name, errors in form.errors.as_data().items():
        api_name = "" if name == "__all__" else SPEC_NAMES.get(name, name)
        if name == "gpu_mode":
            api_name = "num_devices"
        if api_name not in found and errors:
            found[api_name] = field_error(api_name, errors[0])
    return list(found.values())


def field_error(name: str, error: ValidationError) -> FieldError:
    """A form's error as the API sends it."""
    limit = error.params.get("limit") if error.params else None
    message = " ".join(error.messages)
    return FieldError(name, error.code or "invalid", message, None if limit is None else str(limit))
