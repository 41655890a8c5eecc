"""Rules of projects and extensions as JSON, read into the forms that check them."""

from __future__ import annotations

from collections.abc import Mapping

from django.forms import Form

from projects.models import Project, User
from scheduling.api.problems import ProblemError, wrong_fields
from scheduling.api.requests import (
    AMOUNT,
    BOOLEAN,
    TEXT,
    JsonType,
    field_error,
    object_of,
    problem_of,
)
from scheduling.forms import Spelling
from scheduling.forms.idle_rule import ExtendForm, save_rule
from scheduling.models import Workload

AMOUNT_OR_NULL = JsonType(
    "an integer or null", lambda value: value is None or AMOUNT.matches(value)
)
FIELDS: Mapping[str, JsonType] = {
    "idle_window_s": AMOUNT,
    "idle_gpu_percent": AMOUNT,
    "idle_cpu_percent": AMOUNT,
    "idle_network_kib_s": AMOUNT,
    "idle_may_lack_network": BOOLEAN,
    "lends_idle": BOOLEAN,
    "lending_window_s": AMOUNT,
    "idle_stop_after_s": AMOUNT_OR_NULL,
    "idle_first_warning_s": AMOUNT,
    "idle_last_warning_s": AMOUNT,
    "idle_max_extension_s": AMOUNT,
    "max_run_interactive_s": AMOUNT_OR_NULL,
    "max_run_training_s": AMOUNT_OR_NULL,
    "rule_applies_to": TEXT,
}


def extension_of(workload: Workload, body: object) -> int:
    """By how many seconds a body extends a workload.

    Raises:
        ProblemError: 422, the field is missing, wrong, or one beside it is unknown.
    """
    data = object_of(body)
    problems = [problem_of({"extend_s": AMOUNT}, name, value) for name, value in data.items()]
    errors = [problem for problem in problems if problem is not None]
    if errors:
        raise wrong_fields(errors)
    form = ExtendForm(data, workload=workload, spelling=Spelling.PROGRAM)
    if not form.is_valid():
        raise _refused(form)
    return int(form.cleaned_data["extend_s"])


def _refused(form: Form) -> ProblemError:
    return wrong_fields(
        [field_error(name, found[0]) for name, found in form.errors.as_data().items()]
    )


def change_idle_rule(project: Project, body: object, person: User) -> Project:
    """Change the fields that a body names.

    Raises:
        ProblemError: 422, with every field that is wrong or unknown; then nothing was changed.
    """
    data = object_of(body)
    problems = [problem_of(FIELDS, name, value) for name, value in data.items()]
    errors = [problem for problem in problems if problem is not None]
    if errors:
        raise wrong_fields(errors)
    form = save_rule(project, data, actor=person, spelling=Spelling.PROGRAM)
    if not form.is_valid():
        raise _refused(form)
    return form.project
