"""The orchestrator's side of `allot-agent/1` (`agent.protocol`): reports in, desired state out.

A zone's agent presents its bearer token with each request. Everything is validated here, at the
edge; a message that cannot be understood is answered in words and changes nothing.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from urllib.parse import urlsplit

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from scheduling.agent import protocol
from scheduling.models import (
    LEADER,
    Attempt,
    AttemptPhase,
    CheckpointMode,
    DeviceAllocation,
    Loan,
    Workload,
    Zone,
)
from scheduling.rules import rule_for
from scheduling.services.attempt_reports import record_attempts
from scheduling.services.claims import Identity, RivalError, check_zone
from scheduling.services.loan_reports import record_loans
from scheduling.services.node_reports import record_nodes
from scheduling.services.zones import zone_of_token
from telemetry.ingestion import IngestionError, ingest

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_NUMBER_CHARS = 64
MAX_HOST_CHARS = 253


def for_agents(
    view: Callable[[HttpRequest, Zone], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Find the zone by its token; answer a message that cannot be read with 400 and the reason."""

    @csrf_exempt
    @wraps(view)
    def checked(request: HttpRequest) -> HttpResponse:
        zone = _zone_of(request)
        if zone is None:
            return _problem("this token belongs to no zone", 401)
        if len(request.body) > MAX_BODY_BYTES:
            return _problem(f"the message is larger than {MAX_BODY_BYTES} bytes", 413)
        try:
            return view(request, zone)
        except protocol.ProtocolError as error:
            return _problem(str(error), 400)
        except RivalError as error:
            return _problem(str(error), 409)

    return checked


def _zone_of(request: HttpRequest) -> Zone | None:
    scheme, _space, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        return None
    return zone_of_token(token)


def _agent_of(request: HttpRequest) -> Identity:
    """Who sends: its number and its machine's name; an agent that does not say is let in."""
    number, _space, host = request.headers.get(protocol.AGENT_HEADER, "").partition(" ")
    if len(number) > MAX_NUMBER_CHARS or len(host) > MAX_HOST_CHARS or not host.isprintable():
        raise protocol.ProtocolError(
            f"{protocol.AGENT_HEADER}: it must be a number of at most {MAX_NUMBER_CHARS} "
            f"characters, a space, and a host name of at most {MAX_HOST_CHARS}"
        )
    return Identity(number, host)


def _problem(detail: str, status: int) -> HttpResponse:
    return HttpResponse(
        protocol.encode({"status": status, "detail": detail}),
        status=status,
        content_type="application/problem+json",
    )


def _answer(message: object) -> HttpResponse:
    return HttpResponse(protocol.encode(message), content_type="application/json")


@for_agents
def report(request: HttpRequest, zone: Zone) -> HttpResponse:
    message = protocol.decode(request.body, protocol.Report)
    _check_zone(message.zone, zone)
    refused = record_nodes(zone, message, _agent_of(request))
    settled = record_attempts(zone, message.attempts)
    loans = record_loans(zone.pk, message.loans)
    return _answer(
        protocol.Acknowledged(settled=settled, settled_loans=loans, refused_nodes=refused)
    )


@for_agents
def desired(request: HttpRequest, zone: Zone) -> HttpResponse:
    check_zone(zone, _agent_of(request))
    return _answer(desired_state(zone))


@for_agents
def samples(request: HttpRequest, zone: Zone) -> HttpResponse:
    message = protocol.decode(request.body, protocol.ReceivedBatch)
    _check_zone(message.zone, zone)
    check_zone(zone, _agent_of(request))
    try:
        ingest(message, nodes=set(zone.nodes.values_list("name", flat=True)))
    except IngestionError as error:
        return _problem(str(error), 422)
    return HttpResponse(status=204)


def _check_zone(named: str, zone: Zone) -> None:
    if named != zone.name:
        raise protocol.ProtocolError(f"zone is {named!r}, but this token belongs to {zone.name!r}")


def desired_state(zone: Zone) -> protocol.Desired:
    """What should become of each open attempt of a zone."""
    rows = list(
        Attempt.objects.open()
        .filter(node__zone=zone)
        .select_related("workload__project", "workload__owner", "allocation")
        .select_related("node__zone", "node__node_type")
        .prefetch_related("allocation__devices__device__node")
        .order_by("placed_at", "pk")
    )
    crews = _crews({row.workload_id for row in rows if row.workload.max_replicas > 1})
    return protocol.Desired(
        zone=zone.name,
        attempts=[_spec(row, crews.get(row.workload_id, ())) for row in rows],
        members={str(workload): _members(crew) for workload, crew in crews.items()},
        loans=list(desired_loans(zone)),
        swap_host_mib=swap_reserves(zone),
    )


def desired_loans(zone: Zone) -> Iterable[protocol.Loan]:
    """Loans that the zone's agent is to carry out, or to keep up."""
    rows = (
        Loan.objects.wanted()
        .filter(lender__node__zone=zone)
        .select_related("lender__workload__project")
        .order_by("started_at", "pk")
    )
    for row in rows:
        is_asked = row.lender.lend_asked_at is not None or row.expected_left_s is None
        window_s = row.lender.workload.project.lending_window_s
        yield protocol.Loan(
            loan_id=str(row.pk),
            lender_attempt_id=str(row.lender_id),
            borrower_attempt_id=str(row.borrower_id),
            device_uuids=[row.device_id],
            idle_s=0.0 if is_asked else float(window_s),
        )


def swap_reserves(zone: Zone) -> dict[str, int]:
    """Memory that Swap may use on each node, by its type."""
    rows = zone.nodes.filter(node_type__isnull=False).select_related("node_type")
    reserves = {}
    for node in rows:
        kind = node.node_type
        reserves[node.name] = kind.swap_host_mib if kind and kind.swap_enabled else 0
    return reserves


def _crews(workloads: Collection[uuid.UUID]) -> Mapping[uuid.UUID, Sequence[Attempt]]:
    """All replicas that have a place, in whichever zone, the leader first."""
    found: defaultdict[uuid.UUID, list[Attempt]] = defaultdict(list)
    if workloads:
        rows = Attempt.objects.open().filter(workload__in=workloads)
        for row in rows.select_related("node__zone", "workload").order_by("replica"):
            found[row.workload_id].append(row)
    return found


def _spec(attempt: Attempt, crew: Sequence[Attempt]) -> protocol.AttemptSpec:
    workload = attempt.workload
    session = workload.is_session
    kind = attempt.node.node_type
    rule = rule_for(workload)
    return protocol.AttemptSpec(
        attempt_id=str(attempt.pk),
        workload_id=str(workload.pk),
        number=attempt.number,
        name=workload.name,
        kind=workload.kind,
        project=workload.project.name,
        project_number=workload.project_id,
        owner=workload.owner.username,
        user_number=workload.owner_id,
        node=attempt.node.name,
        goal=protocol.Goal(attempt.goal),
        goal_detail=attempt.goal_detail,
        cpu_milli=workload.cpu_milli,
        memory_mib=workload.memory_mib,
        command=list(workload.command),
        tool="jupyter" if session and not workload.command else "",
        working_dir=workload.working_dir,
        env=dict(workload.env),
        devices=[_device(part) for part in attempt.allocation.devices.all()],
        checkpoint=_checkpoint(workload),
        grace_s=float(workload.grace_s),
        base_url=f"/s/{workload.pk}/" if session else "",
        session_secret=workload.session_secret if session else "",
        language=workload.language.partition("-")[0],
        crew=_crew(attempt, crew) if workload.max_replicas > 1 else None,
        shares_strictly=kind is not None and kind.shares_strictly,
        is_swappable=kind is not None and kind.swap_enabled,
        idle=protocol.IdleThresholds(
            gpu_percent=rule.idle_gpu_percent,
            cpu_fraction=rule.idle_cpu_percent / 100,
            network_kib_s=rule.idle_network_kib_s,
        ),
    )


def _crew(attempt: Attempt, crew: Sequence[Attempt]) -> protocol.Crew:
    leader = next((row for row in crew if row.replica == LEADER), None)
    return protocol.Crew(
        replica=attempt.replica,
        num_replicas=attempt.num_replicas,
        min_replicas=attempt.workload.min_replicas,
        max_replicas=attempt.workload.max_replicas,
        address=_address(leader.node.zone) if leader else "",
        port=(leader.rendezvous_port or 0) if leader else 0,
        is_awaiting_leader=attempt.is_leaving and leader is not None and _is_saving(leader),
    )


def _is_saving(leader: Attempt) -> bool:
    """Whether a leader that was told to end may still need the others, to save."""
    can_save = leader.workload.checkpoint_mode != CheckpointMode.NONE
    return can_save and leader.is_leaving and leader.phase != AttemptPhase.STOPPING


def _members(crew: Sequence[Attempt]) -> list[protocol.Member]:
    return [protocol.Member(row.replica, row.node.name, _address(row.node.zone)) for row in crew]


def _address(zone: Zone) -> str:
    """Where others reach a zone's machine: a relay on a Unix socket is on the web's own."""
    return urlsplit(zone.relay_url).hostname or "127.0.0.1"


def _device(part: DeviceAllocation) -> protocol.GrantedDevice:
    return protocol.GrantedDevice(
        uuid=part.device.uuid,
        index=part.device.index,
        model=part.device.model,
        gpu_milli=part.gpu_milli,
        memory_mib=part.memory_mib,
        is_simulated=part.device.node.is_simulated,
    )


def _checkpoint(workload: Workload) -> protocol.CheckpointSettings:
    """How it is asked to save. A session says nothing of it: whoever in it catches the signal is
    asked, such as a kernel with a handler of its own; without one it is stopped as it is."""
    return protocol.CheckpointSettings(
        mode=CheckpointMode.SIGNAL.value if workload.is_session else workload.checkpoint_mode,
        signal=workload.checkpoint_signal,
        command=workload.checkpoint_command,
        every_s=float(workload.checkpoint_every_s) if workload.checkpoint_every_s else None,
        subfolder=workload.checkpoint_path,
    )


urlpatterns = [
    path("report", report, name="agent-report"),
    path("desired", desired, name="agent-desired"),
    path("samples", samples, name="agent-samples"),
]
