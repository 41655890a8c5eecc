"""A year of a cluster from a seed: who held what and when, and what was measured meanwhile.

Nodes are split into slots of half a GPU to eight; in each, one workload follows another with
pauses between. Rows are made in the database from what COPY brought there, so that a year of a
thousand GPUs takes a minute or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.core.management.color import no_style
from django.db import connection, models
from django.utils import timezone
from psycopg import sql

from projects.models import (
    Department,
    GpuQuota,
    NodeType,
    Project,
    QuotaChange,
    User,
    WorkloadKind,
)
from scheduling.analytics.intervals import Floats, Ints, cut
from scheduling.analytics.usage import quarter_edges
from scheduling.models import (
    Allocation,
    Attempt,
    AttemptPhase,
    CapacityInterval,
    Device,
    Node,
    Phase,
    Wait,
    Workload,
    Zone,
)
from telemetry import binary_copy, partitions
from telemetry.models import Subject

TYPES = (("a100", 9), ("v100", 5), ("t4", 3))
NUM_PROJECTS, USERS_PER_PROJECT, NUM_TEMPLATES = 24, 5, 20
GPUS_PER_NODE = 8
SLOTS = ((1, 8000), (2, 4000), (4, 2000), (8, 1000), (16, 500))
"""Slots of a node, and thousandths of a GPU in each."""
RUN_H, PAUSE_H = 20.0, 3.0
HOUR_S, DAY_S = 3600.0, 86_400.0

_STAGE = """
CREATE TEMPORARY TABLE stage (
    n int PRIMARY KEY, node int, slot int, milli int, project int, owner int, sort text,
    template text, queued timestamptz, started timestamptz, ended timestamptz, evicted boolean,
    workload uuid DEFAULT gen_random_uuid(), attempt uuid DEFAULT gen_random_uuid())
"""
_COLUMNS = ("gpu_util_percent", "cpu_cores", "memory_mib")


@dataclass(frozen=True, slots=True)
class Year:
    """What was made.

    Attributes:
        started, ended: Of each workload, Unix seconds; its subject's number is its place plus 1.
        milli: Thousandths of a GPU that it held.
    """

    since: datetime
    until: datetime
    started: Floats
    ended: Floats
    milli: Ints


def build(gpus: int, days: int, seed: int) -> Year:
    """Write down a history that ends today."""
    random = np.random.default_rng(seed)
    until = timezone.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    since = until - timedelta(days=days)
    nodes = _nodes(-(-gpus // GPUS_PER_NODE), since)
    people = _people(since, gpus)
    year = _workloads(nodes, people, (since, until), random)
    for day in range(days):
        _measure(year, since + timedelta(days=day), random)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return year


def _nodes(count: int, since: datetime) -> list[Node]:
    zone = Zone.objects.create(name="bench", token_hash="bench")
    types = [
        NodeType.objects.create(
            name=name, title=name, label_value=name, gpu_model=name, gpu_price_per_hour=price
        )
        for name, price in TYPES
    ]
    nodes = Node.objects.bulk_create(
        Node(
            name=f"node-{number:04}",
            zone=zone,
            node_type=types[number % len(types)],
            cpu_milli=64_000,
            memory_mib=524_288,
            last_report_at=timezone.now(),
        )
        for number in range(count)
    )
    devices = Device.objects.bulk_create(
        Device(uuid=f"GPU-{node.name}-{index}", node=node, index=index, model="", memory_mib=40_000)
        for node in nodes
        for index in range(GPUS_PER_NODE)
    )
    CapacityInterval.objects.bulk_create(
        [
            *(
                CapacityInterval(
                    node=node,
                    node_type=node.node_type,
                    cpu_milli=node.cpu_milli,
                    memory_mib=node.memory_mib,
                    started_at=since,
                )
                for node in nodes
            ),
            *(
                CapacityInterval(
                    node=device.node,
                    node_type=device.node.node_type,
                    device=device.uuid,
                    gpu_milli=1000,
                    started_at=since,
                )
                for device in devices
            ),
        ]
    )
    return nodes


def _people(since: datetime, gpus: int) -> list[tuple[int, int]]:
    """(project, user) pairs; quotas of all projects add up to the cluster."""
    quota_milli = 1000 * gpus // (len(TYPES) * NUM_PROJECTS)
    departments = [Department.objects.create(name=f"department-{n}") for n in range(4)]
    pairs = []
    for number in range(NUM_PROJECTS):
        project = Project.objects.create(
            name=f"project-{number:02}", department=departments[number % 4]
        )
        for node_type in NodeType.objects.all():
            GpuQuota.objects.create(project=project, node_type=node_type, quota_milli=quota_milli)
        users = [User(username=f"user-{number}-{n}") for n in range(USERS_PER_PROJECT)]
        pairs += [(project.pk, user.pk) for user in User.objects.bulk_create(users)]
    # The database has just noted them; they shall hold all the time.
    QuotaChange.objects.update(valid_from=since)
    return pairs


# ---------------------------------------------------------------- who held what


def _workloads(
    nodes: list[Node],
    people: list[tuple[int, int]],
    period: tuple[datetime, datetime],
    random: np.random.Generator,
) -> Year:
    since_s, until_s = (moment.timestamp() for moment in period)
    node, slot, milli, started, ended = _schedule(len(nodes), since_s, until_s, random)
    count = len(started)
    who = random.integers(0, len(people), count)
    waits = random.exponential(900.0, count)
    with connection.cursor() as cursor:
        cursor.execute(_STAGE)
        with cursor.copy(
            "COPY stage (n, node, slot, milli, project, owner, sort, template, queued, started,"
            " ended, evicted) FROM STDIN"
        ) as copy:
            for n in range(count):
                project, owner = people[who[n]]
                start, end = float(started[n]), float(ended[n])
                copy.write_row(
                    (
                        n + 1,
                        nodes[int(node[n])].pk,
                        int(slot[n]),
                        int(milli[n]),
                        project,
                        owner,
                        WorkloadKind.INTERACTIVE if milli[n] < 1000 else WorkloadKind.TRAINING,
                        f"template-{n % NUM_TEMPLATES}",
                        datetime.fromtimestamp(start - float(waits[n]), UTC),
                        datetime.fromtimestamp(start, UTC),
                        datetime.fromtimestamp(end, UTC),
                        bool(milli[n] >= 1000 and n % 5 == 0),
                    )
                )
        cursor.execute("ANALYZE stage")
    _rows_of_stage(nodes[0], people[0])
    return Year(*period, started, ended, milli)


def _schedule(
    num_nodes: int, since_s: float, until_s: float, random: np.random.Generator
) -> tuple[Ints, Ints, Ints, Floats, Floats]:
    """Workloads one after another in each slot of each node."""
    slots = [
        (n, s, m)
        for n in range(num_nodes)
        for s in range(SLOTS[n % 5][0])
        for m in (SLOTS[n % 5][1],)
    ]
    hours = (until_s - since_s) / HOUR_S
    most = int(2 * hours / (RUN_H + PAUSE_H)) + 20
    runs = random.exponential(RUN_H * HOUR_S, (len(slots), most)) + 60.0
    pauses = random.exponential(PAUSE_H * HOUR_S, (len(slots), most))
    ends = since_s + np.cumsum(runs + pauses, axis=1)
    starts = ends - runs
    is_in = ends < until_s
    place = np.nonzero(is_in)[0]
    table = np.array(slots)
    return table[place, 0], table[place, 1], table[place, 2], starts[is_in], ends[is_in]


def _rows_of_stage(node: Node, person: tuple[int, int]) -> None:
    """Workloads, waits, attempts and allocations: like one of the ORM's, but for what differs."""
    moment = timezone.now()
    work = Workload.objects.create(
        name="pattern",
        project_id=person[0],
        owner_id=person[1],
        kind=WorkloadKind.TRAINING,
        cpu_milli=4000,
        memory_mib=32_768,
        is_preemptible=True,
        phase=Phase.COMPLETED,
        phase_changed_at=moment,
        submitted_at=moment,
        ended_at=moment,
    )
    attempt = Attempt.objects.create(
        workload=work,
        number=1,
        node=node,
        phase=AttemptPhase.ENDED,
        placed_at=moment,
        started_at=moment,
        ended_at=moment,
        exit_cause="own",
    )
    allocation = Allocation.objects.create(
        attempt=attempt,
        workload=work,
        project=work.project,
        node=node,
        cpu_milli=4000,
        memory_mib=32_768,
        started_at=moment,
        ended_at=moment,
    )
    wait = Wait.objects.create(workload=work, started_at=moment, ended_at=moment, cause="submitted")
    _like(
        work,
        id="workload",
        request_id="gen_random_uuid()",
        name="'work-' || n",
        project_id="project",
        owner_id="owner",
        kind="sort",
        template_name="template",
        is_preemptible="sort = 'training'",
        submitted_at="queued",
        ended_at="ended",
        node_id="node",
        node_type_id="(SELECT node_type_id FROM scheduling_node WHERE id = node)",
    )
    _like(
        attempt,
        id="attempt",
        workload_id="workload",
        node_id="node",
        placed_at="started",
        started_at="started",
        ended_at="ended",
        exit_cause="CASE WHEN evicted THEN 'evicted' ELSE 'own' END",
        lost_progress_s="CASE WHEN evicted THEN 120.0 END",
        goal_at="CASE WHEN evicted THEN ended - interval '20 s' END",
    )
    _like(
        allocation,
        id="n + 1000",
        attempt_id="attempt",
        workload_id="workload",
        project_id="project",
        node_id="node",
        gpu_milli="milli",
        started_at="started",
        ended_at="ended",
    )
    _like(wait, id="n + 1000", workload_id="workload", started_at="queued", ended_at="started")
    for pattern in (wait, allocation, attempt, work):
        pattern.delete()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO scheduling_deviceallocation"
            " (allocation_id, device_id, gpu_milli, memory_mib, is_open)"
            " SELECT n + 1000, uuid, LEAST(milli, 1000), 1, false"
            " FROM stage JOIN scheduling_device device ON device.node_id = node"
            " AND index >= slot * milli / 1000 AND index < slot * milli / 1000 +"
            " GREATEST(milli / 1000, 1)"
        )
        cursor.execute(
            "INSERT INTO telemetry_subject (id, kind, name)"
            " SELECT n, 'workload', workload::text FROM stage"
        )
        # Numbers were given here, so the database must go on behind them.
        for statement in connection.ops.sequence_reset_sql(no_style(), [Allocation, Wait, Subject]):
            cursor.execute(statement)


def _like(pattern: models.Model, **expressions: str) -> None:
    """Insert a row per row of `stage`: the pattern's, but for these columns."""
    columns = [str(field.column) for field in pattern._meta.concrete_fields]
    values = [
        sql.SQL(expressions[column])
        if column in expressions  # ours, from above
        else sql.SQL("pattern.{}").format(sql.Identifier(column))
        for column in columns
    ]
    table = sql.Identifier(pattern._meta.db_table)
    statement = sql.SQL(
        "INSERT INTO {table} ({columns}) SELECT {values} FROM stage, {table} pattern"
        " WHERE pattern.id = %s"
    ).format(
        table=table,
        columns=sql.SQL(", ").join([sql.Identifier(column) for column in columns]),
        values=sql.SQL(", ").join(values),
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [pattern.pk])


# ---------------------------------------------------------------- what was measured


def _measure(year: Year, day: datetime, random: np.random.Generator) -> None:
    """A day's quarter-hours of every workload that held something."""
    edges = quarter_edges(day.timestamp(), 96)
    held = np.flatnonzero((year.started < edges[-1]) & (year.ended > edges[0]))
    cuts = cut(year.started[held], year.ended[held], edges)
    number, count = held[cuts.item], len(cuts.item)
    if not count:
        return
    # A tenth of all do nothing.
    busy = (number % 10 > 0).astype(float)
    values = np.column_stack(
        [
            busy * np.clip(random.normal(60, 25, count), 2, 100),
            0.1 + busy * random.uniform(0.5, 4.0, count),
            random.uniform(2000, 30_000, count),
            np.round(cuts.seconds),
        ]
    )
    data = binary_copy.encode(number + 1, binary_copy.micros(edges[cuts.bin]), values)
    partitions.ensure_months([day.date()])
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE IF NOT EXISTS quarters"
            " (s int, at timestamptz, gpu real, cpu real, memory real, covered real)"
        )
        cursor.execute("TRUNCATE quarters")
        with cursor.copy("COPY quarters FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(data)
        cursor.execute(
            "INSERT INTO telemetry_workload_quarter (subject_id, at, gpu_util_percent,"
            " gpu_util_percent_s, cpu_cores, cpu_cores_s, memory_mib, memory_mib_s,"
            " memory_mib_peak)"
            " SELECT s, at, gpu, covered, cpu, covered, memory, covered, memory FROM quarters"
        )


# `Any`: rows of numbers.
def counted(statement: str, *params: Any) -> int:
    """The one number that a statement yields."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        row = cursor.fetchone()
    return int(row[0]) if row else 0
