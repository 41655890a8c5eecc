"""Whether a project may have more: limit and quota, at the project and every ancestor.

Interactive and other non-preemptible work starts only inside guaranteed quota, at each level of the
tree, because nobody will stop it afterwards. Preemptible work may use anybody's idle quota, up to
the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduling.core.accounts import Account, Amounts
from scheduling.core.demand import Item, Option


class Bound(StrEnum):
    """What may not be passed, by the code of the reason that tells it."""

    LIMIT = "over_limit"
    QUOTA = "interactive_over_quota"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The first bound that would be passed, from the project upwards.

    Attributes:
        level: The project, or the department above it, whose bound it is.
        r: Number of the resource; the amounts are in its unit.
        used: Allocated so far, or for quota its non-preemptible part.
    """

    bound: Bound
    level: Account
    r: int
    requested: int
    used: int
    allowed: int


def refusal(
    account: Account, amounts: Amounts, *, is_preemptible: bool, count: int = 1
) -> Refusal | None:
    """Why the project may not have `count` times these amounts, or None if it may.

    Resources not asked for are not checked.
    """
    if is_preemptible and not account.is_limited:
        return None
    for level in reversed(account.path):
        limit, quota = level.limit, level.quota
        for r, amount in amounts:
            asked = amount * count
            bound = limit[r]
            if bound is not None and level.allocated[r] + asked > bound:
                return Refusal(Bound.LIMIT, level, r, asked, level.allocated[r], bound)
            bound = quota[r]
            if (
                not is_preemptible
                and bound is not None
                and level.non_preemptible[r] + asked > bound
            ):
                return Refusal(Bound.QUOTA, level, r, asked, level.non_preemptible[r], bound)
    return None


def barrier_to(item: Item, option: Option) -> Refusal | None:
    """What bars a workload's next replicas from a node type; None if nothing does."""
    return refusal(
        item.account, option.amounts, is_preemptible=item.is_preemptible, count=item.num_next
    )


def is_within_quota(account: Account, amounts: Amounts, count: int = 1) -> bool:
    """Whether the account's whole allocation stays within its own quota."""
    for r, amount in amounts:
        quota = account.quota[r]
        if quota is not None and account.allocated[r] + amount * count > quota:
            return False
    return True


def is_within_share(account: Account, amounts: Amounts, count: int = 1) -> bool:
    """Whether the account's whole allocation stays within its fair share, or its quota if that is
    more.

    The second half matters where a workload takes a node type that was not its first choice: the
    request, and so the share, was counted there.
    """
    for r, amount in amounts:
        quota = account.quota[r]
        after = account.allocated[r] + amount * count
        if quota is not None and after > max(account.fair[r], quota):
            return False
        if quota is None and after > account.fair[r]:
            return False
    return True
