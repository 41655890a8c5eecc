"""Change a project's rule, for what is submitted from now on, or for running work too after notice.

What is unfinished keeps the rule under which it was submitted, in its row. Where a change is to
hold for it too, nothing ends at once: idle work has both warnings before its end as ever
(`core.ending`), and a time limit that becomes tighter, or is the first one, ends no attempt before
the first warning's time is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum

from django.db import transaction
from django.utils import timezone

from projects import audit
from projects.idle_rules import AT_ONCE, RULE
from projects.models import Project, User
from scheduling import time_limits
from scheduling.models import LEADER, Attempt, Workload
from scheduling.services.events import announce_workload, wake_planner


class AppliesTo(StrEnum):
    """For which work a change holds."""

    NEW = "new"
    RUNNING = "running"


@transaction.atomic
def change_rule(
    project: Project,
    values: Mapping[str, object],
    *,
    applies_to: AppliesTo,
    actor: User,
    channel: str,
) -> list[str]:
    """Change fields of a locked project's rule, and wake the planner.

    Args:
        project: Locked by the caller.
        values: By field; clean.
        applies_to: `RUNNING` makes unfinished work follow the whole rule, also where it kept some
            of an earlier one.
        actor: Who.
        channel: By which way.

    Returns:
        The names of the fields that differ from before. Where none does, and no work comes under
        the rule by it, nothing is recorded.
    """
    before = {name: getattr(project, name) for name in RULE}
    changed = [name for name in RULE if name in values and values[name] != before[name]]
    old = {name: before[name] for name in changed}
    rows = _unfinished(project)
    for name in changed:
        setattr(project, name, values[name])
    if changed:
        project.save(update_fields=changed)
    if applies_to is AppliesTo.RUNNING:
        num_affected = _bring_under_rule(rows, project, old)
    else:
        _keep(rows, {name: value for name, value in old.items() if name not in AT_ONCE})
        num_affected = 0
    if not changed and not num_affected:
        return []
    after = {name: values[name] for name in changed}
    audit.record(
        actor,
        action="project.idle_rule",
        entity=("project", project.name),
        before=old,
        after={**after, "rule_applies_to": str(applies_to), "num_workloads": num_affected},
        channel=channel,
    )
    wake_planner("idle_rule")
    return changed


def _unfinished(project: Project) -> list[Workload]:
    """Locked in the order in which plans lock them."""
    rows = Workload.objects.unfinished().filter(project=project).order_by("pk")
    found = list(rows.select_for_update(no_key=True, of=("self",)))
    for row in found:
        row.project = project
    return found


def _keep(rows: list[Workload], old: Mapping[str, object]) -> None:
    """What a workload has kept from before stays."""
    if not old:
        return
    for row in rows:
        row.kept_rule = {**old, **row.kept_rule}
    Workload.objects.bulk_update(rows, ["kept_rule"], batch_size=500)


def _bring_under_rule(rows: list[Workload], project: Project, old: Mapping[str, object]) -> int:
    """Let the project's rule hold for them; how many had another one.

    A time limit that is tighter than what held for an attempt gives it notice.
    """
    affected, to_notify = [], []
    now = timezone.now()
    for row in rows:
        kept, row.kept_rule = row.kept_rule, {**old, **row.kept_rule}
        earlier = time_limits.limit_of(row)
        row.kept_rule = {}
        limit = time_limits.limit_of(row)
        if kept or set(old) - AT_ONCE:
            affected.append(row)
        if limit is not None and (earlier is None or limit.seconds < earlier.seconds):
            to_notify.append(row.pk)
    Workload.objects.bulk_update(affected, ["kept_rule"], batch_size=500)
    leaders = Attempt.objects.open().filter(workload__in=to_notify, replica=LEADER)
    until = now + timedelta(seconds=project.idle_first_warning_s)
    leaders.update(limit_notice_until=until)
    for row in affected:
        announce_workload(row)
    return len(affected)
