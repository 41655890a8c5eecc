"""Whether a newcomer's claim comes before those of others who gain by its arrival, too.

Why it exists: a newcomer's request shifts shares, and then others of its department may claim as
well. A full cycle lets all of them claim in the order of projects and workloads. What it gives the
newcomer is certain without a full cycle if nobody who comes before it would get anything; who comes
after it does not change what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from scheduling.core.cycle import Cycle
from scheduling.core.demand import Item
from scheduling.core.ordering import Batch
from scheduling.core.passes import likeness
from scheduling.core.rules import RECLAIM


def claim_in_turn(
    cycle: Cycle,
    item: Item,
    waiting: Iterable[Batch],
    gaining: Collection[Batch],
    would_get: Callable[[Item], bool],
) -> bool:
    """Let a newcomer reclaim, if by its turn nobody else would have got anything.

    Only trees of projects with somebody who might are walked: which of two trees comes first
    depends on nothing but what waits in these two.

    Args:
        cycle: A kept cycle in which everybody else has failed.
        item: The newcomer.
        waiting: Everything else that waits.
        gaining: Of these, what may get something; all others fail.
        would_get: Whether one of them gets something by reclaiming now; it leaves no trace.

    Returns:
        Whether its claim was made, and it has all that it asks for.
    """
    own = Batch(likeness(item))
    own.add(item)
    roots = {batch.first.account.path[0] for batch in (*gaining, own)}
    batches = [batch for batch in waiting if batch.first.account.path[0] in roots]
    claim = cycle.claim_by(RECLAIM)
    is_over = is_first = False

    def make(other: Item) -> bool:
        nonlocal is_over, is_first
        if other is item and not is_over:
            is_over = is_first = True
            claim.make(item)
        elif not is_over and other.batch in gaining and would_get(other):
            is_over = True
        if not is_over:
            keys = [claim.key(other, o) for o in other.options() if o.is_possible]
            cycle.passes.hopeless.update(keys)
        return False

    cycle.passes.run_over([*batches, own], replace(claim, make=make))
    return is_first and not item.pending


def is_certain(item: Item) -> bool:
    """Whether a newcomer keeps all that it has got, whatever others get after it in the cycle: what
    is not preemptible stays where it starts, and what is only kept for somebody is nobody's to
    take."""
    return not item.pending and not (item.running and item.is_preemptible)
