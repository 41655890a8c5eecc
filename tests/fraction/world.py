"""A small machine for tests: fake driver, proxies in front of it, limits and region, no mounts.

The proxies are built for a prefix of the test's own instead of /run/allot. Programs run as children
and find `libcuda.so.1` by LD_LIBRARY_PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scheduling.agent.fraction import limits as limits_file
from scheduling.agent.fraction.build import Libraries
from scheduling.agent.fraction.limits import GpuLimit, Limits
from scheduling.agent.fraction.region import Region

GIB, MIB = 2**30, 2**20
# Results of the driver.
OUT_OF_MEMORY, NOT_READY, ILLEGAL_STATE = 2, 802, 401
T4_USABLE = 14_917 * MIB
UUIDS = tuple(f"GPU-5f0c0000-0000-4000-8000-00000000000{index}" for index in range(4))
CALLER = Path(__file__).parent / "caller.py"


@dataclass(frozen=True)
class FakeDevice:
    """A device of the fake driver."""

    uuid: str = UUIDS[0]
    usable: int = T4_USABLE
    reserved: int = 443 * MIB
    capability: tuple[int, int] = (7, 5)
    name: str = "Tesla T4"


@dataclass(frozen=True)
class Asked:
    """A process at its steps."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def answers(self) -> list[object]:
        """What the steps gave, once all are done."""
        output, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        answers: list[object] = json.loads(output)
        return answers


@dataclass
class World:
    """One session on a fake machine."""

    prefix: Path
    libraries: Libraries
    devices: tuple[FakeDevice, ...] = (FakeDevice(),)
    driver: str = "580.95.05"
    cuda: int = 13000
    extra: tuple[str, ...] = ()
    limits: tuple[GpuLimit, ...] = ()
    gate: str = ""
    is_strict: bool = False
    session: str = "session-1"
    environment: dict[str, str] = field(default_factory=dict)

    def make(self) -> World:
        """Write everything out anew."""
        shutil.rmtree(self.prefix, ignore_errors=True)
        self.prefix.mkdir(parents=True)
        shutil.copy(self.libraries.fake_cuda, self.prefix / "libcuda.real")
        shutil.copy(self.libraries.fake_nvml, self.prefix / "libnvidia-ml.real")
        Region.create(
            self.prefix / "devices",
            [GpuLimit(each.uuid, each.usable, 1000) for each in self.devices],
        )
        self.write_driver()
        if not self.limits:
            self.limits = (GpuLimit(self.devices[0].uuid, 5 * GIB, 333),)
        self.write_limits()
        Region.create(self.region.path, self.limits)
        return self

    def write_driver(self) -> None:
        """Write the fake driver's configuration."""
        lines = [f"driver {self.driver}", f"cuda {self.cuda}", f"region {self.prefix}/devices"]
        for index, each in enumerate(self.devices):
            major, minor = each.capability
            lines.append(
                f"device {each.uuid} {each.usable} {each.reserved} {major} {minor} {index} {index} "
                f"{each.name}"
            )
        (self.prefix / "driver.conf").write_text("\n".join([*lines, *self.extra, ""]))

    def write_limits(self) -> None:
        """Write the session's limits."""
        limits_file.write(
            self.prefix / "limits",
            Limits(self.session, str(self.region.path), self.limits, self.gate, self.is_strict),
        )

    @property
    def region(self) -> Region:
        """The session's accounting."""
        return Region(self.prefix / "region")

    @property
    def physical(self) -> Region:
        """The devices' own memory."""
        return Region(self.prefix / "devices")

    def start(self, arguments: Sequence[str | Path], **environment: str) -> subprocess.Popen[str]:
        """Start a program that finds the proxies by their ordinary names."""
        return subprocess.Popen(
            [str(argument) for argument in arguments],
            env={
                "PATH": os.environ["PATH"],
                "LD_LIBRARY_PATH": str(self.libraries.folder),
                **self.environment,
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments: Sequence[str | Path], **environment: str) -> str:
        """Run a program to its end; its output."""
        process = self.start(arguments, **environment)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, f"{output}\n{errors}"
        return output

    @contextmanager
    def asking(self, *steps: object, **environment: str) -> Iterator[Asked]:
        """Meanwhile a process carries out steps; it is killed at the end."""
        process = self.start([sys.executable, "-S", CALLER], **environment)
        assert process.stdin is not None
        process.stdin.write(json.dumps(steps))
        process.stdin.close()
        process.stdin = None
        try:
            yield Asked(process)
        finally:
            process.kill()
            process.communicate()

    def ask(self, *steps: object, **environment: str) -> list[object]:
        """Run steps of `caller.py` in one process; what each gave."""
        process = self.start([sys.executable, "-S", CALLER], **environment)
        output, errors = process.communicate(json.dumps(steps), timeout=60)
        assert process.returncode == 0, f"{output}\n{errors}"
        answers: list[object] = json.loads(output)
        return answers


def until(is_true: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open."""
    folder = Path(f"/proc/{pid}/fd")
    return any((folder / name).resolve() == path for name in os.listdir(folder))
