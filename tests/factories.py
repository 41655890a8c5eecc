"""Rows for tests: a small organisation on simulated T4 nodes, as `manage.py demo` would make it."""

from __future__ import annotations

import itertools
import time
import uuid
from dataclasses import dataclass, field

from projects.models import (
    AllowedNodeType,
    Department,
    GpuQuota,
    Membership,
    NodeType,
    Project,
    Role,
    User,
    WorkloadKind,
)
from scheduling.agent import protocol
from scheduling.models import Attempt, Workload, Zone
from scheduling.services import WorkloadSpec, submit
from scheduling.services.attempt_reports import record_attempts
from scheduling.services.loan_reports import record_loans
from scheduling.services.node_reports import record_nodes
from scheduling.services.zones import ensure_zone

AGENT_TOKEN = "a token that only tests know"
T4_USABLE_MIB = 14917

_numbers = itertools.count(1)


def make_node_type(name: str = "t4", *, gpus: int = 8) -> NodeType:
    return NodeType.objects.create(
        name=name,
        title=name.upper(),
        label_value=name,
        gpu_model="Tesla T4" if gpus else "",
        gpu_memory_mib=T4_USABLE_MIB if gpus else 0,
        capacity_gpu_milli=1000 * gpus,
        gpu_price_per_hour=45,
        cpu_price_per_hour=2,
        memory_price_per_hour=1,
    )


def make_project(
    name: str, *, department: Department | None = None, **quotas_milli: int
) -> Project:
    """A project with quota by node type: `make_project("vision", t4=1500)`."""
    project = Project.objects.create(name=name, title=name.title(), department=department)
    for type_name, milli in quotas_milli.items():
        GpuQuota.objects.create(
            project=project, node_type=NodeType.objects.get(name=type_name), quota_milli=milli
        )
    return project


def make_member(project: Project, name: str = "", role: Role = Role.RESEARCHER) -> User:
    user = User.objects.create_user(name or f"user{next(_numbers)}")
    Membership.objects.create(user=user, project=project, role=role)
    return user


def only_node_types(project: Project, kind: WorkloadKind, *names: str) -> None:
    for rank, name in enumerate(names):
        AllowedNodeType.objects.create(
            project=project, kind=kind, node_type=NodeType.objects.get(name=name), rank=rank
        )


def session_spec(project: Project, **changes: object) -> WorkloadSpec:
    values: dict[str, object] = {
        "project": project,
        "kind": WorkloadKind.INTERACTIVE,
        "name": f"session-{next(_numbers)}",
        "cpu_milli": 2000,
        "memory_mib": 2048,
        "node_types": ("t4",),
        "num_devices": 1,
        "gpu_milli": 333,
    }
    return WorkloadSpec(**{**values, **changes})  # type: ignore[arg-type]  # names checked at run time


def training_spec(project: Project, **changes: object) -> WorkloadSpec:
    values: dict[str, object] = {
        "project": project,
        "kind": WorkloadKind.TRAINING,
        "name": f"training-{next(_numbers)}",
        "command": ("python", "train.py"),
        "cpu_milli": 1000,
        "memory_mib": 1024,
        "node_types": ("t4",),
        "num_devices": 1,
        "gpu_milli": 1000,
        "is_preemptible": True,
        "checkpoint_mode": "signal",
    }
    return WorkloadSpec(**{**values, **changes})  # type: ignore[arg-type]  # names checked at run time


def submitted(spec: WorkloadSpec, owner: User) -> Workload:
    return submit(spec, owner=owner, request_id=uuid.uuid4())


@dataclass(slots=True)
class FakeAgent:
    """Reports as an agent would, without processes: to test what the orchestrator makes of it."""

    zone: Zone = field(default_factory=lambda: ensure_zone("local", AGENT_TOKEN))
    nodes: list[protocol.NodeReport] = field(
        default_factory=lambda: [simulated_node("sim-t4-1"), simulated_node("sim-t4-2")]
    )

    def report_loans(self, *loans: protocol.LoanReport) -> list[str]:
        """Say how loans go; returns those that are settled."""
        return record_loans(self.zone.pk, loans)

    def report(self, *attempts: protocol.AttemptReport, is_stopping: bool = False) -> list[str]:
        """Send one report; returns the settled attempts."""
        record_nodes(
            self.zone,
            protocol.Report(
                zone=self.zone.name,
                sent_at=time.time(),
                relay_url="unix:/nowhere/relay.sock",
                relay_secret="relay-secret",
                nodes=self.nodes,
                attempts=list(attempts),
                is_stopping=is_stopping,
            ),
        )
        self.zone.refresh_from_db()
        return record_attempts(self.zone, attempts)

    def run(self, workload: Workload, **changes: object) -> None:
        """Its current attempt runs (and, for a session, answers)."""
        self.report(
            attempt_report(
                workload, phase="running", is_ready=True, started_at=time.time(), **changes
            )
        )

    def end(
        self, workload: Workload, cause: str = "own", exit_code: int = 0, **changes: object
    ) -> None:
        self.report(
            attempt_report(
                workload,
                phase="exited",
                exit_cause=protocol.ExitCause(cause),
                exit_code=exit_code,
                ended_at=time.time(),
                **changes,
            )
        )


def attempt_report(workload: Workload, phase: str, **values: object) -> protocol.AttemptReport:
    attempt = Attempt.objects.get(workload=workload, ended_at__isnull=True)
    return protocol.AttemptReport(
        attempt_id=str(attempt.pk),
        phase=protocol.AttemptPhase(phase),
        **values,  # type: ignore[arg-type]  # names checked at run time
    )


def simulated_node(name: str, *, kind: str = "t4", gpus: int = 4) -> protocol.NodeReport:
    return protocol.NodeReport(
        name=name,
        cpu_milli=32_000,
        memory_mib=131_072,
        labels={"allot/node-type": kind},
        devices=[
            protocol.DeviceReport(
                uuid=f"GPU-{name}-{index}", index=index, model="Tesla T4", memory_mib=T4_USABLE_MIB
            )
            for index in range(gpus)
        ],
        is_simulated=True,
        is_isolated=True,
    )
