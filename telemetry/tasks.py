"""Periodic work: expiry of samples, and tomorrow's tables before tomorrow."""

from __future__ import annotations

from datetime import UTC, timedelta

from celery import shared_task
from django.utils import timezone

from telemetry import ingestion, partitions
from telemetry.models import Batch


@shared_task(name="telemetry.expire")
def expire() -> int:
    """Drop what is older than a sample may be when it arrives, and make the next days' tables.

    Returns:
        Tables dropped.
    """
    now = timezone.now()
    oldest = ingestion.horizon(now)
    dropped = partitions.drop_before(oldest.astimezone(UTC).date())
    # Without its row a batch could come in again, but all its samples would be too old.
    Batch.objects.filter(received_at__lt=oldest - timedelta(days=1)).delete()
    today = now.astimezone(UTC).date()
    partitions.ensure_days([today, today + timedelta(days=1)])
    return len(dropped)
