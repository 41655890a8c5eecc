"""The form of a training: a command that may borrow, save, give back and resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from projects.access import managed_projects
from projects.models import Project, WorkloadKind
from scheduling.capacity import Supply
from scheduling.forms.amounts import INTEGER, MINUTES, AmountField, shown
from scheduling.forms.base import WorkloadForm
from scheduling.forms.fields import ArgumentsField, OptionField, TextField
from scheduling.forms.fit import Request, most_replicas
from scheduling.models import MAX_REPLICAS, CheckpointMode, Priority

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

PRIORITIES: Mapping[str, Priority] = {
    "very-low": Priority.VERY_LOW,
    "low": Priority.LOW,
    "medium": Priority.MEDIUM,
    "high": Priority.HIGH,
    "very-high": Priority.VERY_HIGH,
}

# Signals that a program can catch and that nothing else on a node sends for its own reasons.
SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT", "SIGHUP")

CHECKPOINT_MODES: tuple[tuple[str, StrOrPromise], ...] = (
    (CheckpointMode.SIGNAL, pgettext_lazy("checkpoint", "When it receives a signal")),
    (CheckpointMode.COMMAND, pgettext_lazy("checkpoint", "By a command of its own")),
    (CheckpointMode.NONE, pgettext_lazy("checkpoint", "Not at all: it starts anew")),
)
MAX_GRACE_S = 300
MAX_BACKOFF = 100
DEFAULT_CHECKPOINT_PATH = "checkpoints"


class TrainingForm(WorkloadForm):
    """A training. Command and arguments are split as a shell would split them, not expanded."""

    kind: ClassVar[WorkloadKind] = WorkloadKind.TRAINING

    command = ArgumentsField(
        max_chars=4000,
        required=True,
        label=_("Command"),
        help_text=_("Split at spaces as in a shell; quotes hold words together. No shell runs it."),
    )
    arguments = ArgumentsField(
        max_chars=4000,
        label=_("Arguments"),
        help_text=_("Appended to the command, if it is easier to read apart."),
        widget=forms.Textarea,
    )
    is_preemptible = forms.BooleanField(
        required=False,
        label=_("May borrow, and be stopped for those whose quota it is"),
        help_text=_(
            "Without this it must fit the project's quota, and is never stopped for others."
        ),
    )
    priority = OptionField(
        choices=[(key, value.label) for key, value in PRIORITIES.items()],
        required=True,
        label=_("Priority inside the project"),
    )
    min_replicas = AmountField(
        unit=INTEGER,
        minimum=1,
        maximum=MAX_REPLICAS,
        label=_("Replicas, from"),
        help_text=_("Fewer never run. Above 1 they work together: if one fails, all start again."),
    )
    max_replicas = AmountField(
        unit=INTEGER,
        minimum=1,
        maximum=MAX_REPLICAS,
        label=_("Replicas, up to"),
        help_text=_("More while there is room, one by one; empty: no more than the least."),
    )
    checkpoint_mode = OptionField(
        choices=CHECKPOINT_MODES,
        required=True,
        widget=forms.RadioSelect,
        label=_("How it saves"),
    )
    checkpoint_signal = OptionField(
        choices=[(name, name) for name in SIGNALS],
        label=_("Signal"),
        help_text=_("Sent only if the program catches it."),
    )
    checkpoint_command = TextField(
        max_chars=1000,
        label=_("Command that saves"),
        help_text=_("Run by a shell as you, beside the training."),
    )
    checkpoint_path = TextField(
        max_chars=200,
        required=True,
        label=_("Checkpoint folder"),
        help_text=_(
            "Inside the workload's own folder; the program finds it as $ALLOT_CHECKPOINT_DIR."
        ),
    )
    checkpoint_every_min = AmountField(
        unit=MINUTES,
        minimum=60,
        maximum=24 * 3600,
        label=_("Save every, minutes"),
        help_text=_("Empty: when the program itself likes, and whenever it must stop."),
    )
    grace_s = AmountField(
        unit=INTEGER,
        minimum=0,
        maximum=MAX_GRACE_S,
        required=True,
        label=_("Time to save before it is killed, seconds"),
    )
    backoff_limit = AmountField(
        unit=INTEGER,
        minimum=0,
        maximum=MAX_BACKOFF,
        required=True,
        label=_("Retries after a failure"),
        help_text=_("Being stopped for others never counts as one."),
    )

    def clean_checkpoint_path(self) -> str:
        """Keep the folder inside the workload's own.

        Raises:
            ValidationError: `outside`.
        """
        text = str(self.cleaned_data["checkpoint_path"])
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts or not path.parts or text.startswith("~"):
            message = _(
                "“%(value)s” lies outside the workload's folder; "
                "allowed is %(limit)s, such as “checkpoints”."
            )
            params = {"value": shown(text), "limit": _("a folder inside it")}
            raise ValidationError(message, code="outside", params=params)
        return str(path)

    def check_modes(self) -> None:
        """Only the fields of the chosen way to save count."""
        mode = self.cleaned_data.get("checkpoint_mode")
        self.need_or_ignore("checkpoint_signal", is_needed=mode == CheckpointMode.SIGNAL)
        self.need_or_ignore("checkpoint_command", is_needed=mode == CheckpointMode.COMMAND)
        if mode == CheckpointMode.NONE:
            for name in ("checkpoint_every_min", "checkpoint_path"):
                self.need_or_ignore(name, is_needed=False)

    def check_crew(self, request: Request, found: Sequence[Supply]) -> None:
        """A range of replicas, of which the least must fit the nodes of one type."""
        values = self.cleaned_data
        least = values.get("min_replicas") or 1
        most = values.get("max_replicas") or least
        if most < least:
            message = _("%(value)s is fewer than the least: at least %(limit)s.")
            params = {"value": str(most), "limit": str(least)}
            self.add_error(
                "max_replicas", ValidationError(message, code="below_minimum", params=params)
            )
            return
        if least == 1 or self.is_repeat or not any(supply.nodes for supply in found):
            return
        milli = values.get("gpu_fraction")
        fitting = max(most_replicas(request, milli, supply) for supply in found)
        if 0 < fitting < least:
            message = _(
                "%(value)s replicas are more than fit together on the nodes of one type, even with "
                "nothing on them: at most %(limit)s (%(types)s)."
            )
            types = ", ".join(supply.node_type.title for supply in found)
            params = {"value": str(least), "limit": str(fitting), "types": types}
            self.add_error(
                "min_replicas",
                ValidationError(message, code="more_replicas_than_fit", params=params),
            )

    def check_permissions(self) -> None:
        """A high priority displaces colleagues' work, so only managers of the project give it."""
        priority = PRIORITIES.get(self.cleaned_data.get("priority") or "")
        project = self.cleaned_data.get("project")
        if priority is None or priority <= Priority.MEDIUM or not isinstance(project, Project):
            return
        if managed_projects(self.user).filter(pk=project.pk).exists():
            return
        message = _("“%(value)s” is for managers of the project; yours is at most “%(limit)s”.")
        params = {"value": priority.label, "limit": Priority.MEDIUM.label}
        self.add_error(
            "priority", ValidationError(message, code="priority_needs_manager", params=params)
        )

    def planned_values(self) -> dict[str, Any]:  # keyword arguments of different types
        """Place in the queue, how many replicas, and whether it may borrow."""
        values = self.cleaned_data
        least = values["min_replicas"] or 1
        return {
            "min_replicas": least,
            "max_replicas": values["max_replicas"] or least,
            "priority": PRIORITIES[values["priority"]].value,
            "is_preemptible": values["is_preemptible"],
        }

    def kind_values(self) -> dict[str, Any]:  # keyword arguments of different types
        """Command, place in the queue and checkpoints."""
        values = self.cleaned_data
        return {
            **self.planned_values(),
            "command": values["command"] + values["arguments"],
            "checkpoint_mode": values["checkpoint_mode"],
            "checkpoint_signal": values["checkpoint_signal"] or SIGNALS[0],
            "checkpoint_command": values["checkpoint_command"] or "",
            "checkpoint_path": values["checkpoint_path"] or DEFAULT_CHECKPOINT_PATH,
            "checkpoint_every_s": values["checkpoint_every_min"],
            "grace_s": values["grace_s"],
            "backoff_limit": values["backoff_limit"],
        }
