"""Periodic work: roll-ups, expiry, and tomorrow's tables before tomorrow."""

from __future__ import annotations

from datetime import UTC, timedelta

from celery import shared_task
from django.utils import timezone

from telemetry import ingestion, partitions, rollups
from telemetry.models import Batch


@shared_task(name="telemetry.roll_up", time_limit=300)
def roll_up() -> int:
    """Roll up new samples; ends before the next one is due, the rest waits for it.

    Returns:
        Minutes rolled.
    """
    return rollups.roll_up_new()


@shared_task(name="telemetry.expire")
def expire() -> int:
    """Drop what is older than it is kept, and make the next days' tables.

    Returns:
        Tables dropped.
    """
    now = timezone.now()
    today = now.astimezone(UTC).date()
    oldest = ingestion.horizon(now)
    dropped = partitions.drop_before(oldest.astimezone(UTC).date())
    oldest_minute = (now - rollups.KEEP_MINUTES).astimezone(UTC).date()
    dropped += partitions.drop_before(oldest_minute, partitions.MINUTE_TABLES)
    # Without its row a batch could come in again, but all its samples would be too old.
    Batch.objects.filter(received_at__lt=oldest - timedelta(days=1)).delete()
    days = [today, today + timedelta(days=1)]
    partitions.ensure_days(days, (*partitions.TABLES, *partitions.MINUTE_TABLES))
    partitions.ensure_months(days)
    return len(dropped)
