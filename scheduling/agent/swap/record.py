"""What is kept on disk of an attempt's device memory and of a loan, so that any agent goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from scheduling.agent.folders import opened, write_json
from scheduling.agent.protocol import Loan, LoanState, SwapState

SWAP = "swap.json"
Kept = TypeVar("Kept")


class Phase(StrEnum):
    """Where an attempt's device memory is; written before what it names is begun."""

    RUNNING = "running"
    LOCKING = "locking"
    LOCKED = "locked"
    CHECKPOINTING = "checkpointing"
    SWAPPED = "swapped"
    WAITING = "waiting"
    RESTORING = "restoring"
    FAILED = "failed"


REPORTED: Final = {
    Phase.RUNNING: SwapState.RUNNING,
    Phase.LOCKING: SwapState.LOCKING,
    Phase.LOCKED: SwapState.LOCKING,
    Phase.CHECKPOINTING: SwapState.SWAPPING_OUT,
    Phase.SWAPPED: SwapState.SWAPPED_OUT,
    Phase.WAITING: SwapState.WAITING,
    Phase.RESTORING: SwapState.SWAPPING_IN,
    Phase.FAILED: SwapState.FAILED,
}


@dataclass(frozen=True, slots=True)
class Saved:
    """One process whose memory is moved.

    Attributes:
        start_ticks: With its number they name the process for ever.
        num_bytes: Per device UUID, before the move.
    """

    pid: int
    start_ticks: int
    num_bytes: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """Of all devices."""
        return sum(self.num_bytes.values())


@dataclass(slots=True)
class SwapRecord:
    """An attempt's device memory.

    Attributes:
        at: When the phase began; all times are Unix seconds.
        back_at: When it last came back to its devices.
        out_s, in_s: The last move each way.
        extra_mib: By which its memory limit is raised.
        has_borrowed: Its devices were lent to it: it yields them to whoever they were promised to.
        error: Why it failed.
    """

    phase: Phase = Phase.RUNNING
    at: float = 0.0
    processes: list[Saved] = field(default_factory=list)
    back_at: float | None = None
    out_s: float | None = None
    in_s: float | None = None
    extra_mib: int = 0
    has_borrowed: bool = False
    error: str = ""

    @property
    def saved_bytes(self) -> int:
        """Of all its processes together."""
        return sum(process.total_bytes for process in self.processes)


@dataclass(slots=True)
class LoanRecord:
    """A loan as far as it was carried out.

    Attributes:
        started_at: When it was first ordered.
        lent_at: When the devices became free for the borrower; None if they never were.
        wanted_at: When the lender was wanted again.
    """

    loan: Loan
    state: LoanState = LoanState.SWAPPING_OUT
    started_at: float = 0.0
    lent_at: float | None = None
    wanted_at: float | None = None
    ended_at: float | None = None
    ended_by: str = ""
    error: str = ""
    swapped_out_bytes: int = 0
    out_s: float | None = None
    in_s: float | None = None
    is_dropped: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in (LoanState.ENDED, LoanState.REFUSED)


def read(path: Path, expected: type[Kept]) -> Kept | None:
    """What was kept in a file; None if it is absent or cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=expected)
    except (OSError, msgspec.MsgspecError):
        return None


def write(path: Path, record: object) -> None:
    """Replace a file at once and make it last."""
    with opened(path.parent) as fd:
        write_json(path.name, msgspec.to_builtins(record), dir_fd=fd)
        os.fsync(fd)
