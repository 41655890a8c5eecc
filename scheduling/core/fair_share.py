"""Dividing a resource among siblings: quota first, then the surplus by weight, bucket by bucket.

The arithmetic of `docs/scheduler.md`, "Fair share", for one resource and one level of the tree.
Everything is an integer; the surplus is handed out in units (a whole GPU, a millicore, a MiB) so
that shares shown to people are round.

Source: kai-scheduler/KAI-Scheduler, resource_division.go. Ours settles left-over units inside each
priority bucket and never gives more than is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Want:
    """One sibling's part in a division.

    Attributes:
        quota: Guaranteed; None counts as the whole capacity.
        request: What it could use: min(limit, allocated + pending), >= 0.
        usage_ppm: Its past use over capacity, in millionths; 0 without history.
    """

    id: str
    quota: int | None
    weight: int
    priority: int
    created: int
    request: int
    usage_ppm: int = 0


class _Part:
    """A want while it is being served."""

    __slots__ = ("given", "rest", "strength", "want")

    def __init__(self, want: Want, given: int) -> None:
        self.want = want
        self.given = given
        self.strength = 0
        self.rest = 0  # what rounding cut off, times the sum of strengths

    @property
    def missing(self) -> int:
        return self.want.request - self.given


def divide(
    capacity: int,
    wants: Sequence[Want],
    unit: int,
    *,
    history_factor_milli: int = 0,
    has_surplus: bool = True,
) -> list[int]:
    """Fair share of each want, in the order given.

    Args:
        capacity: To be divided, >= 0.
        wants: One per sibling.
        unit: The surplus is handed out in whole units where more than that is wanted.
        has_surplus: False gives quotas only.
        history_factor_milli: How much past use counts, k in thousandths; 0 ignores it.

    Returns:
        Shares f with f <= request, f >= min(quota, request), and their sum min(capacity, sum of
        requests) where weights are positive and quotas fit.

    Invariant: independent of the order of `wants`.
    """
    parts = [_Part(w, min(capacity if w.quota is None else w.quota, w.request)) for w in wants]
    pot = capacity - sum(part.given for part in parts)
    if pot > 0 and has_surplus:
        weighted = [part for part in parts if part.want.weight > 0 and part.missing > 0]
        weighted.sort(key=lambda part: (-part.want.priority, part.want.created, part.want.id))
        for _, bucket in groupby(weighted, key=lambda part: part.want.priority):
            pot = _serve_bucket(list(bucket), pot, unit, history_factor_milli)
            if pot <= 0:
                break
    return [part.given for part in parts]


def _serve_bucket(bucket: list[_Part], pot: int, unit: int, history_factor_milli: int) -> int:
    """Give one bucket its part of the pot, to the last unit; what is left."""
    hungry = bucket
    while hungry and pot > 0:
        pot_at_start = pot
        total = _set_strengths(hungry, history_factor_milli)
        if total == 0:
            break
        has_sated = False
        for part in hungry:
            entitlement = pot_at_start * part.strength  # times total
            if part.missing * total <= entitlement:
                gift, part.rest, has_sated = part.missing, 0, True
            else:
                gift = entitlement // (total * unit) * unit
                part.rest = entitlement - gift * total
            part.given += gift
            pot -= gift
        hungry = [part for part in hungry if part.missing > 0]
        if not has_sated:
            break
    return _settle(hungry, pot, unit)


def _set_strengths(hungry: Iterable[_Part], history_factor_milli: int) -> int:
    """s = max(0, w + k(w - h)) with w and h relative, scaled to an integer; their sum."""
    weights = sum(part.want.weight for part in hungry)
    total = 0
    for part in hungry:
        if history_factor_milli == 0:
            part.strength = part.want.weight
        else:
            weight = part.want.weight * 1_000_000
            lead = weight - part.want.usage_ppm * weights
            part.strength = max(0, weight * 1000 + history_factor_milli * lead)
        total += part.strength
    return total


def _settle(hungry: list[_Part], pot: int, unit: int) -> int:
    """Hand out what rounding left, a unit at a time: largest cut-off part, then older, then smaller
    id.

    All of `hungry` had the same sum of strengths in their last round, so the rests compare
    directly.
    """
    hungry.sort(key=lambda part: (-part.rest, part.want.created, part.want.id))
    while hungry and pot > 0:
        for part in hungry:
            gift = min(unit, part.missing, pot)
            part.given += gift
            pot -= gift
        hungry = [part for part in hungry if part.missing > 0]
    return pot
