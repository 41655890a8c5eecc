"""What was there and when, and the sums of past days."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from projects.models import NodeType
from scheduling.models.nodes import Node


class CapacityInterval(models.Model):
    """A node, or one of its devices, ready for work from one moment to another.

    Attributes:
        device: UUID; empty for the node itself, which brings CPU and memory.
        node_type: What it counted as then.
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="capacity_intervals")
    node_type = models.ForeignKey(NodeType, on_delete=models.PROTECT, null=True, related_name="+")
    device = models.CharField(max_length=64, blank=True)
    gpu_milli = models.PositiveIntegerField(default=0)
    cpu_milli = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["started_at", "ended_at"], name="capacity_interval_time"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["node", "device"],
                condition=Q(ended_at__isnull=True),
                name="capacity_interval_one_open",
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True) | Q(ended_at__gte=F("started_at")),
                name="capacity_interval_valid",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node_id} {self.device} {self.started_at:%Y-%m-%d %H:%M}"


class UsageDay(models.Model):
    """A day (UTC) whose sums are kept."""

    day = models.DateField(primary_key=True)
    computed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.day:%Y-%m-%d}"


class UsageVector(models.Model):
    """One measure of one group over a day (UTC): 96 quarter-hours, 8-byte floats; or its events.

    A row per day rather than per quarter-hour, since charts read long stretches of few groups: a
    year of a group is 365 rows. `scheduling.analytics.measures` names the numbers. Groups in
    which nothing happened have no row.
    """

    pk = models.CompositePrimaryKey("scope", "measure", "day", "project_id", "key")
    scope = models.SmallIntegerField()
    measure = models.SmallIntegerField()
    day = models.DateField()
    project_id = models.IntegerField()
    key = models.CharField(max_length=100)
    values = models.BinaryField()

    def __str__(self) -> str:
        return f"{self.scope}/{self.measure} {self.day:%Y-%m-%d} {self.project_id} {self.key}"


class UsageMonth(models.Model):
    """A month (UTC) whose sums are kept by hour: no late sample can change it any more."""

    month = models.DateField(primary_key=True)
    computed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.month:%Y-%m}"


class UsageMonthVector(models.Model):
    """One measure of one group over a month (UTC) by hour, 4-byte floats; events as for days.

    The same as its days' vectors, in few large rows: a year of a hundred groups is read at once.
    """

    pk = models.CompositePrimaryKey("scope", "measure", "month", "project_id", "key")
    scope = models.SmallIntegerField()
    measure = models.SmallIntegerField()
    month = models.DateField()
    project_id = models.IntegerField()
    key = models.CharField(max_length=100)
    values = models.BinaryField()

    def __str__(self) -> str:
        return f"{self.scope}/{self.measure} {self.month:%Y-%m} {self.project_id} {self.key}"
