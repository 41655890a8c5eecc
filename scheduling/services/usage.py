"""What projects hold, ask for and may have, as the last plan left it: the one table that pages and
API read.
"""

from __future__ import annotations

from collections.abc import Mapping

from projects.models import Project
from scheduling.core.decisions import ProjectNumbers
from scheduling.core.types import ProjectId, ResourceKey
from scheduling.models import ProjectUsage

_USAGE_FIELDS = ("quota", "limit", "fair_share", "requested", "allocated", "non_preemptible")


def record_usage(
    numbers: Mapping[ProjectId, Mapping[ResourceKey, ProjectNumbers]], *, is_partial: bool
) -> None:
    """The one table of usage that page and API read; written only where something changed."""
    rows, usage = Project.objects.all(), ProjectUsage.objects.all()
    if is_partial:
        rows, usage = rows.filter(name__in=numbers), usage.filter(project__name__in=numbers)
    projects = {project.name: project.pk for project in rows}
    known = {(row.project_id, row.resource): row for row in usage}
    changed: list[ProjectUsage] = []
    for name, by_resource in numbers.items():
        project_id = projects.get(name)
        if project_id is None:
            continue
        for resource, values in by_resource.items():
            fresh = _usage(project_id, resource, values)
            old = known.pop((project_id, resource), None)
            if old is None or not _same(old, fresh):
                changed.append(fresh)
    ProjectUsage.objects.bulk_create(
        changed,
        update_conflicts=True,
        unique_fields=["project", "resource"],
        update_fields=list(_USAGE_FIELDS),
    )
    if known:
        ProjectUsage.objects.filter(pk__in=[row.pk for row in known.values()]).delete()


def _usage(project_id: int, resource: str, values: ProjectNumbers) -> ProjectUsage:
    return ProjectUsage(
        project_id=project_id,
        resource=resource,
        **{name: getattr(values, name) for name in _USAGE_FIELDS},
    )


def _same(one: ProjectUsage, other: ProjectUsage) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _USAGE_FIELDS)
