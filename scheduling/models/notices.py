"""What a person is to be told by mail, beside the pages."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models import Q
from django.utils import timezone

from projects.models import User
from scheduling.models.workloads import Event, Workload


class NoticeQuerySet(models.QuerySet["Notice"]):
    def owed(self) -> Self:
        """Those that are still to be sent."""
        return self.filter(sent_at__isnull=True, is_dead=False)


class Notice(models.Model):
    """One mail that is owed for an event: written with the event, sent later.

    Attributes:
        due_at: Not to be sent before; moved while somebody sends it, and after a failure.
        is_dead: Failed too often.
    """

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="notices")
    event = models.OneToOneField(Event, on_delete=models.CASCADE, related_name="notice")
    recipient = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    due_at = models.DateTimeField(default=timezone.now)
    num_tries = models.PositiveSmallIntegerField(default=0)
    sent_at = models.DateTimeField(null=True, blank=True)
    is_dead = models.BooleanField(default=False)
    last_error = models.CharField(max_length=500, blank=True)

    objects = NoticeQuerySet.as_manager()

    class Meta:
        ordering = ("due_at", "id")
        indexes: ClassVar = [
            models.Index(
                fields=["due_at"],
                name="notice_owed",
                condition=Q(sent_at__isnull=True, is_dead=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event_id} to {self.recipient_id}"
