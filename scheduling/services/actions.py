"""What a person asks of a workload that exists: stop it, save it now, run it again."""

from __future__ import annotations

from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from projects import access
from projects.models import User
from scheduling import relay_client
from scheduling.core import lifecycle
from scheduling.idle_sessions import obstacle_of
from scheduling.models import (
    ACTIVE_PHASES,
    ENDED_PHASES,
    WAITING_PHASES,
    Attempt,
    AttemptGoal,
    AttemptPhase,
    CheckpointMode,
    Phase,
    SwapState,
    Workload,
)
from scheduling.outbox import owe
from scheduling.services.events import announce_workload, record_event, wake_planner
from scheduling.services.replicas import open_attempts_of
from scheduling.services.transitions import advance, lock
from scheduling.texts import swap as texts


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
    row = locked_for(workload, actor)
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
        ask_for(row, attempt, AttemptGoal.STOP, f"stop asked by {actor.username}")
    return row


@transaction.atomic
def checkpoint_now(workload: Workload, *, actor: User) -> Workload:
    """Have a running training save now and go on; of several replicas the leader is asked.

    Raises:
        ActionRefusedError: it does not run, or has no way to save.
    """
    row = locked_for(workload, actor)
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
    ask_for(row, attempt, AttemptGoal.CHECKPOINT, f"checkpoint asked by {actor.username}")
    announce_workload(row)
    return row


@transaction.atomic
def retry(workload: Workload, *, actor: User) -> Workload:
    """Put an ended workload back into the queue, at the end, with the same settings and folder.

    Raises:
        ActionRefusedError: it has not ended, its name is in use, or the person may no longer submit
            there.
    """
    row = locked_for(workload, actor)
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
    # As if submitted now: by the rule in force, and with all of its time.
    row.kept_rule = {}
    row.extended_s = row.num_extensions = 0
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


@transaction.atomic
def swap_out(workload: Workload, *, actor: User) -> Workload:
    """Let an idle session's device be lent without waiting for its window.

    Its owner may ask whenever it is idle for a moment; others who may change it once its window is
    over. It is swapped out as soon as a training waits that can use the device.

    Raises:
        ActionRefusedError: it cannot be swapped, or is in use.
    """
    row = locked_for(workload, actor)
    attempt = _running_session(row)
    obstacle = obstacle_of(row, attempt)
    if obstacle:
        raise ActionRefusedError("cannot_be_swapped", texts.obstacle(obstacle))
    now = timezone.now()
    window = timedelta(seconds=row.project.lending_window_s)
    since = attempt.idle_since
    is_idle = since is not None and (row.owner_id == actor.pk or since + window <= now)
    if not is_idle:
        raise ActionRefusedError("in_use", _("It is in use; only an idle session is swapped out."))
    if attempt.swap_state == SwapState.RUNNING and attempt.lend_asked_at is None:
        attempt.lend_asked_at = now
        attempt.save(update_fields=["lend_asked_at"])
        record_event(row, "lend_asked", at=now, attempt=attempt, actor=actor)
        wake_planner("lend_asked")
        announce_workload(row)
    return row


def wake(workload: Workload, *, actor: User) -> Workload:
    """Bring a swapped-out session's device back: its node's agent does it at once.

    Harmless when it is there.

    Raises:
        ActionRefusedError: it does not run, or its node's agent does not answer.
    """
    with transaction.atomic():
        row = locked_for(workload, actor)
        attempt = _running_session(row)
        # Whoever presses the button wants it: its idleness begins anew.
        now = timezone.now()
        Attempt.objects.filter(pk=attempt.pk).update(lend_asked_at=None, idle_from=now)
        if attempt.swap_state == SwapState.RUNNING:
            return row
        record_event(row, "wake_asked", at=now, attempt=attempt, actor=actor)
    try:
        relay_client.wake_session(attempt.node.zone, str(attempt.pk))
    except relay_client.AgentAwayError as error:
        raise ActionRefusedError(
            "agent_away",
            _(
                "The agent of its node does not answer. Its processes go on; it can be woken once"
                " the agent is back: try again in some seconds."
            ),
        ) from error
    return row


def _running_session(row: Workload) -> Attempt:
    attempts = [each for each in open_attempts_of(row) if not each.is_leaving]
    if not row.is_session or row.phase != Phase.RUNNING or not attempts:
        raise ActionRefusedError("not_running", _("Only a running session can be swapped."))
    return attempts[0]


def locked_for(workload: Workload, actor: User) -> Workload:
    """The row, locked, for somebody who may change it.

    Raises:
        ActionRefusedError: the person may not.
    """
    if not access.may_change_workload(actor, workload):
        raise ActionRefusedError("not_allowed", _("You may not change this workload."))
    return lock(workload.pk)


def ask_for(row: Workload, attempt: Attempt, goal: AttemptGoal, detail: str) -> None:
    """Want something else of an attempt, and owe its agent a hint."""
    if attempt.phase == AttemptPhase.ENDED or row.phase not in ACTIVE_PHASES:
        return
    now = timezone.now()
    attempt.goal = goal
    attempt.goal_detail = detail
    attempt.goal_at = now
    attempt.save(update_fields=["goal", "goal_detail", "goal_at"])
    owe(attempt.node.zone, "wake", workload=row, key=f"{attempt.pk}:{goal}:{now.isoformat()}")
