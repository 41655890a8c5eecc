"""The driver of a simulated node: the fake libraries, and one file of device memory for all.

A folder per node holds copies of the libraries (not links: the dynamic linker would take two nodes'
for one), `driver.conf` and the memory. The agent itself may load the libraries from there.
Standard library only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scheduling.agent.fraction.build import Libraries
from scheduling.agent.fraction.limits import GpuLimit
from scheduling.agent.fraction.region import Region, RegionError

MIB = 2**20
# What NVIDIA's long-lived branch has; below 615, so that the proxy library is what holds shares.
DRIVER, CUDA = "580.95.05", 13000


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """A declared device.

    Attributes:
        usable_bytes, reserved_bytes: As NVML's second version tells them.
        bandwidth_mib_s: Of a copy to the host.
    """

    uuid: str
    name: str
    usable_bytes: int
    reserved_bytes: int = 0
    capability: tuple[int, int] = (7, 5)
    bandwidth_mib_s: int = 12_000


@dataclass(frozen=True, slots=True)
class SimulatedDriver:
    """The driver of one node, in a folder of its own."""

    folder: Path
    devices: tuple[SimulatedDevice, ...]
    version: str = DRIVER

    @property
    def cuda(self) -> Path:
        """The fake libcuda."""
        return self.folder / "libcuda.so.1"

    @property
    def nvml(self) -> Path:
        """The fake libnvidia-ml."""
        return self.folder / "libnvidia-ml.so.1"

    @property
    def memory(self) -> Path:
        """What all processes on this node use of its devices."""
        return self.folder / "devices"

    @property
    def limits(self) -> Path:
        """The driver's own limits of cgroups, a file each."""
        return self.folder / "cgroup-limits"

    def make(self, libraries: Libraries) -> None:
        """Make what is not there, and renew the libraries; running sessions keep theirs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        for source, target in ((libraries.fake_cuda, self.cuda), (libraries.fake_nvml, self.nvml)):
            temporary = target.with_suffix(".tmp")
            shutil.copyfile(source, temporary)
            temporary.chmod(0o755)
            temporary.replace(target)
        self._make_memory()
        # Only root sets limits, hence only the agent's own driver knows where they are kept.
        self.limits.mkdir(exist_ok=True)
        (self.folder / "driver.conf").write_text(
            self.configuration([each.uuid for each in self.devices], self.memory)
            + f"limits {self.limits}\n"
        )

    def _make_memory(self) -> None:
        limits = [GpuLimit(each.uuid, each.usable_bytes, 1000) for each in self.devices]
        region = Region.create(self.memory, limits)
        try:
            found = region.read()
            usable = tuple(each.usable_bytes for each in self.devices)
            if found.is_current and found.limit_bytes == usable:
                return
        except RegionError:
            pass
        # Of another format or of other devices: sessions that run keep the file that they have.
        self.memory.unlink()
        Region.create(self.memory, limits)

    def configuration(self, uuids: Sequence[str], memory: Path) -> str:
        """`driver.conf` for someone who sees these devices, and the memory at that path."""
        seen = [each for uuid in uuids for each in self.devices if each.uuid == uuid]
        bandwidth = min((each.bandwidth_mib_s for each in seen), default=0)
        lines = [
            f"driver {self.version}",
            f"cuda {CUDA}",
            f"region {memory}",
            f"bandwidth {bandwidth}",
        ]
        for index, each in enumerate(seen):
            major, minor = each.capability
            lines.append(
                f"device {each.uuid} {each.usable_bytes} {each.reserved_bytes} {major} {minor} "
                f"{index} {index} {each.name}"
            )
        return "\n".join([*lines, ""])


def link(source: Path, target: Path) -> None:
    """Put a file of ours at another place, as a link where the file system allows it."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        target.chmod(0o755)
