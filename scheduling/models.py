"""What runs where, what waits and why: the rows behind the scheduler's snapshot and the pages.

`Workload` is what a person submitted, `Attempt` one start of it on a node, `Allocation` the
resources held by an
attempt for an interval, `Wait` one interval in the queue with its cause. `Device.allocated_milli`
changes in the same
transaction as the allocations, so that the schema itself refuses to give a device out twice.
"""

from __future__ import annotations

import secrets
import uuid
from typing import TYPE_CHECKING, ClassVar, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from projects.models import NodeType, Project, User, WorkloadKind, validate_slug

if TYPE_CHECKING:
    from django_stubs_ext.db.models.manager import RelatedManager


class Zone(models.Model):
    """Nodes under one Resource Controller (agent).

    Attributes:
        token_hash: SHA-256 of the agent's bearer token.
        relay_url, relay_secret: Where the agent's relay listens, and what it expects; both come in
            each report.
        clock_skew_s: The agent's clock minus ours at the last report.
    """

    name = models.CharField(max_length=40, unique=True, validators=[validate_slug])
    token_hash = models.CharField(max_length=64)
    relay_url = models.CharField(max_length=200, blank=True)
    relay_secret = models.CharField(max_length=100, blank=True)
    last_report_at = models.DateTimeField(null=True, blank=True)
    clock_skew_s = models.FloatField(default=0.0)
    is_stopping = models.BooleanField(default=False)

    if TYPE_CHECKING:
        nodes: RelatedManager[Node]

    def __str__(self) -> str:
        return self.name


class NodeState(models.TextChoices):
    READY = "ready", pgettext_lazy("node", "Ready")
    CORDONED = "cordoned", pgettext_lazy("node", "Cordoned")
    LOST = "lost", pgettext_lazy("node", "Lost")


class Node(models.Model):
    """A machine, real or simulated, as its agent declares it."""

    name = models.CharField(max_length=63, unique=True)
    zone = models.ForeignKey(Zone, on_delete=models.PROTECT, related_name="nodes")
    node_type = models.ForeignKey(
        NodeType, on_delete=models.PROTECT, null=True, blank=True, related_name="nodes"
    )
    labels = models.JSONField(default=dict)
    cpu_milli = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=NodeState.choices, default=NodeState.READY)
    is_simulated = models.BooleanField(default=False)
    is_isolated = models.BooleanField(default=False)
    isolation_note = models.CharField(max_length=500, blank=True)
    fraction_mechanism = models.CharField(max_length=200, blank=True)
    driver = models.CharField(max_length=40, blank=True)
    last_report_at = models.DateTimeField(null=True, blank=True)

    if TYPE_CHECKING:
        devices: RelatedManager[Device]

    class Meta:
        ordering = ("name",)
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(state__in=NodeState.values), name="node_state_known"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Device(models.Model):
    """One GPU.

    Attributes:
        memory_mib: Usable memory.
        allocated_milli: Held now, by all attempts that have not ended.
    """

    uuid = models.CharField(primary_key=True, max_length=64)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="devices")
    index = models.PositiveSmallIntegerField()
    model = models.CharField(max_length=80)
    memory_mib = models.PositiveIntegerField()
    allocated_milli = models.PositiveIntegerField(default=0)
    is_healthy = models.BooleanField(default=True)

    class Meta:
        ordering = ("node", "index")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["node", "index"], name="device_index_unique"),
            models.CheckConstraint(
                condition=Q(allocated_milli__lte=1000), name="device_not_over_allocated"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node_id}/{self.index}"


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


class WorkloadQuerySet(models.QuerySet["Workload"]):
    def waiting(self) -> Self:
        return self.filter(phase__in=WAITING_PHASES)

    def active(self) -> Self:
        return self.filter(phase__in=ACTIVE_PHASES)

    def unfinished(self) -> Self:
        return self.exclude(phase__in=ENDED_PHASES)

    def visible_to(self, user: User) -> Self:
        """Those of the projects of which the person is a member; an admin sees all."""
        if user.is_superuser:
            return self
        return self.filter(project__memberships__user=user).distinct()

    def for_list(self) -> Self:
        return self.select_related("project", "owner", "node_type", "claimant")


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
        claimant: For a victim: the workload that gained, until it runs again.
        not_before: Back-off after a failed start.
        request_id: The form's or API's idempotency key.
        node, node_type: Where its current (or last) attempt lies.
        current: The attempt that counts now.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(_("name"), max_length=40, validators=[validate_slug])
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="workloads")
    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="workloads")
    kind = models.CharField(max_length=16, choices=WorkloadKind.choices)
    template_name = models.CharField(max_length=80, blank=True)
    request_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)

    command = ArrayField(models.CharField(max_length=4000), default=list, blank=True)
    working_dir = models.CharField(max_length=1000, blank=True)
    env = models.JSONField(default=dict, blank=True)
    num_devices = models.PositiveSmallIntegerField(default=0)
    gpu_milli = models.PositiveIntegerField(null=True, blank=True)
    gpu_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    cpu_milli = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    node_types = ArrayField(models.CharField(max_length=40), default=list)
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
    session_secret = models.CharField(max_length=64, default=new_session_secret, editable=False)

    phase = models.CharField(max_length=16, choices=Phase.choices, default=Phase.QUEUED)
    phase_changed_at = models.DateTimeField()
    generation = models.PositiveIntegerField(default=1)
    submitted_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    reason = models.JSONField(default=dict, blank=True)
    reason_at = models.DateTimeField(null=True, blank=True)
    queue_position = models.PositiveIntegerField(null=True, blank=True)
    queue_length = models.PositiveIntegerField(null=True, blank=True)
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

    objects = WorkloadQuerySet.as_manager()

    if TYPE_CHECKING:
        attempts: RelatedManager[Attempt]
        waits: RelatedManager[Wait]
        checkpoints: RelatedManager[Checkpoint]
        events: RelatedManager[Event]

    class Meta:
        ordering = ("-submitted_at", "id")
        indexes: ClassVar = [
            models.Index(
                fields=["phase"],
                name="workload_unfinished",
                condition=~Q(phase__in=["stopped", "completed", "failed"]),
            ),
            models.Index(fields=["owner", "-submitted_at"], name="workload_owner"),
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
                condition=Q(num_devices=0, gpu_milli__isnull=True, gpu_memory_mib__isnull=True)
                | Q(
                    num_devices__gte=1,
                    gpu_milli__gte=1,
                    gpu_milli__lte=1000,
                    gpu_memory_mib__isnull=True,
                )
                | Q(num_devices__gte=1, gpu_milli__isnull=True, gpu_memory_mib__gte=1),
                name="workload_gpu_request_agrees",
            ),
            models.CheckConstraint(
                condition=Q(cpu_milli__gte=100, memory_mib__gte=64), name="workload_cpu_memory_min"
            ),
            models.CheckConstraint(condition=Q(grace_s__lte=300), name="workload_grace_range"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_session(self) -> bool:
        return self.kind == WorkloadKind.INTERACTIVE

    @property
    def gpu_total_milli(self) -> int:
        """GPUs asked for, in thousandths; 0 when asked by memory (it depends on the device)."""
        return self.num_devices * (self.gpu_milli or 0)


class AttemptPhase(models.TextChoices):
    STARTING = "starting", _("Starting")
    RUNNING = "running", _("Running")
    SAVING = "saving", _("Saving")
    STOPPING = "stopping", _("Stopping")
    ENDED = "ended", _("Ended")


class AttemptGoal(models.TextChoices):
    """What the agent is asked for; the values are those of `agent.protocol.Goal`."""

    RUN = "run"
    CHECKPOINT = "checkpoint"
    EVICT = "evict"
    STOP = "stop"


class Attempt(models.Model):
    """One start of a workload on a node, with its own log.

    Attributes:
        goal_detail: Why it is to stop, in words, for the attempt's log.
        is_ready: For a session: its socket answers.
        lost_progress_s: For an evicted one: seconds since its last checkpoint when it stopped.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="attempts")
    phase = models.CharField(
        max_length=16, choices=AttemptPhase.choices, default=AttemptPhase.STARTING
    )
    goal = models.CharField(max_length=16, choices=AttemptGoal.choices, default=AttemptGoal.RUN)
    goal_detail = models.CharField(max_length=500, blank=True)
    goal_at = models.DateTimeField(null=True, blank=True)
    is_ready = models.BooleanField(default=False)
    placed_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_cause = models.CharField(max_length=32, blank=True)
    error = models.TextField(blank=True)
    last_lines = ArrayField(models.TextField(), default=list, blank=True)
    peak_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    memory_limit_mib = models.PositiveIntegerField(null=True, blank=True)
    cpu_limit_milli = models.PositiveIntegerField(null=True, blank=True)
    resumed_from = models.ForeignKey(
        "Checkpoint", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    lost_progress_s = models.FloatField(null=True, blank=True)

    if TYPE_CHECKING:
        allocation: Allocation
        checkpoints: RelatedManager[Checkpoint]

    class Meta:
        ordering = ("workload", "number")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["workload", "number"], name="attempt_number_unique"),
            models.UniqueConstraint(
                fields=["workload"],
                condition=~Q(phase="ended"),
                name="attempt_one_open_per_workload",
            ),
            models.CheckConstraint(
                condition=Q(phase__in=AttemptPhase.values), name="attempt_phase_known"
            ),
            models.CheckConstraint(
                condition=Q(goal__in=AttemptGoal.values), name="attempt_goal_known"
            ),
            models.CheckConstraint(
                condition=Q(phase="ended", ended_at__isnull=False)
                | (~Q(phase="ended") & Q(ended_at__isnull=True)),
                name="attempt_end_agrees",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workload} #{self.number}"


class Allocation(models.Model):
    """What an attempt holds, from the decision to start it until its end is known.

    Attributes:
        gpu_milli: Sum over its devices.
        is_borrowed: Beyond quota when it was given.
    """

    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, related_name="allocation")
    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="allocations")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="allocations")
    gpu_milli = models.PositiveIntegerField(default=0)
    cpu_milli = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    is_borrowed = models.BooleanField(default=False)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    if TYPE_CHECKING:
        devices: RelatedManager[DeviceAllocation]

    class Meta:
        indexes: ClassVar = [
            models.Index(
                fields=["node"], name="allocation_open", condition=Q(ended_at__isnull=True)
            ),
            models.Index(fields=["started_at", "ended_at"], name="allocation_interval"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True) | Q(ended_at__gte=F("started_at")),
                name="allocation_interval_valid",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workload_id} on {self.node_id}"


class DeviceAllocation(models.Model):
    """The part of one device that an allocation holds.

    `memory_mib` is what the attempt sees as the device's total.
    """

    allocation = models.ForeignKey(Allocation, on_delete=models.CASCADE, related_name="devices")
    device = models.ForeignKey(Device, on_delete=models.PROTECT, related_name="allocations")
    gpu_milli = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    is_open = models.BooleanField(default=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(gpu_milli__gte=1, gpu_milli__lte=1000), name="device_allocation_range"
            ),
            models.UniqueConstraint(
                fields=["allocation", "device"], name="device_allocation_unique"
            ),
            models.UniqueConstraint(
                fields=["device"],
                condition=Q(is_open=True, gpu_milli=1000),
                name="device_whole_given_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.device_id}: {self.gpu_milli}"


class DeviceHold(models.Model):
    """Capacity that victims are releasing, kept for their claimant (`Replica.held` in the core)."""

    workload = models.OneToOneField(Workload, on_delete=models.CASCADE, related_name="hold")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    device_indices = ArrayField(models.PositiveSmallIntegerField(), default=list, blank=True)
    milli_per_device = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.workload_id} on {self.node_id}"


class Wait(models.Model):
    """One interval in the queue.

    Attributes:
        cause: `submitted`, `reclaimed`, `preempted`, `failed`, `node_shutdown`, `node_lost`,
            `retried`.
        claimant: Who gained, when it was displaced.
        details: The numbers of both projects at that moment, the checkpoint's age, …
    """

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="waits")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    cause = models.CharField(max_length=32)
    claimant = models.ForeignKey(
        Workload, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    details = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("started_at",)
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


class Checkpoint(models.Model):
    """A complete, verified checkpoint in the store, as its agent reports it.

    `is_kept` is False once it expired.
    """

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.ForeignKey(
        Attempt, on_delete=models.SET_NULL, null=True, related_name="checkpoints"
    )
    key = models.CharField(max_length=200)
    step = models.BigIntegerField(null=True, blank=True)
    saved_at = models.DateTimeField()
    size_bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    is_kept = models.BooleanField(default=True)

    class Meta:
        ordering = ("-saved_at",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["workload", "key"], name="checkpoint_key_unique"),
        ]

    def __str__(self) -> str:
        return self.key


class Event(models.Model):
    """One thing that happened to a workload: a change of state, a decision, a checkpoint.

    Attributes:
        code: What happened (`submitted`, `started`, `ready`, `reclaimed`, `checkpointed`, …).
        phase: The workload's phase after it.
        details: Numbers for the sentence (see `scheduling.texts`).
    """

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="events")
    attempt = models.ForeignKey(
        Attempt, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    at = models.DateTimeField()
    code = models.CharField(max_length=40)
    phase = models.CharField(max_length=16, choices=Phase.choices)
    actor = models.ForeignKey(
        User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    details = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("at", "id")
        indexes: ClassVar = [models.Index(fields=["workload", "at"], name="event_workload")]

    def __str__(self) -> str:
        return f"{self.workload_id} {self.code}"


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
        outcome: `applied`, or `stale` where the plan was refused.
    """

    started_at = models.DateTimeField(db_index=True)
    snapshot_s = models.FloatField()
    plan_s = models.FloatField()
    record_s = models.FloatField()
    scenario = models.JSONField()
    decisions = models.JSONField()
    numbers = models.JSONField()
    outcome = models.CharField(max_length=16)

    class Meta:
        ordering = ("-started_at",)

    def __str__(self) -> str:
        return f"{self.pk} {self.started_at:%Y-%m-%d %H:%M:%S}"


class ProjectUsage(models.Model):
    """The last cycle's numbers of a project for one resource:

    one table, read by page and API alike.
    """

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
