"""What work costs: allocated GPUs, cores and GiB over time, at their node type's prices.

Exact decimals; whoever shows an amount rounds it, nobody else. What something cost over time, with
all its prices, is told by `scheduling.costs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol

GPU_MILLI = 1000
CPU_MILLI = 1000
MIB_PER_GIB = 1024


class Prices(Protocol):
    """What a node type asks per GPU-hour, core-hour and GiB-hour; `projects.NodeType` is one."""

    gpu_price_per_hour: Decimal
    cpu_price_per_hour: Decimal
    memory_price_per_hour: Decimal


def cost_per_hour(gpu_milli: int, cpu_milli: int, memory_mib: int, node_type: Prices) -> Decimal:
    """Price of holding these resources for an hour.

    Args:
        gpu_milli: Of all devices together.
        cpu_milli: Thousandths of a core.
        memory_mib: Main memory.
        node_type: Whose prices hold.

    Raises:
        ValueError: an amount is negative.
    """
    if min(gpu_milli, cpu_milli, memory_mib) < 0:
        raise ValueError(f"amounts must be 0 or more: {gpu_milli}, {cpu_milli}, {memory_mib}")
    return (
        Decimal(gpu_milli) / GPU_MILLI * node_type.gpu_price_per_hour
        + Decimal(cpu_milli) / CPU_MILLI * node_type.cpu_price_per_hour
        + Decimal(memory_mib) / MIB_PER_GIB * node_type.memory_price_per_hour
    )


@dataclass(frozen=True, slots=True)
class CostNow:
    """A cost that grows, for `telemetry/_running_cost.html`: so much at a time, and per hour since.

    Attributes:
        text: The amount as the page writes it; the browser replaces the number in it.
        topic: Each sample on it moves the shown amount; empty for one that no longer grows.
    """

    text: str
    amount: Decimal
    per_hour: Decimal
    at: datetime
    topic: str = ""

    @property
    def at_s(self) -> float:
        """Unix seconds, as samples say them."""
        return self.at.timestamp()
