"""What the proxy library costs per call, beyond the driver's own: over the fake driver.

A C program calls once through the proxy and once the fake itself, in turns, in one process each,
so that both see the same machine. The result is checked before a time is reported.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduling.agent.fraction import build
from scheduling.agent.fraction import limits as limits_file
from scheduling.agent.fraction.limits import GpuLimit, Limits
from scheduling.agent.fraction.region import Region
from scheduling.management.benches.figures import Bench, Report, at_least, figure

_UUID = "GPU-5f0c0000-0000-4000-8000-000000000000"
_GIB = 2**30
# Of the issue: below a microsecond per call.
_TARGET_US = 1.0
_CALLS = ("alloc", "pool", "launch", "info")
_CALLER = Path(__file__).with_name("fraction_calls.c")


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--calls", type=at_least(1), default=20_000, help="calls per run and kind")
    parser.add_argument(
        "--processes", type=int, default=1, help="of the session, beside each other"
    )


class _Machine:
    """A fake driver, the proxy before it, and the program that calls."""

    def __init__(self, folder: Path) -> None:
        self.prefix = folder / "prefix"
        self.prefix.mkdir()
        self.libraries = build.build(folder / "build", str(self.prefix))
        shutil.copy(self.libraries.fake_cuda, self.prefix / "libcuda.real")
        Region.create(self.prefix / "devices", [GpuLimit(_UUID, 14 * _GIB, 1000)])
        limit = GpuLimit(_UUID, 5 * _GIB, 333)
        region = Region.create(self.prefix / "region", [limit])
        limits_file.write(self.prefix / "limits", Limits("bench", str(region.path), (limit,)))
        (self.prefix / "driver.conf").write_text(
            f"driver 580.95.05\ncuda 13000\nregion {self.prefix}/devices\n"
            f"device {_UUID} {14 * _GIB} 0 7 5 0 0 Tesla T4\n"
        )
        self.program = folder / "calls"
        command = [build.compiler(), "-O2", str(_CALLER), "-o", str(self.program), "-ldl"]
        subprocess.run(command, check=True)

    def calls(self, library: Path, num_calls: int) -> dict[str, float]:
        """Nanoseconds per call of each kind."""
        done = subprocess.run(
            [self.program, library, str(num_calls)], check=True, capture_output=True, text=True
        )
        found: dict[str, float] = json.loads(done.stdout)
        return found

    def hold(self) -> subprocess.Popen[str]:
        """One more process of the session, which holds a little memory."""
        process = subprocess.Popen(
            [self.program, self.libraries.cuda, "hold"], stdout=subprocess.PIPE,
            stdin=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None  # asked for above
        process.stdout.readline()
        return process


def _measure(options: Mapping[str, Any]) -> Report:
    """Time each kind of call with and without the proxy."""
    over_us: dict[str, list[float]] = {name: [] for name in _CALLS}
    alone_us: dict[str, list[float]] = {name: [] for name in _CALLS}
    with tempfile.TemporaryDirectory(prefix="allot-bench-") as folder:
        machine = _Machine(Path(folder))
        others = [machine.hold() for _ in range(options["processes"] - 1)]
        try:
            for number in range(options["warmup"] + options["runs"]):
                plain = machine.calls(machine.prefix / "libcuda.real", options["calls"])
                through = machine.calls(machine.libraries.cuda, options["calls"])
                if number < options["warmup"]:
                    continue
                for name in _CALLS:
                    alone_us[name].append(plain[name] / 1000)
                    over_us[name].append((through[name] - plain[name]) / 1000)
        finally:
            for each in others:
                each.communicate("\n")
    figures = {
        f"{name}_overhead_us": figure(values, "us", _TARGET_US) for name, values in over_us.items()
    }
    figures |= {f"{name}_driver_us": figure(values, "us") for name, values in alone_us.items()}
    return Report({"calls": options["calls"], "processes": options["processes"]}, figures, {})


BENCHES = {
    "fraction": Bench("what the proxy library adds to a call of the driver", _arguments, _measure)
}
