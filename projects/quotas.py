"""Change a quota; refuse to promise more than there is.

Sessions rest on quota being there at once, so what is promised may not exceed what the registered
nodes of a type offer, nor below a department what the department has (`projects.promises`); there
is no override.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from django.core.exceptions import ValidationError
from django.db import connection, transaction

from projects.audit import record
from projects.departments import lock_tree
from projects.models import Department, DepartmentQuota, GpuQuota, NodeType, Project, User
from projects.promises import Promises

if TYPE_CHECKING:
    from django_stubs_ext.db.models.manager import RelatedManager

Quota = TypeVar("Quota", GpuQuota, DepartmentQuota)

WAKE_CHANNEL = "allot_wake"
"""The planner listens here; a change of quota is a reason to plan."""


def check_gpu_quota(
    owner: Project | Department,
    node_type: NodeType,
    quota_milli: int | None,
    limit_milli: int | None,
) -> None:
    """Refuse what would promise more than there is, at any level of the tree.

    Args:
        owner: May not be saved yet; it counts where its instance says that it belongs.
        node_type: Whose GPUs; what it offers is the bound at the top.
        quota_milli: None, of a department only: what is promised below it.
        limit_milli: None: no bound of its own.

    Raises:
        ValidationError: keyed by field (`quota_milli`, `limit_milli`), naming value and limit.
    """
    promises = Promises(node_type)
    promises.put(owner, quota_milli, limit_milli)
    promises.check(owner)


def check_move(owner: Project | Department, field: str) -> None:
    """Refuse a place in the tree where what the owner is promised does not fit.

    Takes the locks under which nothing else moves: call it in the transaction that then saves.

    Raises:
        ValidationError: keyed by `field`, naming what does not fit, of every node type.
    """
    lock_tree()
    if isinstance(owner, Department):
        owner.clean()  # What is promised can only be added up where there is no loop.
    problems: list[ValidationError] = []
    for node_type in NodeType.objects.all():
        promises = Promises(node_type)
        promises.move(owner)
        try:
            promises.check(owner)
        except ValidationError as error:
            problems += [each for errors in error.error_dict.values() for each in errors]
    if problems:
        raise ValidationError({field: problems})


def set_gpu_quota(
    project: Project,
    node_type: NodeType,
    *,
    quota_milli: int,
    limit_milli: int | None = None,
    weight: int = 2,
    actor: User | None = None,
) -> GpuQuota:
    """Set a project's quota, limit and weight for one node type, and wake the planner.

    Raises:
        ValidationError: as `check_gpu_quota`.
    """
    bounds = {"quota_milli": quota_milli, "limit_milli": limit_milli, "weight": weight}
    return _set(project, project.gpu_quotas, node_type, bounds, actor)


def set_department_quota(
    department: Department,
    node_type: NodeType,
    *,
    quota_milli: int | None = None,
    limit_milli: int | None = None,
    weight: int | None = None,
    actor: User | None = None,
) -> DepartmentQuota:
    """Set a department's own bounds for one node type, and wake the planner.

    Raises:
        ValidationError: as `check_gpu_quota`.
    """
    bounds = {"quota_milli": quota_milli, "limit_milli": limit_milli, "weight": weight}
    return _set(department, department.gpu_quotas, node_type, bounds, actor)


@transaction.atomic
def _set(
    owner: Project | Department,
    rows: RelatedManager[Quota],
    node_type: NodeType,
    bounds: Mapping[str, int | None],
    actor: User | None,
) -> Quota:
    # The node type's row serialises changes of its quotas: two admins cannot promise the same GPU.
    locked = NodeType.objects.select_for_update(no_key=True).get(pk=node_type.pk)
    # Where it belongs now: whoever moves it holds the same lock.
    placed = type(owner)._default_manager.get(pk=owner.pk)
    check_gpu_quota(placed, locked, bounds["quota_milli"], bounds["limit_milli"])
    before = rows.filter(node_type=locked).values(*bounds).first()
    quota, _created = rows.update_or_create(node_type=locked, defaults=bounds)
    record(
        actor,
        action="quota.set",
        entity=(str(owner._meta.model_name), owner.name),
        before=before,
        after={"node_type": locked.name, **bounds},
    )
    wake_planner()
    return quota


def wake_planner() -> None:
    """Plan anew, once the transaction has committed: quotas or the tree have changed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, 'quota')", [WAKE_CHANNEL])
