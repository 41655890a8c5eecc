"""What may go wrong in the core, and who is to blame.

    SchedulingError
    ├── SnapshotError    the picture contradicts itself: a device given twice, a project unknown
    ├── ScenarioError    a scenario file that cannot be read; names the JSON path
    └── LifecycleError   an event that cannot happen in this phase

That a workload has to wait is not an error: it is a `Hold` with a reason.
"""

from __future__ import annotations


class SchedulingError(Exception):
    """Anything the core refuses."""


class SnapshotError(SchedulingError):
    """The picture contradicts itself, so no plan made from it could be trusted."""


class ScenarioError(SchedulingError):
    """A scenario file that cannot be read.

    Attributes:
        path: Where in the file, as a JSON path: `$[3].workloads[0].gpu_milli`.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class LifecycleError(SchedulingError):
    """An event that cannot happen in this phase."""
