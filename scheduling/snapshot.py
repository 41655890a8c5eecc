"""Rows → `core.Snapshot`, in a fixed number of queries, and the policy that goes with it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Avg, F, Max
from django.utils import timezone

from projects.models import NodeType
from scheduling import past, time_limits, unfinished
from scheduling.core import types as core
from scheduling.core.cycle import without_collector
from scheduling.idle_sessions import idleness_of
from scheduling.models import (
    WAITING_PHASES,
    Attempt,
    Checkpoint,
    Loan,
    Node,
    NodeState,
    PlannerPolicy,
    Workload,
)
from scheduling.moments import unix_s
from scheduling.organisation import gpu_key, read_organisation
from scheduling.replicas import is_kept_up, replica_id, replicas_of, workload_id
from scheduling.unfinished import children

MIB = 1024 * 1024

SESSION_PRIORITY = 100
"""Sessions have no priority of their own: inside quota they come before every training of their
project (at most 90), which gives way to them."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot and what is needed to apply a plan to the rows that it was made from.

    Attributes:
        titles: What departments and projects are called, by their id in the snapshot.
        rows: Of the unfinished workloads, as they were read; a plan that touches one whose
            generation has changed since is stale.
    """

    snapshot: core.Snapshot
    policy: core.Policy
    rows: Mapping[core.WorkloadId, Workload]
    titles: Mapping[str, str] = field(default_factory=dict)


@without_collector()
def take_snapshot(rows: unfinished.Rows | None = None) -> Taken:
    """Read everything that the planner must know. Call it inside the cycle's advisory lock.

    Args:
        rows: Those of the last snapshot, of which only what has changed is read.
    """
    now = timezone.now()
    policy = read_policy()
    failed = past.failed_starts(policy, now)
    rows = rows or unfinished.Rows()
    machines = rows.nodes()
    nodes = tuple(_nodes(machines, failed))
    use = past.past_use(nodes, policy, now)
    organisation = read_organisation(use)
    workloads = rows.workloads(machines)
    return Taken(
        snapshot=core.Snapshot(
            nodes=nodes,
            projects=organisation.projects,
            workloads=tuple(_workloads(workloads, nodes, failed, now)),
            loans=tuple(_loans(workloads)),
        ),
        policy=policy,
        rows={workload_id(row): row for row in workloads},
        titles=organisation.titles,
    )


def read_arrivals(ids: Iterable[uuid.UUID]) -> list[tuple[Workload, core.Workload]]:
    """New workloads, each with its row. What past runs predict of them is for full cycles; their
    time limits are known."""
    rows = [row for row in unfinished.read_some(list(ids)) if row.phase in WAITING_PHASES]
    return [
        (
            row,
            replace(
                core_workload(row, tuple(replicas_of(row, children(row, "attempts")))),
                waiting_since_s=unix_s(row.phase_changed_at),
            ),
        )
        for row in rows
    ]


def read_rows(ids: Iterable[core.WorkloadId]) -> Sequence[Workload]:
    """Rows of unfinished workloads, as a snapshot reads them."""
    return unfinished.read_some([uuid.UUID(name) for name in ids])


def read_policy() -> core.Policy:
    """What admins chose: per node type, and for the whole planner."""
    runtimes = NodeType.objects.filter(min_runtime_s__gt=0).values_list("name", "min_runtime_s")
    row = PlannerPolicy.objects.first() or PlannerPolicy()
    return core.Policy(
        min_runtime_s={core.NodeTypeName(name): float(seconds) for name, seconds in runtimes},
        topology=tuple(row.topology),
        preemption_delay_s=float(row.preemption_delay_s),
        gang_grace_s=float(row.gang_grace_s),
        aging_period_s=float(row.aging_period_s),
        aging_bound=row.aging_bound,
        cordon_failures=row.cordon_failures,
        cordon_window_s=float(row.cordon_window_s),
        history_factor_milli=row.history_factor_milli,
        history_window_s=float(row.history_window_s),
        history_half_life_s=float(row.history_half_life_s),
        swap_mib_per_s=_swap_rates(),
    )


def _swap_rates() -> Mapping[core.NodeTypeName, float]:
    """How fast device memory was moved to the host in the last week, by node type."""
    week = timezone.now() - timedelta(days=7)
    found = (
        Loan.objects.filter(started_at__gte=week, out_s__gt=0, swapped_out_bytes__gt=0)
        .filter(device__node__node_type__isnull=False)
        .values_list("device__node__node_type__name")
        .annotate(rate=Avg(F("swapped_out_bytes") / F("out_s")))
    )
    return {core.NodeTypeName(name): rate / MIB for name, rate in found}


def _nodes(machines: Iterable[Node], failed: past.FailedStarts) -> Iterable[core.Node]:
    for node in machines:
        devices = children(node, "devices")
        name = node.node_type.name if node.node_type else None
        yield core.Node(
            name=core.NodeName(node.name),
            num_devices=len(devices),
            gpu_memory_mib=min((device.memory_mib for device in devices), default=0),
            cpu_milli=node.cpu_milli,
            memory_mib=node.memory_mib,
            gpu_key=gpu_key(name),
            node_type=core.NodeTypeName(name) if name else None,
            labels={"zone": node.zone.name, **node.labels},
            failed_starts=failed.by_node.get(node.name, ()),
            swap_host_mib=node.node_type.swap_host_mib if node.node_type else 0,
            is_ready=node.state == NodeState.READY
            and not node.zone.is_stopping
            and all(device.is_healthy for device in devices),
        )


def _workloads(
    rows: Sequence[Workload],
    nodes: Sequence[core.Node],
    failed: past.FailedStarts,
    now: datetime,
) -> Iterable[core.Workload]:
    saved = _last_saved(rows)
    lengths, before = past.run_lengths(now), past.already_run(rows)
    clocks = time_limits.ran_before(rows)
    ready = [node for node in nodes if node.is_ready]
    idle = idleness_of(rows, now)
    for row in rows:
        attempts = children(row, "attempts")
        workload = core_workload(row, tuple(replicas_of(row, attempts)))
        leader = next(iter(attempts), None)
        started = None if leader is None else leader.started_at or leader.placed_at
        told = past.expected(row, started, lengths, before.get(row.pk, 0.0), now)
        if workload.expected_run_s is not None:  # it has a limit
            told = time_limits.bounded(told, row, leader, clocks.get(row.pk, 0.0), now)
        yield replace(
            workload,
            avoided_nodes=past.avoided_nodes(row, failed.by_workload, ready),
            waiting_since_s=unix_s(row.phase_changed_at) if row.phase in WAITING_PHASES else None,
            expected_end_s=told.end_s,
            early_end_s=told.early_end_s,
            expected_run_s=told.run_s,
            expected_basis=told.basis,
            idle=idle.get(row.pk),
            incomplete_since_s=unix_s(row.incomplete_since),
            eviction_cost=_eviction_cost(row, leader, saved, now),
        )


def _loans(rows: Iterable[Workload]) -> Iterable[core.Loan]:
    """Loans that are to go on."""
    for row in rows:
        for attempt in children(row, "attempts"):
            for loan in children(attempt, "loans_taken"):
                if is_kept_up(loan) and not attempt.is_leaving:
                    lender = loan.lender
                    yield core.Loan(
                        lender=core.ReplicaId(f"{lender.workload_id}/{lender.replica}"),
                        borrower=replica_id(row, attempt.replica),
                        since_s=loan.started_at.timestamp(),
                    )


def _last_saved(rows: Sequence[Workload]) -> Mapping[uuid.UUID, datetime]:
    """When each running leader last saved."""
    ids = [row.current_id for row in rows if row.is_preemptible and row.current_id]
    found = (
        Checkpoint.objects.filter(attempt__in=ids).values_list("attempt").annotate(Max("saved_at"))
    )
    return dict(found)


def _eviction_cost(
    row: Workload, attempt: Attempt | None, saved: Mapping[uuid.UUID, datetime], now: datetime
) -> core.EvictionCost | None:
    """What stopping a running training now would waste, from what was seen of its leader.

    It may still save when asked, so the lost progress is an upper bound; the time to save is not
    known before it has.
    """
    if not row.is_preemptible or attempt is None or attempt.started_at is None:
        return None
    ready_at = attempt.ready_at or attempt.started_at
    since = max(saved.get(attempt.pk, attempt.started_at), attempt.started_at)
    return core.EvictionCost(
        save_s=0.0,
        restore_s=max((ready_at - attempt.placed_at).total_seconds(), 0.0),
        lost_progress_s=max((now - since).total_seconds(), 0.0),
    )


def core_workload(row: Workload, replicas: tuple[core.Replica, ...]) -> core.Workload:
    """A row as the core sees it; also for a row that is not saved yet (a form's preview).

    Of how long it will run only its time limit is known here.
    """
    failure = _last_failure(row)
    run_s = time_limits.left_s(row, 0.0)
    return core.Workload(
        id=workload_id(row),
        project=core.ProjectId(row.project.name),
        kind=core.Kind(row.kind),
        priority=SESSION_PRIORITY if row.is_session else row.priority,
        is_preemptible=row.is_preemptible,
        submitted=row.submitted_at.timestamp(),
        gpu=core.GpuRequest(row.num_devices, row.gpu_milli, row.gpu_memory_mib),
        cpu_milli=row.cpu_milli,
        memory_mib=row.memory_mib,
        min_replicas=row.min_replicas,
        replicas=replicas,
        node_types=tuple(core.NodeTypeName(name) for name in row.node_types) or None,
        not_before_s=unix_s(row.not_before),
        required_labels=row.node_labels,
        failures=row.num_failures,
        last_error=str(failure.get("last_error") or ""),
        last_exit_code=failure.get("exit_code"),
        expected_run_s=run_s,
        expected_basis="" if run_s is None else time_limits.BASIS,
    )


_FAILURES = ("exited", "start_failed", "out_of_memory", "backing_off")


def _last_failure(row: Workload) -> Mapping[str, Any]:  # parsed JSON
    """What is known of how it failed last, as long as its reason tells of that."""
    is_failure = row.num_failures and row.reason.get("code") in _FAILURES
    return row.reason.get("details") or {} if is_failure else {}
