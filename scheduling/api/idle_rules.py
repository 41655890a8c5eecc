"""A change of a project's idle rule as JSON, read into the form that checks it."""

from __future__ import annotations

from collections.abc import Mapping

from projects.models import Project, User
from scheduling.api.problems import wrong_fields
from scheduling.api.requests import (
    AMOUNT,
    BOOLEAN,
    JsonType,
    field_error,
    object_of,
    problem_of,
)
from scheduling.forms import Spelling
from scheduling.forms.idle_rule import save_rule

FIELDS: Mapping[str, JsonType] = {
    "idle_window_s": AMOUNT,
    "idle_gpu_percent": AMOUNT,
    "idle_cpu_percent": AMOUNT,
    "idle_network_kib_s": AMOUNT,
    "idle_may_lack_network": BOOLEAN,
    "lends_idle": BOOLEAN,
    "lending_window_s": AMOUNT,
}


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
        raise wrong_fields(
            [field_error(name, found[0]) for name, found in form.errors.as_data().items()]
        )
    return form.project
