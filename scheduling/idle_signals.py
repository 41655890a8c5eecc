"""What an agent's idle report says, signal by signal, and since when all of it is quiet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

NETWORK = "network"
KERNELS = "kernels"
TRAINING_SIGNALS = ("gpu", "cpu", NETWORK)
SESSION_SIGNALS = (*TRAINING_SIGNALS, KERNELS, "terminals")


class Says(StrEnum):
    """What one signal says."""

    QUIET = "quiet"
    BUSY = "busy"
    MISSING = "missing"
    LEFT_OUT = "left_out"
    """Missing, and the others are enough."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal of a workload, as last reported.

    Attributes:
        since: Quiet since then; None while it is not.
        held_cells: Of the kernels: so many cells wait in the relay.
    """

    name: str
    says: Says
    since: datetime | None = None
    held_cells: int = 0


def signals_of(
    report: Mapping[str, object], *, may_lack_network: bool, is_session: bool = True
) -> list[Signal]:
    """The signals of a session, or those of a training.

    Args:
        report: An `agent.protocol.IdleReport` as JSON; empty before the first.
        may_lack_network: Where the network cannot be measured the others are enough.
        is_session: Kernels and terminals count.
    """
    names = SESSION_SIGNALS if is_session else TRAINING_SIGNALS
    return [_signal(report, name, may_lack_network) for name in names]


def _signal(report: Mapping[str, object], name: str, may_lack_network: bool) -> Signal:
    missing = report.get("missing")
    is_missing = not report or (isinstance(missing, list) and name in missing)
    if is_missing:
        is_left_out = bool(report) and name == NETWORK and may_lack_network
        return Signal(name, Says.LEFT_OUT if is_left_out else Says.MISSING)
    held = report.get("held_cells") if name == KERNELS else 0
    since = report.get(f"{name}_idle_since")
    if held or not isinstance(since, int | float):
        return Signal(name, Says.BUSY, held_cells=held if isinstance(held, int) else 0)
    try:
        return Signal(name, Says.QUIET, since=datetime.fromtimestamp(since, UTC))
    except (ValueError, OverflowError, OSError):
        # A session's own server has a say in it.
        return Signal(name, Says.MISSING)


BACKGROUND_SIGNALS = frozenset(("cpu", NETWORK))
"""What a server does by itself, such as saving a notebook: nobody need be at work for it."""


def unquiet(report: Mapping[str, object]) -> list[str]:
    """Names of a session's signals that say *in use*, or are missing and must not be."""
    found = signals_of(report, may_lack_network=True)
    return [each.name for each in found if each.says in (Says.BUSY, Says.MISSING)]


def idle_since(
    report: Mapping[str, object], *, may_lack_network: bool, is_session: bool = True
) -> datetime | None:
    """Since when all signals have been quiet; None while one is not, or is missing.

    The arguments are those of `signals_of`.
    """
    times = []
    found = signals_of(report, may_lack_network=may_lack_network, is_session=is_session)
    for signal in found:
        if signal.says is Says.LEFT_OUT:
            continue
        if signal.since is None:
            return None
        times.append(signal.since)
    return max(times)
