"""The form of a session: Jupyter on part of a GPU, strictly inside the project's quota."""

from __future__ import annotations

from typing import Any, ClassVar

from projects.models import WorkloadKind
from scheduling.forms.base import WorkloadForm
from scheduling.models import CheckpointMode


class SessionForm(WorkloadForm):
    """A session: never preempted, hence neither priority nor checkpoints."""

    kind: ClassVar[WorkloadKind] = WorkloadKind.INTERACTIVE

    def kind_values(self) -> dict[str, Any]:  # keyword arguments of different types
        """A session saves nothing by signal and never returns to the queue."""
        return {"is_preemptible": False, "checkpoint_mode": CheckpointMode.NONE.value}
