"""Idle sessions' devices on loan, and how long people's sessions have been idle."""

from __future__ import annotations

import uuid
from typing import ClassVar, Self

from django.db import models
from django.db.models import F, Q

from projects.models import User
from scheduling.models.attempts import Attempt
from scheduling.models.nodes import Device
from scheduling.models.workloads import Workload


class LoanState(models.TextChoices):
    """Where a loan is; the values are those of `agent.protocol.LoanState`, and `asked`: the agent
    has not been heard of it yet.
    """

    ASKED = "asked"
    SWAPPING_OUT = "swapping_out"
    LENT = "lent"
    WAKING = "waking"
    ENDED = "ended"
    REFUSED = "refused"


class LoanQuerySet(models.QuerySet["Loan"]):
    def open(self) -> Self:
        """Those that have not ended, as far as their agent has said."""
        return self.filter(ended_at__isnull=True)

    def wanted(self) -> Self:
        """Those that the agent is to carry out or to keep up."""
        return self.open().filter(is_wanted=True)


class Loan(models.Model):
    """An idle session's part of a device, used by a training meanwhile.

    Attributes:
        gpu_milli: What the lender holds of the device, and the borrower uses: what is charged to
            the borrower instead of the lender.
        is_wanted: False once it is to end by the orchestrator's will: the desired state names it
            no more.
        started_at: When it was decided.
        lent_at: When the device was free for the borrower; null if it never was.
        ended_at: When the lender had its device again (or was gone).
        wake_s: From the wake to the running lender, the borrower's leaving included.
        ended_by: An `agent.protocol.LoanEnd`, or what the agent cannot know: `other_lender`
            (another lender of the same borrower is back), or what the borrower was called back for.
        expected_left_s: How long the lender was expected to stay idle when it was decided.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    lender = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="loans_given")
    borrower = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="loans_taken")
    device = models.ForeignKey(Device, on_delete=models.PROTECT, related_name="loans")
    gpu_milli = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=LoanState.choices, default=LoanState.ASKED)
    is_wanted = models.BooleanField(default=True)
    expected_left_s = models.FloatField(null=True, blank=True)
    started_at = models.DateTimeField()
    lent_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    swapped_out_bytes = models.BigIntegerField(default=0)
    out_s = models.FloatField(null=True, blank=True)
    in_s = models.FloatField(null=True, blank=True)
    wake_s = models.FloatField(null=True, blank=True)
    ended_by = models.CharField(max_length=20, blank=True)
    error = models.CharField(max_length=500, blank=True)

    objects = LoanQuerySet.as_manager()

    class Meta:
        ordering = ("-started_at", "id")
        indexes: ClassVar = [
            models.Index(fields=["lent_at", "ended_at"], name="loan_interval"),
            models.Index(fields=["started_at"], name="loan_start"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["lender"], condition=Q(ended_at__isnull=True), name="loan_one_of_a_lender"
            ),
            models.CheckConstraint(condition=~Q(lender=F("borrower")), name="loan_between_two"),
            models.CheckConstraint(
                condition=Q(gpu_milli__gte=1, gpu_milli__lte=1000), name="loan_part_range"
            ),
            models.CheckConstraint(
                condition=Q(state__in=LoanState.values), name="loan_state_known"
            ),
            models.CheckConstraint(
                condition=Q(state__in=["ended", "refused"], ended_at__isnull=False)
                | (~Q(state__in=["ended", "refused"]) & Q(ended_at__isnull=True)),
                name="loan_end_agrees",
            ),
            models.CheckConstraint(
                condition=Q(lent_at__isnull=True)
                | Q(ended_at__isnull=True)
                | Q(ended_at__gte=F("lent_at")),
                name="loan_interval_valid",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.lender_id} to {self.borrower_id}"


class IdleSpell(models.Model):
    """A time in which a session was idle: what is predicted rests on its owner's.

    Attributes:
        is_cut_off: It ended otherwise than by use, and might have gone on.
    """

    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="idle_spells")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    is_cut_off = models.BooleanField(default=False)

    class Meta:
        ordering = ("-ended_at",)
        indexes: ClassVar = [models.Index(fields=["owner", "-ended_at"], name="idle_spell_owner")]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(ended_at__gte=F("started_at")), name="idle_spell_interval_valid"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workload_id}: {self.started_at} to {self.ended_at}"
