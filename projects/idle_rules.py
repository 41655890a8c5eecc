"""A project's rule: what counts as idle, whether idle devices are lent, when what idles ends, and
how long work may run.

For which work a change holds is said by `scheduling.services.rules`.

Values are checked by the form that page and API share (`scheduling.forms.idle_rule`); what no row
may hold, the schema refuses.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from projects.models import Project, WorkloadKind


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule; fields, units and meaning are those of `Project`."""

    idle_window_s: int
    idle_gpu_percent: float
    idle_cpu_percent: float
    idle_network_kib_s: float
    idle_may_lack_network: bool
    lends_idle: bool
    lending_window_s: int
    idle_stop_after_s: int | None
    idle_first_warning_s: int
    idle_last_warning_s: int
    idle_max_extension_s: int
    max_run_interactive_s: int | None
    max_run_training_s: int | None


RULE = tuple(each.name for each in fields(Rule))
"""The fields of `Project` that make up the rule; pages, API and audit use the same names."""

MAX_RUN = {str(kind): f"max_run_{kind}_s" for kind in WorkloadKind.values}
"""The field that limits how long work of a kind runs."""

AT_ONCE = frozenset({"idle_window_s", "lends_idle", "lending_window_s"})
"""Fields that end nothing: they hold for all work as soon as they are changed."""


def rule_of(project: Project) -> Rule:
    """The rule in force for what is submitted now."""
    return Rule(**{name: getattr(project, name) for name in RULE})


def max_run_s(project: Project, kind: str) -> int | None:
    """How long new work of a kind may run in a project."""
    found: int | None = getattr(project, MAX_RUN[kind])
    return found


def is_default(project: Project) -> bool:
    """Whether the project uses Allot's own rule; whether it lends is each project's choice."""
    usual = rule_of(Project(lends_idle=project.lends_idle))
    return rule_of(project) == usual


def lock(project: Project) -> Project:
    """The project as it is now, until the end of the transaction changed by nobody else."""
    return Project.objects.select_for_update(no_key=True).get(pk=project.pk)
