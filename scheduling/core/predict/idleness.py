"""How long an idle session will stay idle, from how long its owner's sessions were idle before.

A survival estimate (Kaplan–Meier): of all idle spells that lasted as long as this one has so far,
how long did they last in all? Spells that were cut off (the session ended while idle) count as long
as they were seen. A few imagined spells stand for what is known of people in general; a person's
own outweigh them soon.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

PRIOR_SPELLS_S = (120.0, 240.0, 480.0, 900.0, 1800.0, 3600.0, 10_800.0, 50_400.0)
"""Imagined idle spells: pauses between cells, a talk, a meeting, an afternoon, a night."""
PRIOR_WEIGHT = 0.5
"""Of each, in spells seen: all together weigh like four."""


@dataclass(frozen=True, slots=True)
class Spell:
    """A time without use.

    Attributes:
        is_cut_off: It ended otherwise than by use, and might have gone on.
    """

    lasted_s: float
    is_cut_off: bool = False


def expected_left_s(spells: Iterable[Spell], idle_for_s: float, *, quantile: float = 0.5) -> float:
    """How long a session that has been idle for so long will stay idle from now.

    Args:
        spells: The person's, oldest or newest first.
        idle_for_s: How long this one has lasted, >= 0.
        quantile: With this probability it is used again before: 0.5 is the median.

    Returns:
        Seconds, >= 0. Beyond all that was ever seen, as long again as it has lasted.

    Source: Kaplan and Meier 1958, conditional on having lasted so long, weighted.
    """
    weighted: list[tuple[float, bool, float]] = [
        (spell.lasted_s, spell.is_cut_off, 1.0) for spell in spells
    ]
    weighted += [(lasted_s, False, PRIOR_WEIGHT) for lasted_s in PRIOR_SPELLS_S]
    later = sorted(entry for entry in weighted if entry[0] > idle_for_s)
    longest_s: float = later[-1][0] if later else 2 * idle_for_s
    at_risk = sum(weight for _, _, weight in later)
    survival = 1.0
    for lasted_s, together in groupby(later, key=_lasted_s):
        entries = list(together)
        ended = sum(weight for _, is_cut_off, weight in entries if not is_cut_off)
        survival *= 1.0 - ended / at_risk
        at_risk -= sum(weight for _, _, weight in entries)
        if survival <= 1.0 - quantile + 1e-12:
            return lasted_s - idle_for_s
    return longest_s - idle_for_s


def _lasted_s(entry: tuple[float, bool, float]) -> float:
    return entry[0]
