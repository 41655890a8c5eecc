"""What the planner leaves behind: effects owed, cycles, and each project's numbers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from projects.models import Project
from scheduling.models.nodes import Zone
from scheduling.models.workloads import Workload


def default_topology() -> list[str]:
    return ["rack", "zone"]


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
        packed_scenario: The snapshot, policy and time as `scenario/1`: JSON, compressed, since a
            large cluster's is tens of MiB.
        decisions: What starts, stops or moves, as JSON with reasons, and some of what waits.
        numbers: Fair shares and sums per project and resource.
    """

    started_at = models.DateTimeField(db_index=True)
    snapshot_s = models.FloatField()
    plan_s = models.FloatField()
    record_s = models.FloatField()
    packed_scenario = models.BinaryField()
    decisions = models.JSONField()
    numbers = models.JSONField()

    class Meta:
        ordering = ("-started_at",)

    def __str__(self) -> str:
        return f"{self.pk} {self.started_at:%Y-%m-%d %H:%M:%S}"

    @property
    def scenario(self) -> Any:  # a parsed file
        return json.loads(zlib.decompress(self.packed_scenario))

    @staticmethod
    def pack(scenario: Mapping[str, object]) -> bytes:
        return zlib.compress(msgspec.json.encode(scenario), level=1)


class Change(models.Model):
    """That something changed on which plans depend; written by triggers of the database.

    Attributes:
        xid: The transaction that changed it: one with a smaller number may commit later.
        kind: `workload`, `attempt`, `node`, `device`, `part`, `hold`, `loan`, …
        operation: `insert`, `update` or `delete`.
        key: The id of a workload; empty for anything else.
    """

    id = models.BigAutoField(primary_key=True)
    xid = models.BigIntegerField(db_index=True)
    at = models.DateTimeField()
    kind = models.CharField(max_length=16)
    operation = models.CharField(max_length=8)
    key = models.CharField(max_length=36)

    def __str__(self) -> str:
        return f"{self.operation} {self.kind} {self.key}"


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


class PlannerPolicy(models.Model):
    """What an admin chose of the planner's policy; one row, its defaults where there is none.

    Attributes:
        topology: Labels of nodes that name where they stand, from the narrowest; `zone` is the
            agent's zone where a node has no such label.
        preemption_delay_s: A waiting workload causes no eviction until it has waited so long.
        aging_period_s: Per period waited a workload starts as if of one higher priority; 0 is off.
        cordon_failures: A node on which so many different workloads failed to start is closed; 0
            closes none.
        history_factor_milli: How much past use counts in the surplus, in thousandths; 0 is off.
        history_half_life_s: In what time it counts half; 0 does not decay.
    """

    ONLY = 1

    topology = ArrayField(models.CharField(max_length=100), default=default_topology, blank=True)
    preemption_delay_s = models.PositiveIntegerField(default=0)
    gang_grace_s = models.PositiveIntegerField(default=60)
    aging_period_s = models.PositiveIntegerField(default=0)
    aging_bound = models.PositiveSmallIntegerField(default=20)
    cordon_failures = models.PositiveSmallIntegerField(default=3)
    cordon_window_s = models.PositiveIntegerField(default=3600)
    history_factor_milli = models.PositiveIntegerField(default=0)
    history_window_s = models.PositiveIntegerField(
        default=7 * 86400, validators=[MinValueValidator(3600), MaxValueValidator(90 * 86400)]
    )
    history_half_life_s = models.PositiveIntegerField(default=0)

    class Meta:
        verbose_name_plural = "planner policy"
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(pk=1), name="planner_policy_only_one"),
        ]

    def __str__(self) -> str:
        return "policy"


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
