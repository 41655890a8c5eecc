"""Writing a captured cycle as a scenario file, so that a decision can be sent on and replayed."""

from __future__ import annotations

from collections.abc import Mapping

from scheduling.core.scenario.reading import FORMAT
from scheduling.core.types import (
    CPU,
    MEMORY,
    UNCOUNTED,
    WHOLE_GPU_MILLI,
    Idleness,
    Node,
    Placement,
    Policy,
    Project,
    Replica,
    ResourceKey,
    Share,
    Snapshot,
    Workload,
)

Json = dict[str, object]


def export_scenario(
    snapshot: Snapshot, policy: Policy, now_s: float, *, scenario_id: str, about: str = ""
) -> Json:
    """The file of a cycle: `load_scenario` gives back a snapshot with the same plan."""
    file: Json = {"format": FORMAT, "id": scenario_id}
    if about:
        file["about"] = about
    file["now_s"] = now_s
    file["policy"] = _policy(policy)
    file["nodes"] = [_node(node) for node in snapshot.nodes]
    file["projects"] = [_project(project) for project in snapshot.projects]
    file["workloads"] = [_workload(workload) for workload in snapshot.workloads]
    if snapshot.loans:
        file["loans"] = [
            {"lender": loan.lender, "borrower": loan.borrower, "since_s": loan.since_s}
            for loan in snapshot.loans
        ]
    return file


def _policy(policy: Policy) -> Json:
    return {
        "min_runtime_s": dict(policy.min_runtime_s),
        "placement": dict(policy.placement),
        "topology": list(policy.topology),
        "max_victims": policy.max_victims,
        "preemption_delay_s": policy.preemption_delay_s,
        "gang_grace_s": policy.gang_grace_s,
        "aging_period_s": policy.aging_period_s,
        "aging_bound": policy.aging_bound,
        "consolidation_max_moves": policy.consolidation_max_moves,
        "consolidation_wait_s": policy.consolidation_wait_s,
        "consolidation_margin": policy.consolidation_margin,
        "hold_deadline_s": policy.hold_deadline_s,
        "cordon_failures": policy.cordon_failures,
        "cordon_window_s": policy.cordon_window_s,
        "history_factor_milli": policy.history_factor_milli,
        "history_window_s": policy.history_window_s,
        "history_half_life_s": policy.history_half_life_s,
        "lends": policy.lends,
        "min_resident_s": policy.min_resident_s,
        "lending_margin_s": policy.lending_margin_s,
        "swap_mib_per_s": dict(policy.swap_mib_per_s),
    }


def _node(node: Node) -> Json:
    entry: Json = {
        "name": node.name,
        "gpus": node.num_devices,
        "gpu_memory_mib": node.gpu_memory_mib,
        "cpu_milli": node.cpu_milli,
        "memory_mib": node.memory_mib,
        "gpu_key": node.gpu_key,
        "max_replicas": node.max_replicas,
        "node_type": node.node_type,
        "ready": node.is_ready,
    }
    if node.swap_host_mib is not None:
        entry["swap_host_mib"] = node.swap_host_mib
    if node.labels:
        entry["labels"] = dict(node.labels)
    if node.failed_starts:
        entry["failed_starts"] = [
            {"workload": failed.workload, "at_s": failed.at_s} for failed in node.failed_starts
        ]
    return entry


def _project(project: Project) -> Json:
    gpu = ResourceKey("gpu")
    by_key = {key: share for key, share in project.shares.items() if key not in (CPU, MEMORY)}
    entry: Json = {
        "name": project.id,
        "parent": project.parent,
        "priority": project.priority,
        "created": project.created,
        "gpu_milli": _share(by_key.get(gpu, Share())),
        "cpu_milli": _share(project.shares.get(CPU, UNCOUNTED)),
        "memory_mib": _share(project.shares.get(MEMORY, UNCOUNTED)),
    }
    if project.past_use_ppm:
        entry["past_use_ppm"] = dict(project.past_use_ppm)
    if set(by_key) != {gpu}:
        entry["gpu_milli_by_key"] = {key: _share(share) for key, share in by_key.items()}
    return entry


def _share(share: Share) -> Json:
    return {"quota": share.quota, "limit": share.limit, "weight": share.weight}


def _workload(workload: Workload) -> Json:
    gpu = workload.gpu
    milli, count = gpu.milli_per_device, gpu.num_devices
    if count == 0:
        milli, count = 0, 1
    elif milli == WHOLE_GPU_MILLI:
        milli, count = WHOLE_GPU_MILLI * count, 1
    entry: Json = {
        "name": workload.id,
        "project": workload.project,
        "kind": workload.kind.value,
        "priority": workload.priority,
        "preemptible": workload.is_preemptible,
        "submitted": workload.submitted,
        "gpu_milli": milli,
        "gpu_memory_mib": gpu.memory_mib_per_device,
        "num_devices": count,
        "cpu_milli": workload.cpu_milli,
        "memory_mib": workload.memory_mib,
        "min_replicas": workload.min_replicas,
        "node_types": None if workload.node_types is None else list(workload.node_types),
        "replicas": [_replica(replica) for replica in workload.replicas],
    }
    if workload.idle is not None:
        entry["idle"] = _idleness(workload.idle)
    entry |= _history(workload)
    return entry


def _history(workload: Workload) -> Mapping[str, object]:
    """The optional fields: only what differs from a fresh workload."""
    numbers = {
        "not_before_s": workload.not_before_s,
        "waiting_since_s": workload.waiting_since_s,
        "expected_end_s": workload.expected_end_s,
        "early_end_s": workload.early_end_s,
        "expected_run_s": workload.expected_run_s,
        "last_exit_code": workload.last_exit_code,
        "incomplete_since_s": workload.incomplete_since_s,
    }
    entry: Json = {name: value for name, value in numbers.items() if value is not None}
    if workload.failures:
        entry["failures"] = workload.failures
    if workload.expected_basis:
        entry["expected_basis"] = workload.expected_basis
    if workload.last_error:
        entry["last_error"] = workload.last_error
    if workload.avoided_nodes:
        entry["avoided_nodes"] = sorted(workload.avoided_nodes)
    if workload.required_labels:
        entry["required_labels"] = dict(workload.required_labels)
    if workload.eviction_cost is not None:
        entry["eviction_cost"] = {
            "save_s": workload.eviction_cost.save_s,
            "restore_s": workload.eviction_cost.restore_s,
            "lost_progress_s": workload.eviction_cost.lost_progress_s,
        }
    return entry


def _idleness(idle: Idleness) -> Json:
    return {
        "since_s": idle.since_s,
        "window_s": idle.window_s,
        "expected_left_s": idle.expected_left_s,
        "memory_mib": idle.memory_mib,
        "obstacle": idle.obstacle,
        "woke_s": idle.woke_s,
    }


def _replica(replica: Replica) -> Json:
    entry: Json = {"name": replica.id, "state": replica.state.value}
    if replica.placement is not None:
        entry |= _place(replica.placement)
    if replica.held is not None:
        entry["held"] = _place(replica.held)
    if replica.started_s:
        entry["started_s"] = replica.started_s
    return entry


def _place(placement: Placement) -> Json:
    place: Json = {"node": placement.node, "devices": list(placement.devices)}
    if placement.devices:
        place["milli_per_device"] = placement.milli_per_device
    return place
