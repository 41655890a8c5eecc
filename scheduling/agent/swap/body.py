"""An attempt as its machine sees it: its processes, its limits, its region and its log."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Protocol

import psutil

from scheduling.agent import folders
from scheduling.agent.attempt import Attempt
from scheduling.agent.cgroups import Cgroup
from scheduling.agent.protocol import SwapObstacle
from scheduling.agent.swap.record import Phase

_MIB = 2**20
# Of the machine's memory, never taken for what is swapped out.
_KEEP_FREE_MIB = 1024


class HostMemory:
    """Host memory for what is swapped out, per node; thread-safe."""

    def __init__(self) -> None:
        self.limits_mib: dict[str, int] = {}
        self._held_mib: dict[str, tuple[str, int]] = {}
        self._mutex = threading.Lock()

    def hold(self, attempt_id: str, node: str, num_mib: int, *, is_simulated: bool) -> bool:
        """Hold so much for an attempt instead of what it held; False where there is no room.

        Args:
            attempt_id: For whom.
            node: Where.
            num_mib: Of all its processes together.
            is_simulated: The node's memory is declared: nothing is really copied.
        """
        with self._mutex:
            others_mib = sum(
                held
                for other, (where, held) in self._held_mib.items()
                if where == node and other != attempt_id
            )
            limit_mib = self.limits_mib.get(node)
            if num_mib and limit_mib is not None and others_mib + num_mib > limit_mib:
                return False
            if num_mib and not is_simulated:
                free_mib = psutil.virtual_memory().available // _MIB
                if num_mib + _KEEP_FREE_MIB > free_mib:
                    return False
            self._held_mib[attempt_id] = (node, num_mib)
            return True

    def give_back(self, attempt_id: str) -> None:
        """It needs none any more."""
        with self._mutex:
            self._held_mib.pop(attempt_id, None)


class Body(Protocol):
    """What the machine needs of an attempt."""

    @property
    def folder(self) -> Path:
        """Where it keeps its record."""
        ...

    def pids(self) -> list[int]:
        """All its processes now."""
        ...

    def device_uuids(self) -> list[str]:
        """Its devices."""
        ...

    def used_bytes(self) -> int:
        """In use on its devices; 0 where nothing counts it."""
        ...

    def obstacle(self) -> str:
        """Why it cannot be swapped (a `SwapObstacle`); empty if it can."""
        ...

    def reserve(self, extra_mib: int) -> bool:
        """Raise its memory limit by so much, 0 for none; False where the node has no room."""
        ...

    def close_gate(self, phase: Phase) -> None:
        """Tell its own processes, whose CUDA calls wait while the phase is not RUNNING."""
        ...

    def last_call_s(self) -> float | None:
        """See `Accounting.last_call_s`; raises `OSError` where nothing counts the calls."""
        ...

    def say(self, line: str) -> None:
        """Write into its log."""
        ...


class AttemptBody:
    """See `Body`."""

    def __init__(self, attempt: Attempt, host: HostMemory) -> None:
        self._attempt = attempt
        self._host = host

    @property
    def folder(self) -> Path:
        """See `Body`."""
        return self._attempt.folder

    def pids(self) -> list[int]:
        """See `Body`."""
        return self._attempt.usage().pids()

    def device_uuids(self) -> list[str]:
        """See `Body`."""
        return [device.uuid for device in self._attempt.spec.devices]

    def used_bytes(self) -> int:
        """See `Body`."""
        return self._attempt.accounting.used_bytes()

    def obstacle(self) -> str:
        """See `Body`."""
        spec = self._attempt.spec
        if not spec.devices:
            return SwapObstacle.NO_DEVICE
        if not spec.is_swappable:
            return SwapObstacle.SWITCHED_OFF
        if any(device.uuid.startswith("MIG-") for device in spec.devices):
            return SwapObstacle.MIG
        if len(spec.devices) > 1:
            return SwapObstacle.SEVERAL_GPUS
        return self._attempt.accounting.swap_obstacle()

    def reserve(self, extra_mib: int) -> bool:
        """See `Body`. The driver may copy into the session's own memory, so its limit goes up."""
        spec = self._attempt.spec
        is_simulated = self._attempt.site.is_simulated(spec.node)
        usage = self._attempt.usage()
        if extra_mib and not self._host.hold(
            spec.attempt_id, spec.node, extra_mib, is_simulated=is_simulated
        ):
            return False
        if isinstance(usage, Cgroup) and usage.exists():
            usage.limit_memory(spec.memory_mib + extra_mib)
        if not extra_mib:
            self._host.give_back(spec.attempt_id)
        return True

    def close_gate(self, phase: Phase) -> None:
        """See `Body`."""
        self._attempt.accounting.close_gate(phase)

    def last_call_s(self) -> float | None:
        """See `Body`."""
        return self._attempt.accounting.last_call_s()

    def say(self, line: str) -> None:
        """See `Body`."""
        folders.append_line(self._attempt.folder / folders.LOG, line)
