"""What people submit: the workload, its waits and what happened to it."""

from __future__ import annotations

import secrets
import uuid
from typing import TYPE_CHECKING, ClassVar, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from projects.models import NodeType, Project, User, WorkloadKind, validate_slug
from scheduling.models.nodes import Node

if TYPE_CHECKING:
    from django_stubs_ext.db.models.manager import RelatedManager

    from scheduling.models.attempts import Attempt, Checkpoint, DeviceHold


class Phase(models.TextChoices):
    """States of a workload (the transitions are those of `core.lifecycle`)."""

    QUEUED = "queued", _("Queued")
    STARTING = "starting", _("Starting")
    RUNNING = "running", _("Running")
    CHECKPOINTING = "checkpointing", _("Saving")
    PREEMPTED = "preempted", _("Preempted")
    STOPPING = "stopping", _("Stopping")
    STOPPED = "stopped", _("Stopped")
    COMPLETED = "completed", _("Completed")
    FAILED = "failed", _("Failed")
    LOST = "lost", _("Lost")


WAITING_PHASES = (Phase.QUEUED, Phase.PREEMPTED)
ACTIVE_PHASES = (Phase.STARTING, Phase.RUNNING, Phase.CHECKPOINTING, Phase.STOPPING, Phase.LOST)
IS_PARKED = models.Q(phase=Phase.RUNNING, queue_position__isnull=False)
"""A borrower whose lender woke: its process waits in memory, and the planner counts it among those
who wait, at this place."""
WAITS = models.Q(phase__in=WAITING_PHASES) | IS_PARKED
ENDED_PHASES = (Phase.STOPPED, Phase.COMPLETED, Phase.FAILED)


class Priority(models.IntegerChoices):
    """Order of workloads inside a project."""

    VERY_LOW = 10, _("very low")
    LOW = 30, _("low")
    MEDIUM = 50, _("medium")
    HIGH = 70, _("high")
    VERY_HIGH = 90, _("very high")


class CheckpointMode(models.TextChoices):
    NONE = "none", _("none")
    SIGNAL = "signal", _("by signal")
    COMMAND = "command", _("by command")


MAX_REPLICAS = 512
LEADER = 0
"""The replica by which a workload is shown, connected to and saved."""


class WorkloadQuerySet(models.QuerySet["Workload"]):
    def waiting(self) -> Self:
        return self.filter(WAITS)

    def unfinished(self) -> Self:
        return self.exclude(phase__in=ENDED_PHASES)

    def for_list(self) -> Self:
        return self.select_related("project", "owner", "node_type", "claimant", "current")


def new_session_secret() -> str:
    return secrets.token_urlsafe(32)


class Workload(models.Model):
    """What a person submitted and waits for.

    Attributes:
        node_types: Names in order of preference; what the project and kind allow when the form
            leaves it open.
        gpu_milli: Per device; whole GPUs are 1000 on `num_devices` devices. Null when asked by
            memory or without GPU.
        generation: Raised by each change that a plan must have seen; a stale plan is refused.
        submitted_at: Its place in the queue; kept when it is requeued.
        reason: `core.decisions.Reason` as JSON: code, message, details, offers, per_node_type.
        node_labels: Only nodes with all of these labels will do.
        eta: When it will start, `core.decisions.Eta` as JSON with times in Unix seconds; empty
            where nothing is known.
        claimant: For a victim: the workload that gained, until it runs again.
        not_before: Back-off after a failed start.
        request_id: The form's or API's idempotency key.
        language: In which it was submitted, for what Allot writes inside a session.
        num_devices, gpu_milli, cpu_milli, memory_mib: Of each replica.
        min_replicas: Fewer never run; above 1 a gang, whose members work together.
        max_replicas: It grows up to so many while there is room.
        node, node_type: Where its leader's current (or last) attempt lies.
        current: The leader's (replica 0's) attempt that counts now.
        max_run_s: It may run for so long, waits apart; its project may allow less. None: as its
            project says.
        kept_rule: Values of its project's rule, by field, that hold for it as they were when it was
            submitted, though they have changed since.
        extended_s, num_extensions: By how much its time limit was put off since it was submitted,
            and how often.
        succeeded_replicas: Those that ended with 0 since all were last started.
        incomplete_since: Since when a running gang has had fewer than its minimum.
        decisive: While the rest of it leaves: the replica's attempt whose end decides what becomes
            of all.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(_("name"), max_length=40, validators=[validate_slug])
    project = models.ForeignKey(
        Project, on_delete=models.PROTECT, related_name="workloads", verbose_name=_("project")
    )
    owner = models.ForeignKey(
        User, on_delete=models.PROTECT, related_name="workloads", verbose_name=_("owner")
    )
    kind = models.CharField(_("kind"), max_length=16, choices=WorkloadKind.choices)
    template_name = models.CharField(max_length=80, blank=True)
    request_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    language = models.CharField(max_length=16, blank=True, default="", editable=False)

    command = ArrayField(models.CharField(max_length=4000), default=list, blank=True)
    working_dir = models.CharField(max_length=1000, blank=True)
    env = models.JSONField(default=dict, blank=True)
    num_devices = models.PositiveSmallIntegerField(default=0)
    gpu_milli = models.PositiveIntegerField(null=True, blank=True)
    gpu_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    cpu_milli = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    min_replicas = models.PositiveSmallIntegerField(default=1)
    max_replicas = models.PositiveSmallIntegerField(default=1)
    node_types = ArrayField(models.CharField(max_length=40), default=list)
    node_labels = models.JSONField(default=dict, blank=True)
    priority = models.PositiveSmallIntegerField(choices=Priority.choices, default=Priority.MEDIUM)
    is_preemptible = models.BooleanField()
    checkpoint_mode = models.CharField(
        max_length=16, choices=CheckpointMode.choices, default=CheckpointMode.SIGNAL
    )
    checkpoint_signal = models.CharField(max_length=16, default="SIGUSR1")
    checkpoint_command = models.CharField(max_length=1000, blank=True)
    checkpoint_path = models.CharField(max_length=200, default="checkpoints")
    checkpoint_every_s = models.PositiveIntegerField(null=True, blank=True)
    grace_s = models.PositiveSmallIntegerField(default=60)
    backoff_limit = models.PositiveSmallIntegerField(default=3)
    max_run_s = models.PositiveIntegerField(null=True, blank=True)
    session_secret = models.CharField(max_length=64, default=new_session_secret, editable=False)

    phase = models.CharField(_("state"), max_length=16, choices=Phase.choices, default=Phase.QUEUED)
    phase_changed_at = models.DateTimeField()
    generation = models.PositiveIntegerField(default=1)
    submitted_at = models.DateTimeField(_("submitted"))
    ended_at = models.DateTimeField(null=True, blank=True)
    reason = models.JSONField(default=dict, blank=True)
    reason_at = models.DateTimeField(null=True, blank=True)
    queue_position = models.PositiveIntegerField(null=True, blank=True)
    queue_length = models.PositiveIntegerField(null=True, blank=True)
    eta = models.JSONField(default=dict, blank=True)
    claimant = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="victims"
    )
    num_failures = models.PositiveSmallIntegerField(default=0)
    num_preemptions = models.PositiveIntegerField(default=0)
    not_before = models.DateTimeField(null=True, blank=True)
    is_borrowing = models.BooleanField(default=False)
    node = models.ForeignKey(
        Node, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    node_type = models.ForeignKey(
        NodeType, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    current = models.ForeignKey(
        "Attempt", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    succeeded_replicas = ArrayField(models.PositiveSmallIntegerField(), default=list, blank=True)
    incomplete_since = models.DateTimeField(null=True, blank=True)
    kept_rule = models.JSONField(default=dict, blank=True, editable=False)
    extended_s = models.PositiveIntegerField(default=0, editable=False)
    num_extensions = models.PositiveIntegerField(default=0, editable=False)
    decisive = models.ForeignKey(
        "Attempt", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    objects = WorkloadQuerySet.as_manager()

    if TYPE_CHECKING:
        attempts: RelatedManager[Attempt]
        waits: RelatedManager[Wait]
        checkpoints: RelatedManager[Checkpoint]
        holds: RelatedManager[DeviceHold]
        events: RelatedManager[Event]

    class Meta:
        ordering = ("-submitted_at", "id")
        verbose_name = _("workload")
        verbose_name_plural = _("workloads")
        indexes: ClassVar = [
            models.Index(
                fields=["phase"],
                name="workload_unfinished",
                condition=~Q(phase__in=["stopped", "completed", "failed"]),
            ),
            models.Index(fields=["owner", "-submitted_at"], name="workload_owner"),
            models.Index(fields=["ended_at"], name="workload_end"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["project", "name"],
                condition=~Q(phase__in=["stopped", "completed", "failed"]),
                name="workload_name_unique_while_unfinished",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=WorkloadKind.values), name="workload_kind_known"
            ),
            models.CheckConstraint(
                condition=Q(phase__in=Phase.values), name="workload_phase_known"
            ),
            models.CheckConstraint(
                condition=~Q(kind="interactive") | Q(is_preemptible=False),
                name="workload_session_never_preemptible",
            ),
            models.CheckConstraint(
                condition=~Q(kind="interactive") | ~Q(phase="preempted"),
                name="workload_session_never_preempted",
            ),
            models.CheckConstraint(
                # A comparison with null is unknown, which a constraint lets pass.
                condition=Q(num_devices=0, gpu_milli__isnull=True, gpu_memory_mib__isnull=True)
                | Q(
                    num_devices__gte=1,
                    gpu_milli__isnull=False,
                    gpu_milli__gte=1,
                    gpu_milli__lte=1000,
                    gpu_memory_mib__isnull=True,
                )
                | Q(
                    num_devices__gte=1,
                    gpu_milli__isnull=True,
                    gpu_memory_mib__isnull=False,
                    gpu_memory_mib__gte=1,
                ),
                name="workload_gpu_request_agrees",
            ),
            models.CheckConstraint(
                condition=Q(cpu_milli__gte=100, memory_mib__gte=64), name="workload_cpu_memory_min"
            ),
            models.CheckConstraint(condition=Q(grace_s__lte=300), name="workload_grace_range"),
            models.CheckConstraint(
                condition=Q(max_run_s__isnull=True)
                | Q(max_run_s__gte=60, max_run_s__lte=30 * 86_400),
                name="workload_max_run_range",
            ),
            models.CheckConstraint(
                condition=Q(min_replicas__gte=1)
                & Q(max_replicas__gte=F("min_replicas"))
                & Q(max_replicas__lte=MAX_REPLICAS),
                name="workload_replicas_range",
            ),
            models.CheckConstraint(
                condition=~Q(kind="interactive") | Q(max_replicas=1),
                name="workload_session_is_one",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_parked(self) -> bool:
        """`IS_PARKED`, of a row."""
        return self.phase == Phase.RUNNING and self.queue_position is not None

    @property
    def is_waiting(self) -> bool:
        """`WAITS`, of a row."""
        return self.phase in WAITING_PHASES or self.is_parked

    @property
    def is_session(self) -> bool:
        return self.kind == WorkloadKind.INTERACTIVE

    @property
    def is_gang(self) -> bool:
        """Whether its replicas work together, so that a failed one stops all."""
        return self.min_replicas > 1

    @property
    def gpu_total_milli(self) -> int:
        """GPUs that a replica asks for, in thousandths; 0 when asked by memory, which depends on
        the device."""
        return self.num_devices * (self.gpu_milli or 0)


class Wait(models.Model):
    """One interval in the queue.

    Attributes:
        cause: `submitted`, `reclaimed`, `preempted`, `failed`, `node_shutdown`, `node_lost`,
            `retried`.
        claimant: Who gained, when it was displaced.
        details: The numbers of both projects at that moment, the checkpoint's age, …
    """

    workload = models.ForeignKey(
        Workload, on_delete=models.CASCADE, related_name="waits", verbose_name=_("workload")
    )
    started_at = models.DateTimeField(_("began"))
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    cause = models.CharField(_("cause"), max_length=32)
    claimant = models.ForeignKey(
        Workload,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("who gained"),
    )
    details = models.JSONField(_("details"), default=dict, blank=True)

    class Meta:
        ordering = ("started_at",)
        verbose_name = _("wait in the queue")
        verbose_name_plural = _("waits in the queue")
        indexes: ClassVar = [models.Index(fields=["ended_at"], name="wait_end")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["workload"], condition=Q(ended_at__isnull=True), name="wait_one_open"
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True) | Q(ended_at__gte=F("started_at")),
                name="wait_interval_valid",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workload_id} {self.cause}"


class Event(models.Model):
    """One thing that happened to a workload: a change of state, a decision, a checkpoint.

    Attributes:
        code: What happened (`submitted`, `started`, `ready`, `reclaimed`, `checkpointed`, …).
        phase: The workload's phase after it.
        details: Numbers for the sentence (see `scheduling.texts`).
    """

    workload = models.ForeignKey(
        Workload, on_delete=models.CASCADE, related_name="events", verbose_name=_("workload")
    )
    attempt = models.ForeignKey(
        "scheduling.Attempt",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("attempt"),
    )
    at = models.DateTimeField(_("time"))
    code = models.CharField(_("what happened"), max_length=40)
    phase = models.CharField(_("state"), max_length=16, choices=Phase.choices)
    actor = models.ForeignKey(
        User,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("person"),
    )
    details = models.JSONField(_("details"), default=dict, blank=True)

    class Meta:
        ordering = ("at", "id")
        verbose_name = _("event")
        verbose_name_plural = _("events")
        indexes: ClassVar = [models.Index(fields=["workload", "at"], name="event_workload")]

    def __str__(self) -> str:
        return f"{self.workload_id} {self.code}"
