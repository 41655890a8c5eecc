"""Who stands to gain or to lose when shares change or somebody gets something: pure questions about
accounts, asked for each newcomer (`incremental`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduling.core.accounts import Account
from scheduling.core.demand import Item

Shares = dict[Account, dict[int, int]]
"""What shares were before they changed, by number of resource."""


def was_bound(item: Item, risen: Shares) -> bool:
    """Whether a share that has risen since was in a workload's way."""
    count = item.num_next
    for level in item.account.path:
        for r, was in risen.get(level, {}).items():
            for option in item.shape.options:
                asked = dict(option.amounts).get(r, 0) * count
                if asked and level.allocated[r] + asked > was:
                    return True
    return False


def sides_of(account: Account, losing: Mapping[Account, set[int]]) -> dict[Account, set[int]]:
    """Of these, the ones that lie where their path and this account's part."""
    path = account.path
    return {
        level: over
        for level, over in losing.items()
        if level not in path and (level.parent is None or level.parent in path)
    }


def losing_by(risen: Shares, fallen: Shares) -> dict[Account, set[int]]:
    """Those that hold more than their quota of what their share has changed of: they may lose more
    than before, or in another order, in which a search may find what it did not."""
    changed = {
        account: {*risen.get(account, ()), *fallen.get(account, ())}
        for account in (*risen, *fallen)
    }
    return {
        account: over for account, was in changed.items() if (over := above_quota(account, was))
    }


def borrowers(item: Item) -> dict[Account, set[int]]:
    """Where what a newcomer got lies beyond quota, its project and those above it: there is more
    to take from them than before."""
    got = {r for placed in (*item.running, *item.held) for r, _ in placed.amounts}
    return {level: over for level in item.account.path if (over := above_quota(level, got))}


def above_quota(account: Account, resources: Iterable[int]) -> set[int]:
    return {r for r in resources if account.is_above_quota(r) or account.is_above_allocatable(r)}
