"""The audit trail: append-only, written in the same transaction as the change it tells of."""

from __future__ import annotations

from collections.abc import Mapping

from projects.models import AuditEntry, User


def record(
    actor: User | None,
    *,
    action: str,
    entity: tuple[str, str],
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
    channel: str = "ui",
) -> AuditEntry:
    """Append one entry about `entity` (kind, id).

    `before` and `after` hold JSON values without secrets.
    """
    return AuditEntry.objects.create(
        actor=actor,
        channel=channel,
        action=action,
        entity=entity[0],
        entity_id=entity[1],
        before=dict(before) if before is not None else None,
        after=dict(after) if after is not None else None,
    )
