"""The first checks of a machine with a GPU: does what was tried over fakes hold on its driver?

    python -m scheduling.agent.fraction.gpu_check [--fake]

Prints a row a check: `ok`, `differs` or `skipped`, with figures. Sessions are children of this
process with the proxies in front of the machine's own libraries, below a folder of their own;
nothing is mounted. `--fake` runs the same checks over the fake driver, which is how they are
tested. Must not share the device with anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scheduling.agent.fraction import build, limits, loader_cache, symbols
from scheduling.agent.fraction.limits import GpuLimit, Limits, LimitsError
from scheduling.agent.fraction.mechanism import CHECKPOINT_DRIVER
from scheduling.agent.fraction.region import Region
from scheduling.agent.fraction.simulated import SimulatedDevice, SimulatedDriver

MIB, GIB = 2**20, 2**30
_TIME_LIMIT_S = 120
_GPU_MILLI = 333
# What a child does; its answers are JSON on one line.
_CHILD = """
import ctypes as c, json, os, sys, time
u64, size = c.c_uint64, c.c_size_t
l = c.CDLL(sys.argv[1])
def say(x): print(json.dumps(x), flush=True)
def start():
    x = c.c_void_p()
    for r in (l.cuInit(0), l.cuDevicePrimaryCtxRetain(c.byref(x), 0), l.cuCtxSetCurrent(x)):
        if r: say({"error": r}); sys.exit(0)
def alloc(n):
    p = u64(); return l.cuMemAlloc_v2(c.byref(p), size(n)), p.value
def info():
    f, t = size(), size(); l.cuMemGetInfo_v2(c.byref(f), c.byref(t)); return f.value, t.value
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    outcome: str
    detail: str


class _Machine:
    """The device under test, and a session on a third of it."""

    def __init__(self, folder: Path, *, is_fake: bool) -> None:
        self.prefix = folder / "prefix"
        self.prefix.mkdir()
        self.libraries = build.build(folder / "build", str(self.prefix))
        self._put_driver(is_fake=is_fake)
        found = self.child(
            "start(); b = (c.c_ubyte * 16)(); v = c.c_int(); l.cuDeviceGetUuid(b, 0); "
            "l.cuDriverGetVersion(c.byref(v)); say([bytes(b).hex(), info(), v.value])",
            through_proxy=False,
        )
        if not isinstance(found, list):
            raise LimitsError(f"the driver does not start: {found}")
        digits, (_, total), self.cuda = found
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        self.uuid = "GPU-" + "-".join(parts)
        self.usable = total
        self.share = limits.share_bytes(total, _GPU_MILLI)
        limit = GpuLimit(self.uuid, self.share, _GPU_MILLI)
        self.region = Region.create(self.prefix / "region", [limit])
        limits.write(self.prefix / "limits", Limits("check", str(self.region.path), (limit,)))

    def _put_driver(self, *, is_fake: bool) -> None:
        if is_fake:
            uuid = "GPU-5f0c0000-0000-4000-8000-000000000000"
            device = SimulatedDevice(uuid, "Tesla T4", 14_917 * MIB, 443 * MIB)
            driver = SimulatedDriver(self.prefix, (device,))
            driver.make(self.libraries)
            shutil.move(driver.cuda, self.prefix / "libcuda.real")
            shutil.move(driver.nvml, self.prefix / "libnvidia-ml.real")
            return
        for name, real in (("libcuda.so.1", "libcuda.real"),
                           ("libnvidia-ml.so.1", "libnvidia-ml.real")):  # fmt: skip
            file = loader_cache.find(name)
            if file is None:
                raise LimitsError(f"{name} is not installed")
            (self.prefix / real).symlink_to(file.resolve())

    def start(self, script: str, *, through_proxy: bool = True) -> subprocess.Popen[str]:
        """Start a child that says what it finds."""
        library = self.libraries.cuda if through_proxy else self.prefix / "libcuda.real"
        return subprocess.Popen(
            [sys.executable, "-S", "-c", _CHILD + script, str(library)],
            env={"PATH": os.defpath, "LD_LIBRARY_PATH": str(self.libraries.folder)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def child(self, script: str, *, through_proxy: bool = True) -> object:
        """What a child said last."""
        output, _ = self.start(script, through_proxy=through_proxy).communicate(
            timeout=_TIME_LIMIT_S
        )
        lines = output.splitlines()
        return json.loads(lines[-1]) if lines else None


def _same(name: str, found: object, wanted: object, detail: str = "") -> Row:
    is_same = found == wanted
    text = detail or f"{found}"
    return Row(name, "ok" if is_same else "differs", text if is_same else f"{found}, not {wanted}")


# ---------------------------------------------------------------- the checks


def _shown(machine: _Machine) -> Iterator[Row]:
    found = machine.child(
        "start(); t = size(); l.cuDeviceTotalMem_v2(c.byref(t), 0)\n"
        "n = c.CDLL('libnvidia-ml.so.1'); n.nvmlInit_v2(); h = c.c_void_p(); m = (u64 * 5)()\n"
        "m[0] = 0x02000028; n.nvmlDeviceGetHandleByIndex_v2(0, c.byref(h))\n"
        "n.nvmlDeviceGetMemoryInfo_v2(h, m); say([t.value, info()[1], m[1]])"
    )
    yield _same("share shown by cuDeviceTotalMem, cuMemGetInfo, NVML", found, [machine.share] * 3)


def _capped(machine: _Machine) -> Iterator[Row]:
    found = machine.child(
        "start(); n = 0; ps = []\n"
        "while True:\n"
        "    r, p = alloc(64 << 20)\n"
        "    if r: break\n"
        "    n += 1; ps.append(p)\n"
        "for p in ps: l.cuMemFree_v2(u64(p))\n"
        "say([n, r, alloc(64 << 20)[0]])"
    )
    wanted = [machine.share // (64 * MIB), 2, 0]
    yield _same("filled by 64 MiB: error 2 at the limit, room after freeing", found, wanted)


def _resolved(machine: _Machine) -> Iterator[Row]:
    rows = [
        (hook.base, hook.symbol, hook.version, 2 if hook.is_per_thread else 0)
        for hook in symbols.read("cuda")
        if hook.version <= machine.cuda
    ]
    found = machine.child(
        f"rows = {rows!r}; start(); odd = []; lacking = []\n"
        "for base, symbol, version, flags in rows:\n"
        "    p, s = c.c_void_p(), c.c_int()\n"
        "    r = l.cuGetProcAddress_v2(\n"
        "        base.encode(), c.byref(p), version, u64(flags), c.byref(s))\n"
        "    try: e = c.cast(getattr(l, symbol), c.c_void_p).value\n"
        "    except AttributeError: lacking.append(symbol); continue\n"
        "    if r or p.value != e: odd.append(symbol)\n"
        "say([odd, lacking])",
        through_proxy=False,
    )
    odd, lacking = found if isinstance(found, list) else ([str(found)], [])
    newest = {(base, version, flags): symbol for base, symbol, version, flags in rows}
    odd = [name for name in odd if name in newest.values()]
    detail = f"{len(rows)} rows; not exported: {', '.join(lacking) or 'none'}"
    yield _same("resolver's addresses are the exported ones", odd, [], detail)


def _context(machine: _Machine) -> Iterator[Row]:
    process = machine.start("start(); say(os.getpid()); sys.stdin.read()", through_proxy=False)
    assert process.stdout is not None  # asked for in start()
    pid = int(process.stdout.readline())
    used = _used_by(machine, pid)
    process.communicate("")
    yield Row(
        "a context's memory (limits file: context bytes)",
        "skipped" if used is None else "ok",
        "NVML lists no such process" if used is None else f"{used / MIB:.0f} MiB per process",
    )


def _used_by(machine: _Machine, pid: int) -> int | None:
    found = machine.child(
        f"n = c.CDLL({str(machine.prefix / 'libnvidia-ml.real')!r}); n.nvmlInit_v2()\n"
        "h = c.c_void_p(); n.nvmlDeviceGetHandleByIndex_v2(0, c.byref(h))\n"
        "i = (u64 * 3000)(); k = c.c_uint(1000)\n"
        "n.nvmlDeviceGetComputeRunningProcesses_v3(h, c.byref(k), i)\n"
        f"say([i[3 * j + 1] for j in range(k.value) if i[3 * j] & 0xffffffff == {pid}])",
        through_proxy=False,
    )
    return int(found[0]) if isinstance(found, list) and found else None


_HOLD = (
    "start(); n = {num_bytes}; r, p = alloc(n); d = bytes(range(256)) * 4096\n"
    "for i in range(0, n, len(d)): l.cuMemcpyHtoD_v2(u64(p + i), d, size(len(d)))\n"
    "say(os.getpid()); sys.stdin.readline(); b = c.create_string_buffer(len(d)); same = True\n"
    "for i in range(0, n, len(d)):\n"
    "    l.cuMemcpyDtoH_v2(b, u64(p + i), size(len(d))); same = same and b.raw == d\n"
    "say(same)"
)
_MOVE = (
    "t = [time.monotonic()]; rs = []; a = (u64 * 8)(); a[0] = 5000; z = (u64 * 8)(); start()\n"
    "for f, x in (('Lock', a), ('Checkpoint', z), ('Restore', z), ('Unlock', z)):\n"
    "    rs.append(getattr(l, 'cuCheckpointProcess' + f)({pid}, x)); t.append(time.monotonic())\n"
    "say([rs, [round(y - x, 3) for x, y in zip(t, t[1:])]])"
)


def _moved(machine: _Machine) -> Iterator[Row]:
    name = "checkpoint and restore of a proxied process, data intact"
    if machine.cuda < 12080:
        yield Row(name, "skipped", f"needs driver {CHECKPOINT_DRIVER} or newer")
        return
    num_bytes = min(GIB, machine.share // 2)
    process = machine.start(_HOLD.format(num_bytes=num_bytes))
    assert process.stdout is not None  # asked for in start()
    pid = int(process.stdout.readline())
    found = machine.child(_MOVE.format(pid=pid), through_proxy=False)
    results, seconds = found if isinstance(found, list) else ([found], [])
    output, _ = process.communicate("\n", timeout=_TIME_LIMIT_S)
    times = ", ".join(
        f"{word} {value:.3f} s"
        for word, value in zip(("lock", "out", "in", "unlock"), seconds, strict=False)
    )
    wanted = [[0, 0, 0, 0], True]
    is_same = json.loads(output.splitlines()[-1]) if output.strip() else None
    yield _same(name, [results, is_same], wanted, f"{num_bytes / GIB:.1f} GiB: {times}")


def _killed(machine: _Machine) -> Iterator[Row]:
    half = machine.share // 2
    process = machine.start(f"start(); r, p = alloc({half}); say(r); time.sleep(100)")
    assert process.stdout is not None  # asked for in start()
    process.stdout.readline()
    process.kill()
    process.communicate()
    began = time.monotonic()
    found = machine.child(f"start(); say(alloc({machine.share * 3 // 4})[0])")
    detail = f"the next process had it after {time.monotonic() - began:.2f} s"
    yield _same("a killed process's memory is there for the next", found, 0, detail)


CHECKS: tuple[Callable[[_Machine], Iterator[Row]], ...] = (
    _shown, _capped, _resolved, _context, _killed, _moved,
)  # fmt: skip


def run(*, is_fake: bool = False) -> Iterator[Row]:
    """Carry out all checks; one that breaks is a row, not an end."""
    with tempfile.TemporaryDirectory(prefix="allot-gpu-") as folder:
        try:
            machine = _Machine(Path(folder), is_fake=is_fake)
        except (build.BuildError, LimitsError, OSError, loader_cache.CacheError) as error:
            yield Row("a device with its driver", "skipped", str(error).partition("\n")[0])
            return
        yield Row(
            "device", "ok", f"{machine.uuid}, {machine.usable // MIB} MiB, CUDA {machine.cuda}"
        )
        for check in CHECKS:
            try:
                yield from check(machine)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                yield Row(check.__name__.strip("_"), "differs", f"{type(error).__name__}: {error}")


def main() -> int:
    """Print the table; 1 if something differs."""
    parser = argparse.ArgumentParser(description="Check fractions and Swap on this machine's GPU.")
    parser.add_argument("--fake", action="store_true", help="over the fake driver")
    rows = []
    for row in run(is_fake=parser.parse_args().fake):
        rows.append(row)
        sys.stdout.write(f"{row.outcome:<8} {row.name}: {row.detail}\n")
        sys.stdout.flush()
    return int(any(row.outcome == "differs" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
