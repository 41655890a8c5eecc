"""What orchestrator and agent say about Swap; part of `protocol`, which gives all of it out.

The orchestrator decides *loans*: that an idle session's device memory goes to the host and a
waiting training takes its devices. The agent carries them out and decides *wakes* alone, at once:
a loan that it has ended is never begun again, whatever the desired state says, until its end was
acknowledged and the orchestrator stopped naming it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class IdleThresholds:
    """Below which use counts as none; the project's, or the platform's.

    Attributes:
        gpu_percent: Mean use of the devices by the session's processes.
        cpu_fraction: CPU time per second, as part of the cores that it asked for.
        network_kib_s: Bytes in and out.
    """

    gpu_percent: float = 2.0
    cpu_fraction: float = 0.1
    network_kib_s: float = 50.0


class Signal(StrEnum):
    """What idleness is seen by; `IdleReport.missing` names those that cannot be read."""

    GPU = "gpu"
    CPU = "cpu"
    NETWORK = "network"
    KERNELS = "kernels"
    TERMINALS = "terminals"


@dataclass(frozen=True, slots=True)
class IdleReport:
    """Since when a session or training has been idle, signal by signal, in Unix seconds.

    Attributes:
        gpu_idle_since, cpu_idle_since, network_idle_since, kernels_idle_since,
            terminals_idle_since: None while busy, or where the signal is missing: that is never
            taken for idle. A training has neither kernels nor terminals.
        held_cells: Cells that wait in the relay; any means busy.
        missing: Signals (`Signal`) that cannot be read now.
    """

    gpu_idle_since: float | None = None
    cpu_idle_since: float | None = None
    network_idle_since: float | None = None
    kernels_idle_since: float | None = None
    terminals_idle_since: float | None = None
    held_cells: int = 0
    missing: list[str] = field(default_factory=list)


class SwapState(StrEnum):
    """Where an attempt's device memory is."""

    RUNNING = "running"
    LOCKING = "locking"
    SWAPPING_OUT = "swapping_out"
    SWAPPED_OUT = "swapped_out"
    WAITING = "waiting"
    """Wanted again; its devices are not free yet."""
    SWAPPING_IN = "swapping_in"
    FAILED = "failed"
    """Frozen: device memory is lost or in doubt, and nothing is tried again."""


class SwapObstacle(StrEnum):
    """Why an attempt cannot be swapped."""

    NO_MECHANISM = "no_mechanism"
    """The node has none: `NodeReport.swap_note` says why."""
    SWITCHED_OFF = "switched_off"
    MIG = "mig"
    SEVERAL_GPUS = "several_gpus"
    MANAGED_MEMORY = "managed_memory"
    IPC_MEMORY = "ipc_memory"
    SHARED_MEMORY = "shared_memory"
    """Exportable memory (VMM handles that other processes may map)."""
    NO_HOST_MEMORY = "no_host_memory"
    NO_DEVICE = "no_device"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SwapReport:
    """An attempt's device memory.

    Attributes:
        reason: A `SwapObstacle`; empty where it can be swapped.
        bytes_on_device: In use on its devices; 0 where that is not known.
        bytes_on_host: Moved to the host.
    """

    state: SwapState = SwapState.RUNNING
    reason: str = ""
    bytes_on_device: int = 0
    bytes_on_host: int = 0


@dataclass(frozen=True, slots=True)
class Loan:
    """Devices of an idle session that a training may use meanwhile.

    A training on a device that several sessions hold needs one loan from each. Both attempts are
    in `Desired.attempts`; the borrower is started, or brought back from the host, once all its
    lenders are off the devices.

    Attributes:
        idle_s: The lender must have been idle for so long by the agent's own look, just before.
    """

    loan_id: str
    lender_attempt_id: str
    borrower_attempt_id: str
    device_uuids: list[str]
    idle_s: float = 0.0


class LoanState(StrEnum):
    """Where a loan is. `ENDED` and `REFUSED` are final."""

    SWAPPING_OUT = "swapping_out"
    LENT = "lent"
    WAKING = "waking"
    ENDED = "ended"
    """The lender has its devices back, or has ended itself."""
    REFUSED = "refused"
    """Never came about: `error` says why (a `SwapObstacle`, `not_idle` or `resident_too_short`)."""


class LoanEnd(StrEnum):
    """What ended a loan."""

    CELL = "cell"
    CUDA_CALL = "cuda_call"
    BUTTON = "button"
    ACTIVITY = "activity"
    """A kernel or terminal turned busy by itself."""
    BORROWER_ENDED = "borrower_ended"
    LENDER_ENDED = "lender_ended"
    ORCHESTRATOR = "orchestrator"
    """The desired state names it no more."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LoanReport:
    """What became of a loan.

    Attributes:
        swapped_out_bytes: Of the lender's device memory.
        out_s, in_s: Moving it to the host, and back.
        wake_s: From the wake to the running lender, the borrower's leaving included.
        ended_by: A `LoanEnd`; set from the wake on.
        error: A code for `refused`, words for a loan that failed.
        lent_at, ended_at: Unix seconds: devices free for the borrower; lender back.
    """

    loan_id: str
    state: LoanState
    swapped_out_bytes: int = 0
    out_s: float | None = None
    in_s: float | None = None
    wake_s: float | None = None
    ended_by: str = ""
    error: str = ""
    lent_at: float | None = None
    ended_at: float | None = None
