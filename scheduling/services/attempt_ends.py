"""An attempt is over: what follows for its workload, and why it failed."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from scheduling.core import lifecycle
from scheduling.models import Attempt, AttemptGoal, Workload
from scheduling.services.replicas import details_of, end, event_of


def follow_end(workload: Workload, attempt: Attempt, now: datetime) -> None:
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
