"""A history written down directly: what was ready, held, measured and priced, and when."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import connection
from psycopg import sql

from projects.models import NodeType, PriceChange, Project, QuotaChange, User, WorkloadKind
from scheduling.models import (
    Allocation,
    Attempt,
    AttemptPhase,
    CapacityInterval,
    Device,
    DeviceAllocation,
    Node,
    Phase,
    Wait,
    Workload,
    Zone,
)
from telemetry import partitions, rollups
from telemetry.metrics import Kind
from telemetry.models import RolledQuarter, Subject

_numbers = itertools.count(1)
HOUR = timedelta(hours=1)


def at(text: str) -> datetime:
    """Such as `2026-03-29 14:30`, in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@dataclass(slots=True)
class Cluster:
    """Nodes with devices that are ready from the beginning on."""

    since: datetime
    zone: Zone = field(
        default_factory=lambda: Zone.objects.get_or_create(
            name="history", defaults={"token_hash": "h"}
        )[0]
    )

    def node(
        self,
        node_type: NodeType,
        *,
        gpus: int = 4,
        cores: int = 32,
        gib: int = 128,
        until: datetime | None = None,
    ) -> Node:
        """A node that is ready from `since` until `until`."""
        name = f"node-{next(_numbers)}"
        node = Node.objects.create(
            name=name,
            zone=self.zone,
            node_type=node_type,
            cpu_milli=1000 * cores,
            memory_mib=1024 * gib,
        )
        for index in range(gpus):
            Device.objects.create(
                uuid=f"GPU-{name}-{index}", node=node, index=index, model="T4", memory_mib=15_000
            )
        self.ready(node, self.since, until)
        return node

    def ready(self, node: Node, since: datetime, until: datetime | None) -> None:
        """The node and its devices are ready for a while (more)."""
        times = {"node": node, "node_type": node.node_type, "started_at": since, "ended_at": until}
        CapacityInterval.objects.create(
            cpu_milli=node.cpu_milli, memory_mib=node.memory_mib, **times
        )
        for device in node.devices.all():
            CapacityInterval.objects.create(device=device.uuid, gpu_milli=1000, **times)


def workload(project: Project, owner: User, **changes: Any) -> Workload:
    """A training with 4 cores and 8 GiB, unless told otherwise."""
    kind = changes.get("kind", WorkloadKind.TRAINING)
    values: dict[str, Any] = {
        "name": f"work-{next(_numbers)}",
        "kind": kind,
        "cpu_milli": 4000,
        "memory_mib": 8192,
        "template_name": changes.pop("template", ""),
        "is_preemptible": kind == WorkloadKind.TRAINING,
        "submitted_at": datetime(2026, 1, 1, tzinfo=UTC),
        "phase_changed_at": datetime(2026, 1, 1, tzinfo=UTC),
        **changes,
    }
    return Workload.objects.create(project=project, owner=owner, **values)


def held(
    work: Workload,
    node: Node,
    span: tuple[datetime, datetime | None],
    *,
    devices: int = 0,
    milli: int = 1000,
    first: int = 0,
) -> Attempt:
    """The workload holds parts of a node's devices, and cores and memory, for a while."""
    since, until = span
    attempt = Attempt.objects.create(
        workload=work,
        number=work.attempts.count() + 1,
        node=node,
        phase=AttemptPhase.RUNNING if until is None else AttemptPhase.ENDED,
        placed_at=since,
        started_at=since,
        ended_at=until,
        exit_cause="" if until is None else "own",
    )
    allocation = Allocation.objects.create(
        attempt=attempt,
        workload=work,
        project=work.project,
        node=node,
        gpu_milli=devices * milli,
        cpu_milli=work.cpu_milli,
        memory_mib=work.memory_mib,
        started_at=since,
        ended_at=until,
    )
    for device in node.devices.all()[first : first + devices]:
        DeviceAllocation.objects.create(
            allocation=allocation,
            device=device,
            gpu_milli=milli,
            memory_mib=1000,
            is_open=until is None,
        )
    return attempt


def waited(work: Workload, since: datetime, until: datetime, cause: str = "submitted") -> None:
    Wait.objects.create(workload=work, started_at=since, ended_at=until, cause=cause)


def ended(work: Workload, at_: datetime, phase: Phase = Phase.COMPLETED) -> None:
    work.phase, work.ended_at = phase, at_
    work.save()


def measured(
    work: Workload, since: datetime, until: datetime, *, covered_s: int = 900, **values: Any
) -> None:
    """Quarter-hours of a workload, all alike: values by column, such as `gpu_util_percent=50`."""
    subject, _created = Subject.objects.get_or_create(kind=Kind.WORKLOAD, name=str(work.pk))
    columns = {**values, **{f"{name}_s": covered_s for name in values}}
    moment = since
    statement = sql.SQL("INSERT INTO telemetry_workload_quarter ({}) VALUES ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, ["subject_id", "at", *columns])),
        sql.SQL(", ").join([sql.Placeholder()] * (len(columns) + 2)),
    )
    while moment < until:
        partitions.ensure_months([moment.date()])
        with connection.cursor() as cursor:
            cursor.execute(statement, [subject.pk, moment, *columns.values()])
        RolledQuarter.objects.update_or_create(at=moment, defaults={"rolled_at": moment})
        moment += rollups.QUARTER


def priced(node_type: NodeType, since: datetime, gpu: int, cpu: int = 0, memory: int = 0) -> None:
    PriceChange.objects.create(
        node_type=node_type,
        valid_from=since,
        gpu_price_per_hour=Decimal(gpu),
        cpu_price_per_hour=Decimal(cpu),
        memory_price_per_hour=Decimal(memory),
    )


def promised(project: Project, node_type: NodeType, since: datetime, gpus: float) -> None:
    QuotaChange.objects.create(
        project=project, node_type=node_type, valid_from=since, gpu_milli=round(gpus * 1000)
    )
