"""The form of a project's idle rule and time limits, for its page and the API alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from decimal import ROUND_HALF_EVEN
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from projects import idle_rules
from projects.models import Project, User
from scheduling.forms.amounts import (
    HOURS,
    INTEGER,
    MINUTES,
    AmountField,
    Unit,
    time_limit_field,
    written,
)
from scheduling.forms.fields import OptionField
from scheduling.forms.modes import Spelling
from scheduling.models import Workload
from scheduling.rules import rule_for
from scheduling.services.rules import AppliesTo, change_rule

# Per cent and KiB/s are fractional in rows; in the form they are thousandths, as other amounts.
NUMBER = Unit(scale=1000, decimals=3, rounding=ROUND_HALF_EVEN)
NUMBERS = ("idle_gpu_percent", "idle_cpu_percent", "idle_network_kib_s")
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
MIN_EXTENSION_S = 15 * MINUTE_S
MAX_NETWORK_KIB_S = 10_000_000
APPLIES_TO = (
    (AppliesTo.NEW.value, _("new work only")),
    (AppliesTo.RUNNING.value, _("work under way too")),
)


class IdleRuleForm(forms.Form):
    """All fields of a rule; errors name the value and the limit.

    Args:
        data: All fields, as people write them or as a program does.
        project: Whose rule, as it is now.
        spelling: Minutes and hours, or seconds.
    """

    idle_window_s = AmountField(
        unit=MINUTES,
        minimum=5 * MINUTE_S,
        maximum=DAY_S,
        required=True,
        label=_("Counts as idle after, minutes"),
        help_text=_("For so long every signal must say so, without a break."),
    )
    idle_gpu_percent = AmountField(
        unit=NUMBER,
        minimum=0,
        maximum=100_000,
        required=True,
        label=_("GPU use below, %"),
        help_text=_("Mean over a minute, of the devices by its own processes."),
    )
    idle_cpu_percent = AmountField(
        unit=NUMBER,
        minimum=0,
        maximum=100_000,
        required=True,
        label=_("CPU use of the cores asked for below, %"),
    )
    idle_network_kib_s = AmountField(
        unit=NUMBER,
        minimum=0,
        maximum=1000 * MAX_NETWORK_KIB_S,
        required=True,
        label=_("Network below, KiB/s"),
    )
    idle_may_lack_network = forms.BooleanField(
        required=False,
        label=_("Where the network cannot be measured, the other signals are enough"),
        help_text=_("Without it, whatever has no network figures is never idle."),
    )
    lends_idle = forms.BooleanField(
        required=False,
        label=_("Lend idle sessions’ GPUs to waiting trainings"),
        help_text=_("The GPU is back with the next cell, and nothing is lost."),
    )
    lending_window_s = AmountField(
        unit=INTEGER,
        minimum=30,
        maximum=DAY_S,
        required=True,
        label=_("Lend after, seconds idle"),
    )
    idle_stop_after_s = AmountField(
        unit=MINUTES,
        minimum=6 * MINUTE_S,
        maximum=30 * DAY_S,
        label=_("Stop after, minutes idle"),
        help_text=_("480 are eight hours. Empty: idle work is never stopped."),
    )
    idle_first_warning_s = AmountField(
        unit=MINUTES,
        minimum=2 * MINUTE_S,
        maximum=DAY_S,
        required=True,
        label=_("First warning, minutes before"),
    )
    idle_last_warning_s = AmountField(
        unit=MINUTES,
        minimum=MINUTE_S,
        maximum=DAY_S,
        required=True,
        label=_("Last warning, minutes before"),
    )
    idle_max_extension_s = AmountField(
        unit=HOURS,
        minimum=HOUR_S,
        maximum=7 * DAY_S,
        required=True,
        label=_("Longest extension, hours"),
        help_text=_("“Extend” keeps it for so long at most; it can be pressed again and again."),
    )
    max_run_interactive_s = time_limit_field(
        _("Time limit of a session, minutes"), _("240 are four hours. Empty: without limit.")
    )
    max_run_training_s = time_limit_field(
        _("Time limit of a training, minutes"),
        _("Of running, all starts together; waits do not count. Empty: without limit."),
    )
    rule_applies_to = OptionField(
        choices=APPLIES_TO,
        required=False,
        label=_("The change holds for"),
        help_text=_(
            "Work under way is what was submitted before. It is warned as above before a rule ends "
            "it that is new to it."
        ),
    )

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,  # a QueryDict, or what JSON holds
        *,
        project: Project,
        spelling: Spelling = Spelling.PEOPLE,
    ) -> None:
        initial = {**_initial(project), "rule_applies_to": AppliesTo.NEW.value}
        super().__init__(data, initial=initial, use_required_attribute=False)
        self.project = project
        if spelling is Spelling.PROGRAM:
            for field in self.fields.values():
                if isinstance(field, AmountField) and field.unit is not NUMBER:
                    field.unit = INTEGER

    def clean(self) -> dict[str, Any]:  # as Django declares it
        """Check what must agree: the last warning comes after the first, and both while idle; and
        what idles ends before its time limit."""
        found = self.cleaned_data
        first, last = found.get("idle_first_warning_s"), found.get("idle_last_warning_s")
        if first is not None and last is not None and last >= first:
            self._refuse("idle_last_warning_s", "too_large", first - MINUTE_S)
        window, end = found.get("idle_window_s"), found.get("idle_stop_after_s")
        if first is not None and window is not None and end is not None and end < window + first:
            self._refuse("idle_stop_after_s", "too_early", window + first)
        for name in idle_rules.MAX_RUN.values():
            if end is not None and (limit := found.get(name)) is not None and limit <= end:
                self._refuse(name, "not_above_idle", end)
        return found

    def _refuse(self, name: str, code: str, limit: int) -> None:
        field = self.fields[name]
        assert isinstance(field, AmountField)  # each that is given is one
        messages = {
            "too_large": _(
                "%(value)s is too large: the first warning comes before it, so the most "
                "is %(limit)s."
            ),
            "too_early": _(
                "%(value)s is too small: it must be idle and then be warned, so the least "
                "is %(limit)s."
            ),
            "not_above_idle": _(
                "%(value)s is too small: what idles is stopped after %(limit)s, and a time limit "
                "must be longer."
            ),
        }
        params = {
            "value": written(self.cleaned_data[name], field.unit),
            "limit": written(limit, field.unit),
        }
        self.add_error(name, ValidationError(messages[code], code=code, params=params))

    @property
    def rule(self) -> dict[str, object]:
        """The clean values, by field of `Project`."""
        return {
            name: value / NUMBER.scale if name in NUMBERS else value
            for name, value in self.cleaned_data.items()
            if name in idle_rules.RULE
        }

    @property
    def applies_to(self) -> AppliesTo:
        """For which work the change holds; for new work where nothing is said."""
        return AppliesTo(self.cleaned_data["rule_applies_to"] or AppliesTo.NEW)


class ExtendForm(forms.Form):
    """How much longer to keep something: hours, or a program's seconds.

    Args:
        data: What was sent.
        workload: The rule that holds for it says how much is allowed.
        spelling: Hours or seconds.
    """

    def __init__(
        self,
        data: Mapping[str, Any],  # a QueryDict, or what JSON holds
        *,
        workload: Workload,
        spelling: Spelling = Spelling.PEOPLE,
    ) -> None:
        super().__init__(data)
        self.fields["extend_s"] = AmountField(
            unit=HOURS if spelling is Spelling.PEOPLE else INTEGER,
            minimum=MIN_EXTENSION_S,
            maximum=rule_for(workload).idle_max_extension_s,
            required=True,
        )


def _initial(project: Project) -> dict[str, object]:
    return {
        name: round(value * NUMBER.scale) if isinstance(value, float) else value
        for name, value in asdict(idle_rules.rule_of(project)).items()
    }


def save_rule(
    project: Project,
    data: Mapping[str, Any],  # as `IdleRuleForm`
    *,
    actor: User,
    spelling: Spelling = Spelling.PEOPLE,
) -> IdleRuleForm:
    """Check and save a rule; a program's may name only some of the fields.

    Returns:
        The form, whose `project` has the new rule where the form is valid.
    """
    is_program = spelling is Spelling.PROGRAM
    with transaction.atomic():
        row = idle_rules.lock(project)
        values = {**asdict(idle_rules.rule_of(row)), **data} if is_program else data
        form = IdleRuleForm(values, project=row, spelling=spelling)
        if form.is_valid():
            channel = "api" if is_program else "ui"
            change_rule(row, form.rule, applies_to=form.applies_to, actor=actor, channel=channel)
    return form
