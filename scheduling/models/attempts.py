"""Starts of a workload on a node: what each holds, what it saved, and what is kept for the next."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, ClassVar, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from projects.models import Project
from scheduling.models.nodes import Device, Node
from scheduling.models.workloads import Workload

if TYPE_CHECKING:
    from django_stubs_ext.db.models.manager import RelatedManager


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


class SwapState(models.TextChoices):
    """Where an attempt's device memory is; the values are those of `agent.protocol.SwapState`."""

    RUNNING = "running"
    LOCKING = "locking"
    SWAPPING_OUT = "swapping_out"
    SWAPPED_OUT = "swapped_out"
    WAITING = "waiting"
    SWAPPING_IN = "swapping_in"
    FAILED = "failed"


class AttemptQuerySet(models.QuerySet["Attempt"]):
    def open(self) -> Self:
        """Those that have not ended."""
        return self.exclude(phase=AttemptPhase.ENDED)

    def of(self, workload: Workload) -> Self:
        """All starts of a workload."""
        return self.filter(workload=workload)


class Attempt(models.Model):
    """One start of a replica of a workload on a node, with its own log.

    Attributes:
        replica: Which one; 0 is the leader.
        number: 1 for the first start of this replica.
        num_replicas: How many of the workload had a place when it was placed.
        rendezvous_port: On its node, where a leader's others find it; None where there are none.
        is_retryable: For one that could not start: whether trying again may help.
        goal_detail: Why it is to stop, in words, for the attempt's log.
        is_ready: For a session: its socket answers.
        lost_progress_s: For an evicted one: seconds since its last checkpoint when it stopped.
        idle_signals: As last reported: since when each signal has been quiet.
        idle_from: Its idleness counts for its ending from then on at the earliest: a person pressed
            *Wake now*.
        idle_kept_until: A person extended it until then.
        idle_warned_at, idle_last_warned_at: When it was warned of its ending; null once it is used.
        idle_end_at: The end that the latest warning named.
        limit_warned_at, limit_last_warned_at, limit_end_at: The same for its time limit.
        limit_notice_until: The time limit was set while it ran, and ends it no earlier.
        idle_since: Since when all are; the periodic watch writes it, a busy signal clears it.
        idle_seen_at: When the watch last saw it idle: what it has not seen lately is not lent.
        swap_state, swap_since: Where its device memory is, and since when.
        swap_obstacle: Why it cannot be swapped; empty if it can.
        in_memory_s: How long its memory was away from its device, earlier times together.
        woke_at: When its device last came back to it.
        lend_asked_at: Its owner wants it swapped out without waiting for the window.
        not_lent: Why its device is not lent though it is idle: `core.decisions.Reason` as JSON.
        around_share: `agent.protocol.AroundShare` as JSON, as it was first seen; empty while all
            that it takes of its devices is counted.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    workload = models.ForeignKey(
        Workload, on_delete=models.CASCADE, related_name="attempts", verbose_name=_("workload")
    )
    replica = models.PositiveSmallIntegerField(default=0)
    number = models.PositiveIntegerField(_("number"))
    num_replicas = models.PositiveSmallIntegerField(default=1)
    rendezvous_port = models.PositiveIntegerField(null=True, blank=True)
    node = models.ForeignKey(
        Node, on_delete=models.PROTECT, related_name="attempts", verbose_name=_("node")
    )
    phase = models.CharField(
        _("state"), max_length=16, choices=AttemptPhase.choices, default=AttemptPhase.STARTING
    )
    goal = models.CharField(
        _("should be"), max_length=16, choices=AttemptGoal.choices, default=AttemptGoal.RUN
    )
    goal_detail = models.CharField(max_length=500, blank=True)
    goal_at = models.DateTimeField(null=True, blank=True)
    is_ready = models.BooleanField(default=False)
    placed_at = models.DateTimeField(_("placed"))
    started_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(_("exit code"), null=True, blank=True)
    exit_cause = models.CharField(max_length=32, blank=True)
    is_retryable = models.BooleanField(default=True)
    error = models.TextField(blank=True)
    last_lines = ArrayField(models.TextField(), default=list, blank=True)
    peak_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    memory_limit_mib = models.PositiveIntegerField(null=True, blank=True)
    cpu_limit_milli = models.PositiveIntegerField(null=True, blank=True)
    resumed_from = models.ForeignKey(
        "Checkpoint", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    lost_progress_s = models.FloatField(null=True, blank=True)

    idle_signals = models.JSONField(default=dict, blank=True)
    idle_from = models.DateTimeField(null=True, blank=True)
    idle_kept_until = models.DateTimeField(null=True, blank=True)
    idle_warned_at = models.DateTimeField(null=True, blank=True)
    idle_last_warned_at = models.DateTimeField(null=True, blank=True)
    idle_end_at = models.DateTimeField(null=True, blank=True)
    limit_warned_at = models.DateTimeField(null=True, blank=True)
    limit_last_warned_at = models.DateTimeField(null=True, blank=True)
    limit_end_at = models.DateTimeField(null=True, blank=True)
    limit_notice_until = models.DateTimeField(null=True, blank=True)
    idle_since = models.DateTimeField(null=True, blank=True)
    idle_seen_at = models.DateTimeField(null=True, blank=True)
    swap_state = models.CharField(
        max_length=16, choices=SwapState.choices, default=SwapState.RUNNING
    )
    swap_since = models.DateTimeField(null=True, blank=True)
    in_memory_s = models.FloatField(default=0.0)
    swap_obstacle = models.CharField(max_length=40, blank=True)
    bytes_on_device = models.BigIntegerField(default=0)
    bytes_on_host = models.BigIntegerField(default=0)
    woke_at = models.DateTimeField(null=True, blank=True)
    lend_asked_at = models.DateTimeField(null=True, blank=True)
    not_lent = models.JSONField(default=dict, blank=True)
    around_share = models.JSONField(default=dict, blank=True)

    objects = AttemptQuerySet.as_manager()

    if TYPE_CHECKING:
        allocation: Allocation
        checkpoints: RelatedManager[Checkpoint]

    class Meta:
        ordering = ("workload", "replica", "number")
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        indexes: ClassVar = [models.Index(fields=["ended_at"], name="attempt_end")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["workload", "replica", "number"], name="attempt_number_of_replica_unique"
            ),
            models.UniqueConstraint(
                fields=["workload", "replica"],
                condition=~Q(phase="ended"),
                name="attempt_one_open_per_replica",
            ),
            models.CheckConstraint(
                condition=Q(phase__in=AttemptPhase.values), name="attempt_phase_known"
            ),
            models.CheckConstraint(
                condition=Q(goal__in=AttemptGoal.values), name="attempt_goal_known"
            ),
            models.CheckConstraint(
                condition=Q(swap_state__in=SwapState.values), name="attempt_swap_state_known"
            ),
            models.CheckConstraint(
                condition=Q(idle_warned_at__isnull=True)
                & Q(idle_last_warned_at__isnull=True)
                & Q(idle_end_at__isnull=True)
                | Q(idle_warned_at__isnull=False) & Q(idle_end_at__gt=F("idle_warned_at")),
                name="attempt_idle_warnings_agree",
            ),
            models.CheckConstraint(
                condition=Q(limit_warned_at__isnull=True)
                & Q(limit_last_warned_at__isnull=True)
                & Q(limit_end_at__isnull=True)
                | Q(limit_warned_at__isnull=False) & Q(limit_end_at__gt=F("limit_warned_at")),
                name="attempt_limit_warnings_agree",
            ),
            models.CheckConstraint(
                condition=Q(phase="ended", ended_at__isnull=False)
                | (~Q(phase="ended") & Q(ended_at__isnull=True)),
                name="attempt_end_agrees",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workload}/{self.replica} #{self.number}"

    @property
    def is_leaving(self) -> bool:
        """Whether it was told to save and end."""
        return self.goal in (AttemptGoal.EVICT, AttemptGoal.STOP)


class Allocation(models.Model):
    """What an attempt holds, from the decision to start it until its end is known.

    Attributes:
        gpu_milli: Sum over its devices.
        is_borrowed: Beyond quota when it was given.
        is_lent: Its devices are on loan: they count neither for quota nor for what devices hold.
        gpu_from: Since when its devices have been its own, where they were on loan at first. What
            it uses on loan is in its loans.
    """

    attempt = models.OneToOneField(
        Attempt, on_delete=models.CASCADE, related_name="allocation", verbose_name=_("attempt")
    )
    workload = models.ForeignKey(
        Workload, on_delete=models.CASCADE, related_name="allocations", verbose_name=_("workload")
    )
    project = models.ForeignKey(
        Project, on_delete=models.PROTECT, related_name="+", verbose_name=_("project")
    )
    node = models.ForeignKey(
        Node, on_delete=models.PROTECT, related_name="allocations", verbose_name=_("node")
    )
    gpu_milli = models.PositiveIntegerField(_("GPU, thousandths"), default=0)
    cpu_milli = models.PositiveIntegerField(_("CPU, millicores"))
    memory_mib = models.PositiveIntegerField(_("memory, MiB"))
    is_borrowed = models.BooleanField(_("borrowed"), default=False)
    is_lent = models.BooleanField(_("on loan"), default=False, db_default=False)
    gpu_from = models.DateTimeField(_("devices its own since"), null=True, blank=True)
    started_at = models.DateTimeField(_("began"))
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)

    if TYPE_CHECKING:
        devices: RelatedManager[DeviceAllocation]

    class Meta:
        verbose_name = _("allocation")
        verbose_name_plural = _("allocations")
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
            models.CheckConstraint(
                condition=Q(is_lent=False) | Q(gpu_from__isnull=True),
                name="allocation_loan_agrees",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workload_id} on {self.node_id}"


class DeviceAllocation(models.Model):
    """The part of one device that an allocation holds, or has on loan (`is_lent`).

    `memory_mib` is what the attempt sees as the device's total.
    """

    allocation = models.ForeignKey(Allocation, on_delete=models.CASCADE, related_name="devices")
    device = models.ForeignKey(Device, on_delete=models.PROTECT, related_name="allocations")
    gpu_milli = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    is_open = models.BooleanField(default=True)
    is_lent = models.BooleanField(default=False, db_default=False)

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
                condition=Q(is_open=True, gpu_milli=1000, is_lent=False),
                name="device_whole_given_once",
            ),
            models.UniqueConstraint(
                fields=["device"],
                condition=Q(is_open=True, gpu_milli=1000, is_lent=True),
                name="device_whole_lent_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.device_id}: {self.gpu_milli}"


class DeviceHold(models.Model):
    """Capacity that victims are releasing, kept for a replica of their claimant (`Replica.held` in
    the core).
    """

    workload = models.ForeignKey(
        Workload, on_delete=models.CASCADE, related_name="holds", verbose_name=_("workload")
    )
    replica = models.PositiveSmallIntegerField(_("replica"), default=0)
    node = models.ForeignKey(
        Node, on_delete=models.CASCADE, related_name="+", verbose_name=_("node")
    )
    device_indices = ArrayField(
        models.PositiveSmallIntegerField(), verbose_name=_("devices"), default=list, blank=True
    )
    milli_per_device = models.PositiveIntegerField(_("thousandths of each"), default=0)
    created_at = models.DateTimeField(_("created"))
    expires_at = models.DateTimeField(_("expires"))

    class Meta:
        verbose_name = _("hold of devices")
        verbose_name_plural = _("holds of devices")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["workload", "replica"], name="hold_one_per_replica"),
        ]

    def __str__(self) -> str:
        return f"{self.workload_id} on {self.node_id}"


class Checkpoint(models.Model):
    """A complete, verified checkpoint in the store, as its agent reports it.

    `is_kept` is False once it expired.
    """

    workload = models.ForeignKey(
        Workload, on_delete=models.CASCADE, related_name="checkpoints", verbose_name=_("workload")
    )
    attempt = models.ForeignKey(
        Attempt,
        on_delete=models.SET_NULL,
        null=True,
        related_name="checkpoints",
        verbose_name=_("attempt"),
    )
    key = models.CharField(_("key"), max_length=200)
    step = models.BigIntegerField(_("step"), null=True, blank=True)
    saved_at = models.DateTimeField(_("saved"))
    size_bytes = models.BigIntegerField(_("size, bytes"))
    sha256 = models.CharField(_("SHA-256"), max_length=64)
    is_kept = models.BooleanField(_("kept"), default=True)

    class Meta:
        ordering = ("-saved_at",)
        verbose_name = _("checkpoint")
        verbose_name_plural = _("checkpoints")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["workload", "key"], name="checkpoint_key_unique"),
        ]

    def __str__(self) -> str:
        return self.key
