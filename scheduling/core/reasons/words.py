"""Amounts as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from scheduling.core.accounts import Amounts
from scheduling.core.demand import Item
from scheduling.core.state import State

Details = dict[str, object]
Offer = Mapping[str, object]


def gpus(milli: int) -> str:
    """Thousandths as people read them: 1500 is 1.5, 333 is 0.333."""
    return f"{milli / 1000:.3f}".rstrip("0").rstrip(".")


def quantity(state: State, r: int, amount: int | None) -> str:
    """An amount of a resource in words."""
    if amount is None:
        return "unlimited"
    if r == 0:
        return f"{gpus(amount)} cores"
    if r == 1:
        return f"{amount / 1024:.1f}".rstrip("0").rstrip(".") + " GiB"
    return f"{gpus(amount)} GPU"


def unit_suffix(r: int) -> str:
    """The unit in the names of numbers."""
    return ("cpu_milli", "memory_mib")[r] if r < 2 else "gpu_milli"


def main_resource(amounts: Amounts) -> int:
    """The resource that a request is told by: its GPUs if it has any, else CPU."""
    return max((r for r, _ in amounts), default=0) if amounts else 0


def moment(at_s: float) -> str:
    """A point in time, to the second."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def other_types(item: Item) -> tuple[Offer, ...]:
    """Node types of the shape beyond the first, as offers."""
    return tuple(
        {"id": "choose_node_type", "node_type": option.node_type}
        for option in item.shape.options[1:]
        if option.node_type is not None
    )
