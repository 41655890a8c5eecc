"""How many GPUs of one node type are promised to whom, over the tree of departments and projects.

Sessions rest on quota being there at once. So at every level what is promised below fits into what
the level itself is promised, and at the top into what the nodes offer; there is no override.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from django.core.exceptions import ValidationError
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from projects.departments import SEPARATOR, DepartmentTree
from projects.models import Department, DepartmentQuota, GpuQuota, NodeType, Project

Key = tuple[type[Department] | type[Project], int | None]
"""A department or project by its id; None for one that is only being added."""


def key_of(owner: Department | Project) -> Key:
    return type(owner), owner.pk


def parent_of(owner: Department | Project) -> Key | None:
    """The department that it belongs to, as the instance says (which may not be saved yet)."""
    above = owner.department_id if isinstance(owner, Project) else owner.parent_id
    return None if above is None else (Department, above)


@dataclass(frozen=True, slots=True)
class Level:
    """One department or project.

    Attributes:
        quota_milli: Of a department None: what is promised below it.
        limit_milli: None: no bound of its own.
    """

    title: str
    parent: Key | None
    quota_milli: int | None = None
    limit_milli: int | None = None


class Promises:
    """The tree of one node type with the quotas in force; three queries, without a lock.

    Changes are supposed by `put`, and then checked.
    """

    def __init__(self, node_type: NodeType) -> None:
        self._type = node_type
        self._levels: dict[Key, Level] = {}
        self._departments = DepartmentTree()
        own = {
            row.department_id: row for row in DepartmentQuota.objects.filter(node_type=node_type)
        }
        for pk, above in self._departments.parents.items():
            row = own.get(pk)
            self._levels[Department, pk] = Level(
                self._departments.title(pk),
                None if above is None else (Department, above),
                row.quota_milli if row else None,
                row.limit_milli if row else None,
            )
        for quota in GpuQuota.objects.filter(node_type=node_type).select_related("project"):
            self._levels[Project, quota.project_id] = Level(
                str(quota.project), parent_of(quota.project), quota.quota_milli, quota.limit_milli
            )
        # What a level was promised in its place, before it was supposed otherwise.
        self._granted: dict[Key, int] = {}
        self._children: defaultdict[Key | None, set[Key]] = defaultdict(set)
        for key, level in self._levels.items():
            self._children[level.parent].add(key)

    def put(
        self, owner: Department | Project, quota_milli: int | None, limit_milli: int | None
    ) -> None:
        """Suppose that it had this quota and limit, and belonged where the instance says."""
        key = key_of(owner)
        level = Level(self._title(owner), parent_of(owner), quota_milli, limit_milli)
        before = self._levels.get(key)
        if before is not None and before.parent == level.parent:
            self._granted[key] = self.promised(key)
        self._put(key, level)

    def move(self, owner: Department | Project) -> None:
        """Suppose that it belonged where the instance says, with the quota that it has."""
        before = self._levels.get(key_of(owner), Level("", None))
        self.put(owner, before.quota_milli, before.limit_milli)

    def _title(self, owner: Department | Project) -> str:
        """A department by its path, as the instance says that it lies."""
        if isinstance(owner, Project):
            return str(owner)
        return SEPARATOR.join(filter(None, (self._departments.title(owner.parent_id), str(owner))))

    def _put(self, key: Key, level: Level) -> None:
        before = self._levels.get(key)
        if before is not None:
            self._children[before.parent].discard(key)
        self._levels[key] = level
        self._children[level.parent].add(key)

    def promised(self, key: Key) -> int:
        """What a level is promised, in thousandths of a GPU."""
        own = self._levels[key].quota_milli
        return self._promised_below(key) if own is None else own

    def _promised_below(self, key: Key | None) -> int:
        return sum(self.promised(child) for child in self._children[key])

    def _above(self, key: Key) -> Iterator[Key]:
        """The departments above, from the nearest up."""
        above = self._levels[key].parent
        while above is not None:
            yield above
            above = self._levels[above].parent

    def _below(self, key: Key) -> Iterator[Level]:
        for child in sorted(self._children[key], key=lambda each: self._levels[each].title):
            yield self._levels[child]
            yield from self._below(child)

    def check(self, owner: Department | Project) -> None:
        """Refuse what the level has been given by `put` or `move`, if it does not fit.

        Raises:
            ValidationError: keyed by field (`quota_milli`, `limit_milli`), naming value and bound.
        """
        key = key_of(owner)
        self._check_own(key)
        self._check_limit_above(key)
        self._check_room(key)

    def _check_own(self, key: Key) -> None:
        """Its limit is not below what is promised to it or below it, nor its quota below that."""
        level, below = self._levels[key], self._promised_below(key)
        quota, limit = level.quota_milli, level.limit_milli
        if limit is not None and quota is not None and limit < quota:
            message = _("The limit %(limit)s GPU is below the quota %(quota)s GPU.")
            _refuse("limit_milli", "limit_below_quota", message, limit=limit, quota=quota)
        values = {"type": self._type.title, "name": level.title}
        if quota is not None and key[0] is Department and quota < below:
            message = _(
                "%(quota)s GPU asked, but below %(name)s %(below)s GPU of %(type)s are promised: "
                "at least %(below)s."
            )
            _refuse(
                "quota_milli", "quota_below_children", message, values, quota=quota, below=below
            )
        if limit is None:
            return
        if limit < below:
            message = _(
                "The limit %(limit)s GPU is below the %(below)s GPU of %(type)s "
                "that are promised below %(name)s."
            )
            _refuse(
                "limit_milli", "limit_below_children", message, values, limit=limit, below=below
            )
        for other in self._below(key):
            if other.limit_milli is not None and other.limit_milli > limit:
                self._refuse_loose(other, limit, level.title)

    def _check_limit_above(self, key: Key) -> None:
        """It, and what is below it, may only tighten the limit of the departments above."""
        above = [self._levels[each] for each in self._above(key)]
        bounds = [
            (level.limit_milli, level.title) for level in above if level.limit_milli is not None
        ]
        if not bounds:
            return
        bound, title = min(bounds)
        for level in (self._levels[key], *self._below(key)):
            if level.limit_milli is not None and level.limit_milli > bound:
                self._refuse_loose(level, bound, title)

    def _refuse_loose(self, level: Level, bound: int, above: str) -> None:
        message = _(
            "The limit %(limit)s GPU of %(name)s is above the limit %(bound)s GPU of %(above)s: "
            "a department's limit may only be tightened below it."
        )
        values = {"name": level.title, "above": above}
        _refuse(
            "limit_milli",
            "limit_not_tightened",
            message,
            values,
            limit=level.limit_milli,
            bound=bound,
        )

    def _check_room(self, key: Key) -> None:
        """Up the tree, until a level's own quota answers for all above it.

        Not where it asks for no more than it was promised there: when there is less than was
        promised, each step back is one to the good.
        """
        asked, others = self.promised(key), 0
        if asked <= self._granted.get(key, -1):
            return
        before: Key | None = key
        for above in (*self._above(key), None):
            others += sum(
                self.promised(child) for child in self._children[above] if child != before
            )
            level = None if above is None else self._levels[above]
            bound = self._type.capacity_gpu_milli if level is None else _bound(level)
            if bound is not None and asked > max(bound - others, 0):
                self._refuse_beyond(asked, others, bound, level)
            if level is not None and level.quota_milli is not None:
                return
            before = above

    def _refuse_beyond(self, asked: int, others: int, bound: int, level: Level | None) -> None:
        free = max(bound - others, 0)
        values = {"type": self._type.title, "name": level.title if level else ""}
        if level is None:
            message = _(
                "%(asked)s GPU asked, but of %(capacity)s GPU of %(type)s "
                "%(others)s are promised to others: at most %(free)s."
            )
            code = "quota_exceeds_capacity"
        else:
            message = _(
                "%(asked)s GPU asked, but of the %(capacity)s GPU of %(type)s that %(name)s has "
                "%(others)s are promised to others: at most %(free)s."
            )
            code = "quota_exceeds_department"
        _refuse(
            "quota_milli",
            code,
            message,
            values,
            asked=asked,
            capacity=bound,
            others=others,
            free=free,
        )


def _bound(level: Level) -> int | None:
    """What may be promised below a department; its limit is never below its quota."""
    return level.limit_milli if level.quota_milli is None else level.quota_milli


def _refuse(
    field: str,
    code: str,
    message: str,
    words: dict[str, str] | None = None,
    **milli: int | None,
) -> None:
    """Amounts are given in thousandths and told in GPUs."""
    amounts = {
        name: number_format(Decimal(amount) / 1000)
        for name, amount in milli.items()
        if amount is not None
    }
    raise ValidationError({field: ValidationError(message, code, {**(words or {}), **amounts})})
