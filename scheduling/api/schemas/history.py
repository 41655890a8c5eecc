"""What has happened to a workload: attempts, checkpoints, events, waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from scheduling import texts
from scheduling.models import (
    Attempt,
    Checkpoint,
    DeviceAllocation,
    Event,
    Wait,
)


class EventSchema(serializers.ModelSerializer[Event]):
    """One thing that happened to a workload."""

    attempt = serializers.IntegerField(source="attempt.number", allow_null=True, default=None)
    replica = serializers.IntegerField(source="attempt.replica", allow_null=True, default=None)
    actor = serializers.CharField(source="actor.username", allow_null=True, default=None)
    message = serializers.SerializerMethodField()

    class Meta:
        model = Event
        fields = ("id", "at", "code", "phase", "attempt", "replica", "actor", "message", "details")

    def get_message(self, event: Event) -> str:
        """What happened, in the language asked for."""
        return texts.event_sentence(event)


class WaitSchema(serializers.ModelSerializer[Wait]):
    """One interval in the queue, with its cause."""

    claimant_project = serializers.CharField(
        source="claimant.project.name", allow_null=True, default=None
    )
    message = serializers.SerializerMethodField()
    wait_s = serializers.SerializerMethodField()

    class Meta:
        model = Wait
        fields = (
            "id",
            "started_at",
            "ended_at",
            "wait_s",
            "cause",
            "claimant_project",
            "message",
            "details",
        )

    def get_message(self, wait: Wait) -> str:
        """Why it waited, in the language asked for."""
        return texts.wait_cause(wait)

    def get_wait_s(self, wait: Wait) -> float:
        """Its length until now or its end."""
        now: datetime = self.context["now"]
        return ((wait.ended_at or now) - wait.started_at).total_seconds()


class CheckpointSchema(serializers.ModelSerializer[Checkpoint]):
    """A complete, verified checkpoint."""

    attempt = serializers.IntegerField(source="attempt.number", allow_null=True, default=None)

    class Meta:
        model = Checkpoint
        fields = ("key", "attempt", "step", "saved_at", "size_bytes", "sha256", "is_kept")


class GrantSchema(serializers.ModelSerializer[DeviceAllocation]):
    """The part of one device that an attempt holds."""

    device = serializers.CharField(source="device_id")

    class Meta:
        model = DeviceAllocation
        fields = ("device", "gpu_milli", "memory_mib")


class AttemptSchema(serializers.ModelSerializer[Attempt]):
    """One start of a replica of a workload on a node; replica 0 is the leader."""

    node = serializers.CharField(source="node.name")
    devices = serializers.SerializerMethodField()
    resumed_from = serializers.CharField(source="resumed_from.key", allow_null=True, default=None)
    resumed_step = serializers.IntegerField(
        source="resumed_from.step", allow_null=True, default=None
    )

    class Meta:
        model = Attempt
        fields = (
            "id",
            "replica",
            "number",
            "num_replicas",
            "node",
            "devices",
            "phase",
            "goal",
            "goal_detail",
            "is_ready",
            "placed_at",
            "started_at",
            "ready_at",
            "ended_at",
            "exit_code",
            "exit_cause",
            "error",
            "last_lines",
            "peak_memory_mib",
            "memory_limit_mib",
            "cpu_limit_milli",
            "resumed_from",
            "resumed_step",
            "lost_progress_s",
        )

    @extend_schema_field(GrantSchema(many=True))
    def get_devices(self, attempt: Attempt) -> list[dict[str, Any]]:
        """What it holds or held."""
        allocation = getattr(attempt, "allocation", None)
        return list(GrantSchema(allocation.devices.all(), many=True).data) if allocation else []
