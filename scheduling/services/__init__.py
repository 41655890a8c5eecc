"""What changes rows: each function holds a transaction, an invariant and an event.

Nothing here talks to a cluster. An effect that is owed becomes an outbox row in the same
transaction.
"""

from scheduling.services.actions import (
    ActionRefusedError,
    checkpoint_now,
    retry,
    stop,
    swap_out,
    wake,
)
from scheduling.services.extending import extend
from scheduling.services.notifying import notify_owner
from scheduling.services.submission import (
    Preview,
    SubmissionRefusedError,
    WorkloadSpec,
    check_on_node,
    preview,
    submit,
)

__all__ = [
    "ActionRefusedError",
    "Preview",
    "SubmissionRefusedError",
    "WorkloadSpec",
    "check_on_node",
    "checkpoint_now",
    "extend",
    "notify_owner",
    "preview",
    "retry",
    "stop",
    "submit",
    "swap_out",
    "wake",
]
