"""What the planner leaves behind: effects owed, cycles, and each project's numbers."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from projects.models import Project
from scheduling.models.nodes import Zone
from scheduling.models.workloads import Workload


class Command(models.Model):
    """Outbox: one row per effect owed to a zone. `key` makes a repeated command harmless."""

    zone = models.ForeignKey(Zone, on_delete=models.CASCADE, related_name="commands")
    workload = models.ForeignKey(
        Workload, on_delete=models.CASCADE, null=True, blank=True, related_name="+"
    )
    kind = models.CharField(max_length=32)
    key = models.CharField(max_length=200, unique=True)
    created_at = models.DateTimeField()
    available_at = models.DateTimeField()
    claimed_until = models.DateTimeField(null=True, blank=True)
    num_tries = models.PositiveSmallIntegerField(default=0)
    done_at = models.DateTimeField(null=True, blank=True)
    is_dead = models.BooleanField(default=False)
    last_error = models.TextField(blank=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(
                fields=["available_at"],
                name="command_owed",
                condition=Q(done_at__isnull=True, is_dead=False),
            ),
        ]

    def __str__(self) -> str:
        return self.key


class CycleRecord(models.Model):
    """One planning cycle that decided something, exportable as a scenario file.

    Attributes:
        scenario: The snapshot, policy and time as `scenario/1`.
        decisions: The plan's decisions as JSON, with reasons.
        numbers: Fair shares and sums per project and resource.
    """

    started_at = models.DateTimeField(db_index=True)
    snapshot_s = models.FloatField()
    plan_s = models.FloatField()
    record_s = models.FloatField()
    scenario = models.JSONField()
    decisions = models.JSONField()
    numbers = models.JSONField()

    class Meta:
        ordering = ("-started_at",)

    def __str__(self) -> str:
        return f"{self.pk} {self.started_at:%Y-%m-%d %H:%M:%S}"


class PlannerStatus(models.Model):
    """How the last cycle ended; one row, so that pages can say when the planner last looked.

    Attributes:
        finished_at: Of the last cycle that was recorded.
        failed_at, error: Of the last one that was not, until one is again.
    """

    ONLY = 1

    finished_at = models.DateTimeField(null=True, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(pk=1), name="planner_status_only_one"),
        ]

    def __str__(self) -> str:
        return self.error or f"{self.finished_at}"


class ProjectUsage(models.Model):
    """The last cycle's numbers of a project for one resource, for page and API alike."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="usage")
    resource = models.CharField(max_length=60)
    quota = models.BigIntegerField(null=True)
    limit = models.BigIntegerField(null=True)
    fair_share = models.BigIntegerField()
    requested = models.BigIntegerField()
    allocated = models.BigIntegerField()
    non_preemptible = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "resource"], name="project_usage_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.project_id} {self.resource}"
