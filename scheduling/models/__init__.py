"""What runs where, what waits and why: the rows behind the scheduler's snapshot and the pages.

`Workload` is what a person submitted, `Attempt` one start of it on a node, `Allocation` the
resources held by an attempt for an interval, `Wait` one interval in the queue with its cause.
`Device.allocated_milli` changes in the same transaction as the allocations, so that the schema
itself refuses to give a device out twice.
"""

from scheduling.models.attempts import (
    Allocation,
    Attempt,
    AttemptGoal,
    AttemptPhase,
    Checkpoint,
    DeviceAllocation,
    DeviceHold,
    SwapState,
)
from scheduling.models.history import (
    CapacityInterval,
    UsageDay,
    UsageMonth,
    UsageMonthVector,
    UsageVector,
)
from scheduling.models.nodes import (
    SKEWED_FROM_S,
    Device,
    Node,
    NodeState,
    Zone,
)
from scheduling.models.notices import Notice
from scheduling.models.records import (
    Change,
    Command,
    CycleRecord,
    PlannerPolicy,
    PlannerStatus,
    ProjectUsage,
)
from scheduling.models.swap import IdleSpell, Loan, LoanState
from scheduling.models.workloads import (
    ACTIVE_PHASES,
    ENDED_PHASES,
    LEADER,
    MAX_REPLICAS,
    WAITING_PHASES,
    WAITS,
    CheckpointMode,
    Event,
    Phase,
    Priority,
    Wait,
    Workload,
    WorkloadQuerySet,
    new_session_secret,
)

__all__ = [
    "ACTIVE_PHASES",
    "ENDED_PHASES",
    "LEADER",
    "MAX_REPLICAS",
    "SKEWED_FROM_S",
    "WAITING_PHASES",
    "WAITS",
    "Allocation",
    "Attempt",
    "AttemptGoal",
    "AttemptPhase",
    "CapacityInterval",
    "Change",
    "Checkpoint",
    "CheckpointMode",
    "Command",
    "CycleRecord",
    "Device",
    "DeviceAllocation",
    "DeviceHold",
    "Event",
    "IdleSpell",
    "Loan",
    "LoanState",
    "Node",
    "NodeState",
    "Notice",
    "Phase",
    "PlannerPolicy",
    "PlannerStatus",
    "Priority",
    "ProjectUsage",
    "SwapState",
    "UsageDay",
    "UsageMonth",
    "UsageMonthVector",
    "UsageVector",
    "Wait",
    "Workload",
    "WorkloadQuerySet",
    "Zone",
    "new_session_secret",
]
