"""What a node says of a command and of folders, as errors of a form's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from scheduling.forms.amounts import shown
from scheduling.relay_client import FieldProblem

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

_NODE_PROBLEMS: Mapping[str, StrOrPromise] = {
    "not_found": _("“%(value)s” was not found on the node; give %(limit)s."),
    "not_executable": _("“%(value)s” may not be executed on the node; give %(limit)s."),
    "not_readable": _("You cannot read “%(value)s” on the node; give %(limit)s."),
    "outside": _("“%(value)s” lies outside what is yours; give %(limit)s."),
}


def node_error(problem: FieldProblem) -> tuple[str, ValidationError]:
    """The field at which a problem stands, and what is said there."""
    field = {"checkpoint_subfolder": "checkpoint_path"}.get(problem.field, problem.field)
    limits: Mapping[str, StrOrPromise] = {
        "command": _("a program on the path, or a file in the working folder"),
        "working_dir": _("an existing folder that you may read, such as “examples”"),
        "checkpoint_path": _("a folder inside the workload's own"),
    }
    message = _NODE_PROBLEMS.get(problem.code, _("“%(value)s” cannot be used; give %(limit)s."))
    params = {"value": shown(problem.value), "limit": limits.get(field, "—")}
    return field, ValidationError(message, code=problem.code, params=params)
