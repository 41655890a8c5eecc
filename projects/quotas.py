"""Change a quota; refuse to promise more than there is.

Sessions rest on quota being there at once, so the sum over projects may not exceed what the
registered nodes of a type offer, and there is no override.
"""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import Sum
from django.utils.translation import gettext as _

from projects.audit import record
from projects.models import GpuQuota, NodeType, Project, User

WAKE_CHANNEL = "allot_wake"
"""The planner listens here; a change of quota is a reason to plan."""


def promised_milli(node_type: NodeType, *, except_project: Project | None = None) -> int:
    """Sum of the quotas of a node type, in thousandths of a GPU."""
    quotas = GpuQuota.objects.filter(node_type=node_type)
    if except_project is not None and except_project.pk is not None:
        quotas = quotas.exclude(project=except_project)
    return quotas.aggregate(total=Sum("quota_milli"))["total"] or 0


def check_gpu_quota(
    project: Project, node_type: NodeType, quota_milli: int, limit_milli: int | None
) -> None:
    """Refuse what would promise more than there is.

    Raises:
        ValidationError: keyed by field (`quota_milli`, `limit_milli`), naming value and limit.
    """
    if limit_milli is not None and limit_milli < quota_milli:
        raise ValidationError(
            {
                "limit_milli": ValidationError(
                    _("The limit %(limit)s GPU is below the quota %(quota)s GPU."),
                    code="limit_below_quota",
                    params={"limit": limit_milli / 1000, "quota": quota_milli / 1000},
                )
            }
        )
    others = promised_milli(node_type, except_project=project)
    free = node_type.capacity_gpu_milli - others
    if quota_milli > max(free, 0):
        raise ValidationError(
            {
                "quota_milli": ValidationError(
                    _(
                        "%(asked)s GPU asked, but of %(capacity)s GPU of %(type)s "
                        "%(others)s are promised to others: at most %(free)s."
                    ),
                    code="quota_exceeds_capacity",
                    params={
                        "asked": quota_milli / 1000,
                        "capacity": node_type.capacity_gpu_milli / 1000,
                        "type": node_type.title,
                        "others": others / 1000,
                        "free": max(free, 0) / 1000,
                    },
                )
            }
        )


@transaction.atomic
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
    # The node type's row serialises changes of its quotas: two admins cannot promise the same GPU.
    locked = NodeType.objects.select_for_update(no_key=True).get(pk=node_type.pk)
    check_gpu_quota(project, locked, quota_milli, limit_milli)
    before = (
        GpuQuota.objects.filter(project=project, node_type=locked)
        .values("quota_milli", "limit_milli", "weight")
        .first()
    )
    after = {"quota_milli": quota_milli, "limit_milli": limit_milli, "weight": weight}
    quota, _created = GpuQuota.objects.update_or_create(
        project=project, node_type=locked, defaults=after
    )
    record(
        actor,
        action="quota.set",
        entity=("project", project.name),
        before=before,
        after={"node_type": locked.name, **after},
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, 'quota')", [WAKE_CHANNEL])
    return quota
