"""Workloads, and new ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from projects.access import may_change_workload, may_connect
from projects.models import User
from scheduling import states, texts
from scheduling.api.schemas.idleness import (
    IdlenessSchema,
    TimeLimitSchema,
    idleness_of,
    time_limit_of,
)
from scheduling.forms.training import PRIORITIES
from scheduling.models import (
    ACTIVE_PHASES,
    MAX_REPLICAS,
    Attempt,
    SwapState,
    Workload,
)
from scheduling.selectors import NOTHING_WAITED, Waited
from scheduling.services.estimates import eta_json
from scheduling.time_limits import Standing

PRIORITY_NAMES = {value.value: name for name, value in PRIORITIES.items()}


class Rights:
    """What one person may do, asked of `projects.access` once per project and not per row."""

    def __init__(self, person: User) -> None:
        self.person = person
        self._known: dict[tuple[str, int, bool], bool] = {}

    def may_change(self, workload: Workload) -> bool:
        """Stop it, see its variables."""
        return self._ask("change", may_change_workload, workload)

    def may_connect(self, workload: Workload) -> bool:
        """Enter the session."""
        return self._ask("connect", may_connect, workload)

    def _ask(self, what: str, rule: Callable[[User, Workload], bool], workload: Workload) -> bool:
        key = (what, workload.project_id, workload.owner_id == self.person.pk)
        if key not in self._known:
            self._known[key] = rule(self.person, workload)
        return self._known[key]


class ReasonSchema(serializers.Serializer[dict[str, Any]]):
    """Why a workload waits, starts or stops."""

    code = serializers.CharField()
    message = serializers.CharField(help_text="In the language asked for.")
    details = serializers.DictField(help_text="The numbers compared.")
    offers = serializers.ListField(
        child=serializers.DictField(), help_text="What the person could do."
    )
    per_node_type = serializers.ListField(child=serializers.DictField())
    evaluated_at = serializers.DateTimeField(allow_null=True)


def reason_of(workload: Workload) -> dict[str, Any] | None:
    """A workload's reason as the API sends it; None before the first."""
    reason = workload.reason
    if not reason:
        return None
    return {
        "code": reason.get("code", ""),
        "message": texts.reason_sentence(reason),
        "details": reason.get("details") or {},
        "offers": list(reason.get("offers") or ()),
        "per_node_type": list(reason.get("per_node_type") or ()),
        "evaluated_at": workload.reason_at,
    }


class QueueSchema(serializers.Serializer[dict[str, Any]]):
    """Its place among those who wait for the same project and node type."""

    position = serializers.IntegerField(allow_null=True)
    of = serializers.IntegerField(allow_null=True)


class EtaSchema(serializers.Serializer[dict[str, Any]]):
    """When it will start: seconds from now, and what that rests on."""

    min_s = serializers.IntegerField()
    max_s = serializers.IntegerField(allow_null=True, help_text="Null: only the earliest is known.")
    basis = serializers.ChoiceField(
        choices=[
            "time_limits",
            "history",
            "prediction",
            "reservation",
            "release",
            "policy",
            "schedule",
        ]
    )
    confidence = serializers.ChoiceField(choices=["low", "medium", "high"])


class WaitedSchema(serializers.Serializer[Waited]):
    """Seconds in the queue: this time (null when it does not wait), and in all."""

    now_s = serializers.FloatField(allow_null=True)
    total_s = serializers.FloatField()
    num_waits = serializers.IntegerField()


class SwapSchema(serializers.Serializer[dict[str, Any]]):
    """Where its GPU memory is, and why it is not lent."""

    state = serializers.ChoiceField(choices=SwapState.choices)
    obstacle = serializers.CharField(help_text="Why it cannot be swapped; empty if it can.")
    idle_since = serializers.DateTimeField(allow_null=True)
    bytes_on_host = serializers.IntegerField()
    not_lent = serializers.CharField(help_text="Why it is not lent though it idles; a code.")


class WorkloadSchema(serializers.ModelSerializer[Workload]):
    """A session or training. `env` is null for those who may not change it."""

    project = serializers.CharField(source="project.name")
    owner = serializers.CharField(source="owner.username")
    node = serializers.CharField(source="node.name", allow_null=True, default=None)
    node_type = serializers.CharField(source="node_type.name", allow_null=True, default=None)
    priority = serializers.SerializerMethodField()
    env = serializers.SerializerMethodField()
    reason = serializers.SerializerMethodField()
    queue = serializers.SerializerMethodField()
    eta = serializers.SerializerMethodField()
    waited = serializers.SerializerMethodField()
    claimant_project = serializers.CharField(
        source="claimant.project.name", allow_null=True, default=None
    )
    session_path = serializers.SerializerMethodField()
    state = serializers.SerializerMethodField(
        help_text="The phase, or while running `idle`, `swapped_out`, `swapping_in`."
    )
    state_since = serializers.SerializerMethodField()
    swap = serializers.SerializerMethodField()
    idleness = serializers.SerializerMethodField()
    time_limit = serializers.SerializerMethodField()

    class Meta:
        model = Workload
        fields = (
            "id",
            "name",
            "kind",
            "project",
            "owner",
            "template_name",
            "phase",
            "phase_changed_at",
            "state",
            "state_since",
            "swap",
            "idleness",
            "time_limit",
            "submitted_at",
            "ended_at",
            "reason",
            "queue",
            "eta",
            "waited",
            "node",
            "node_type",
            "is_borrowing",
            "claimant_project",
            "num_failures",
            "num_preemptions",
            "not_before",
            "session_path",
            "num_devices",
            "gpu_milli",
            "gpu_memory_mib",
            "cpu_milli",
            "memory_mib",
            "node_types",
            "node_labels",
            "command",
            "working_dir",
            "env",
            "is_preemptible",
            "priority",
            "checkpoint_mode",
            "checkpoint_signal",
            "checkpoint_command",
            "checkpoint_path",
            "checkpoint_every_s",
            "grace_s",
            "backoff_limit",
            "min_replicas",
            "max_replicas",
            "max_run_s",
        )

    def get_state(self, workload: Workload) -> str:
        return states.state_of(workload)

    def get_state_since(self, workload: Workload) -> datetime:
        return states.since(workload)

    @extend_schema_field(SwapSchema(allow_null=True))
    def get_swap(self, workload: Workload) -> dict[str, Any] | None:
        attempt: Attempt | None = workload.current
        if attempt is None or not workload.num_devices or workload.phase not in ACTIVE_PHASES:
            return None
        return {
            "state": attempt.swap_state,
            "obstacle": attempt.swap_obstacle,
            "idle_since": attempt.idle_since,
            "bytes_on_host": attempt.bytes_on_host,
            "not_lent": attempt.not_lent.get("code", ""),
        }

    @extend_schema_field(IdlenessSchema(allow_null=True))
    def get_idleness(self, workload: Workload) -> dict[str, Any] | None:
        """Null where it does not run."""
        return idleness_of(workload)

    @extend_schema_field(TimeLimitSchema(allow_null=True))
    def get_time_limit(self, workload: Workload) -> dict[str, Any] | None:
        """How long it may run, and how long it has; null without any limit."""
        limits: Mapping[Any, Standing] = self.context["limits"]
        return time_limit_of(limits.get(workload.pk))

    def get_priority(self, workload: Workload) -> str:
        """By name, as the form offers it."""
        return PRIORITY_NAMES.get(workload.priority, str(workload.priority))

    def get_env(self, workload: Workload) -> dict[str, str] | None:
        """Its variables may hold what is not for everybody's eyes."""
        rights: Rights = self.context["rights"]
        return dict(workload.env) if rights.may_change(workload) else None

    @extend_schema_field(ReasonSchema(allow_null=True))
    def get_reason(self, workload: Workload) -> dict[str, Any] | None:
        """Why, in words and numbers."""
        return reason_of(workload)

    @extend_schema_field(QueueSchema)
    def get_queue(self, workload: Workload) -> dict[str, int | None]:
        """Its place in the queue."""
        return {"position": workload.queue_position, "of": workload.queue_length}

    @extend_schema_field(EtaSchema(allow_null=True))
    def get_eta(self, workload: Workload) -> dict[str, Any] | None:
        """When it will start; null where nothing is known, or where it does not wait."""
        if not workload.is_waiting:
            return None
        return eta_json(workload.eta, time.time())

    @extend_schema_field(WaitedSchema)
    def get_waited(self, workload: Workload) -> dict[str, Any]:
        """How long it has waited."""
        waits: Mapping[Any, Waited] = self.context["waits"]
        return dict(WaitedSchema(waits.get(workload.pk, NOTHING_WAITED)).data)

    def get_session_path(self, workload: Workload) -> str | None:
        """Where the owner's browser reaches it; null for everybody else and for trainings."""
        rights: Rights = self.context["rights"]
        if not workload.is_session or not rights.may_connect(workload):
            return None
        return f"/s/{workload.pk}/"


class NewWorkloadSchema(serializers.Serializer[Any]):
    """What a new workload asks for.

    Without GPU fields it asks for no GPU, without `node_types` it takes any that project and kind
    allow. A training must have a `command`; its other fields have the page's defaults.
    """

    kind = serializers.ChoiceField(choices=["interactive", "training"])
    project = serializers.CharField()
    name = serializers.RegexField(r"^[a-z][a-z0-9-]{1,39}$")
    template_name = serializers.CharField(required=False, allow_null=True)
    node_types = serializers.ListField(
        child=serializers.CharField(), required=False, allow_null=True
    )
    node_labels = serializers.DictField(
        child=serializers.CharField(),
        required=False,
        allow_null=True,
        help_text="Labels that its nodes must have; for administrators, and from templates.",
    )
    num_devices = serializers.IntegerField(
        required=False, allow_null=True, min_value=0, max_value=8
    )
    gpu_milli = serializers.IntegerField(
        required=False, allow_null=True, min_value=50, max_value=1000
    )
    gpu_memory_mib = serializers.IntegerField(required=False, allow_null=True, min_value=512)
    cpu_milli = serializers.IntegerField(min_value=100)
    memory_mib = serializers.IntegerField(min_value=64)
    working_dir = serializers.CharField(required=False, allow_null=True)
    env = serializers.DictField(child=serializers.CharField(), required=False, allow_null=True)
    max_run_s = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=60,
        max_value=2_592_000,
        help_text="It may run for so long, waits apart; no more than its project allows.",
    )
    command = serializers.ListField(child=serializers.CharField(), required=False, allow_null=True)
    is_preemptible = serializers.BooleanField(required=False, allow_null=True)
    priority = serializers.ChoiceField(choices=list(PRIORITIES), required=False, allow_null=True)
    checkpoint_mode = serializers.ChoiceField(
        choices=["none", "signal", "command"], required=False, allow_null=True
    )
    checkpoint_signal = serializers.CharField(required=False, allow_null=True)
    checkpoint_command = serializers.CharField(required=False, allow_null=True)
    checkpoint_path = serializers.CharField(required=False, allow_null=True)
    checkpoint_every_s = serializers.IntegerField(
        required=False, allow_null=True, min_value=60, max_value=86400
    )
    grace_s = serializers.IntegerField(required=False, allow_null=True, min_value=0, max_value=300)
    backoff_limit = serializers.IntegerField(
        required=False, allow_null=True, min_value=0, max_value=100
    )
    min_replicas = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=MAX_REPLICAS,
        help_text="Fewer never run; above 1 they work together. 1 without it.",
    )
    max_replicas = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=MAX_REPLICAS,
        help_text="It grows up to so many while there is room; `min_replicas` without it.",
    )
