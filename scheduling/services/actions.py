"""What a person asks of a workload that exists: stop it, save it now, run it again."""

from __future__ import annotations

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from projects import access
from projects.models import User
from scheduling.core import lifecycle
from scheduling.models import (
    ACTIVE_PHASES,
    ENDED_PHASES,
    WAITING_PHASES,
    Attempt,
    AttemptGoal,
    AttemptPhase,
    CheckpointMode,
    Phase,
    Workload,
)
from scheduling.outbox import owe
from scheduling.services.events import announce_workload, record_event
from scheduling.services.replicas import open_attempts_of
from scheduling.services.transitions import advance, lock


class ActionRefusedError(Exception):
    """The action is not possible for this workload in its present state, or not for this person.

    Attributes:
        code: For programs.
        message: For people, translated.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@transaction.atomic
def stop(workload: Workload, *, actor: User) -> Workload:
    """End a workload for good, a training after it has saved.

    Harmless when it is stopping or has ended.
    """
    row = _locked_for(workload, actor)
    if row.phase in ENDED_PHASES:
        return row
    if row.phase in WAITING_PHASES:
        advance(row, lifecycle.StopAsked(), code="stopped", actor=actor)
        return row
    attempts = [each for each in open_attempts_of(row) if each.goal != AttemptGoal.STOP]
    if not attempts:
        return row
    advance(row, lifecycle.StopAsked(), code="stop_asked", actor=actor)
    for attempt in attempts:
        _ask(row, attempt, AttemptGoal.STOP, f"stop asked by {actor.username}")
    return row


@transaction.atomic
def checkpoint_now(workload: Workload, *, actor: User) -> Workload:
    """Have a running training save now and go on; of several replicas the leader is asked.

    Raises:
        ActionRefusedError: it does not run, or has no way to save.
    """
    row = _locked_for(workload, actor)
    attempt = row.current
    if row.phase != Phase.RUNNING or attempt is None or attempt.phase == AttemptPhase.ENDED:
        raise ActionRefusedError(
            "not_running", _("Only a running training can save; this one is not running.")
        )
    if row.is_session or row.checkpoint_mode == CheckpointMode.NONE:
        raise ActionRefusedError(
            "cannot_save", _("This workload was submitted without a checkpoint mode.")
        )
    record_event(row, "checkpoint_asked", at=timezone.now(), attempt=attempt, actor=actor)
    _ask(row, attempt, AttemptGoal.CHECKPOINT, f"checkpoint asked by {actor.username}")
    announce_workload(row)
    return row


@transaction.atomic
def retry(workload: Workload, *, actor: User) -> Workload:
    """Put an ended workload back into the queue, at the end, with the same settings and folder.

    Raises:
        ActionRefusedError: it has not ended, its name is in use, or the person may no longer submit
            there.
    """
    row = _locked_for(workload, actor)
    if row.phase not in ENDED_PHASES:
        raise ActionRefusedError("not_ended", _("Only an ended workload can be started again."))
    if not access.may_submit(row.owner, row.project_id):
        raise ActionRefusedError(
            "not_a_member",
            _("Its owner may no longer submit work in project %(project)s.")
            % {"project": row.project},
        )
    row.submitted_at = timezone.now()
    row.num_failures = 0
    try:
        with transaction.atomic():
            advance(row, lifecycle.RetryAsked(), code="retried", actor=actor)
    except IntegrityError as error:
        raise ActionRefusedError(
            "name_taken",
            _("“%(name)s” is by now the name of another unfinished workload of this project.")
            % {"name": row.name},
        ) from error
    return row


def _locked_for(workload: Workload, actor: User) -> Workload:
    if not access.may_change_workload(actor, workload):
        raise ActionRefusedError("not_allowed", _("You may not change this workload."))
    return lock(workload.pk)


def _ask(row: Workload, attempt: Attempt, goal: AttemptGoal, detail: str) -> None:
    if attempt.phase == AttemptPhase.ENDED or row.phase not in ACTIVE_PHASES:
        return
    now = timezone.now()
    attempt.goal = goal
    attempt.goal_detail = detail
    attempt.goal_at = now
    attempt.save(update_fields=["goal", "goal_detail", "goal_at"])
    owe(attempt.node.zone, "wake", workload=row, key=f"{attempt.pk}:{goal}:{now.isoformat()}")
