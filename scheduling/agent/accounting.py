"""What an attempt's processes use of its devices, as they count it in its region themselves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from scheduling.agent.fraction.limits import LimitsError, uuid_bytes
from scheduling.agent.fraction.region import Flag, Region, RegionError, State
from scheduling.agent.protocol import GrantedDevice, SwapObstacle

_MIB = 2**20
_AWAY = (State.SWAPPED_OUT, State.WAITING, State.SWAPPING_IN)
# What the workload's CUDA calls find while its device memory is where `swap.record.Phase` says.
_GATES = {
    "running": State.RUNNING,
    "locking": State.LOCKING,
    "locked": State.LOCKING,
    "checkpointing": State.SWAPPING_OUT,
    "swapped": State.SWAPPED_OUT,
    "waiting": State.WAITING,
    "restoring": State.SWAPPING_IN,
    "failed": State.FAILED,
}
_OBSTACLES = {
    Flag.SEVERAL_GPUS: SwapObstacle.SEVERAL_GPUS,
    Flag.MANAGED: SwapObstacle.MANAGED_MEMORY,
    Flag.IPC: SwapObstacle.IPC_MEMORY,
    Flag.EXPORTABLE: SwapObstacle.SHARED_MEMORY,
}


@dataclass(frozen=True, slots=True)
class Accounting:
    """One attempt's region and devices.

    Attributes:
        region: Where its processes count; not there where nothing counts.
        devices: What it was granted.
    """

    region: Region
    devices: Sequence[GrantedDevice]

    def last_call_s(self) -> float | None:
        """When it last called CUDA, by `time.monotonic()`; None before the first call.

        Raises:
            OSError: nothing counts its calls.
        """
        try:
            return self.region.last_call_s()
        except RegionError as error:
            raise FileNotFoundError(str(error)) from error

    def used_bytes(self) -> int:
        """What its processes use of all its devices; 0 where nothing counts it."""
        try:
            return sum(self.region.read().used_bytes)
        except RegionError:
            return 0

    def used_mib(self) -> dict[str, float] | None:
        """What its processes hold on each of its devices; None where nothing counts it."""
        try:
            reading = self.region.read()
            places = {device.uuid: uuid_bytes(device.uuid) for device in self.devices}
        except (RegionError, LimitsError):
            return None
        used = dict(zip(reading.device_uuids, reading.used_bytes, strict=True))
        if reading.state in _AWAY:
            used = dict.fromkeys(used, 0)
        return {uuid: used[place] / _MIB for uuid, place in places.items() if place in used}

    def swap_obstacle(self) -> str:
        """What its processes did that rules Swap out (a `SwapObstacle`); empty for nothing."""
        try:
            flags = self.region.read().flags
        except RegionError:
            # Destroyed, or of an older agent: what has to move is not known. Without any, the
            # driver tells.
            return str(SwapObstacle.NO_MECHANISM) if self.region.path.exists() else ""
        return next((str(obstacle) for flag, obstacle in _OBSTACLES.items() if flag & flags), "")

    def close_gate(self, phase: str) -> None:
        """Tell its processes where their device memory is; their calls wait unless it is there."""
        with suppress(RegionError):
            self.region.set_state(_GATES[phase])
