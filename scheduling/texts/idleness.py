"""A project's idle rule in words, and what each signal of a workload says by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from projects.idle_rules import Rule, is_default, rule_of
from projects.models import Project
from scheduling import formats
from scheduling.idle_signals import Says, Signal, signals_of
from scheduling.models import Workload
from scheduling.rules import rule_for

NAMES: Mapping[str, Callable[[], str]] = {
    "gpu": lambda: _("GPU"),
    "cpu": lambda: _("CPU"),
    "network": lambda: _("Network"),
    "kernels": lambda: _("Kernels"),
    "terminals": lambda: _("Terminals"),
}


@dataclass(frozen=True, slots=True)
class SignalLine:
    """One signal for a page: what it is judged by, and what it says."""

    signal: Signal
    name: str
    limit: str
    says: str


def _idle_when(rule: Rule) -> str:
    values = {
        "window": formats.duration(rule.idle_window_s),
        "gpu": formats.decimal(rule.idle_gpu_percent, 3),
        "cpu": formats.decimal(rule.idle_cpu_percent, 3),
        "network": formats.decimal(rule.idle_network_kib_s, 3),
    }
    text = _(
        "For %(window)s GPU use below %(gpu)s %%, CPU below %(cpu)s %% of the request, network "
        "below %(network)s KiB/s, no busy kernel, and nothing running in a terminal."
    )
    return text % values


def _network(rule: Rule) -> str:
    if rule.idle_may_lack_network:
        return _("Where the network cannot be measured, the other signals are enough.")
    return _("Where the network cannot be measured, nothing counts as idle.")


def _lends(rule: Rule) -> str:
    if not rule.lends_idle:
        return _("Idle GPUs are not lent.")
    values = {"window": formats.duration(rule.lending_window_s)}
    return _("After %(window)s idle, a session’s GPU is lent to a waiting training.") % values


def _ends(rule: Rule) -> str:
    if rule.idle_stop_after_s is None:
        return _("Idle work is never stopped.")
    values = {
        "time": formats.duration(rule.idle_stop_after_s),
        "first": formats.duration(rule.idle_first_warning_s),
        "last": formats.duration(rule.idle_last_warning_s),
    }
    text = _(
        "After %(time)s idle a session is stopped, and a training saves and stops; warnings come "
        "%(first)s and %(last)s before."
    )
    return text % values


def _limits(rule: Rule) -> str:
    sessions, trainings = rule.max_run_interactive_s, rule.max_run_training_s
    if sessions is None and trainings is None:
        return _("Sessions and trainings run without a time limit.")
    values = {
        "sessions": _("without limit") if sessions is None else formats.duration(sessions),
        "trainings": _("without limit") if trainings is None else formats.duration(trainings),
    }
    text = _("Sessions run for: %(sessions)s. Trainings, waits apart: %(trainings)s.")
    return text % values


def _source(project: Project) -> str:
    if is_default(project):
        return _("Allot’s defaults, not changed in project %(project)s.") % {"project": project}
    return _("Set in project %(project)s.") % {"project": project}


@dataclass(frozen=True, slots=True)
class RuleInWords:
    """A rule, sentence by sentence."""

    idle_when: str
    network: str
    lends: str
    ends: str
    limits: str
    source: str


def rule_in_words(project: Project) -> RuleInWords:
    """The rule in force for what is submitted now."""
    return _in_words(rule_of(project), _source(project))


def rule_for_workload(workload: Workload) -> RuleInWords:
    """The rule that holds for a workload."""
    source = _source(workload.project)
    if workload.kept_rule:
        source = _("As it was in project %(project)s when this was submitted; it has changed.")
        source = source % {"project": workload.project}
    return _in_words(rule_for(workload), source)


def _in_words(rule: Rule, source: str) -> RuleInWords:
    return RuleInWords(
        idle_when=_idle_when(rule),
        network=_network(rule),
        lends=_lends(rule),
        ends=_ends(rule),
        limits=_limits(rule),
        source=source,
    )


def signal_lines(workload: Workload, report: Mapping[str, object]) -> list[SignalLine]:
    """Each signal of a workload with its limit and what it says now."""
    may_lack = rule_for(workload).idle_may_lack_network
    found = signals_of(report, may_lack_network=may_lack, is_session=workload.is_session)
    return [
        SignalLine(signal, NAMES[signal.name](), _limit(workload, signal.name), _says(signal))
        for signal in found
    ]


def _limit(workload: Workload, name: str) -> str:
    rule = rule_for(workload)
    if name == "kernels":
        return _("none is busy, no cell waits")
    if name == "terminals":
        return _("no program runs")
    if name == "gpu":
        text, value = _("below %(value)s %%"), rule.idle_gpu_percent
    elif name == "cpu":
        text, value = _("below %(value)s %% of %(cores)s"), rule.idle_cpu_percent
    else:
        text, value = _("below %(value)s KiB/s"), rule.idle_network_kib_s
    values = {
        "value": formats.decimal(value, 3),
        "cores": formats.cores_text(workload.cpu_milli),
    }
    return text % values


def _says(signal: Signal) -> str:
    match signal.says:
        case Says.QUIET:
            return _("quiet")
        case Says.MISSING:
            return _("signal missing: not idle")
        case Says.LEFT_OUT:
            return _("signal missing: the others are enough")
        case Says.BUSY if signal.held_cells:
            n = signal.held_cells
            return ngettext("%(n)s cell waits", "%(n)s cells wait", n) % {"n": n}
        case Says.BUSY:
            return _("in use")
