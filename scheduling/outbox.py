"""Effects owed: claimed, carried out, marked done; tried again with back-off; visibly dead in the
end.

Waking an agent is all that a zone with an agent needs, since it reads its desired state itself; the
row is what makes sure that it is woken although the worker may die between the decision and the
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from scheduling.models import Command, Workload, Zone

CLAIM_S = 30
MAX_TRIES = 20
MAX_BACKOFF_S = 60


def owe(zone: Zone, kind: str, *, workload: Workload, key: str) -> None:
    """Record an effect inside the caller's transaction; the same `key` twice is one effect."""
    now = timezone.now()
    Command.objects.bulk_create(
        [
            Command(
                zone=zone, kind=kind, workload=workload, key=key, created_at=now, available_at=now
            )
        ],
        ignore_conflicts=True,
    )


@transaction.atomic
def claim(limit: int = 100) -> Sequence[Command]:
    """Take commands that are due, for `CLAIM_S`; another claimant skips them."""
    now = timezone.now()
    rows = list(
        Command.objects.select_for_update(skip_locked=True, of=("self",))
        .select_related("zone")
        .filter(done_at__isnull=True, is_dead=False, available_at__lte=now)
        .exclude(claimed_until__gt=now)
        .order_by("available_at", "pk")[:limit]
    )
    Command.objects.filter(pk__in=[row.pk for row in rows]).update(
        claimed_until=now + timedelta(seconds=CLAIM_S), num_tries=F("num_tries") + 1
    )
    return rows


def complete(commands: Sequence[Command]) -> None:
    Command.objects.filter(pk__in=[row.pk for row in commands]).update(
        done_at=timezone.now(), claimed_until=None, last_error=""
    )


def fail(commands: Sequence[Command], error: str) -> None:
    """Try again later; after `MAX_TRIES` leave it dead, where the admin sees it."""
    for row in commands:
        tries = row.num_tries + 1
        delay = timedelta(seconds=min(2**tries, MAX_BACKOFF_S))
        Command.objects.filter(pk=row.pk).update(
            claimed_until=None,
            available_at=timezone.now() + delay,
            is_dead=tries >= MAX_TRIES,
            last_error=error[:2000],
        )


def expire(before: datetime) -> int:
    """Delete what was done long ago."""
    return Command.objects.filter(done_at__lt=before).delete()[0]
