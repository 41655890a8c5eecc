"""The state that people and programs are shown: the lifecycle's phase, and while something runs
where its device memory is and whether it idles. The one place that says it.
"""

from __future__ import annotations

from datetime import datetime

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from scheduling.models import Attempt, Phase, SwapState, Workload

IDLE = "idle"
SWAPPED_OUT = "swapped_out"
SWAPPING_IN = "swapping_in"

WORDS: dict[str, str | Promise] = {
    IDLE: _("Idle"),
    SWAPPED_OUT: _("Swapped out"),
    SWAPPING_IN: _("Waking up"),
}
STATES = (*Phase.values, *WORDS)


def state_of(workload: Workload) -> str:
    """A workload's state: a value of `STATES`.

    Cost: no query where `current` was read with the workload.
    """
    attempt = workload.current
    if workload.phase != Phase.RUNNING or attempt is None:
        return str(workload.phase)
    if attempt.swap_state == SwapState.SWAPPED_OUT:
        return SWAPPED_OUT
    if attempt.swap_state in (SwapState.WAITING, SwapState.SWAPPING_IN):
        return SWAPPING_IN
    return IDLE if attempt.idle_since is not None else str(workload.phase)


def word_of(workload: Workload) -> str:
    """The state in words."""
    word = WORDS.get(state_of(workload))
    return str(workload.get_phase_display() if word is None else word)


def since(workload: Workload) -> datetime:
    """Since when it has been in this state."""
    attempt: Attempt | None = workload.current
    match state_of(workload):
        case "idle" if attempt is not None and attempt.idle_since is not None:
            return attempt.idle_since
        case "swapped_out" | "swapping_in" if attempt is not None and attempt.swap_since:
            return attempt.swap_since
    return workload.phase_changed_at
