"""Projects, queue, cost and collectors for Prometheus.

Counters begin anew with each month (UTC), so that a scrape reads a month at most; Prometheus takes
that for a restart. Series are bounded by projects × node types.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from django.db.models import Count, F

from projects.models import NodeType, Project
from scheduling.analytics import store
from scheduling.analytics.collectors import collectors
from scheduling.analytics.computing import QUARTER
from scheduling.analytics.measures import Measure, Scope
from scheduling.models import Attempt, Checkpoint, ProjectUsage, Wait, Workload
from scheduling.prometheus import swap
from scheduling.prometheus.exposition import Family, histogram

CURRENCY = "RUB"
WAIT_LIMITS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
PREEMPTED = ("reclaimed", "preempted")


def families(now: datetime) -> Iterator[Family]:
    """Everything that is not about devices; a fixed number of queries."""
    month = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    yield from _shares()
    yield from _workloads()
    yield from _waits(month)
    yield from _preemptions(month)
    yield from swap.families(month, now)
    yield from _sums(month, now)
    yield from _collectors(now)


def _shares() -> Iterator[Family]:
    quota = Family("allot_project_gpu_quota", "gauge", "GPUs guaranteed")
    share = Family("allot_project_gpu_fair_share", "gauge", "Quota and part of the rest, GPUs")
    held = Family("allot_project_gpu_allocated", "gauge", "GPUs held")
    rows = ProjectUsage.objects.filter(resource__startswith="gpu:").select_related("project")
    for row in rows.order_by("project__name", "resource"):
        labels = {"project": row.project.name, "node_type": row.resource.removeprefix("gpu:")}
        quota.add(None if row.quota is None else row.quota / 1000, labels)
        share.add(row.fair_share / 1000, labels)
        for is_preemptible, milli in (
            ("true", row.allocated - row.non_preemptible),
            ("false", row.non_preemptible),
        ):
            held.add(milli / 1000, {**labels, "preemptible": is_preemptible})
    yield from (quota, share, held)


def _workloads() -> Iterator[Family]:
    by_phase = Family("allot_workloads", "gauge", "Workloads that have not ended")
    depth = Family("allot_queue_depth", "gauge", "Workloads that wait, by the first type they ask")
    counts = Workload.objects.unfinished().values("project__name", "kind", "phase")
    for row in counts.annotate(count=Count("pk")).order_by("project__name", "kind", "phase"):
        by_phase.add(
            row["count"],
            {"project": row["project__name"], "kind": row["kind"], "phase": row["phase"]},
        )
    waiting = Counter(
        (project, types[0] if types else "")
        for project, types in Workload.objects.waiting().values_list("project__name", "node_types")
    )
    for (project, node_type), count in sorted(waiting.items()):
        depth.add(count, {"project": project, "node_type": node_type})
    yield from (by_phase, depth)


def _waits(month: datetime) -> Iterator[Family]:
    family = Family("allot_queue_wait_seconds", "histogram", "From queued to placed, this month")
    counts: dict[tuple[str, str], Counter[float]] = defaultdict(Counter)
    totals: dict[tuple[str, str], float] = defaultdict(float)
    rows = Wait.objects.filter(
        ended_at__gte=month, workload__attempts__placed_at=F("ended_at")
    ).values_list("workload__project__name", "workload__node_type__name", "started_at", "ended_at")
    for project, node_type, started_at, ended_at in rows:
        if ended_at is None:
            continue
        wait_s = (ended_at - started_at).total_seconds()
        key = (project, node_type or "")
        counts[key][next((x for x in WAIT_LIMITS_S if wait_s <= x), float("inf"))] += 1
        totals[key] += wait_s
    for (project, node_type), values in sorted(counts.items()):
        labels = {"project": project, "node_type": node_type}
        histogram(family, labels, WAIT_LIMITS_S, values, totals[project, node_type])
    yield family


def _preemptions(month: datetime) -> Iterator[Family]:
    preemptions = Family("allot_preemptions_total", "counter", "Trainings that lost their place")
    rows = Wait.objects.filter(started_at__gte=month, cause__in=PREEMPTED).values("cause")
    counts = {row["cause"]: row["count"] for row in rows.annotate(count=Count("pk"))}
    for reason in PREEMPTED:
        preemptions.add(counts.get(reason, 0), {"reason": reason})
    saved = Family("allot_checkpoints_total", "counter", "Checkpoints, and stops without one")
    saved.add(Checkpoint.objects.filter(saved_at__gte=month).count(), {"result": "saved"})
    missed = Attempt.objects.filter(ended_at__gte=month, exit_cause="evicted").exclude(
        checkpoints__saved_at__gte=F("goal_at")
    )
    saved.add(missed.count(), {"result": "missed"})
    yield from (preemptions, saved)


def _sums(month: datetime, now: datetime) -> Iterator[Family]:
    idle = Family("allot_idle_gpu_seconds_total", "counter", "GPU time held while idle, this month")
    cost = Family("allot_cost_total", "counter", "Cost of what was held, this month")
    until = now + QUARTER
    until -= (until - month) % QUARTER
    tables = store.read(Scope.NODE_TYPE, (Measure.GPU_IDLE, Measure.COST), (month, until), now)
    projects = dict(Project.objects.values_list("pk", "name"))
    types = {str(pk): name for pk, name in NodeType.objects.values_list("pk", "name")}
    costs = _totals(tables[Measure.COST])
    # Whoever held something and never idled has a counter too, which may grow.
    idle_h = {projects.get(project, ""): 0.0 for project, _node_type in costs}
    for (project, _node_type), hours in _totals(tables[Measure.GPU_IDLE]).items():
        name = projects.get(project, "")
        idle_h[name] = idle_h.get(name, 0.0) + hours
    for project_name, hours in sorted(idle_h.items()):
        idle.add(3600 * hours, {"project": project_name})
    for (project, node_type), money in sorted(costs.items()):
        cost.add(
            money,
            {
                "project": projects.get(project, ""),
                "node_type": types.get(node_type, ""),
                "currency": CURRENCY,
            },
        )
    yield from (idle, cost)


def _totals(table: store.Table) -> Mapping[tuple[int, str], float]:
    return dict(zip(table.groups, table.values.sum(axis=1).tolist(), strict=True))


def _collectors(now: datetime) -> Iterator[Family]:
    last = Family(
        "allot_collector_last_sample_timestamp_seconds", "gauge", "Time of the newest sample"
    )
    dropped = Family(
        "allot_collector_dropped_samples", "gauge", "Samples that nodes had to drop in 24 hours"
    )
    skew = Family("allot_collector_clock_skew_seconds", "gauge", "The node's clock minus ours")
    for one in collectors(now):
        labels = {"node": one.node}
        last.add(one.last_sample_at.timestamp() if one.last_sample_at else None, labels)
        dropped.add(one.num_dropped, labels)
        skew.add(one.clock_skew_s, labels)
    yield from (last, dropped, skew)
