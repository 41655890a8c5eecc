"""What has changed for possible victims during a cycle, so that a claim which found nobody is not
searched for again among all of them.

Hundreds of claims of a cycle ask for the same from the same projects, each from a queue of its own.
Where none of those who may lose could help the first, none can help the next, but for those on
nodes where somebody has left or come since: only they are looked at again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from scheduling.core.accounts import Account
from scheduling.core.demand import Item


@dataclass(frozen=True, slots=True)
class _Search:
    """A search in vain: among whom, and how many changes there had been."""

    accounts: tuple[Account, ...]
    num_changes: int


class Changes:
    """Possible victims that have changed, in order, by project; and searches that found nobody."""

    def __init__(self) -> None:
        self._count = 0
        self._by_account: dict[Account, list[tuple[int, Item]]] = {}
        self._in_vain: dict[Hashable, _Search] = {}

    def note(self, items: Iterable[Item]) -> None:
        """These have lost or got something, or others have on their nodes."""
        self._count += 1
        for item in items:
            self._by_account.setdefault(item.account, []).append((self._count, item))

    def note_in_vain(self, claim: Hashable, accounts: Iterable[Account]) -> None:
        """Nobody of these projects could help such a claim just now."""
        self._in_vain[claim] = _Search(tuple(accounts), self._count)

    def since(self, claim: Hashable) -> Iterator[Item] | None:
        """Those that have changed since the last search in vain for such a claim; None where there
        was none."""
        search = self._in_vain.get(claim)
        return None if search is None else self._since(search)

    def _since(self, search: _Search) -> Iterator[Item]:
        for account in search.accounts:
            for count, item in reversed(self._by_account.get(account, ())):
                if count <= search.num_changes:
                    break
                yield item
