"""Record what an agent reports: nodes and devices as they are, attempts as they go.

Reports are level-triggered, so each may be repeated, come late, or be the first after a long
silence; recording one twice changes nothing. The message classes are the agent's
(`agent.protocol`), known here by their shape only.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from projects.models import DEFAULT_LABEL_KEY, SLUG_PATTERN, NodeType
from scheduling.core import lifecycle
from scheduling.live import NODES_TOPIC, announce, workload_topic
from scheduling.models import (
    ACTIVE_PHASES,
    Attempt,
    AttemptGoal,
    AttemptPhase,
    Checkpoint,
    Device,
    Node,
    NodeState,
    Phase,
    Workload,
    Zone,
)
from scheduling.services import claims, uptime
from scheduling.services.claims import GIVEN_UP_AFTER_S, LOST_AFTER_S
from scheduling.services.events import announce_workload, record_event, wake_planner
from scheduling.services.lending import copy_swap_facts, note_spell, swap_facts
from scheduling.services.replicas import (
    details_of,
    end,
    event_of,
    is_whole,
    num_alive,
    open_attempts_of,
)
from scheduling.services.transitions import advance, advance_by, lock

if TYPE_CHECKING:
    from scheduling.agent import protocol


def record_nodes(
    zone: Zone, report: protocol.Report, agent: claims.Identity = claims.UNTOLD
) -> list[str]:
    """Register the zone's nodes and devices, and note that its agent is there.

    Returns:
        Names of nodes that another zone's agent holds; of these nothing is recorded.

    Raises:
        RivalError: another agent holds the zone.
    """
    now = timezone.now()
    claims.claim_zone(zone, agent, now)
    changed = False
    with transaction.atomic():
        Zone.objects.filter(pk=zone.pk).update(
            relay_url=report.relay_url,
            relay_secret=report.relay_secret,
            last_report_at=now,
            clock_skew_s=report.sent_at - now.timestamp(),
            is_stopping=report.is_stopping,
        )
        changed = zone.is_stopping != report.is_stopping
        known = {
            node.name: node
            for node in Node.objects.select_related("zone", "node_type")
            .prefetch_related("devices")
            .filter(name__in=[item.name for item in report.nodes])
        }
        refused = claims.claimed_elsewhere(zone, known.values(), agent.host, now)
        nodes = [item for item in report.nodes if item.name not in refused]
        names = [item.name for item in nodes]
        before = {name: known[name].last_report_at if name in known else None for name in names}
        types = list(NodeType.objects.all())
        for seen in nodes:
            changed |= _record_node(zone, seen, known.get(seen.name), types)
        Node.objects.filter(name__in=names).update(last_report_at=now)
        uptime.seen(before, now, bridged_s=GIVEN_UP_AFTER_S)
        if changed:
            _record_capacity()
            wake_planner("nodes")
            announce(NODES_TOPIC)
    return sorted(refused)


def _record_node(
    zone: Zone, seen: protocol.NodeReport, node: Node | None, types: list[NodeType]
) -> bool:
    """One node; returns whether anything that matters to planning or to pages changed.

    Cost: no query for a node that is as it was.
    """
    node_type = _type_of(seen, types)
    values = {
        "zone": zone,
        "node_type": node_type,
        "labels": dict(seen.labels),
        "cpu_milli": seen.cpu_milli,
        "memory_mib": seen.memory_mib,
        "is_simulated": seen.is_simulated,
        "is_isolated": seen.is_isolated,
        "isolation_note": seen.isolation_note[:500],
        "fraction_mechanism": seen.fraction_mechanism[:200],
        "fraction_note": seen.fraction_note[:40],
        "shares_gpu_time": seen.shares_gpu_time,
        "swap_mechanism": seen.swap_mechanism[:40],
        "swap_note": seen.swap_note[:40],
        "driver": seen.driver[:40],
    }
    if node is None:
        node = Node.objects.create(name=seen.name, **values)
        changed = True
    else:
        changed = any(getattr(node, name) != value for name, value in values.items())
        if node.state == NodeState.LOST:
            values["state"] = NodeState.CORDONED if node.cordon else NodeState.READY
            changed = True
        if changed:
            Node.objects.filter(pk=node.pk).update(**values)
    return _record_devices(node, seen.devices) or changed


def _type_of(seen: protocol.NodeReport, types: list[NodeType]) -> NodeType | None:
    """The node type whose selector its labels match; an unknown kind of GPU becomes a new one,
    appended to `types`.

    A new type has quota 0 in every project until an admin gives some: all of it is borrowed.
    """
    for kind in types:
        if seen.labels.get(kind.label_key) == kind.label_value:
            return kind
    name = seen.labels.get(DEFAULT_LABEL_KEY, "")
    if not seen.devices or not re.fullmatch(SLUG_PATTERN, name):
        return None
    model = seen.devices[0].model
    created = NodeType.objects.create(
        name=name,
        title=model.removeprefix("NVIDIA ").removeprefix("Tesla "),
        label_key=DEFAULT_LABEL_KEY,
        label_value=name,
        gpu_model=model,
        gpu_memory_mib=min(device.memory_mib for device in seen.devices),
    )
    types.append(created)
    return created


def _record_devices(node: Node, seen: Sequence[protocol.DeviceReport]) -> bool:
    known = {device.uuid: device for device in node.devices.all()}
    changed = False
    for report in seen:
        values = {
            "node": node,
            "index": report.index,
            "model": report.model,
            "memory_mib": report.memory_mib,
            "is_healthy": report.is_healthy,
        }
        device = known.pop(report.uuid, None)
        if device is None or any(getattr(device, name) != value for name, value in values.items()):
            Device.objects.update_or_create(uuid=report.uuid, defaults=values)
            changed = True
    for gone in known.values():
        changed |= gone.is_healthy
        Device.objects.filter(pk=gone.pk).update(is_healthy=False)
    return changed


def _record_capacity() -> None:
    """Count what quotas may promise: each node type's devices, their node up or not."""
    for node_type in NodeType.objects.annotate(
        num_devices=Count("nodes__devices", filter=Q(nodes__devices__isnull=False))
    ):
        NodeType.objects.filter(pk=node_type.pk).update(
            capacity_gpu_milli=1000 * node_type.num_devices
        )


def record_attempts(zone: Zone, reports: Sequence[protocol.AttemptReport]) -> list[str]:
    """Bring each attempt up to what is reported.

    Returns:
        Ids of attempts recorded as ended (or unknown here): the agent may drop its record of them.
    """
    settled: list[str] = []
    known = {
        str(row.pk): row
        for row in Attempt.objects.filter(
            pk__in=[_uuid(item.attempt_id) for item in reports], node__zone=zone
        ).select_related("workload")
    }
    kept = _kept_checkpoints(known.values(), reports)
    for report in reports:
        attempt = known.get(report.attempt_id)
        if attempt is None:
            # Not ours (another database, a restored backup): once it has ended nobody needs it.
            if report.phase in ("exited", "refused"):
                settled.append(report.attempt_id)
            continue
        if _is_as_recorded(attempt, report, kept[attempt.workload_id]):
            continue
        if attempt.phase != AttemptPhase.ENDED:
            _record_attempt(attempt, report)
        elif report.checkpoints:
            _record_checkpoints(attempt, report.checkpoints)
        if report.phase in ("exited", "refused"):
            settled.append(report.attempt_id)
    return settled


def _kept_checkpoints(
    attempts: Iterable[Attempt], reports: Sequence[protocol.AttemptReport]
) -> Mapping[uuid.UUID, set[str]]:
    """Keys of the checkpoints that are there, by workload, of those that report any."""
    kept: defaultdict[uuid.UUID, set[str]] = defaultdict(set)
    saving = {item.attempt_id for item in reports if item.checkpoints}
    workloads = {attempt.workload_id for attempt in attempts if str(attempt.pk) in saving}
    if workloads:
        rows = Checkpoint.objects.filter(workload__in=workloads, is_kept=True)
        for workload, key in rows.values_list("workload_id", "key"):
            kept[workload].add(key)
    return kept


def _is_as_recorded(
    attempt: Attempt, report: protocol.AttemptReport, kept: Collection[str]
) -> bool:
    """Whether the report of an attempt that goes on says nothing new, so that it costs no query.

    Read without a lock: what changes meanwhile is found by the next report.
    """
    if report.phase in ("exited", "refused") or attempt.phase != report.phase:
        return False
    if report.checkpoints and {item.key for item in report.checkpoints} != kept:
        return False
    workload = attempt.workload
    # A lost workload is found again, one that starts becomes ready.
    if workload.phase == Phase.LOST or (workload.phase == Phase.STARTING and attempt.is_ready):
        return False
    before = _facts(attempt)
    _copy_facts(attempt, report)
    return _facts(attempt) == before


def _facts(attempt: Attempt) -> tuple[object, ...]:
    """All that `_copy_facts` may change."""
    return (
        *_visible(attempt),
        attempt.peak_memory_mib,
        attempt.memory_limit_mib,
        attempt.cpu_limit_milli,
        *swap_facts(attempt),
    )


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        return uuid.UUID(int=0)


@transaction.atomic
def _record_attempt(attempt: Attempt, report: protocol.AttemptReport) -> None:
    workload = lock(attempt.workload_id)
    attempt = Attempt.objects.select_for_update(no_key=True, of=("self",)).get(pk=attempt.pk)
    if attempt.phase == AttemptPhase.ENDED:
        return
    before, idle_since = _visible(attempt), attempt.idle_since
    _record_checkpoints(attempt, report.checkpoints)
    was_around = bool(attempt.around_share)
    _copy_facts(attempt, report)
    if attempt.around_share and not was_around:
        now, details = timezone.now(), attempt.around_share
        record_event(workload, "around_share", at=now, attempt=attempt, details=details)
    if attempt.idle_since is None:
        note_spell(attempt, idle_since, timezone.now())
    if workload.current_id == attempt.pk:
        workload.current = attempt
    if report.phase in ("exited", "refused"):
        _record_end(workload, attempt, report)
        return
    attempt.save()
    if workload.phase == Phase.LOST and num_alive(workload) >= workload.min_replicas:
        workload.reason = workload.reason.get("before", workload.reason)
        code = "node_back" if workload.max_replicas == 1 else "whole_again"
        advance_by(attempt, workload, lifecycle.NodeBack(), code=code, details={})
    elif workload.phase == Phase.STARTING and attempt.is_ready and is_whole(workload):
        advance(workload, lifecycle.Ready(), code="ready")
    elif _visible(attempt) != before:
        announce_workload(workload)


def _visible(attempt: Attempt) -> tuple[object, ...]:
    return (
        attempt.phase,
        attempt.is_ready,
        attempt.started_at,
        attempt.error,
        attempt.swap_state,
        attempt.swap_obstacle,
        attempt.idle_since is None,
        bool(attempt.around_share),
    )


def _copy_facts(attempt: Attempt, report: protocol.AttemptReport) -> None:
    """What is seen, without consequences."""
    if report.phase not in ("exited", "refused"):
        attempt.phase = AttemptPhase(report.phase)
    attempt.started_at = attempt.started_at or _time(report.started_at)
    attempt.peak_memory_mib = report.peak_memory_mib or attempt.peak_memory_mib
    attempt.memory_limit_mib = report.memory_limit_mib or attempt.memory_limit_mib
    attempt.cpu_limit_milli = report.cpu_limit_milli or attempt.cpu_limit_milli
    attempt.error = report.error or attempt.error
    # A training is ready when its process runs; a session when its page answers.
    is_ready = report.is_ready if attempt.workload.is_session else report.phase == "running"
    if is_ready and not attempt.is_ready:
        attempt.ready_at = timezone.now()
    attempt.is_ready = attempt.is_ready or is_ready
    if report.around_share is None:
        attempt.around_share = {}
    elif not attempt.around_share:
        attempt.around_share = msgspec.to_builtins(report.around_share)
    copy_swap_facts(attempt, report, timezone.now())


def _time(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None else None


def _record_end(workload: Workload, attempt: Attempt, report: protocol.AttemptReport) -> None:
    """The attempt is over: keep what is known of its end and let the lifecycle say what follows."""
    now = timezone.now()
    attempt.phase = AttemptPhase.ENDED
    attempt.ended_at = max(_time(report.ended_at) or now, attempt.placed_at)
    attempt.exit_code = report.exit_code
    attempt.exit_cause = report.exit_cause or ("refused" if report.phase == "refused" else "own")
    attempt.is_retryable = report.is_retryable
    attempt.last_lines = [line.replace("\x00", "\ufffd") for line in report.last_lines[-20:]]
    attempt.lost_progress_s = _lost_progress_s(attempt)
    attempt.save()
    _end(workload, attempt, now)


def _end(workload: Workload, attempt: Attempt, now: datetime) -> None:
    """What follows from an end that is recorded."""
    event, details = event_of(attempt), details_of(attempt)
    step, about = end(workload, attempt, event, now, details)
    if step is None:
        return
    stop_wanted = attempt.goal == AttemptGoal.STOP
    is_retried = step.wait_cause == "failed" or step.phase is lifecycle.Phase.CHECKPOINTING
    if step.phase is lifecycle.Phase.FAILED or (is_retried and not stop_wanted):
        _explain_failure(workload, about, step)


def _explain_failure(workload: Workload, attempt: Attempt, step: lifecycle.Transition) -> None:
    """Why it failed, with numbers, until the planner has something newer to say."""
    code = "out_of_memory" if attempt.exit_cause == "out_of_memory" else "start_failed"
    if attempt.exit_code is not None and code != "out_of_memory":
        code = "exited"
    workload.reason = {
        "code": code,
        "message": attempt.error or f"ended with exit code {attempt.exit_code}",
        "details": {
            "exit_code": attempt.exit_code,
            "attempts": step.num_failures,
            "error": attempt.error,
            "last_error": attempt.error or "\n".join(attempt.last_lines[-3:]),
            "replica": attempt.replica if workload.max_replicas > 1 else None,
            "limit_mib": attempt.memory_limit_mib,
            "peak_mib": attempt.peak_memory_mib,
            "until": workload.not_before.isoformat() if workload.not_before else None,
        },
        "offers": [],
        "per_node_type": [],
    }
    workload.reason_at = timezone.now()
    workload.save(update_fields=["reason", "reason_at"])


def _lost_progress_s(attempt: Attempt) -> float | None:
    """Seconds from its last checkpoint (or start) to its end; None where it ended by itself."""
    if attempt.exit_cause == "own" or attempt.started_at is None or attempt.ended_at is None:
        return None
    last = Checkpoint.objects.filter(workload=attempt.workload_id).first()
    since = max(last.saved_at, attempt.started_at) if last else attempt.started_at
    return max((attempt.ended_at - since).total_seconds(), 0.0)


def _record_checkpoints(attempt: Attempt, reports: Sequence[protocol.CheckpointReport]) -> None:
    """The store's complete checkpoints of this attempt's workload; what expired there is marked."""
    known = {row.key: row for row in Checkpoint.objects.filter(workload=attempt.workload_id)}
    fresh = [item for item in reports if item.key not in known]
    for item in fresh:
        saved_at = _time(item.saved_at) or timezone.now()
        Checkpoint.objects.create(
            workload_id=attempt.workload_id,
            attempt=attempt,
            key=item.key,
            step=item.step,
            saved_at=saved_at,
            size_bytes=item.size_bytes,
            sha256=item.sha256,
        )
        record_event(
            attempt.workload,
            "checkpointed",
            at=timezone.now(),
            attempt=attempt,
            details={"step": item.step, "size_bytes": item.size_bytes, "key": item.key},
        )
    kept = {item.key for item in reports}
    gone = [row.pk for key, row in known.items() if row.is_kept and key not in kept]
    if reports and gone:
        Checkpoint.objects.filter(pk__in=gone).update(is_kept=False)
    if fresh:
        if attempt.goal == AttemptGoal.CHECKPOINT:
            attempt.goal = AttemptGoal.RUN
            attempt.save(update_fields=["goal"])
        announce(workload_topic(attempt.workload_id))


def watch_nodes() -> int:
    """Mark silent zones' nodes lost, and give up trainings that no lease can keep alive any more.

    Returns:
        How many workloads changed state.
    """
    now = timezone.now()
    silent = Node.objects.filter(last_report_at__lt=now - timedelta(seconds=LOST_AFTER_S))
    newly_silent = list(silent.exclude(state=NodeState.LOST))
    if newly_silent:
        with transaction.atomic():
            silent.filter(pk__in=[node.pk for node in newly_silent]).update(state=NodeState.LOST)
            uptime.lost(newly_silent)
        wake_planner("node_lost")
        announce(NODES_TOPIC)
    changed = 0
    lost = Attempt.objects.open().filter(node__state=NodeState.LOST)
    rows = Workload.objects.filter(phase__in=ACTIVE_PHASES, attempts__in=lost).distinct()
    for pk in list(rows.values_list("pk", flat=True)):
        changed += _lose(pk, now)
    return changed


@transaction.atomic
def _lose(pk: uuid.UUID, now: datetime) -> int:
    workload = lock(pk)
    lost = [
        attempt
        for attempt in open_attempts_of(workload)
        if attempt.node.state == NodeState.LOST and attempt.node.last_report_at is not None
    ]
    if workload.phase not in ACTIVE_PHASES or not lost:
        return 0
    if workload.phase != Phase.LOST and num_alive(workload) < workload.min_replicas:
        node = lost[0].node
        workload.reason = {
            "code": "node_lost",
            "message": f"{node.name} no longer reports",
            "details": _silence_of(node),
            "before": workload.reason,
        }
        silence = _silence_of(node)
        advance_by(lost[0], workload, lifecycle.NodeLost(), code="node_lost", details=silence)
        return 1
    given_up = [attempt for attempt in lost if _is_given_up(workload, attempt, now)]
    for attempt in given_up:
        attempt.phase = AttemptPhase.ENDED
        attempt.ended_at = now
        attempt.exit_cause = "node_lost"
        attempt.save()
        _end(workload, attempt, now)
    return int(bool(given_up))


def _silence_of(node: Node) -> dict[str, object]:
    last_report_at = node.last_report_at
    return {
        "node": node.name,
        "last_report_at": last_report_at.isoformat() if last_report_at else None,
    }


def _is_given_up(workload: Workload, attempt: Attempt, now: datetime) -> bool:
    """Whether a training cannot be alive there any more; a session is left alone until stopped."""
    if workload.is_session and attempt.goal != AttemptGoal.STOP:
        return False
    last_report_at = attempt.node.last_report_at
    return last_report_at is None or last_report_at <= now - timedelta(seconds=GIVEN_UP_AFTER_S)
