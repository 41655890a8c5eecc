"""Closing nodes for new work, and opening them again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from projects import audit
from projects.models import User
from scheduling.live import NODES_TOPIC, announce
from scheduling.models import Node, NodeState
from scheduling.services.actions import ActionRefusedError
from scheduling.services.events import wake_planner

logger = logging.getLogger(__name__)


def close_failing(node: Node, reason: Mapping[str, object], now: datetime) -> None:
    """Record that the planner closed a node on which different workloads failed to start."""
    logger.warning("node %s is closed: %s", node.name, reason["message"])
    _close(node, reason, None, now)


@transaction.atomic
def cordon(node: Node, *, actor: User) -> Node:
    """Let nothing new start on a node; what runs there goes on.

    Raises:
        ActionRefusedError: The person is no admin.
    """
    row = _locked_for(node, actor)
    if not row.cordon:
        reason = {
            "code": "by_admin",
            "message": f"closed by {actor.username}",
            "details": {"actor": actor.username},
        }
        _close(row, reason, actor, timezone.now())
        wake_planner("node_cordoned")
    return row


@transaction.atomic
def uncordon(node: Node, *, actor: User) -> Node:
    """Open a node again; starts that failed there so far are forgiven.

    Raises:
        ActionRefusedError: The person is no admin.
    """
    row = _locked_for(node, actor)
    if row.cordon:
        before = {"state": row.state, "cordon": row.cordon}
        if row.state == NodeState.CORDONED:
            row.state = NodeState.READY
        row.cordon, row.cordoned_at, row.cordoned_by = {}, None, None
        row.opened_at = timezone.now()
        row.save(update_fields=["state", "cordon", "cordoned_at", "cordoned_by", "opened_at"])
        audit.record(
            actor,
            action="uncordoned",
            entity=("node", row.name),
            before=before,
            after={"state": row.state},
        )
        wake_planner("node_opened")
        announce(NODES_TOPIC)
    return row


def _locked_for(node: Node, actor: User) -> Node:
    if not actor.is_superuser:
        raise ActionRefusedError("not_allowed", _("Only an administrator closes and opens nodes."))
    return Node.objects.select_for_update(no_key=True).get(pk=node.pk)


def _close(node: Node, reason: Mapping[str, object], actor: User | None, now: datetime) -> None:
    """A lost node stays lost, and is closed when it comes back."""
    before = {"state": node.state}
    if node.state == NodeState.READY:
        node.state = NodeState.CORDONED
    node.cordon, node.cordoned_at, node.cordoned_by = dict(reason), now, actor
    node.save(update_fields=["state", "cordon", "cordoned_at", "cordoned_by"])
    audit.record(
        actor,
        action="cordoned",
        entity=("node", node.name),
        before=before,
        after={"state": node.state, "reason": dict(reason)},
        channel="ui" if actor else "planner",
    )
    announce(NODES_TOPIC)
