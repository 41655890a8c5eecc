"""A project's idle rule in words, and what each signal of a workload says by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from projects import idle_rules
from projects.models import Project
from scheduling import formats
from scheduling.idle_signals import Says, Signal, signals_of
from scheduling.models import Workload

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


def _idle_when(project: Project) -> str:
    values = {
        "window": formats.duration(project.idle_window_s),
        "gpu": formats.decimal(project.idle_gpu_percent, 3),
        "cpu": formats.decimal(project.idle_cpu_percent, 3),
        "network": formats.decimal(project.idle_network_kib_s, 3),
    }
    text = _(
        "For %(window)s GPU use below %(gpu)s %%, CPU below %(cpu)s %% of the request, network "
        "below %(network)s KiB/s, no busy kernel, and nothing running in a terminal."
    )
    return text % values


def _network(project: Project) -> str:
    if project.idle_may_lack_network:
        return _("Where the network cannot be measured, the other signals are enough.")
    return _("Where the network cannot be measured, nothing counts as idle.")


def _lends(project: Project) -> str:
    if not project.lends_idle:
        return _("Idle GPUs are not lent.")
    values = {"window": formats.duration(project.lending_window_s)}
    return _("After %(window)s idle, a session’s GPU is lent to a waiting training.") % values


def _ends(project: Project) -> str:
    if project.idle_stop_after_s is None:
        return _("Idle work is never stopped.")
    values = {
        "time": formats.duration(project.idle_stop_after_s),
        "first": formats.duration(project.idle_first_warning_s),
        "last": formats.duration(project.idle_last_warning_s),
    }
    text = _(
        "After %(time)s idle a session is stopped, and a training saves and stops; warnings come "
        "%(first)s and %(last)s before."
    )
    return text % values


def _source(project: Project) -> str:
    if idle_rules.is_default(project):
        return _("Allot’s defaults, not changed in project %(project)s.") % {"project": project}
    return _("Set in project %(project)s.") % {"project": project}


@dataclass(frozen=True, slots=True)
class RuleInWords:
    """A project's rule, sentence by sentence."""

    idle_when: str
    network: str
    lends: str
    ends: str
    source: str


def rule_in_words(project: Project) -> RuleInWords:
    """The rule in force."""
    return RuleInWords(
        idle_when=_idle_when(project),
        network=_network(project),
        lends=_lends(project),
        ends=_ends(project),
        source=_source(project),
    )


def signal_lines(workload: Workload, report: Mapping[str, object]) -> list[SignalLine]:
    """Each signal of a workload with its limit and what it says now."""
    may_lack = workload.project.idle_may_lack_network
    found = signals_of(report, may_lack_network=may_lack, is_session=workload.is_session)
    return [
        SignalLine(signal, NAMES[signal.name](), _limit(workload, signal.name), _says(signal))
        for signal in found
    ]


def _limit(workload: Workload, name: str) -> str:
    project = workload.project
    if name == "kernels":
        return _("none is busy, no cell waits")
    if name == "terminals":
        return _("no program runs")
    if name == "gpu":
        text, value = _("below %(value)s %%"), project.idle_gpu_percent
    elif name == "cpu":
        text, value = _("below %(value)s %% of %(cores)s"), project.idle_cpu_percent
    else:
        text, value = _("below %(value)s KiB/s"), project.idle_network_kib_s
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
