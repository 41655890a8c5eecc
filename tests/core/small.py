"""Small clusters in a line each, for tests that look at more than outcomes."""

from __future__ import annotations

import json
from typing import Any

from scheduling.core.cycle import plan
from scheduling.core.decisions import Evict, Hold, Reason, Start
from scheduling.core.types import (
    CPU,
    MEMORY,
    UNCOUNTED,
    GpuRequest,
    Kind,
    Node,
    NodeName,
    NodeTypeName,
    Placement,
    Policy,
    Project,
    ProjectId,
    Replica,
    ReplicaId,
    ReplicaState,
    ResourceKey,
    Share,
    Snapshot,
    Workload,
    WorkloadId,
)

GPU = ResourceKey("gpu")


# `Any`: passed on to the dataclass, whose types mypy checks where it is read.
def node(name: str, gpus: int = 4, **more: Any) -> Node:
    values: dict[str, Any] = {
        "gpu_memory_mib": 16384 if gpus else 0,
        "cpu_milli": 64_000,
        "memory_mib": 262_144,
        "gpu_key": GPU,
        "node_type": NodeTypeName("t4"),
    }
    return Node(name=NodeName(name), num_devices=gpus, **{**values, **more})


def project(name: str, quota: int | None = 0, **more: Any) -> Project:
    share = Share(quota, more.pop("limit", None), more.pop("weight", 1))
    shares = {CPU: UNCOUNTED, MEMORY: UNCOUNTED, GPU: share, **more.pop("shares", {})}
    parent = more.pop("parent", None)
    return Project(
        ProjectId(name),
        None if parent is None else ProjectId(parent),
        more.pop("priority", 100),
        more.pop("created", 0),
        shares,
        **more,
    )


def training(name: str, owner: str, gpu_milli: int = 1000, *places: str, **more: Any) -> Workload:
    """Pending, or running where `places` say: `node:0,1`, one per replica."""
    whole = gpu_milli >= 1000
    gpu = GpuRequest(gpu_milli // 1000, 1000) if whole else GpuRequest(1, gpu_milli)
    if gpu_milli == 0:
        gpu = GpuRequest()
    replicas = tuple(
        Replica(ReplicaId(f"{name}/{i}"), ReplicaState.RUNNING, _place(place, min(gpu_milli, 1000)))
        for i, place in enumerate(places)
    )
    pending = more.pop("pending", 0 if places else more.get("min_replicas", 1))
    replicas += tuple(
        Replica(ReplicaId(f"{name}/{len(replicas) + i}"), ReplicaState.PENDING)
        for i in range(pending)
    )
    values: dict[str, Any] = {
        "kind": Kind.TRAINING,
        "priority": 50,
        "is_preemptible": True,
        "submitted": 0.0,
        "gpu": gpu,
        "cpu_milli": 1000,
        "memory_mib": 1024,
        "min_replicas": 1,
        "replicas": replicas,
    }
    return Workload(id=WorkloadId(name), project=ProjectId(owner), **{**values, **more})


def session(name: str, owner: str, gpu_milli: int = 1000, *places: str, **more: Any) -> Workload:
    values = {"kind": Kind.INTERACTIVE, "priority": 100, "is_preemptible": False}
    return training(name, owner, gpu_milli, *places, **{**values, **more})


def _place(text: str, milli: int) -> Placement:
    name, _, devices = text.partition(":")
    numbers = tuple(int(number) for number in devices.split(",")) if devices else ()
    return Placement(NodeName(name), numbers, milli if numbers else 0)


def snapshot(*parts: Node | Project | Workload) -> Snapshot:
    return Snapshot(
        tuple(part for part in parts if isinstance(part, Node)),
        tuple(part for part in parts if isinstance(part, Project)),
        tuple(part for part in parts if isinstance(part, Workload)),
    )


def answer(
    name: str,
    *parts: Node | Project | Workload,
    policy: Policy | None = None,
    now_s: float = 0.0,
) -> Start | Hold:
    """What the planner says about one workload."""
    decided = plan(snapshot(*parts), policy or Policy(), now_s)
    return next(d for d in decided.decisions if d.workload == name and isinstance(d, Start | Hold))


def eviction(name: str, *parts: Node | Project | Workload, policy: Policy | None = None) -> Evict:
    """Why the planner stops one workload."""
    decided = plan(snapshot(*parts), policy or Policy(), 0.0)
    return next(d for d in decided.decisions if d.workload == name and isinstance(d, Evict))


def check(reason: Reason, code: str, *words: str) -> None:
    """A reason has this code and says these words, and can be sent."""
    assert reason.code == code
    for word in words:
        assert word in reason.message, reason.message
    json.dumps([dict(reason.details), list(reason.offers), list(reason.per_node_type)])
