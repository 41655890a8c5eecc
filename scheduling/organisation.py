"""Rows → the core's tree of departments and projects, with what each is promised; four queries,
however deep the tree.

Where a department has no bound of its own, it carries the sum of what is below it, so that the
division between departments equals what their projects were promised together. A department without
any project below it is left out: nobody could claim its quota.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from projects.departments import DepartmentTree
from projects.models import Department, DepartmentQuota, GpuQuota, Project
from scheduling import past
from scheduling.core import types as core

OwnShares = Mapping[core.ResourceKey, DepartmentQuota]


@dataclass(frozen=True, slots=True)
class Organisation:
    """The tree as the core sees it.

    Attributes:
        titles: What projects and departments are called, these with those above them, by their id
            in the core.
    """

    projects: tuple[core.Project, ...]
    titles: Mapping[str, str]


def gpu_key(node_type: str | None) -> core.ResourceKey:
    """The resource that the GPUs of a node type count towards."""
    return core.ResourceKey(f"gpu:{node_type}" if node_type else "gpu")


def department_id(department: Department) -> core.ProjectId:
    """A department's id in the core; projects have no colon in their names."""
    return core.ProjectId(f"department:{department.name}")


def titles_of_all() -> dict[str, str]:
    """What projects and departments are called, by their id in the core; two queries."""
    tree = DepartmentTree()
    found = {str(department_id(row)): tree.title(row.pk) for row in tree.in_order()}
    return found | {row.name: str(row) for row in Project.objects.all()}


def read_organisation(use: past.Use) -> Organisation:
    """The whole tree, projects before departments."""
    tree = DepartmentTree()
    children: defaultdict[int | None, list[core.Project]] = defaultdict(list)
    titles: dict[str, str] = {}
    for project, row in _projects(use, tree):
        children[row.department_id].append(project)
        titles[project.id] = str(row)
    own = _own_shares()
    found = [project for siblings in children.values() for project in siblings]
    # From below upwards: a department is the sum of what has been made of those in it.
    for level in reversed(tree.in_order()):
        if not children[level.pk]:
            continue
        above = tree.path(level.parent_id)
        parent = department_id(above[-1]) if above else None
        department = _department(level, parent, children[level.pk], own.get(level.pk, {}))
        children[level.parent_id].append(department)
        found.append(department)
        titles[department.id] = tree.title(level.pk)
    return Organisation(tuple(found), titles)


def _projects(use: past.Use, tree: DepartmentTree) -> Iterable[tuple[core.Project, Project]]:
    """Projects in order of age, each with its row."""
    shares: defaultdict[int, dict[core.ResourceKey, core.Share]] = defaultdict(dict)
    for quota in GpuQuota.objects.select_related("node_type"):
        shares[quota.project_id][gpu_key(quota.node_type.name)] = core.Share(
            quota=quota.quota_milli, limit=quota.limit_milli, weight=quota.weight
        )
    for order, row in enumerate(Project.objects.order_by("created_at", "pk")):
        own = shares[row.pk]
        own[core.CPU] = core.Share(row.cpu_quota_milli, row.cpu_limit_milli)
        own[core.MEMORY] = core.Share(row.memory_quota_mib, row.memory_limit_mib)
        above = tree.path(row.department_id)
        parent = department_id(above[-1]) if above else None
        used = use.get(row.name, {})
        name = core.ProjectId(row.name)
        yield core.Project(name, parent, row.priority, order, own, used), row


def _own_shares() -> Mapping[int, OwnShares]:
    """What departments have bounds of their own for."""
    found: defaultdict[int, dict[core.ResourceKey, DepartmentQuota]] = defaultdict(dict)
    for row in DepartmentQuota.objects.select_related("node_type"):
        found[row.department_id][gpu_key(row.node_type.name)] = row
    return found


def _department(
    row: Department,
    parent: core.ProjectId | None,
    children: Sequence[core.Project],
    own: OwnShares,
) -> core.Project:
    return core.Project(
        id=department_id(row),
        parent=parent,
        priority=max(child.priority for child in children),
        created=min(child.created for child in children),
        shares=_shares(children, own),
    )


def _shares(
    children: Iterable[core.Project], own: OwnShares
) -> Mapping[core.ResourceKey, core.Share]:
    """Its own bounds, where it has any; else quotas and weights added up, and no limit."""
    shares = _summed(children)
    for key, row in own.items():
        summed = shares.get(key, core.Share(quota=0, limit=None, weight=0))
        shares[key] = core.Share(
            quota=summed.quota if row.quota_milli is None else row.quota_milli,
            limit=row.limit_milli,
            weight=summed.weight if row.weight is None else row.weight,
        )
    return shares


def _summed(children: Iterable[core.Project]) -> dict[core.ResourceKey, core.Share]:
    totals: dict[core.ResourceKey, core.Share] = {}
    for child in children:
        for key, share in child.shares.items():
            before = totals.get(key, core.Share(quota=0, limit=None, weight=0))
            unlimited = before.quota is None or share.quota is None
            totals[key] = core.Share(
                quota=None if unlimited else (before.quota or 0) + (share.quota or 0),
                limit=None,
                weight=before.weight + share.weight,
            )
    return totals
