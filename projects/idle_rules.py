"""A project's idle rule: what counts as idle, whether idle devices are lent, when what idles ends.

Values are checked by the form that page and API share (`scheduling.forms.idle_rule`); what no row
may hold, the schema refuses.
"""

from __future__ import annotations

from collections.abc import Mapping

from django.db import connection, transaction

from projects import audit
from projects.models import Project, User
from projects.quotas import WAKE_CHANNEL

IDLE_RULE = (
    "idle_window_s",
    "idle_gpu_percent",
    "idle_cpu_percent",
    "idle_network_kib_s",
    "idle_may_lack_network",
    "lends_idle",
    "lending_window_s",
    "idle_stop_after_s",
    "idle_first_warning_s",
    "idle_last_warning_s",
    "idle_max_extension_s",
)
"""The fields of `Project` that make up the rule; pages, API and audit use the same names."""


def rule_of(project: Project) -> dict[str, object]:
    """The rule in force."""
    return {name: getattr(project, name) for name in IDLE_RULE}


def is_default(project: Project) -> bool:
    """Whether the project uses Allot's own rule; whether it lends is each project's choice."""
    defaults = rule_of(Project())
    chosen = {"lends_idle"}
    return all(getattr(project, name) == defaults[name] for name in defaults.keys() - chosen)


def lock(project: Project) -> Project:
    """The project as it is now, until the end of the transaction changed by nobody else."""
    return Project.objects.select_for_update(no_key=True).get(pk=project.pk)


@transaction.atomic
def change_rule(
    project: Project, values: Mapping[str, object], *, actor: User, channel: str
) -> list[str]:
    """Change fields of a locked project's rule, and wake the planner.

    Returns:
        The names of those that differ from before; where none does, nothing is recorded.
    """
    before = rule_of(project)
    changed = [name for name in IDLE_RULE if name in values and values[name] != before[name]]
    if not changed:
        return []
    for name in changed:
        setattr(project, name, values[name])
    project.save(update_fields=changed)
    audit.record(
        actor,
        action="project.idle_rule",
        entity=("project", project.name),
        before={name: before[name] for name in changed},
        after={name: values[name] for name in changed},
        channel=channel,
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, 'idle_rule')", [WAKE_CHANNEL])
    return changed
