"""Accept a workload, or say what would happen to it.

Form, API and every other way in call `submit`; what a form can check by itself it has checked
before (`WorkloadSpec` holds clean values), and what may have changed since then is checked here,
under the transaction that creates the row.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal

import msgspec
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from projects import access
from projects.idle_rules import max_run_s
from projects.models import NodeType, Project, User, WorkloadKind
from projects.node_types import allowed_node_types
from scheduling import formats, relay_client
from scheduling.core.cycle import would_start
from scheduling.core.decisions import Hold, Lend, Reason, Start
from scheduling.models import Node, NodeState, Phase, Workload, Zone
from scheduling.relay_client import AgentAwayError, FieldProblem
from scheduling.replicas import pending_replicas
from scheduling.services.estimates import eta_to_tell
from scheduling.services.events import (
    ARRIVED,
    announce_workload,
    open_wait,
    record_event,
    wake_planner,
)
from scheduling.snapshot import core_workload, take_snapshot
from telemetry.cost import cost_per_hour

NO_TITLES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Clean values of a workload's form; names and units are those of `models.Workload`."""

    project: Project
    kind: str
    name: str
    cpu_milli: int
    memory_mib: int
    node_types: tuple[str, ...]
    node_labels: tuple[tuple[str, str], ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[tuple[str, str], ...] = ()
    num_devices: int = 0
    gpu_milli: int | None = None
    gpu_memory_mib: int | None = None
    priority: int = 50
    is_preemptible: bool = False
    checkpoint_mode: str = "none"
    checkpoint_signal: str = "SIGUSR1"
    checkpoint_command: str = ""
    checkpoint_path: str = "checkpoints"
    checkpoint_every_s: int | None = None
    grace_s: int = 60
    backoff_limit: int = 3
    min_replicas: int = 1
    max_replicas: int = 1
    max_run_s: int | None = None
    template_name: str = ""


class SubmissionRefusedError(Exception):
    """The workload cannot be accepted any more, though its form was right when it was filled in.

    Attributes:
        field: Name of the `WorkloadSpec` field at fault.
        code: For programs.
        message: For people, translated.
    """

    def __init__(self, field: str, code: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Preview:
    """What would happen to a workload submitted now.

    Attributes:
        starts_now: Including by reclaiming at once; `reason.code` tells which.
        reason: `core.decisions.Reason` as JSON.
        cost_per_hour: On the node type chosen (or first preferred); None where no type fits.
        node_type: Its name.
        num_replicas: So many would start now, or the least that it waits for.
        eta: When it would start, as `Workload.eta`; empty where nothing is known.
    """

    starts_now: bool
    reason: dict[str, object]
    cost_per_hour: Decimal | None
    node_type: str | None
    num_replicas: int = 1
    eta: dict[str, object] = field(default_factory=dict)


def submit(spec: WorkloadSpec, *, owner: User, request_id: uuid.UUID) -> Workload:
    """Create a workload and wake the planner; the same `request_id` again gives the same workload.

    Raises:
        SubmissionRefusedError: something changed since the form was filled in.
    """
    earlier = Workload.objects.filter(request_id=request_id).first()
    if earlier is not None:
        if earlier.owner_id != owner.pk:
            raise SubmissionRefusedError(
                "request_id", "request_id_taken", _("This form was sent by somebody else.")
            )
        return earlier
    _check_still_allowed(spec, owner)
    try:
        return _create(spec, owner, request_id)
    except IntegrityError as error:
        return _resolve_conflict(error, spec, request_id)


@transaction.atomic
def _create(spec: WorkloadSpec, owner: User, request_id: uuid.UUID) -> Workload:
    now = timezone.now()
    workload = _row(spec, owner)
    workload.request_id = request_id
    workload.language = get_language() or ""
    workload.submitted_at = workload.phase_changed_at = now
    workload.reason = {"code": "not_evaluated", "message": "Not examined yet", "details": {}}
    workload.reason_at = now
    workload.save(force_insert=True)
    open_wait(workload, "submitted", now)
    record_event(workload, "submitted", at=now, actor=owner)
    wake_planner(ARRIVED)
    announce_workload(workload)
    return workload


def _row(spec: WorkloadSpec, owner: User) -> Workload:
    values = {
        item.name: getattr(spec, item.name)
        for item in fields(spec)
        if item.name not in ("command", "node_types", "node_labels", "env")
    }
    return Workload(
        owner=owner,
        phase=Phase.QUEUED,
        command=list(spec.command),
        node_types=list(spec.node_types),
        node_labels=dict(spec.node_labels),
        env=dict(spec.env),
        **values,
    )


def _check_still_allowed(spec: WorkloadSpec, owner: User) -> None:
    """What may have changed between filling in the form and sending it."""
    if not access.may_submit(owner, spec.project.pk):
        raise SubmissionRefusedError(
            "project",
            "not_a_member",
            _("You may not submit work in project %(project)s.") % {"project": spec.project},
        )
    allowed = {item.name for item in allowed_node_types(spec.project, spec.kind)}
    closed = [name for name in spec.node_types if name not in allowed]
    if closed:
        raise SubmissionRefusedError(
            "node_types",
            "node_type_not_allowed",
            _(
                "Node type %(type)s is closed to this kind of work in project %(project)s; "
                "open: %(open)s."
            )
            % {
                "type": ", ".join(closed),
                "project": spec.project,
                "open": ", ".join(sorted(allowed)) or "—",
            },
        )
    _check_time(spec)
    _check_quota_can_ever_hold(spec)


def _check_time(spec: WorkloadSpec) -> None:
    """A time limit of its own may only be tighter than the project's."""
    if spec.max_run_s is None:
        return
    project = Project.objects.get(pk=spec.project.pk)  # as it is now
    allowed = max_run_s(project, spec.kind)
    if allowed is not None and spec.max_run_s > allowed:
        message = _("%(value)s is too long: project %(project)s allows %(limit)s at most.")
        values = {
            "value": formats.duration(spec.max_run_s),
            "project": project,
            "limit": formats.duration(allowed),
        }
        raise SubmissionRefusedError("max_run_s", "above_project", message % values)


def _check_quota_can_ever_hold(spec: WorkloadSpec) -> None:
    """Refuse at the field what is larger than the whole quota: it would wait for ever."""
    if spec.is_preemptible or spec.num_devices == 0 or spec.gpu_milli is None:
        return
    asked = spec.min_replicas * spec.num_devices * spec.gpu_milli
    quotas = dict(
        spec.project.gpu_quotas.filter(node_type__name__in=spec.node_types).values_list(
            "node_type__name", "quota_milli"
        )
    )
    largest = max((quotas.get(name, 0) for name in spec.node_types), default=0)
    if asked > largest:
        is_one_too_large = spec.num_devices * spec.gpu_milli > largest
        raise SubmissionRefusedError(
            "gpu_milli" if is_one_too_large else "min_replicas",
            "larger_than_quota",
            _(
                "%(asked)s GPU asked, but the quota of project %(project)s is %(quota)s GPU of "
                "%(types)s, and this kind of work runs inside quota only."
            )
            % {
                "asked": number_format(asked / 1000),
                "project": spec.project,
                "quota": number_format(largest / 1000),
                "types": ", ".join(spec.node_types),
            },
        )


def _resolve_conflict(error: IntegrityError, spec: WorkloadSpec, request_id: uuid.UUID) -> Workload:
    """The same form twice at the same instant, or a name in use."""
    twin = Workload.objects.filter(request_id=request_id).first()
    if twin is not None:
        return twin
    if "workload_name_unique_while_unfinished" in str(error):
        raise SubmissionRefusedError(
            "name",
            "name_taken",
            _(
                "“%(name)s” is the name of an unfinished workload of project %(project)s; "
                "choose another."
            )
            % {"name": spec.name, "project": spec.project},
        ) from error
    raise error


def preview(spec: WorkloadSpec, *, owner: User) -> Preview:
    """What would happen to this workload if it were submitted now. Changes nothing."""
    row = _row(spec, owner)
    row.submitted_at = timezone.now()
    replicas = pending_replicas(row, spec.max_replicas)
    taken = take_snapshot()
    decision = would_start(taken.snapshot, taken.policy, time.time(), core_workload(row, replicas))
    name = _chosen_type(decision, spec)
    placed = 0 if isinstance(decision, Hold) else len(decision.placements)
    held = 0 if isinstance(decision, Lend) else len(decision.held)
    num_replicas = max(placed + held, spec.min_replicas)
    cost = _cost(spec, name)
    return Preview(
        starts_now=not isinstance(decision, Hold) or held > 0,
        reason=reason_json(decision.reason, taken.titles),
        cost_per_hour=None if cost is None else num_replicas * cost,
        node_type=name,
        num_replicas=num_replicas,
        eta=eta_to_tell({}, decision.eta) if isinstance(decision, Hold) else {},
    )


def _chosen_type(decision: Start | Hold | Lend, spec: WorkloadSpec) -> str | None:
    placements = decision.held if isinstance(decision, Hold) else decision.placements
    for placement in placements.values():
        return (
            Node.objects.filter(name=placement.node)
            .values_list("node_type__name", flat=True)
            .first()
        )
    return spec.node_types[0] if spec.node_types else None


def _cost(spec: WorkloadSpec, type_name: str | None) -> Decimal | None:
    node_type = NodeType.objects.filter(name=type_name).first()
    if node_type is None:
        return None
    milli = spec.num_devices * (spec.gpu_milli or 0)
    if spec.gpu_memory_mib and node_type.gpu_memory_mib:
        milli = spec.num_devices * -(-1000 * spec.gpu_memory_mib // node_type.gpu_memory_mib)
    return cost_per_hour(milli, spec.cpu_milli, spec.memory_mib, node_type)


def reason_json(reason: Reason, titles: Mapping[str, str] = NO_TITLES) -> dict[str, object]:
    """A reason as it is stored and sent: code, message, details, offers, per_node_type.

    Projects and departments that its details name are given with what they are called. As it comes
    back from the row, lists included: what a row says already is not written again.
    """
    plain: dict[str, object] = msgspec.json.decode(msgspec.json.encode(reason))
    plain["message"] = plain.pop("lasting") or reason.message
    named = {v: titles[v] for v in reason.details.values() if isinstance(v, str) and v in titles}
    if named:
        plain["details"] = {**reason.details, "titles": named}
    return plain


def check_on_node(spec: WorkloadSpec, owner: User) -> list[FieldProblem]:
    """What the node says of the command and the working folder; nothing when the agent is away.

    A wrong command is then found at the start, with the same words.
    """
    if spec.kind == WorkloadKind.INTERACTIVE and not spec.command:
        return []
    zone = Zone.objects.filter(
        nodes__node_type__name__in=spec.node_types, nodes__state=NodeState.READY
    ).first()
    if zone is None:
        return []
    try:
        return relay_client.check(
            zone,
            {
                "project": spec.project.name,
                "project_number": spec.project.pk,
                "owner": owner.username,
                "user_number": owner.pk,
                "command": list(spec.command),
                "working_dir": spec.working_dir,
                "checkpoint_subfolder": spec.checkpoint_path,
            },
        )
    except AgentAwayError:
        return []
