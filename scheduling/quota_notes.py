"""What an administrator should hear of a bound that is allowed and does not hold at once.

Nothing here refuses: a bound may be lowered below what is held, since nothing is stopped by that;
and CPU and memory may be promised before the nodes come, as GPUs may not (`projects.promises`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from django.db.models import Sum
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from projects.departments import DepartmentTree
from projects.models import Department, Project
from scheduling.core.types import CPU, MEMORY, ResourceKey
from scheduling.models import Node, ProjectUsage
from scheduling.organisation import gpu_key
from scheduling.texts.words import amount_of


class Bounds(NamedTuple):
    """A quota and a limit; None bounds nothing.

    Attributes:
        name: Whose, in words.
    """

    name: str
    quota: int | None
    limit: int | None


COUNTED = {
    CPU: (gettext_lazy("CPU quota"), "cpu_quota_milli", "cpu_milli"),
    MEMORY: (gettext_lazy("Memory quota"), "memory_quota_mib", "memory_mib"),
}
"""Quotas over all node types: what they are called, the project's field, that of nodes."""


def notes_on(owner: Project | Department, changed: Collection[ResourceKey]) -> list[str]:
    """Sentences about those resources of which the owner's bounds were changed; none where they
    hold."""
    found = list(_passed_bounds(owner, changed))
    if isinstance(owner, Project):
        found += _broken_promises(owner, changed)
    return found


def _passed_bounds(owner: Project | Department, changed: Collection[ResourceKey]) -> Iterator[str]:
    below = Project.objects.filter(pk=owner.pk)
    if isinstance(owner, Department):
        below = Project.objects.filter(department__in=DepartmentTree().below(owner.pk))
    usage = ProjectUsage.objects.filter(project__in=below, resource__in=changed)
    sums = usage.values_list("resource").annotate(Sum("allocated"), Sum("non_preemptible"))
    bounds = _bounds(owner)
    for resource, held, protected in sums.order_by("resource"):
        name, quota, limit = bounds.get(ResourceKey(resource), ("", None, None))
        if limit is not None and held > limit:
            yield _(
                "%(name)s: %(held)s held now, above the limit of %(limit)s. Nothing is stopped; "
                "nothing more starts until less is held."
            ) % {
                "name": name,
                "held": amount_of(resource, held),
                "limit": amount_of(resource, limit),
            }
        if quota is not None and protected > quota:
            yield _(
                "%(name)s: %(held)s held now by sessions and other work that is never stopped, "
                "above the quota of %(quota)s. Until it ends, others may wait for what they are "
                "promised."
            ) % {
                "name": name,
                "held": amount_of(resource, protected),
                "quota": amount_of(resource, quota),
            }


def _bounds(owner: Project | Department) -> Mapping[ResourceKey, Bounds]:
    name = str(owner) if isinstance(owner, Project) else DepartmentTree().title(owner.pk)
    found = {
        gpu_key(row.node_type.name): Bounds(
            f"{name}, {row.node_type}", row.quota_milli, row.limit_milli
        )
        for row in owner.gpu_quotas.select_related("node_type")
    }
    if isinstance(owner, Project):
        found[CPU] = Bounds(name, owner.cpu_quota_milli, owner.cpu_limit_milli)
        found[MEMORY] = Bounds(name, owner.memory_quota_mib, owner.memory_limit_mib)
    return found


def _broken_promises(project: Project, changed: Collection[ResourceKey]) -> Iterator[str]:
    """CPU or memory that all projects together are promised beyond what all nodes have."""
    for resource, (title, field, offered) in COUNTED.items():
        quota = getattr(project, field)
        if quota is None or resource not in changed:
            continue
        promised = Project.objects.aggregate(sum=Sum(field))["sum"] or 0
        there = Node.objects.aggregate(sum=Sum(offered))["sum"] or 0
        if promised > there:
            yield _(
                "%(field)s: %(quota)s promised to %(name)s, %(sum)s to all projects together, but "
                "all nodes together have %(limit)s. What is beyond that waits for more nodes."
            ) % {
                "field": title,
                "quota": amount_of(resource, quota),
                "name": project,
                "sum": amount_of(resource, promised),
                "limit": amount_of(resource, there),
            }
