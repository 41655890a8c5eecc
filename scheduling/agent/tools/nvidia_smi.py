"""A small `nvidia-smi` for simulated devices: it reads NVML, as the real one does.

What it prints comes from `libnvidia-ml.so.1` as the dynamic linker finds it, so in a session from
the proxy, over the fake driver: the same code path as on real devices. Standard library only: it
runs in the workload's environment.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

_NOT_AVAILABLE = "[N/A]"
_WIDTH = 91
_USAGE = (
    "Usage: nvidia-smi [-L | -q | --query-gpu=FIELDS --format=csv[,noheader][,nounits]\n"
    "                   | --query-compute-apps=FIELDS --format=csv]\n"
    "A small stand-in for simulated devices: it shows what NVML shows this workload."
)
_MIB = 2**20
_LIBRARY = "libnvidia-ml.so.1"
_MEMORY_V2 = 0x02000028
_MAX_PROCESSES = 1024


class _Memory(ctypes.Structure):
    """`nvmlMemory_v2_t`."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_t`."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Utilisation(ctypes.Structure):
    """`nvmlUtilization_t`."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


@dataclass(frozen=True)
class Device:
    """One device as NVML shows it; sizes in MiB."""

    index: int
    uuid: str
    model: str
    driver: str
    total_mib: int
    used_mib: int
    free_mib: int
    reserved_mib: int
    percent: int
    processes: tuple[tuple[int, int], ...] = field(default=())


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
    "driver_version": lambda device: _with_unit(device.driver),
    "count": lambda _: _with_unit(_NOT_AVAILABLE),
    "timestamp": lambda _: _with_unit(time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "memory.total": lambda device: _with_unit(device.total_mib, "MiB"),
    "memory.used": lambda device: _with_unit(device.used_mib, "MiB"),
    "memory.free": lambda device: _with_unit(device.free_mib, "MiB"),
    "memory.reserved": lambda device: _with_unit(device.reserved_mib, "MiB"),
    "utilization.gpu": lambda device: _with_unit(device.percent, "%"),
}
_WITHOUT_VALUE = (
    "utilization.memory", "temperature.gpu", "temperature.memory", "power.draw",
    "power.limit", "pci.bus_id", "gpu_bus_id", "pstate", "fan.speed", "clocks.sm", "clocks.mem",
    "clocks.gr", "compute_mode", "compute_cap", "mig.mode.current", "serial", "vbios_version",
    "display_active", "display_mode", "persistence_mode", "ecc.mode.current", "gpu_serial",
)  # fmt: skip


@contextmanager
def _nvml() -> Iterator[Any]:
    """The library, initialised; its functions have no types, hence Any."""
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError:
        _fail(f"NVIDIA-SMI couldn't find {_LIBRARY} in your system.", 12)
    if result := nvml.nvmlInit_v2():
        _fail(f"Failed to initialize NVML: {_words(nvml, result)}", 9)
    yield nvml
    nvml.nvmlShutdown()


def _words(nvml: Any, result: int) -> str:
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    return str(nvml.nvmlErrorString(result).decode())


def _text(call: Any, *arguments: object) -> str:
    buffer = ctypes.create_string_buffer(96)
    return "" if call(*arguments, buffer, 96) else buffer.value.decode()


def _devices(nvml: Any) -> list[Device]:
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return [_device(nvml, index) for index in range(count.value)]


def _device(nvml: Any, index: int) -> Device:
    handle, memory, rates = ctypes.c_void_p(), _Memory(version=_MEMORY_V2), _Utilisation()
    for result in (
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)),
        nvml.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)),
        nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)),
    ):
        if result:
            _fail(f"Unable to determine GPU {index}: {_words(nvml, result)}", 9)
    infos, count = (_Process * _MAX_PROCESSES)(), ctypes.c_uint(_MAX_PROCESSES)
    if nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), infos):
        count.value = 0
    return Device(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID, handle),
        model=_text(nvml.nvmlDeviceGetName, handle),
        driver=_text(nvml.nvmlSystemGetDriverVersion),
        total_mib=memory.total // _MIB,
        used_mib=memory.used // _MIB,
        free_mib=memory.free // _MIB,
        reserved_mib=memory.reserved // _MIB,
        percent=rates.gpu,
        processes=tuple((each.pid, each.used // _MIB) for each in infos[: count.value]),
    )


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[0].decode(errors="replace") or "?"
    except OSError:
        return "?"


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
    _say(_box(f"NVIDIA-SMI simulated      Driver Version: {devices[0].driver} (simulated)"))
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
        usage = f"{device.used_mib}MiB / {device.total_mib}MiB"
        _say(
            _columns(
                f"{device.index:>3}  {device.model} (simulated)", "N/A                N/A", "N/A"
            )
        )
        percent = f"{device.percent}%      N/A"
        _say(_columns("N/A   N/A   N/A        N/A / N/A", f"{usage:>22}", f"{percent:>21}"))
        _say(_rule())
    _say("")
    _say("+" + "-" * (_WIDTH - 2) + "+")
    listed = [(device, *each) for device in devices for each in device.processes]
    _say(_box("Processes:" if listed else "No running processes found"))
    for device, pid, used_mib in listed:
        line = f"{device.index:>4}   N/A  N/A {pid:>11}      C   {_name_of(pid):<40.40}"
        _say(_box(f"{line}{used_mib:>8}MiB"))
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
    _say(f"{'Driver Version':<42}: {devices[0].driver} (simulated)")
    _say(f"{'Attached GPUs':<42}: {len(devices)}")
    for device in devices:
        _say(f"GPU {device.index}")
        _say(f"    {'Product Name':<38}: {device.model} (simulated)")
        _say(f"    {'GPU UUID':<38}: {device.uuid}")
        _say("    FB Memory Usage")
        _say(f"        {'Total':<34}: {device.total_mib} MiB")
        _say(f"        {'Reserved':<34}: {device.reserved_mib} MiB")
        _say(f"        {'Used':<34}: {device.used_mib} MiB")
        _say(f"        {'Free':<34}: {device.free_mib} MiB")
        for pid, used_mib in device.processes:
            _say("    Processes")
            _say(f"        {'Process ID':<34}: {pid}")
            _say(f"            {'Used GPU Memory':<30}: {used_mib} MiB")


def show_processes(devices: list[Device], names: list[str], options: frozenset[str]) -> None:
    """Comma-separated values, as `--query-compute-apps`."""
    readers: dict[str, Callable[[Device, int, int], str]] = {
        "pid": lambda _device, pid, _used: str(pid),
        "process_name": lambda _device, pid, _used: _name_of(pid),
        "gpu_uuid": lambda device, _pid, _used: device.uuid,
        "used_memory": lambda _device, _pid, used: (
            str(used) if "nounits" in options else f"{used} MiB"
        ),
    }
    for name in names:
        if name not in readers:
            _fail(f'Field "{name}" is not a valid field to query.', 2)
    if "noheader" not in options:
        _say(
            ", ".join("used_gpu_memory [MiB]" if name == "used_memory" else name for name in names)
        )
    for device in devices:
        for pid, used_mib in device.processes:
            _say(", ".join(readers[name](device, pid, used_mib) for name in names))


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
    apps: list[str] | None = None
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
            elif name == "--query-compute-apps":
                self.apps = [field.strip() for field in value.split(",")]
            elif name == "--format":
                self.options = frozenset(option.strip() for option in value.split(","))
            elif name in ("-i", "--id"):
                self.devices = _selected(self.devices, value or next(words, ""))
            else:
                _fail(f"Invalid option: {word}\n{_USAGE}", 2)


def main(arguments: list[str]) -> None:
    """Answer one command line."""
    if {"-h", "--help"} & set(arguments):
        _fail(_USAGE, 0)
    with _nvml() as nvml:
        devices = _devices(nvml)
    wish = _Wish(devices)
    wish.read(arguments)
    if not wish.devices:
        _fail("No devices were found", 6)
    queried = wish.fields or wish.apps
    if queried is None:
        wish.shows(wish.devices)
    elif "csv" not in wish.options:
        _fail('"--format=" is missing "csv".', 2)
    elif wish.apps is not None:
        show_processes(wish.devices, wish.apps, wish.options)
    else:
        show_query(wish.devices, queried, wish.options)


if __name__ == "__main__":
    main(sys.argv[1:])
