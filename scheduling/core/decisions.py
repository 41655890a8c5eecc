"""What the scheduler answers: decisions, each with its reason, and the numbers behind them.

A decision is recorded by `scheduling.services.apply_plan` in one transaction; nothing here acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduling.core.types import NodeName, Placement, ProjectId, ReplicaId, ResourceKey, WorkloadId


@dataclass(frozen=True, slots=True)
class Reason:
    """Why: a code of `docs/scheduler.md`, the numbers compared (JSON values), a sentence made from
    both.

    `offers` are what the person could do: `{"id": "request_quota"}`, `{"id": "smaller",
    "gpu_milli": 250}`, `{"id": "choose_node_type", "node_type": "v100"}`, … `per_node_type` has one
    entry per node type tried. `lasting` is the sentence with points in time for what `message`
    counts from now on: what is kept, so that it need not be written anew in each cycle.
    """

    code: str
    message: str
    details: Mapping[str, object] = field(default_factory=dict)
    offers: tuple[Mapping[str, object], ...] = ()
    per_node_type: tuple[Mapping[str, object], ...] = ()
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Start these replicas of a workload now, on capacity that is free.

    `held` is capacity kept for others of its replicas while `victims` release it (usually none).
    A borrower is started where it already runs: what it had on loan has become its own
    (`is_settled`).
    """

    workload: WorkloadId
    placements: Mapping[ReplicaId, Placement]
    reason: Reason
    is_borrowed: bool
    held: Mapping[ReplicaId, Placement] = field(default_factory=dict)
    victims: tuple[WorkloadId, ...] = ()
    is_settled: bool = False


@dataclass(frozen=True, slots=True)
class Evict:
    """Checkpoint and stop these replicas; the workload returns to the queue at its old place.

    `rule` is `reclaim` (claimant of another project), `preempt` (same project) or `stale_gang`.
    """

    workload: WorkloadId
    replicas: tuple[ReplicaId, ...]
    rule: str
    claimant: WorkloadId | None
    reason: Reason


@dataclass(frozen=True, slots=True)
class Move:
    """Evict these replicas and place them again where given (consolidation)."""

    workload: WorkloadId
    placements: Mapping[ReplicaId, Placement]
    claimant: WorkloadId | None
    reason: Reason


@dataclass(frozen=True, slots=True)
class Eta:
    """When it will start: between these times, on the snapshot's clock.

    Attributes:
        max_at_s: None where only the earliest time is known.
        basis: `release`, `reservation`, `policy`, `schedule`, or that of the predicted ends that it
            rests on: `time_limits`, `history`, `prediction`.
        confidence: `high`, `medium` or `low`.
    """

    min_at_s: float
    max_at_s: float | None
    basis: str
    confidence: str = "medium"


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait. `held` is capacity kept for its replicas while victims release it (empty: none).

    `eta` is None where nothing is known of when it will start.
    """

    workload: WorkloadId
    reason: Reason
    held: Mapping[ReplicaId, Placement] = field(default_factory=dict)
    victims: tuple[WorkloadId, ...] = ()
    eta: Eta | None = None


@dataclass(frozen=True, slots=True)
class Cordon:
    """Close this node: nothing new starts there until an admin opens it again."""

    node: NodeName
    reason: Reason


@dataclass(frozen=True, slots=True)
class Lend:
    """Run these replicas on devices of idle sessions, until one of those is used again.

    `lenders` are, per replica, the sessions' replicas that are swapped out for it.
    """

    workload: WorkloadId
    placements: Mapping[ReplicaId, Placement]
    lenders: Mapping[ReplicaId, tuple[ReplicaId, ...]]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Recall:
    """End what these replicas borrow: they save, stop, and return to the queue at their old place.

    A wake-up needs none of this: the node's agent does it at once.
    """

    workload: WorkloadId
    replicas: tuple[ReplicaId, ...]
    reason: Reason


Decision = Start | Evict | Move | Hold | Lend | Recall


@dataclass(frozen=True, slots=True)
class ProjectNumbers:
    """A project's sums for one resource after the plan; what pages show.

    Attributes:
        fair_share: Of section 3; `requested` and `allocated` as summed up the tree.
        non_preemptible: The part of `allocated` that must lie inside quota.
    """

    quota: int | None
    limit: int | None
    fair_share: int
    requested: int
    allocated: int
    non_preemptible: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One cycle's output.

    Attributes:
        decisions: Evictions first, in the order they were decided. Exactly one Start, Hold or Lend
            for each workload with a pending replica, unless it already runs on loan.
        numbers: Per project and resource.
        queue_positions: Per waiting workload: 1-based place among those waiting for the same
            project and first-choice resource, and their number.
        has_estimates: Whether it was asked when what waits will start.
        cordons: Nodes closed in this cycle.
        set_aside: Workloads whose part of the snapshot contradicts itself, and how: planned around.
        not_lent: Per session that is idle and lends nothing: why not.
    """

    decisions: tuple[Decision, ...]
    numbers: Mapping[ProjectId, Mapping[ResourceKey, ProjectNumbers]]
    queue_positions: Mapping[WorkloadId, tuple[int, int]]
    has_estimates: bool = True
    cordons: tuple[Cordon, ...] = ()
    set_aside: Mapping[WorkloadId, str] = field(default_factory=dict)
    not_lent: Mapping[WorkloadId, Reason] = field(default_factory=dict)
