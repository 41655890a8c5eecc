"""Rows → `core.Snapshot`, in a fixed number of queries, and the policy that goes with it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Avg, F, Max, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from projects.models import NodeType
from scheduling import past, time_limits, unfinished
from scheduling.core import types as core
from scheduling.core.cycle import without_collector
from scheduling.core.lenders import LENDING_OFF
from scheduling.core.predict.idleness import Spell, expected_left_s
from scheduling.models import (
    LEADER,
    WAITING_PHASES,
    Attempt,
    Checkpoint,
    IdleSpell,
    Loan,
    LoanState,
    Node,
    NodeState,
    Phase,
    PlannerPolicy,
    SwapState,
    Workload,
)
from scheduling.organisation import gpu_key, read_organisation
from scheduling.unfinished import children

LEAVING_PHASES = (Phase.CHECKPOINTING, Phase.STOPPING)

IDLE_MARK_LASTS_S = 40.0
"""A session that the periodic watch has not seen idle for so long is not lent."""
MAX_SPELLS = 200
"""A person's latest idle spells on which the prediction rests."""
ASKED_LEFT_S = 86_400.0
"""Whoever asks for it to be swapped out will not be back soon."""
IN_MEMORY = (SwapState.SWAPPING_OUT, SwapState.SWAPPED_OUT, SwapState.WAITING)
"""What a borrower is that has left its devices, and can go on."""
MIB = 1024 * 1024

SESSION_PRIORITY = 100
"""Sessions have no priority of their own: inside quota they come before every training of their
project (at most 90), which gives way to them."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot and what is needed to apply a plan to the rows that it was made from.

    Attributes:
        titles: What departments are called, by their id in the snapshot.
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
                core_workload(row, tuple(_replicas(row, children(row, "attempts")))),
                waiting_since_s=_seconds(row.phase_changed_at),
            ),
        )
        for row in rows
    ]


def read_rows(ids: Iterable[core.WorkloadId]) -> Sequence[Workload]:
    """Rows of unfinished workloads, as a snapshot reads them."""
    return unfinished.read_some([uuid.UUID(name) for name in ids])


def workload_id(row: Workload) -> core.WorkloadId:
    return core.WorkloadId(str(row.pk))


def replica_id(row: Workload, index: int) -> core.ReplicaId:
    return core.ReplicaId(f"{row.pk}/{index}")


def index_of(replica: core.ReplicaId) -> int:
    """Which replica of its workload it is; 0 is the leader."""
    return int(replica.rpartition("/")[2])


def by_index(
    placements: Mapping[core.ReplicaId, core.Placement],
) -> dict[int, core.Placement]:
    """Places by number of the replica, the leader's first."""
    return dict(sorted((index_of(name), place) for name, place in placements.items()))


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
    idle = _idleness(rows, now)
    for row in rows:
        attempts = children(row, "attempts")
        workload = core_workload(row, tuple(_replicas(row, attempts)))
        leader = next(iter(attempts), None)
        started = None if leader is None else leader.started_at or leader.placed_at
        told = past.expected(row, started, lengths, before.get(row.pk, 0.0), now)
        if workload.expected_run_s is not None:  # it has a limit
            told = time_limits.bounded(told, row, leader, clocks.get(row.pk, 0.0), now)
        yield replace(
            workload,
            avoided_nodes=past.avoided_nodes(row, failed.by_workload, ready),
            waiting_since_s=_seconds(row.phase_changed_at) if row.phase in WAITING_PHASES else None,
            expected_end_s=told.end_s,
            early_end_s=told.early_end_s,
            expected_run_s=told.run_s,
            expected_basis=told.basis,
            idle=idle.get(row.pk),
            incomplete_since_s=_seconds(row.incomplete_since),
            eviction_cost=_eviction_cost(row, leader, saved, now),
        )


def _idleness(rows: Sequence[Workload], now: datetime) -> Mapping[uuid.UUID, core.Idleness]:
    """What is known of running sessions' use of their devices."""
    sessions = [
        (row, attempt)
        for row in rows
        if row.is_session
        for attempt in children(row, "attempts")
        if attempt.is_ready and not attempt.is_leaving and children(attempt.allocation, "devices")
    ]
    resting = [row.owner_id for row, attempt in sessions if _is_resting(attempt, now)]
    spells = _spells(resting) if resting else {}
    return {row.pk: _idle(row, attempt, spells, now) for row, attempt in sessions}


def _is_resting(attempt: Attempt, now: datetime) -> bool:
    """Seen idle by the watch, lately, and with its device."""
    seen_at, since = attempt.idle_seen_at, attempt.idle_since
    is_fresh = seen_at is not None and (now - seen_at).total_seconds() <= IDLE_MARK_LASTS_S
    has_device = attempt.swap_state == SwapState.RUNNING and not children(attempt, "loans_given")
    return is_fresh and since is not None and has_device


def _spells(owners: Iterable[int]) -> Mapping[int, Sequence[Spell]]:
    """Latest idle spells of these people."""
    newest = Window(RowNumber(), partition_by=F("owner"), order_by=F("ended_at").desc())
    found: dict[int, list[Spell]] = defaultdict(list)
    rows = (
        IdleSpell.objects.filter(owner__in=set(owners))
        .annotate(rank=newest)
        .filter(rank__lte=MAX_SPELLS)
        .values_list("owner", "started_at", "ended_at", "is_cut_off")
    )
    for owner, started_at, ended_at, is_cut_off in rows:
        found[owner].append(Spell((ended_at - started_at).total_seconds(), is_cut_off))
    return found


def _idle(
    row: Workload, attempt: Attempt, spells: Mapping[int, Sequence[Spell]], now: datetime
) -> core.Idleness:
    """One session's; while it lends, its agent watches it, and wakes it without asking."""
    since: datetime | None = None
    left_s: float | None = None
    lent = [loan for loan in children(attempt, "loans_given") if loan.is_wanted]
    is_asked = attempt.lend_asked_at is not None
    if lent:
        since = lent[0].started_at
    elif _is_resting(attempt, now):
        since = attempt.idle_since
        asked_back_at = getattr(attempt, "asked_back_at", None)
        if since is not None and asked_back_at is not None:
            # Whoever presses the button wants it, and an agent that refuses knows better than
            # these marks: the window begins anew.
            since = max(since, asked_back_at)
    if since is not None and not lent:
        past = spells.get(row.owner_id, ())
        idle_for_s = max(0.0, (now - since).total_seconds())
        left_s = ASKED_LEFT_S if is_asked else expected_left_s(past, idle_for_s)
    parts = children(attempt.allocation, "devices")
    held_mib = sum(part.memory_mib for part in parts)
    used_mib = -(-max(attempt.bytes_on_device, attempt.bytes_on_host) // MIB)
    return core.Idleness(
        since_s=_seconds(since),
        window_s=0.0 if is_asked else float(row.project.lending_window_s),
        expected_left_s=left_s,
        memory_mib=used_mib or held_mib,
        obstacle=obstacle_of(row, attempt),
        woke_s=_seconds(attempt.woke_at),
    )


def obstacle_of(row: Workload, attempt: Attempt) -> str:
    """Why a session's device may not be lent, whatever its use: a code; empty if it may."""
    node = attempt.allocation.node
    if not row.project.lends_idle:
        return LENDING_OFF
    if node.node_type is None or not node.node_type.swap_enabled:
        return "switched_off"
    if not node.swap_mechanism:
        return "no_mechanism"
    return attempt.swap_obstacle


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


def is_kept_up(loan: Loan) -> bool:
    """Whether an open loan goes on: its lender has not been woken, nobody has ended it."""
    return loan.is_wanted and loan.state != LoanState.WAKING


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
        not_before_s=_seconds(row.not_before),
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


def pending_replicas(row: Workload, count: int) -> tuple[core.Replica, ...]:
    """A workload's first replicas, none of which has a place."""
    return tuple(
        core.Replica(replica_id(row, index), core.ReplicaState.PENDING) for index in range(count)
    )


def _replicas(row: Workload, open_attempts: Iterable[Attempt]) -> Iterable[core.Replica]:
    """Its replicas as `unfinished` left them.

    While a workload leaves as a whole, a replica that has left does not start again. Once one has
    succeeded, no more are started than the minimum lacks (`core.replicas`).
    """
    attempts = {attempt.replica: attempt for attempt in open_attempts}
    held = holds_of(row)
    succeeded = set(row.succeeded_replicas)
    is_leaving = row.phase in LEAVING_PHASES or (
        bool(attempts) and all(attempt.is_leaving for attempt in attempts.values())
    )
    num_missing = row.min_replicas - len(attempts) - len(succeeded - attempts.keys())
    for index in range(row.max_replicas):
        name = replica_id(row, index)
        attempt = attempts.get(index)
        if attempt is not None:
            yield _placed(name, attempt, held.get(index), attempts)
        elif index in succeeded:
            yield core.Replica(name, core.ReplicaState.SUCCEEDED)
        elif is_leaving:
            yield core.Replica(name, core.ReplicaState.RELEASING, held=held.get(index))
        elif not succeeded or num_missing > 0:
            num_missing -= 1
            yield core.Replica(name, core.ReplicaState.PENDING, held=held.get(index))


def _placed(
    name: core.ReplicaId,
    attempt: Attempt,
    held: core.Placement | None,
    others: Mapping[int, Attempt],
) -> core.Replica:
    # Of those placed together the last in number leaves first, the leader last of all.
    starts = others.values() if attempt.replica == LEADER else (attempt,)
    return core.Replica(
        id=name,
        state=_state_of(attempt),
        placement=_placement(attempt),
        held=held if attempt.is_leaving else None,
        started_s=min(each.placed_at.timestamp() for each in starts)
        if len(others) > 1
        else (attempt.started_at or attempt.placed_at).timestamp(),
    )


def _state_of(attempt: Attempt) -> core.ReplicaState:
    """Of a borrower: on loan while a loan goes on; in memory once a lender was woken, whether or
    not its node has already said so; on loan from nobody where its lender has ended or refused, or
    was woken before the borrower had begun. What is in memory when a loan is refused waits there
    for the next.
    """
    if attempt.is_leaving:
        return core.ReplicaState.RELEASING
    if not attempt.allocation.is_lent:
        return core.ReplicaState.RUNNING
    if any(is_kept_up(loan) for loan in children(attempt, "loans_taken")):
        return core.ReplicaState.LENT
    last_state = getattr(attempt, "last_loan_state", None)
    last_end = getattr(attempt, "last_loan_end", "")
    is_refused = last_state == LoanState.REFUSED and attempt.swap_state not in IN_MEMORY
    is_nobodys = last_state is None or is_refused or last_end == "lender_ended"
    is_left_alone = is_nobodys or attempt.started_at is None
    return core.ReplicaState.LENT if is_left_alone else core.ReplicaState.PARKED


def all_parked(attempts: Iterable[Attempt]) -> bool:
    """Whether all of a borrower wait in memory.

    Args:
        attempts: A workload's open ones, as the snapshot reads them.
    """
    states = {_state_of(attempt) for attempt in attempts}
    return states == {core.ReplicaState.PARKED}


def _placement(attempt: Attempt) -> core.Placement:
    devices = children(attempt.allocation, "devices")
    return core.Placement(
        node=core.NodeName(attempt.allocation.node.name),
        devices=tuple(part.device.index for part in devices),
        milli_per_device=devices[0].gpu_milli if devices else 0,
    )


def holds_of(row: Workload) -> Mapping[int, core.Placement]:
    """The capacity kept for a workload's replicas while others leave it."""
    return {
        hold.replica: core.Placement(
            node=core.NodeName(hold.node.name),
            devices=tuple(hold.device_indices),
            milli_per_device=hold.milli_per_device,
        )
        for hold in children(row, "holds")
    }


def _seconds(at: datetime | None) -> float | None:
    return at.timestamp() if at is not None else None
