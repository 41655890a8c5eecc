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
from django.utils.translation import gettext_lazy as _

from projects.models import Project
from scheduling.models.nodes import Zone
from scheduling.models.workloads import Workload

DAY_S = 86_400


def default_topology() -> list[str]:
    return ["rack", "zone"]


class Command(models.Model):
    """Outbox: one row per effect owed to a zone. `key` makes a repeated command harmless."""

    zone = models.ForeignKey(
        Zone, on_delete=models.CASCADE, related_name="commands", verbose_name=_("zone")
    )
    workload = models.ForeignKey(
        Workload,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("workload"),
    )
    kind = models.CharField(_("kind"), max_length=32)
    key = models.CharField(_("key"), max_length=200, unique=True)
    created_at = models.DateTimeField(_("created"))
    available_at = models.DateTimeField(_("due"))
    claimed_until = models.DateTimeField(_("claimed until"), null=True, blank=True)
    num_tries = models.PositiveSmallIntegerField(_("tries"), default=0)
    done_at = models.DateTimeField(_("done"), null=True, blank=True)
    is_dead = models.BooleanField(_("given up"), default=False)
    last_error = models.TextField(_("last error"), blank=True)

    class Meta:
        verbose_name = _("command to a zone")
        verbose_name_plural = _("commands to zones")
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

    started_at = models.DateTimeField(_("began"), db_index=True)
    snapshot_s = models.FloatField(_("snapshot, s"))
    plan_s = models.FloatField(_("plan, s"))
    record_s = models.FloatField(_("recording, s"))
    packed_scenario = models.BinaryField()
    decisions = models.JSONField(_("decisions"))
    numbers = models.JSONField(_("numbers"))

    class Meta:
        ordering = ("-started_at",)
        verbose_name = _("planning cycle")
        verbose_name_plural = _("planning cycles")

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

    topology = ArrayField(
        models.CharField(max_length=100),
        verbose_name=_("topology"),
        default=default_topology,
        blank=True,
        help_text=_(
            "Labels of nodes that say where they stand, separated by commas, from the narrowest; "
            "“zone” is the agent's zone where a node has no such label. Gangs are gathered there; "
            "empty: nowhere."
        ),
    )
    preemption_delay_s = models.PositiveIntegerField(
        _("delay before evictions, s"),
        default=0,
        validators=[MaxValueValidator(DAY_S)],
        help_text=_(
            "What waits causes no eviction until it has waited so long: 0 to 86400 seconds."
        ),
    )
    gang_grace_s = models.PositiveIntegerField(
        _("grace of incomplete gangs, s"),
        default=60,
        validators=[MaxValueValidator(DAY_S)],
        help_text=_(
            "A gang that lost replicas is stopped if it is not whole again by then: 0 to 86400 "
            "seconds."
        ),
    )
    aging_period_s = models.PositiveIntegerField(
        _("aging, s"),
        default=0,
        validators=[MaxValueValidator(30 * DAY_S)],
        help_text=_(
            "Per period waited, work starts as if of one priority higher: 0 to 2592000 seconds; "
            "0: never."
        ),
    )
    aging_bound = models.PositiveSmallIntegerField(
        _("aging at most"),
        default=20,
        validators=[MaxValueValidator(1000)],
        help_text=_("So much higher at most by aging: 0 to 1000."),
    )
    cordon_failures = models.PositiveSmallIntegerField(
        _("failures that close a node"),
        default=3,
        validators=[MaxValueValidator(100)],
        help_text=_(
            "A node on which so many different workloads failed to start is closed: 0 to 100; 0: "
            "none is."
        ),
    )
    cordon_window_s = models.PositiveIntegerField(
        _("failures count for, s"),
        default=3600,
        validators=[MinValueValidator(60), MaxValueValidator(30 * DAY_S)],
        help_text=_("Failures longer ago close no node: 60 to 2592000 seconds."),
    )
    history_factor_milli = models.PositiveIntegerField(
        _("past use, thousandths"),
        default=0,
        validators=[MaxValueValidator(100_000)],
        help_text=_(
            "How much what a project used before counts against it where the surplus is divided, "
            "never in its quota: 0 to 100000 thousandths; 0: not at all."
        ),
    )
    history_window_s = models.PositiveIntegerField(
        _("past use is taken over, s"),
        default=7 * DAY_S,
        validators=[MinValueValidator(3600), MaxValueValidator(90 * DAY_S)],
        help_text=_("What was used earlier is forgotten: 3600 to 7776000 seconds."),
    )
    history_half_life_s = models.PositiveIntegerField(
        _("past use counts half after, s"),
        default=0,
        validators=[MaxValueValidator(90 * DAY_S)],
        help_text=_("0 to 7776000 seconds; 0: all of the time counts alike."),
    )

    class Meta:
        verbose_name = _("planner policy")
        verbose_name_plural = _("planner policy")
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(pk=1), name="planner_policy_only_one"),
        ]

    def __str__(self) -> str:
        return str(self._meta.verbose_name)


class ProjectUsage(models.Model):
    """The last cycle's numbers of a project for one resource, for page and API alike."""

    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, related_name="usage", verbose_name=_("project")
    )
    resource = models.CharField(_("resource"), max_length=60)
    quota = models.BigIntegerField(_("quota"), null=True)
    limit = models.BigIntegerField(_("limit"), null=True)
    fair_share = models.BigIntegerField(_("fair share"))
    requested = models.BigIntegerField(_("asked for"))
    allocated = models.BigIntegerField(_("allocated"))
    non_preemptible = models.BigIntegerField(_("of that not preemptible"))

    class Meta:
        verbose_name = _("project in the last cycle")
        verbose_name_plural = _("projects in the last cycle")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "resource"], name="project_usage_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.project_id} {self.resource}"
