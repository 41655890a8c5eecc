"""Which groups a viewer sees by name, which as *others*, and which not at all.

Members see their own projects by name and all others as one total; admins see everything. Cost is
seen by admins, by managers for their projects, and by everybody for what they hold themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.utils.translation import gettext as _

from projects.access import managed_projects, visible_projects
from projects.departments import DepartmentTree
from projects.models import NodeType, Project, User, WorkloadKind
from scheduling.analytics.measures import Scope
from scheduling.analytics.metrics import SCOPES, Group
from scheduling.analytics.query import Query, QueryError, Wrong
from scheduling.models import Node

OTHERS = "others"
UNALLOCATED = "unallocated"
WHOLE = "all"

_BY_PERSON = (Group.TOTAL, Group.PROJECT, Group.DEPARTMENT, Group.USER)


@dataclass(frozen=True, slots=True)
class Named:
    """A group as the outside knows it: a stable key, and what people call it."""

    key: str
    label: str


@dataclass(frozen=True, slots=True)
class Sight:
    """What a viewer sees of one question.

    Attributes:
        scope: In which the sums are kept that can be told apart for this viewer.
        is_total: Whether sums over all projects will do, of which there are fewer.
        departments: Where they are asked for: each by its path. A project counts once, for the
            department that it belongs to itself.
        named: Projects that the viewer may see by name.
        managed, own_user: For cost: whose sums are seen at all; None of both is everybody's.
    """

    query: Query
    scope: Scope
    projects: Mapping[int, Project]
    departments: Mapping[int | None, Named]
    named: frozenset[int]
    names: Mapping[str, Named]
    is_total: bool = False
    managed: frozenset[int] | None = None
    own_user: str | None = None

    @property
    def is_restricted(self) -> bool:
        """Whether only a part is seen, so that nothing can be said of the whole."""
        return self.managed is not None

    def group_of(self, project: int, key: str, user: str = "") -> Named | None:
        """The group of a sum or row; None when it is not seen or not asked for.

        Args:
            project: Its id; 0 for sums without one.
            key: As kept: id of the user, node type or node, kind, or template.
            user: Id of the owner, where it is known.
        """
        if self.is_total:
            return self.name_of(project, key)
        if self.query.only is not None and project not in self.query.only:
            return None
        if self.managed is not None and project not in self.managed:
            is_own = self.own_user in (user, key if self.scope is Scope.USER else None)
            if not is_own or project not in self.named:
                return None
        return self.name_of(project, key)

    def name_of(self, project: int, key: str) -> Named:
        """The group of something that is seen."""
        group = self.query.group_by
        if group is Group.TOTAL:
            return Named(WHOLE, _("All"))
        if group in (Group.NODE_TYPE, Group.NODE, Group.KIND):
            return self.names.get(key) or Named(key or "none", key or _("None"))
        if project not in self.named and not self.is_total:
            return Named(OTHERS, _("Others"))
        if group in (Group.USER, Group.TEMPLATE):
            return self.names.get(key) or Named(key or "none", key or _("No template"))
        found = self.projects[project]
        if group is Group.PROJECT:
            return Named(found.name, str(found))
        return self.departments.get(found.department_id) or Named("none", _("No department"))


def of(query: Query, viewer: User) -> Sight:
    """What the viewer sees of this question.

    Raises:
        QueryError: this viewer may not see cost by this group, or a node has no projects.
    """
    if query.only is not None and query.group_by is Group.NODE:
        _refuse("node", ", ".join(group for group in Group if group is not Group.NODE))
    sight = Sight(
        query=query,
        scope=SCOPES[query.group_by],
        projects={row.pk: row for row in Project.objects.all()},
        departments=_departments() if query.group_by is Group.DEPARTMENT else {},
        named=frozenset(visible_projects(viewer).values_list("pk", flat=True)),
        names=_names(query.group_by),
        is_total=_is_total(query, viewer),
    )
    if viewer.is_superuser or not query.metric.is_cost:
        return sight
    managed = frozenset(managed_projects(viewer).values_list("pk", flat=True))
    by_person = query.group_by in _BY_PERSON
    if query.group_by is Group.NODE or not (by_person or managed):
        _refuse(query.group_by, ", ".join(_BY_PERSON))
    return Sight(
        query=query,
        scope=Scope.USER if by_person else sight.scope,
        projects=sight.projects,
        departments=sight.departments,
        named=sight.named,
        names=sight.names,
        managed=managed,
        own_user=str(viewer.pk),
    )


def _is_total(query: Query, viewer: User) -> bool:
    """Whether nothing must be told apart by project for this viewer."""
    if query.only is not None:
        return False
    if query.group_by is Group.TEMPLATE:
        return viewer.is_superuser
    return query.group_by in (Group.TOTAL, Group.NODE_TYPE, Group.NODE, Group.KIND)


def _refuse(value: str, limit: str) -> None:
    message = _("This cannot be told apart by %(value)s for you here, only by: %(limit)s.")
    words = message % {"value": value, "limit": limit}
    raise QueryError([Wrong("group_by", "not_allowed", words, limit)])


def _departments() -> dict[int | None, Named]:
    tree = DepartmentTree()
    return {row.pk: Named(row.name, tree.title(row.pk)) for row in tree.in_order()}


def _names(group: Group) -> dict[str, Named]:
    """Kept keys to names, where a key is an id or a code; one query at most."""
    if group is Group.USER:
        return {str(row.pk): Named(row.username, str(row)) for row in User.objects.all()}
    if group is Group.NODE_TYPE:
        return {str(row.pk): Named(row.name, row.title) for row in NodeType.objects.all()}
    if group is Group.NODE:
        rows = Node.objects.values_list("pk", "name")
        return {str(pk): Named(name, name) for pk, name in rows}
    if group is Group.KIND:
        return {str(kind.value): Named(kind.value, str(kind.label)) for kind in WorkloadKind}
    return {}
