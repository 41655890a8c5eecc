"""What the end of one replica means for a workload that has several. No clock, no rows.

A *gang* (minimum above 1) works together: its members wait for each other, so when one of them
fails all save, stop and start again from the newest checkpoint. Without a gang each replica is
worth something by itself: a failed one starts again alone. A replica that was lost (its node, its
agent) is replaced either way, and a gang that does not become whole within its grace is stopped by
the planner. A replica that ended with 0 has done its part; after the first of these no more are
started than the minimum needs, and when none is left running the training is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduling.core.lifecycle import Cause, Event, Exited, Facts, Refused, failures_after


class Effect(StrEnum):
    """What follows from the end of one replica."""

    CONCLUDES = "concludes"
    """It was the last: the workload's lifecycle goes on."""
    WINDS_DOWN = "winds_down"
    """The others must save and leave, too."""
    RESTARTS = "restarts"
    """It failed and starts again alone, after a pause."""
    STAYS = "stays"
    """The others go on as they are."""


@dataclass(frozen=True, slots=True)
class Crew:
    """A workload's replicas, just after one has ended.

    Attributes:
        minimum: Fewer do not work.
        num_others: Those that have not ended.
        num_succeeded: Ended with 0, this one included.
        is_leaving: All others have been told to leave.
    """

    minimum: int
    num_others: int
    num_succeeded: int
    is_leaving: bool = False


def is_success(event: Event) -> bool:
    """Whether it did its part to the end."""
    return isinstance(event, Exited) and event.cause is Cause.OWN and event.exit_code == 0


def is_failure(event: Event) -> bool:
    """Whether it failed, and may be tried again."""
    if isinstance(event, Refused):
        return event.is_retryable
    return isinstance(event, Exited) and event.cause is Cause.OWN and event.exit_code != 0


def is_fatal(event: Event) -> bool:
    """Whether no second try could help."""
    if isinstance(event, Refused):
        return not event.is_retryable
    return isinstance(event, Exited) and event.cause is Cause.OUT_OF_MEMORY


def effect_of(event: Event, crew: Crew, facts: Facts) -> Effect:
    """What follows for the others."""
    if crew.num_others == 0:
        return Effect.CONCLUDES
    if crew.is_leaving:
        return Effect.STAYS
    if is_fatal(event):
        return Effect.WINDS_DOWN
    if not is_failure(event):
        return Effect.STAYS
    if crew.minimum > 1 or failures_after(facts) > facts.backoff_limit:
        return Effect.WINDS_DOWN
    return Effect.STAYS if crew.num_succeeded else Effect.RESTARTS


def decides(event: Event, crew: Crew, effect: Effect) -> bool:
    """Whether this end, and not that of the last replica, is what the workload comes to."""
    if is_success(event) or crew.num_others == 0:
        return False
    if effect is Effect.WINDS_DOWN or crew.is_leaving:
        return True
    return effect is Effect.STAYS and (is_failure(event) or is_fatal(event))


def conclusion(event: Event, crew: Crew) -> Event:
    """What the lifecycle is told once the last replica has ended.

    Args:
        event: The end that decides: of the first that failed, else of the last.
        crew: As it is now.

    Those that were given back or lost are not missed where enough have succeeded.
    """
    is_harmless = not (is_failure(event) or is_fatal(event))
    if is_harmless and crew.num_succeeded >= crew.minimum:
        return Exited(Cause.OWN, 0)
    return event
