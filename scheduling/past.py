"""What the planner learns from the past: use, lengths of runs, starts that failed.

Each answer costs a fixed number of queries, whatever lies in the database.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil, exp, log

from django.db import connection
from django.db.models import F, Max, Q, Sum

from projects.models import WorkloadKind
from scheduling.core import types as core
from scheduling.models import Attempt, Phase, Workload

# ---------------------------------------------------------------- use

PPM = 1_000_000
_USE = """
    SELECT project, node_type, resource, SUM(amount * weight)
    FROM (
        SELECT p.name AS project, t.name AS node_type, part.resource, part.amount,
               CASE WHEN %(half_life)s > 0 THEN
                   %(half_life)s / LN(2.0) * (
                       EXP(-LN(2.0) * EXTRACT(EPOCH FROM
                           %(now)s - LEAST(COALESCE(a.ended_at, %(now)s), %(now)s)) / %(half_life)s)
                     - EXP(-LN(2.0) * EXTRACT(EPOCH FROM
                           %(now)s - GREATEST(part.began, %(since)s)) / %(half_life)s))
               ELSE EXTRACT(EPOCH FROM
                   LEAST(COALESCE(a.ended_at, %(now)s), %(now)s)
                   - GREATEST(part.began, %(since)s))
               END::double precision AS weight
        FROM scheduling_allocation a
        CROSS JOIN LATERAL (VALUES
            ('gpu', CASE WHEN a.is_lent THEN 0 ELSE a.gpu_milli END,
             COALESCE(a.gpu_from, a.started_at)),
            ('cpu', a.cpu_milli, a.started_at),
            ('memory', a.memory_mib, a.started_at)
        ) AS part(resource, amount, began)
        JOIN projects_project p ON p.id = a.project_id
        JOIN scheduling_node n ON n.id = a.node_id
        LEFT JOIN projects_nodetype t ON t.id = n.node_type_id
        WHERE a.started_at < %(now)s AND (a.ended_at IS NULL OR a.ended_at > %(since)s)
    ) held
    GROUP BY project, node_type, resource
"""
"""What is on loan counts for nobody's share."""

Use = Mapping[str, Mapping[core.ResourceKey, int]]


def past_use(nodes: Iterable[core.Node], policy: core.Policy, now: datetime) -> Use:
    """By project: what it held of late, in millionths of today's capacity over the same time.

    One query; none where the policy does not ask for it.
    """
    if not policy.history_factor_milli:
        return {}
    window_s, half_life_s = policy.history_window_s, policy.history_half_life_s
    values: dict[str, datetime | float] = {
        "now": now,
        "since": now - timedelta(seconds=window_s),
        "half_life": half_life_s,
    }
    with connection.cursor() as cursor:
        cursor.execute(_USE, values)
        rows = cursor.fetchall()
    full = _weight(window_s, half_life_s)
    capacity: dict[core.ResourceKey, int] = defaultdict(int)
    for node in nodes:
        capacity[core.CPU] += node.cpu_milli
        capacity[core.MEMORY] += node.memory_mib
        capacity[node.gpu_key] += 1000 * node.num_devices
    held: dict[str, dict[core.ResourceKey, float]] = defaultdict(lambda: defaultdict(float))
    for project, node_type, resource, amount in rows:
        key = f"gpu:{node_type}" if resource == "gpu" and node_type else resource
        held[project][core.ResourceKey(key)] += amount
    return {
        project: {
            key: min(PPM, round(amount / (capacity[key] * full) * PPM))
            for key, amount in by_key.items()
            if amount > 0 and capacity[key]
        }
        for project, by_key in held.items()
    }


def _weight(window_s: float, half_life_s: float) -> float:
    """What holding one unit for the whole window comes to."""
    if not half_life_s:
        return window_s
    return half_life_s / log(2) * (1 - exp(-log(2) * window_s / half_life_s))


# ---------------------------------------------------------------- starts that failed


@dataclass(frozen=True, slots=True)
class FailedStarts:
    """Starts that their nodes may be to blame for, since the last good one there.

    Attributes:
        by_node: For the planner to judge the node.
        by_workload: Nodes that a workload avoids.
    """

    by_node: Mapping[str, tuple[core.FailedStart, ...]]
    by_workload: Mapping[uuid.UUID, frozenset[core.NodeName]]


def failed_starts(policy: core.Policy, now: datetime) -> FailedStarts:
    """Those inside the policy's window; two queries. What the workload is to blame for (a command
    that is not there) does not count."""
    since = now - timedelta(seconds=policy.cordon_window_s)
    found = list(
        Attempt.objects.filter(exit_cause="refused", is_retryable=True, ended_at__gte=since)
        .values_list("node__name", "node__opened_at", "workload", "ended_at")
        .order_by("ended_at", "pk")
    )
    good: dict[str, datetime] = {}
    if found:
        starts = Attempt.objects.filter(
            node__name__in={name for name, *_ in found}, ready_at__gte=since
        )
        good = dict(starts.values_list("node__name").annotate(Max("ready_at")).order_by())
    by_node: dict[str, list[core.FailedStart]] = defaultdict(list)
    by_workload: dict[uuid.UUID, set[core.NodeName]] = defaultdict(set)
    for name, opened_at, workload, ended_at in found:
        if ended_at is None:
            continue
        is_past = any(at is not None and at >= ended_at for at in (opened_at, good.get(name)))
        if not is_past:
            start = core.FailedStart(core.WorkloadId(str(workload)), ended_at.timestamp())
            by_node[name].append(start)
            by_workload[workload].add(core.NodeName(name))
    return FailedStarts(
        {name: tuple(starts) for name, starts in by_node.items()},
        {workload: frozenset(names) for workload, names in by_workload.items()},
    )


# ---------------------------------------------------------------- lengths of runs

RUNS_SINCE = timedelta(days=60)
MAX_RUNS = 5000
MIN_RUNS = 3
"""So few runs of the same kind say nothing."""
LATE, EARLY = 0.9, 0.1
"""Quantiles: the pessimistic one is what reservations may rest on."""
KEPT_S = 60.0

RunKey = tuple[int, str, int]
"""Whose runs, from which template (or none), on how many devices."""


@dataclass(frozen=True, slots=True)
class RunLength:
    """How long runs of one kind took: quantiles over the last ones."""

    early_s: float
    late_s: float


@dataclass(slots=True)
class _Kept:
    at: float = float("-inf")
    lengths: Mapping[RunKey, RunLength] = field(default_factory=dict)


_kept = _Kept()


def forget() -> None:
    """Ask the database again; for tests."""
    _kept.at = float("-inf")


def run_lengths(now: datetime) -> Mapping[RunKey, RunLength]:
    """Of completed trainings of the same person, template and number of devices; asked of the
    database once a minute, since the past changes slowly."""
    if time.monotonic() - _kept.at > KEPT_S:
        _kept.lengths = _measured(now)
        _kept.at = time.monotonic()
    return _kept.lengths


def run_key(row: Workload) -> RunKey:
    return row.owner_id, row.template_name, row.num_devices


def _measured(now: datetime) -> Mapping[RunKey, RunLength]:
    runs = (
        Workload.objects.filter(
            kind=WorkloadKind.TRAINING, phase=Phase.COMPLETED, ended_at__gte=now - RUNS_SINCE
        )
        .annotate(run=_run_time())
        .order_by("-ended_at")
        .values_list("owner", "template_name", "num_devices", "run")[:MAX_RUNS]
    )
    seconds: dict[RunKey, list[float]] = defaultdict(list)
    for owner, template, devices, run in runs:
        if run is not None:
            seconds[owner, template, devices].append(run.total_seconds())
    return {
        key: RunLength(_quantile(found, EARLY), _quantile(found, LATE))
        for key, found in seconds.items()
        if len(found) >= MIN_RUNS
    }


def _run_time() -> Sum:
    """Time that a workload's leader has run, over all its attempts."""
    return Sum(
        F("attempts__ended_at") - F("attempts__started_at"),
        filter=Q(attempts__replica=0, attempts__started_at__isnull=False),
    )


def _quantile(values: Sequence[float], part: float) -> float:
    """The value that at least this part of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * part) - 1)]


def already_run(rows: Sequence[Workload]) -> Mapping[uuid.UUID, float]:
    """Seconds that interrupted trainings had run before, whose work is saved."""
    ids = [row.pk for row in rows if row.num_preemptions and row.checkpoint_mode != "none"]
    found = Workload.objects.filter(pk__in=ids).annotate(run=_run_time())
    return {pk: run.total_seconds() for pk, run in found.values_list("pk", "run") if run}


@dataclass(frozen=True, slots=True)
class Expected:
    """Predictions of one workload, on the planner's clock, and what they rest on; None where
    nothing is known."""

    end_s: float | None = None
    early_end_s: float | None = None
    run_s: float | None = None
    basis: str = ""


UNKNOWN = Expected()


def expected(
    row: Workload,
    started: datetime | None,
    lengths: Mapping[RunKey, RunLength],
    before_s: float,
    now: datetime,
) -> Expected:
    """How long a training will run, by what others like it took.

    One that has run longer than they did is not predicted any more.
    """
    known = None if row.is_session else lengths.get(run_key(row))
    if known is None:
        return UNKNOWN
    late_s, early_s = max(known.late_s - before_s, 0.0), max(known.early_s - before_s, 0.0)
    if started is None:
        return Expected(run_s=late_s, basis="history") if late_s else UNKNOWN
    end_s = started.timestamp() + late_s
    if end_s <= now.timestamp():
        return UNKNOWN
    return Expected(end_s, started.timestamp() + early_s, basis="history")


# ---------------------------------------------------------------- nodes to avoid


def avoided_nodes(
    row: Workload, failed: Mapping[uuid.UUID, frozenset[core.NodeName]], ready: Sequence[core.Node]
) -> frozenset[core.NodeName]:
    """Nodes on which a workload's start failed lately; none where there is no other to try."""
    names = failed.get(row.pk)
    if not names or not row.num_failures:
        return frozenset()
    types = set(row.node_types)
    for node in ready:
        if node.name not in names and (not types or node.node_type in types):
            return names
    return frozenset()
