"""Moving running work so that scattered free capacity becomes usable."""

from __future__ import annotations

from scheduling.core.demand import Item, Option
from scheduling.core.search import Found
from scheduling.core.state import State


def consolidate(state: State, item: Item, option: Option) -> Found | None:
    return None
