"""Stands in for `nvidia-smi` on simulated devices: one share shows as one device of that size.

Started by a small script in the workload's PATH as `nvidia_smi.py DEVICES_FILE [arguments]`. The
file is root's and read-only in the workload, so nothing a user sets changes what is shown.
Standard library only: it runs in the workload's environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

_VERSION = "simulated"
_NOT_AVAILABLE = "[N/A]"
_WIDTH = 91
_USAGE = (
    "Usage: nvidia-smi [-L | -q | --query-gpu=FIELDS --format=csv[,noheader][,nounits]]\n"
    "A stand-in for simulated devices: it shows the share of this workload."
)


@dataclass(frozen=True)
class Device:
    """One device as the workload may use it."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    gpu_milli: int


_Reader = Callable[[Device], tuple[str, str]]


def _with_unit(value: object, unit: str = "") -> tuple[str, str]:
    return str(value), unit


# What --query-gpu knows: value and unit. What a simulated device does not have is [N/A].
_FIELDS: dict[str, _Reader] = {
    "index": lambda device: _with_unit(device.index),
    "name": lambda device: _with_unit(device.model),
    "gpu_name": lambda device: _with_unit(device.model),
    "uuid": lambda device: _with_unit(device.uuid),
    "gpu_uuid": lambda device: _with_unit(device.uuid),
    "driver_version": lambda _: _with_unit(_VERSION),
    "count": lambda _: _with_unit(_NOT_AVAILABLE),
    "timestamp": lambda _: _with_unit(time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "memory.total": lambda device: _with_unit(device.memory_mib, "MiB"),
    "memory.used": lambda _: _with_unit(0, "MiB"),
    "memory.free": lambda device: _with_unit(device.memory_mib, "MiB"),
    "memory.reserved": lambda _: _with_unit(0, "MiB"),
}
_WITHOUT_VALUE = (
    "utilization.gpu", "utilization.memory", "temperature.gpu", "temperature.memory", "power.draw",
    "power.limit", "pci.bus_id", "gpu_bus_id", "pstate", "fan.speed", "clocks.sm", "clocks.mem",
    "clocks.gr", "compute_mode", "compute_cap", "mig.mode.current", "serial", "vbios_version",
    "display_active", "display_mode", "persistence_mode", "ecc.mode.current", "gpu_serial",
)  # fmt: skip


def _devices(path: str) -> list[Device]:
    with open(path) as file:
        listed: list[dict[str, Any]] = json.load(file)["devices"]  # JSON, hence Any
    return [
        Device(place, each["uuid"], each["model"], each["memory_mib"], each["gpu_milli"])
        for place, each in enumerate(listed)
    ]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _fail(line: str, code: int) -> NoReturn:
    _say(line)
    raise SystemExit(code)


def _box(text: str) -> str:
    return f"| {text:<{_WIDTH - 4}.{_WIDTH - 4}} |"


def _columns(*texts: str) -> str:
    widths = (41, 24, 22)
    cells = (f" {text:<{width - 1}.{width - 1}}" for text, width in zip(texts, widths, strict=True))
    return "|" + "|".join(cells) + "|"


def _rule(fill: str = "-") -> str:
    return "+" + "+".join(fill * width for width in (41, 24, 22)) + "+"


def show_table(devices: list[Device]) -> None:
    """The table that `nvidia-smi` prints without arguments."""
    _say(time.strftime("%a %b %d %H:%M:%S %Y"))
    _say("+" + "-" * (_WIDTH - 2) + "+")
    _say(_box("NVIDIA-SMI simulated      Driver Version: simulated      CUDA Version: N/A"))
    _say(_rule())
    _say(
        _columns(
            "GPU  Name               (simulated)", "Bus-Id          Disp.A", "Volatile Uncorr. ECC"
        )
    )
    _say(
        _columns(
            "Fan  Temp   Perf    Pwr:Usage/Cap", "          Memory-Usage", "GPU-Util  Compute M."
        )
    )
    _say(_rule("="))
    for device in devices:
        usage = f"0MiB / {device.memory_mib}MiB"
        _say(
            _columns(
                f"{device.index:>3}  {device.model} (simulated)", "N/A                N/A", "N/A"
            )
        )
        _say(_columns("N/A   N/A   N/A        N/A / N/A", f"{usage:>22}", "N/A      N/A"))
        share = f"share {device.gpu_milli / 1000:g} of one GPU"
        _say(_columns("", f"{share:>22}", ""))
        _say(_rule())
    _say("")
    _say("+" + "-" * (_WIDTH - 2) + "+")
    _say(_box("Processes: a simulated device runs none"))
    _say("+" + "-" * (_WIDTH - 2) + "+")


def show_list(devices: list[Device]) -> None:
    """One line per device, as `-L`."""
    for device in devices:
        _say(f"GPU {device.index}: {device.model} (simulated) (UUID: {device.uuid})")


def show_query(devices: list[Device], names: list[str], options: frozenset[str]) -> None:
    """Comma-separated values, as `--query-gpu`."""
    for name in names:
        if name not in _FIELDS and name not in _WITHOUT_VALUE:
            _fail(f'Field "{name}" is not a valid field to query.', 2)
    count = str(len(devices))
    rows = []
    for device in devices:
        row = []
        for name in names:
            value, unit = _FIELDS[name](device) if name in _FIELDS else (_NOT_AVAILABLE, "")
            value = count if name == "count" else value
            row.append(value if "nounits" in options or not unit else f"{value} {unit}")
        rows.append(row)
    if "noheader" not in options:
        units = [_FIELDS[name](devices[0])[1] if name in _FIELDS else "" for name in names]
        shown = [
            name if "nounits" in options or not unit else f"{name} [{unit}]"
            for name, unit in zip(names, units, strict=True)
        ]
        _say(", ".join(shown))
    for row in rows:
        _say(", ".join(row))


def show_all(devices: list[Device]) -> None:
    """The essential part of `-q`."""
    _say("\n==============NVSMI LOG==============\n")
    _say(f"{'Driver Version':<42}: {_VERSION}")
    _say(f"{'Attached GPUs':<42}: {len(devices)}")
    for device in devices:
        _say(f"GPU {device.index}")
        _say(f"    {'Product Name':<38}: {device.model} (simulated)")
        _say(f"    {'GPU UUID':<38}: {device.uuid}")
        _say("    FB Memory Usage")
        _say(f"        {'Total':<34}: {device.memory_mib} MiB")
        _say(f"        {'Used':<34}: 0 MiB")
        _say(f"        {'Free':<34}: {device.memory_mib} MiB")


def _selected(devices: list[Device], wanted: str) -> list[Device]:
    keys = wanted.split(",")
    found = [device for device in devices if str(device.index) in keys or device.uuid in keys]
    return found or _fail("No devices were found", 6)


@dataclass
class _Wish:
    """What a command line asks for."""

    devices: list[Device]
    shows: Callable[[list[Device]], None] = show_table
    fields: list[str] | None = None
    options: frozenset[str] = frozenset()

    def read(self, arguments: list[str]) -> None:
        """Read the arguments; ends the program on one that is not known."""
        words = iter(arguments)
        for word in words:
            name, _, value = word.partition("=")
            if name in ("-L", "--list-gpus"):
                self.shows = show_list
            elif name in ("-q", "--query"):
                self.shows = show_all
            elif name == "--query-gpu":
                self.fields = [field.strip() for field in value.split(",")]
            elif name == "--format":
                self.options = frozenset(option.strip() for option in value.split(","))
            elif name in ("-i", "--id"):
                self.devices = _selected(self.devices, value or next(words, ""))
            else:
                _fail(f"Invalid option: {word}\n{_USAGE}", 2)


def main(path: str, arguments: list[str]) -> None:
    """Answer one command line."""
    if {"-h", "--help"} & set(arguments):
        _fail(_USAGE, 0)
    wish = _Wish(_devices(path))
    wish.read(arguments)
    if not wish.devices:
        _fail("No devices were found", 6)
    if wish.fields is None:
        wish.shows(wish.devices)
    elif "csv" not in wish.options:
        _fail('"--format=" is missing "csv".', 2)
    else:
        show_query(wish.devices, wish.fields, wish.options)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
