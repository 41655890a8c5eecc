"""Replicas of a workload on the rows: their starts, their leaving, and what the end of one means.

`core.replicas` says what follows from an end; here it is carried out. A workload of one replica
goes the same way: its end is always the last.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from django.db.models import Max, Q

from scheduling.core import lifecycle
from scheduling.core.replicas import (
    Crew,
    Effect,
    conclusion,
    decides,
    effect_of,
    is_success,
)
from scheduling.models import (
    LEADER,
    Attempt,
    AttemptGoal,
    Node,
    NodeState,
    Workload,
)
from scheduling.outbox import owe
from scheduling.services.events import announce_workload, record_event, wake_planner
from scheduling.services.transitions import advance_by, facts_of, release

RENDEZVOUS_PORTS = range(29500, 31500)
"""Below what systems hand out for outgoing connections."""


def open_attempts_of(workload: Workload) -> list[Attempt]:
    """Its replicas that have a place, the leader first."""
    return list(
        Attempt.objects.of(workload).open().select_related("node__zone").order_by("replica")
    )


# ---------------------------------------------------------------- starting


FIRST: tuple[int, datetime | None] = (0, None)
"""Number of starts of a replica before its first, and until when those were extended."""


def new_attempts(workload: Workload, nodes: Mapping[int, Node], now: datetime) -> Sequence[Attempt]:
    """An attempt for each of these replicas, not saved yet, in the order given."""
    since_submitted = Q(placed_at__gte=workload.submitted_at)
    rows = workload.attempts.values_list("replica").annotate(
        last=Max("number"), kept_until=Max("idle_kept_until", filter=since_submitted)
    )
    before = {replica: (last, kept_until) for replica, last, kept_until in rows.order_by()}
    num_replicas = Attempt.objects.of(workload).open().count() + len(nodes)
    attempts = [
        Attempt(
            workload=workload,
            replica=replica,
            number=before.get(replica, FIRST)[0] + 1,
            num_replicas=num_replicas,
            node=node,
            placed_at=now,
            # What a person extended outlasts an eviction or a node's end.
            idle_kept_until=before.get(replica, FIRST)[1],
        )
        for replica, node in nodes.items()
    ]
    for attempt in attempts:
        if attempt.replica == LEADER and workload.max_replicas > 1:
            attempt.rendezvous_port = _free_port(attempt)
    return attempts


def _free_port(attempt: Attempt) -> int:
    """A port of its node that no other leader was given; another one at each start."""
    leaders = Attempt.objects.open().filter(node__zone=attempt.node.zone_id)
    taken = set(leaders.values_list("rendezvous_port", flat=True))
    key: uuid.UUID = attempt.pk
    first = key.int % len(RENDEZVOUS_PORTS)
    ports = (*RENDEZVOUS_PORTS[first:], *RENDEZVOUS_PORTS[:first])
    return int(next(port for port in ports if port not in taken))


def grown(
    workload: Workload, attempt: Attempt, now: datetime, details: Mapping[str, object]
) -> None:
    """A running workload has more replicas than before."""
    workload.reason = {key: value for key, value in workload.reason.items() if key != "growth"}
    _note(workload, attempt, "grown", now, details)


# ---------------------------------------------------------------- leaving


def ask_to_leave(
    workload: Workload, attempts: Iterable[Attempt], detail: str, now: datetime
) -> None:
    """Have these replicas save and end; the work is still wanted."""
    for attempt in attempts:
        attempt.goal = AttemptGoal.EVICT
        attempt.goal_detail = detail
        attempt.goal_at = now
        attempt.save(update_fields=["goal", "goal_detail", "goal_at"])
        owe(attempt.node.zone, "wake", workload=workload, key=f"{attempt.pk}:evict")


def shrunk(
    workload: Workload,
    attempt: Attempt,
    cause: str,
    now: datetime,
    details: Mapping[str, object],
) -> None:
    """A running workload gives some replicas up and goes on with the rest."""
    _note(workload, attempt, "shrunk", now, {**details, "cause": cause})


# ---------------------------------------------------------------- what is seen


def is_whole(workload: Workload) -> bool:
    """Whether enough replicas do their part, on nodes that report, for it to run."""
    if workload.max_replicas == 1:
        return True
    ready = (
        Attempt.objects.of(workload)
        .open()
        .filter(is_ready=True)
        .exclude(node__state=NodeState.LOST)
    )
    return bool(ready.count() + len(workload.succeeded_replicas) >= workload.min_replicas)


def num_alive(workload: Workload) -> int:
    """Replicas on nodes that report, and those that have done their part."""
    alive = Attempt.objects.of(workload).open().exclude(node__state=NodeState.LOST)
    return int(alive.count()) + len(workload.succeeded_replicas)


def note_completeness(workload: Workload, now: datetime) -> None:
    """Note since when a gang has had too few; the caller saves it."""
    if not workload.is_gang:
        return
    staying = [attempt for attempt in open_attempts_of(workload) if not attempt.is_leaving]
    if len(staying) + len(workload.succeeded_replicas) >= workload.min_replicas:
        workload.incomplete_since = None
    elif workload.incomplete_since is None:
        workload.incomplete_since = now


def end(
    workload: Workload,
    attempt: Attempt,
    event: lifecycle.Event,
    now: datetime,
    details: Mapping[str, object],
) -> tuple[lifecycle.Transition | None, Attempt]:
    """A replica has ended (its attempt says so): what follows for its workload.

    Returns:
        The workload's transition, None where the others simply go on; and the attempt whose end
        brought it about.
    """
    release(attempt, now)
    others = open_attempts_of(workload)
    if is_success(event) and attempt.replica not in workload.succeeded_replicas:
        workload.succeeded_replicas = sorted([*workload.succeeded_replicas, attempt.replica])
    crew = Crew(
        minimum=workload.min_replicas,
        num_others=len(others),
        num_succeeded=len(workload.succeeded_replicas),
        is_leaving=all(other.is_leaving for other in others),
    )
    effect = effect_of(event, crew, facts_of(workload, attempt))
    if decides(event, crew, effect) and workload.decisive is None:
        workload.decisive = attempt
    if effect is Effect.CONCLUDES:
        return _conclude(workload, attempt, event, crew, details)
    note_completeness(workload, now)
    told = {**details, "replica": attempt.replica, "num_replicas": len(others)}
    if effect is Effect.STAYS:
        _note(workload, attempt, "replica_ended", now, told)
        return None, attempt
    if effect is Effect.RESTARTS:
        restarts = lifecycle.ReplicaFailed()
        step = advance_by(attempt, workload, restarts, code="replica_restarts", details=told)
        return step, attempt
    because = f"replica {attempt.replica} ended: {attempt.exit_cause}"
    if attempt.exit_code is not None:
        because = f"replica {attempt.replica} ended with exit code {attempt.exit_code}"
    ask_to_leave(workload, [a for a in others if not a.is_leaving], because, now)
    step = advance_by(attempt, workload, lifecycle.WindDown(), code="replica_failed", details=told)
    return step, attempt


def _conclude(
    workload: Workload,
    last: Attempt,
    event: lifecycle.Event,
    crew: Crew,
    details: Mapping[str, object],
) -> tuple[lifecycle.Transition, Attempt]:
    """The last has ended; what decided may have been the end of another before it."""
    attempt = last
    if workload.decisive is not None and workload.decisive.pk != last.pk:
        attempt = workload.decisive
        event = event_of(attempt)
        details = details_of(attempt)
    if workload.max_replicas > 1:
        event = conclusion(event, crew)
    code = "given_up" if isinstance(event, lifecycle.GivenUp) else "ended"
    step = advance_by(attempt, workload, event, code=code, details=details, last=last)
    return step, attempt


def event_of(attempt: Attempt) -> lifecycle.Event:
    """The end of an attempt as the lifecycle is told."""
    if attempt.exit_cause == "refused":
        return lifecycle.Refused(attempt.is_retryable)
    if attempt.exit_cause == "node_lost":
        return lifecycle.GivenUp()
    return lifecycle.Exited(lifecycle.Cause(attempt.exit_cause), attempt.exit_code)


def details_of(attempt: Attempt) -> dict[str, object]:
    """The numbers of an attempt's end, for its event."""
    node = {"node": attempt.node.name} if attempt.exit_cause == "node_lost" else {}
    return {
        **node,
        "exit_code": attempt.exit_code,
        "cause": attempt.exit_cause,
        "error": attempt.error,
        "peak_memory_mib": attempt.peak_memory_mib,
        "memory_limit_mib": attempt.memory_limit_mib,
        "lost_progress_s": attempt.lost_progress_s,
    }


def _note(
    workload: Workload, attempt: Attempt, code: str, now: datetime, details: Mapping[str, object]
) -> None:
    """Something about its replicas has changed, and its phase has not."""
    workload.generation += 1
    workload.save()
    record_event(workload, code, at=now, attempt=attempt, details=details)
    wake_planner(code)
    announce_workload(workload)
