"""A share of a simulated device in real workloads: what they see, may take, and cannot avoid."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from scheduling.agent.fraction import build
from scheduling.agent.fraction.comparison import Contexts
from scheduling.agent.fraction.region import Region
from scheduling.agent.protocol import AttemptPhase, AttemptSpec
from tests import needs
from tests.agent.driver import NODE, Driver, a_third, bob, part, spec

USABLE = 14_917 * 2**20
SHARE = USABLE * 333 // 1000
CALLERS = Path(__file__).parents[1] / "fraction" / "callers.c"

CUDA = """
import ctypes as c, os, sys, time
l = c.CDLL("libcuda.so.1")
def must(result): assert result == 0, result
def alloc(n):
    p = c.c_uint64(); r = l.cuMemAlloc_v2(c.byref(p), c.c_size_t(n)); return r
def info():
    free, total = c.c_size_t(), c.c_size_t(); l.cuMemGetInfo_v2(c.byref(free), c.byref(total))
    return free.value, total.value
def start():
    x = c.c_void_p(); must(l.cuInit(0)); must(l.cuDevicePrimaryCtxRetain(c.byref(x), 0))
    must(l.cuCtxSetCurrent(x))
"""


@pytest.fixture(autouse=True)
def _needs_mounts(driver: Driver) -> None:
    needs.mounts(driver.isolation)


def on(command: AttemptSpec, *parts: object) -> AttemptSpec:
    return replace(command, devices=list(parts or [a_third()]), node=NODE)  # type: ignore[arg-type]


def python(script: str) -> AttemptSpec:
    return on(spec("python", "-c", CUDA + script))


def test_all_who_ask_get_exactly_the_share(driver: Driver) -> None:
    script = """
start(); total = c.c_size_t(); l.cuDeviceTotalMem_v2(c.byref(total), 0)
n = c.CDLL("libnvidia-ml.so.1"); n.nvmlInit_v2(); h = c.c_void_p()
n.nvmlDeviceGetHandleByIndex_v2(0, c.byref(h))
one, two = (c.c_uint64 * 3)(), (c.c_uint64 * 5)(); two[0] = 0x02000028
n.nvmlDeviceGetMemoryInfo(h, one); n.nvmlDeviceGetMemoryInfo_v2(h, two)
print(total.value, *info(), one[0], two[1])
"""
    assert driver.output(python(script)).split() == [str(SHARE)] * 5


FILLS = "start(); n = 0\nwhile not (r := alloc(256 << 20)): n += 1\nprint(n, r, info()[1])"
FILLED = f"{SHARE // (256 << 20)} 2 {SHARE}\n"


@pytest.mark.parametrize(
    "before",
    [
        "",
        "env -i ",
        "env LD_PRELOAD= LD_LIBRARY_PATH= ",
        "env LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu ",
        "env ALLOT_DEVICES= ALLOT_GPU_MILLI=1000 CUDA_VISIBLE_DEVICES=0 ",
        "unset CUDA_VISIBLE_DEVICES; ",
        "setsid -w ",
    ],
)
def test_no_environment_avoids_the_limit(driver: Driver, before: str) -> None:
    script = f"{before}$(command -v python) -c '{CUDA}{FILLS}'".replace("'libcuda", '"libcuda')
    assert driver.output(on(spec("bash", "-c", script))) == FILLED


def test_login_shells_and_jupyters_kind_of_shell_are_held(driver: Driver) -> None:
    program = f"{CUDA}{FILLS}".replace('"', '\\"')
    script = f"env -i /bin/bash -lc \"python -c '\n{program}'\""
    assert driver.output(on(spec("bash", "-c", script))) == FILLED


@pytest.mark.parametrize(
    ("options", "arguments"),
    [([], "dlopen"), ([], "dlmopen"), ([], "'old dlsym'"), ([], "resolver"),
     (["-DSTATIC", "-static"], "dlopen"), ([], "dlopen /run/allot/own/gpu/libcuda.so.1")],
    ids=["dlopen", "dlmopen", "old dlsym", "resolver", "static", "absolute path"],
)  # fmt: skip
def test_no_kind_of_program_avoids_the_limit(
    driver: Driver, tmp_path: Path, options: list[str], arguments: str
) -> None:
    program = tmp_path / "caller"
    command = [build.compiler(), "-O1", "-w", str(CALLERS), "-o", str(program), *options, "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    home = driver.site.folders.home("vision", "ann")
    driver.output(spec("true"))
    (home / "caller").write_bytes(program.read_bytes())
    (home / "caller").chmod(0o755)
    output = driver.output(on(spec("bash", "-c", f"env -i ./caller {arguments}")))
    assert output == FILLED


def test_who_opens_the_real_library_leaves_the_share_as_the_page_says(driver: Driver) -> None:
    """A limit of a library that cooperates (docs/fractions.md): should it be closed, change the
    page."""
    script = "start(); print(alloc(6 << 30))"
    assert driver.output(python(script)) == "2\n"
    real = "l = c.CDLL('/run/allot/libcuda.real')\n"
    assert driver.output(python(real + script)) == "0\n"
    page = Path(__file__).parents[2] / "docs" / "fractions.md"
    assert "/run/allot/libcuda.real" in page.read_text().split("## Limits of it")[1]


def test_what_contexts_were_seen_to_take_counts_from_the_start(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fractions = driver.site.fractions
    assert fractions is not None
    contexts = Contexts(tmp_path / "contexts.json")
    contexts.saw(fractions.kind_of(NODE, a_third().model), 300 << 20)
    monkeypatch.setattr(fractions, "contexts", contexts)
    assert driver.output(python("start(); print(*info())")) == f"{SHARE - (300 << 20)} {SHARE}\n"


def test_nothing_of_the_limits_can_be_changed_inside(driver: Driver) -> None:
    script = (
        "for f in /run/allot/limits /run/allot/driver.conf /etc/ld.so.cache "
        "/run/allot/libcuda.real /run/allot/own/gpu/libcuda.so.1; do "
        "echo x >> $f; rm -f $f; mv $f $f.old; done; umount /run/allot/limits; "
        "nvidia-smi --query-gpu=memory.total --format=csv,noheader"
    )
    output = driver.output(on(spec("bash", "-c", script)))
    assert output.splitlines()[-1] == "4967 MiB"
    assert output.count("Read-only") + output.count("denied") + output.count("busy") >= 10


def test_neighbours_are_unseen_and_fill_the_same_device(driver: Driver) -> None:
    holder = python("start(); print(alloc(4 << 30), flush=True); time.sleep(1000)")
    driver.want(holder)
    driver.until_logged(holder, "0\n")
    other = bob(
        on(
            spec(
                "bash",
                "-c",
                "nvidia-smi; nvidia-smi --query-compute-apps=pid --format=csv,noheader",
            ),
            part(600),
        )
    )
    shown = driver.output(other)
    assert f"0MiB / {14_917 * 600 // 1000}MiB" in shown
    assert "No running processes" in shown
    mine = on(spec("bash", "-c", "nvidia-smi"), part(67))
    assert f"0MiB / {14_917 * 67 // 1000}MiB" in driver.output(mine)


def test_processes_of_one_session_share_and_list_each_other(driver: Driver) -> None:
    holds = 'print(alloc(3 << 30), flush=True); open("up", "w"); time.sleep(1000)'
    listed = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader"
    script = (
        f"python -c '{CUDA}start(); {holds}' & "
        f"until test -e up; do sleep 0.05; done; {listed}; "
        f"echo $!; python -c '{CUDA}start(); print(alloc(2 << 30), alloc(1 << 30))'; "
        "{ kill -9 $!; wait $!; } 2>/dev/null; "
        f"python -c '{CUDA}start(); print(alloc(4 << 30))'"
    )
    lines = driver.output(on(spec("bash", "-c", script))).splitlines()
    assert lines[1] == f"{lines[2]}, 3072 MiB"
    assert [lines[0], lines[3], lines[-1]] == ["0", "2 0", "0"]


def test_what_is_used_returns_with_the_end(driver: Driver) -> None:
    for _ in range(2):
        assert driver.output(python("start(); print(alloc(4 << 30))")) == "0\n"
    fractions = driver.site.fractions
    assert fractions is not None
    simulated = fractions.driver_of(NODE)
    assert simulated is not None
    assert not any(Region(simulated.memory).read().used_bytes)


def test_the_agent_measures_what_was_taken_of_the_device(driver: Driver) -> None:
    wanted = python("start(); print(alloc(2000 << 20), flush=True); time.sleep(1000)")
    driver.want(wanted)
    driver.until_logged(wanted, "0\n")
    attempt = driver.runner.attempts[wanted.attempt_id]
    assert attempt.accounting.used_mib() == {a_third().uuid: 2000.0}
    (view,) = (view for view in driver.runner.views() if view.attempt_id == wanted.attempt_id)
    assert view.device_memory_mib == {a_third().uuid: 2000.0}
    attempt.accounting.close_gate("swapped")
    assert attempt.accounting.used_mib() == {a_third().uuid: 0.0}
    attempt.accounting.close_gate("running")


def test_what_nobody_can_count_is_not_swapped_out(driver: Driver) -> None:
    wanted = python("start(); print('up', flush=True); time.sleep(1000)")
    driver.want(wanted)
    driver.until_logged(wanted, "up")
    attempt = driver.runner.attempts[wanted.attempt_id]
    assert attempt.accounting.swap_obstacle() == ""
    with open(attempt.accounting.region.path, "r+b") as file:
        file.seek(8)
        file.write((1).to_bytes(4, "little"))
    assert attempt.accounting.swap_obstacle() == "no_mechanism"
    assert attempt.accounting.used_mib() is None


def test_the_machine_itself_stays_as_it_was(driver: Driver) -> None:
    cache = Path("/etc/ld.so.cache").read_bytes()
    running = python("start(); print('up', flush=True); time.sleep(1000)")
    driver.want(running)
    driver.until_logged(running, "up")
    assert Path("/etc/ld.so.cache").read_bytes() == cache
    assert not os.path.exists("/run/allot")
    assert "libcuda" not in Path("/proc/self/mounts").read_text()


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (replace(a_third(), uuid="GPU-00000000-0000-4000-8000-000000000000"), "not on sim-t4-1"),
        (replace(a_third(), gpu_milli=0), "a limit of 0 bytes"),
    ],
    ids=["vanished", "nothing"],
)
def test_what_cannot_be_given_is_refused_with_the_reason(
    driver: Driver, device: object, reason: str
) -> None:
    report = driver.finish(on(spec("true"), device))
    assert report.phase == AttemptPhase.REFUSED
    assert reason in report.error


def test_a_call_while_swapped_asks_the_agent_and_goes_on_afterwards(driver: Driver) -> None:
    wanted = python("""
start(); print('up', flush=True)
while not os.path.exists('go'): time.sleep(0.02)
print('called', alloc(1024))
""")
    fractions = driver.site.fractions
    assert fractions is not None
    driver.want(wanted)
    driver.until_logged(wanted, "up")
    attempt = driver.runner.attempts[wanted.attempt_id]
    assert attempt.accounting.last_call_s() is not None
    assert attempt.accounting.used_bytes() == 0
    gate = fractions.gate(wanted.attempt_id)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(gate))
        gate.chmod(0o666)
        listener.settimeout(20)
        attempt.accounting.close_gate("swapped")
        (driver.site.folders.home("vision", "ann") / "go").touch()
        words = listener.recv(1000).decode().split()
        assert words[:2] == ["allot-gate/1", wanted.attempt_id]
        assert "called" not in driver.log(wanted)
        attempt.accounting.close_gate("running")
        driver.until_logged(wanted, "called 0")


def test_turns_on_a_device_have_a_place_for_each_session(driver: Driver) -> None:
    waits = [on(spec("sleep", "1000"), part(200)) for _ in range(3)]
    driver.want(*waits)
    for wanted in waits:
        driver.until_phase(wanted, AttemptPhase.RUNNING)
    places = []
    for wanted in waits:
        limits = driver.site.folders.attempt(wanted.attempt_id) / "own" / "limits"
        (line,) = (each for each in limits.read_text().splitlines() if each.startswith("gpu "))
        places.append(line.split()[-1])
        assert limits.stat().st_uid == 0
        assert limits.stat().st_mode & 0o777 == 0o644
        assert "sharing fair" in limits.read_text()
    assert sorted(places) == ["0", "1", "2"]


def test_a_node_type_may_hold_time_strictly(driver: Driver) -> None:
    wanted = on(spec("grep", "sharing", "/run/allot/limits", shares_strictly=True))
    assert driver.output(wanted) == "sharing strict\n"
