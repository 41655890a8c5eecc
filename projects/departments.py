"""Departments as people see them: a tree, each named by its path from the top."""

from __future__ import annotations

from django.db import connection

from projects import tree
from projects.models import Department, NodeType

TREE_LOCK = 7_235_471
"""Key of the lock under which departments and projects change their place; the trigger takes the
same."""
SEPARATOR = " / "


class DepartmentTree:
    """All departments, read at once: one query, however deep they lie."""

    def __init__(self) -> None:
        rows = {row.pk: row for row in Department.objects.order_by("name")}
        self.parents: tree.Parents = {pk: row.parent_id for pk, row in rows.items()}
        self._rows = rows

    def path(self, department: int | None) -> list[Department]:
        """A department and those above it, the top first; empty for None."""
        return [self._rows[pk] for pk in tree.path(department, self.parents) if pk in self._rows]

    def title(self, department: int | None) -> str:
        """Its path in words, such as “Research / Vision”; empty for None."""
        return SEPARATOR.join(str(row) for row in self.path(department))

    def below(self, department: int) -> set[int]:
        """It and all below it."""
        return tree.below(department, self.parents)

    def in_order(self) -> list[Department]:
        """All of them, each after the one that it belongs to."""
        return sorted(
            self._rows.values(), key=lambda row: [level.name for level in self.path(row.pk)]
        )


def lock_tree() -> None:
    """Let nobody else change a place in the tree, or a quota, until the transaction ends.

    Node types come first and in one order, as a change of quota locks one of them too.
    """
    list(NodeType.objects.select_for_update(no_key=True).order_by("pk").values_list("pk"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [TREE_LOCK])
