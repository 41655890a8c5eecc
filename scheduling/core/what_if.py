"""What a person who waits could ask for instead, and have at once.

A few cheap questions to the planner itself: the waiting workload is taken out, put in again with
another request, and planned. Nothing is guessed.
"""

from __future__ import annotations

from dataclasses import replace

from scheduling.core.cycle import would_start
from scheduling.core.decisions import Start
from scheduling.core.types import (
    WHOLE_GPU_MILLI,
    GpuRequest,
    NodeTypeName,
    Policy,
    Replica,
    ReplicaState,
    Snapshot,
    Workload,
)

FRACTIONS_MILLI = (500, 333, 250, 125)
"""Parts of a GPU that people ask for."""


def starts_as(snapshot: Snapshot, policy: Policy, now_s: float, variant: Workload) -> bool:
    """Whether a waiting workload would start in the next cycle if it asked like `variant` (the same
    id, with something changed), without anybody giving way.
    """
    others = tuple(workload for workload in snapshot.workloads if workload.id != variant.id)
    decision = would_start(replace(snapshot, workloads=others), policy, now_s, variant)
    return isinstance(decision, Start) and not decision.victims


def smaller_requests(gpu: GpuRequest) -> tuple[GpuRequest, ...]:
    """Less than is asked for, largest first: half as many GPUs and again half, then parts of one.

    Requests by memory have no round parts; there are none.
    """
    milli = gpu.milli_per_device
    if milli is None or not gpu.num_devices:
        return ()
    counts: list[int] = []
    count = gpu.num_devices // 2
    while count:
        counts.append(count)
        count //= 2
    fewer = [GpuRequest(count, milli) for count in counts]
    if milli == WHOLE_GPU_MILLI or gpu.num_devices == 1:
        fewer += [GpuRequest(1, part) for part in FRACTIONS_MILLI if part < milli]
    return tuple(fewer)


def with_request(workload: Workload, gpu: GpuRequest) -> Workload:
    """The same workload, waiting for another request."""
    return replace(workload, gpu=gpu, replicas=_waiting(workload))


def on_node_type(workload: Workload, node_type: NodeTypeName) -> Workload:
    """The same workload, waiting for another node type."""
    return replace(workload, node_types=(node_type,), replicas=_waiting(workload))


def _waiting(workload: Workload) -> tuple[Replica, ...]:
    """Its replicas without the places kept for them, which are of the old request."""
    return tuple(Replica(replica.id, ReplicaState.PENDING) for replica in workload.replicas)
