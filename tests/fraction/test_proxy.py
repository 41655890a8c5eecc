"""What a session sees and may take: the rules of the proxy, and others' bugs as tests."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduling.agent.fraction.limits import GpuLimit, share_bytes
from scheduling.agent.fraction.region import Flag
from tests.fraction.world import (
    CALLER,
    GIB,
    MIB,
    OUT_OF_MEMORY,
    T4_USABLE,
    UUIDS,
    FakeDevice,
    World,
    has_open,
    until,
)

MakeWorld = Callable[..., World]
# Everything that allocates, and by which function of the fake.
DRIVER_FUNCTIONS = {
    "alloc": "cuMemAlloc_v2",
    "pitch": "cuMemAllocPitch_v2",
    "managed": "cuMemAllocManaged",
    "async": "cuMemAllocAsync",
    "async_ptsz": "cuMemAllocAsync",
    "pool": "cuMemAllocFromPoolAsync",
    "vmm": "cuMemCreate",
    "array": "cuArrayCreate_v2",
    "array3d": "cuArray3DCreate_v2",
    "mipmapped": "cuMipmappedArrayCreate",
    "graph": "cuGraphLaunch",
}
KINDS = list(DRIVER_FUNCTIONS)


# ---------------------------------------------------------------- what is shown


@pytest.mark.parametrize("gpu_milli", [500, 333, 200, 100, 7, 1000])
def test_every_question_gets_exactly_the_share(make_world: MakeWorld, gpu_milli: int) -> None:
    share = share_bytes(T4_USABLE, gpu_milli)
    world = make_world(limits=(GpuLimit(UUIDS[0], share, gpu_milli),))
    _, info, total, nvml = world.ask(["start"], ["info"], ["total"], ["nvml"])
    assert info == [0, share, share]
    assert total == [0, share]
    assert isinstance(nvml, dict)
    assert (nvml["result"], nvml["wrong"]) == (0, 25)
    assert nvml["total"] == nvml["total_v2"] == share
    assert nvml["reserved_v2"] == 0


def test_a_limit_above_the_device_shows_the_device(make_world: MakeWorld) -> None:
    world = make_world(limits=(GpuLimit(UUIDS[0], 100 * GIB, 1000),))
    _, info, nvml, filled = world.ask(["start"], ["info"], ["nvml"], ["fill", "alloc", GIB])
    assert info == [0, T4_USABLE, T4_USABLE]
    assert isinstance(nvml, dict)
    assert nvml["total_v2"] == T4_USABLE
    assert filled == [14, OUT_OF_MEMORY]


def test_a_limit_of_a_device_that_vanished_leaves_the_other(make_world: MakeWorld) -> None:
    world = make_world(
        devices=(FakeDevice(UUIDS[1]),),
        limits=(GpuLimit(UUIDS[0], GIB, 100), GpuLimit(UUIDS[1], 2 * GIB, 100)),
    )
    assert world.ask(["start"], ["count"], ["info"])[1:] == [1, [0, 2 * GIB, 2 * GIB]]


def test_a_device_without_a_limit_gives_nothing_and_has_its_size(make_world: MakeWorld) -> None:
    """HAMi-core source: the total of a device without a limit was 0."""
    world = make_world(
        devices=(FakeDevice(UUIDS[0]), FakeDevice(UUIDS[1])),
        limits=(GpuLimit(UUIDS[0], GIB, 100),),
    )
    answers = world.ask(["start", 1], ["total", 1], ["alloc", "a", MIB])
    assert answers == [[0, 0, 0], [0, T4_USABLE], OUT_OF_MEMORY]


def test_freeing_makes_room_again(world: World) -> None:
    answers = world.ask(
        ["start"], ["alloc", "a", 5 * GIB], ["alloc", "b", 1], ["free", "a"], ["info"],
        ["alloc", "b", 5 * GIB],
    )  # fmt: skip
    assert answers[1:] == [0, OUT_OF_MEMORY, 0, [0, 5 * GIB, 5 * GIB], 0]


def test_the_second_process_sees_what_the_first_uses(world: World) -> None:
    """HAMi-core #191."""
    with world.asking(["start"], ["alloc", "a", 3 * GIB], ["sleep", 30]) as holder:
        until(lambda: world.region.read().used_bytes[0])
        _, info, nvml, too_much = world.ask(["start"], ["info"], ["nvml"], ["alloc", "x", 3 * GIB])
        assert info == [0, 2 * GIB, 5 * GIB]
        assert isinstance(nvml, dict)
        assert nvml["used_v2"] == 3 * GIB
        assert holder.pid in nvml["pids"]
        assert too_much == OUT_OF_MEMORY
    assert world.ask(["start"], ["info"], ["alloc", "x", 5 * GIB])[1:] == [
        [0, 5 * GIB, 5 * GIB],
        0,
    ]


def test_nobody_is_listed_on_a_device_that_is_not_the_sessions(make_world: MakeWorld) -> None:
    world = make_world(
        devices=(FakeDevice(UUIDS[0]), FakeDevice(UUIDS[1])),
        limits=(GpuLimit(UUIDS[0], GIB, 100),),
    )
    driver = world.prefix / "driver"
    driver.mkdir()
    (driver / "libcuda.so.1").write_bytes(world.libraries.fake_cuda.read_bytes())
    (driver / "driver.conf").write_bytes((world.prefix / "driver.conf").read_bytes())
    steps = (["start", 1], ["alloc", "a", GIB], ["sleep", 30])
    with world.asking(*steps, LD_LIBRARY_PATH=str(driver)):
        until(lambda: any(world.physical.read().used_bytes))
        (nvml,) = world.ask(["nvml", 1])
    assert isinstance(nvml, dict)
    assert (nvml["result"], nvml["pids"]) == (0, [])


def test_neighbours_are_not_listed_and_really_fill_the_device(make_world: MakeWorld) -> None:
    world = make_world()
    nvml = world.ask(["start"], ["alloc", "a", GIB], ["nvml"])[2]
    assert isinstance(nvml, dict)
    assert nvml["pids"] == [nvml["own_pid"]]
    # A neighbour, of whom the session knows nothing, holds most of the device.
    driver = world.prefix / "driver"
    driver.mkdir()
    (driver / "libcuda.so.1").write_bytes(world.libraries.fake_cuda.read_bytes())
    (driver / "driver.conf").write_bytes((world.prefix / "driver.conf").read_bytes())
    steps = (["start"], ["alloc", "a", 12 * GIB], ["sleep", 30])
    with world.asking(*steps, LD_LIBRARY_PATH=str(driver)) as neighbour:
        until(lambda: world.physical.read().used_bytes[0])
        _, info, filled, nvml = world.ask(
            ["start"], ["info"], ["fill", "alloc", 256 * MIB], ["nvml"]
        )
        free = T4_USABLE - 12 * GIB
        assert info == [0, free, 5 * GIB]
        assert filled == [free // (256 * MIB), OUT_OF_MEMORY]
        assert isinstance(nvml, dict)
        assert neighbour.pid not in nvml["pids"]


REAL_SMI = next(
    (
        path
        for path in (
            os.environ.get("NVIDIA_SMI", ""),
            "/usr/lib/nvidia/current/nvidia-smi",
            "/usr/bin/nvidia-smi",
        )
        if os.access(path, os.X_OK)
    ),
    "",
)


@pytest.mark.gpu
def test_nvidias_own_nvidia_smi_shows_the_share(make_world: MakeWorld) -> None:
    """It comes with a driver only. Tried with 535.261.03; it must be of the driver's version, so
    the fake takes its."""
    assert REAL_SMI, "NVIDIA's nvidia-smi is not where drivers put it; name it in NVIDIA_SMI"
    version = re.search(rb"\0(\d{3}\.\d+(\.\d+)?)\0", Path(REAL_SMI).read_bytes())
    assert version is not None
    world = make_world(
        driver=version[1].decode(),
        cuda=12020,
        limits=(GpuLimit(UUIDS[0], share_bytes(T4_USABLE, 333), 333),),
    )
    with world.asking(["start"], ["alloc", "a", GIB], ["sleep", 30]):
        until(lambda: world.region.read().used_bytes[0])
        assert "1024MiB /  4967MiB" in world.run([REAL_SMI])
        fields = "memory.total,memory.used,memory.free"
        listed = world.run([REAL_SMI, f"--query-gpu={fields}", "--format=csv,noheader"])
        assert listed == "4967 MiB, 1024 MiB, 3943 MiB\n"


# ---------------------------------------------------------------- what may be taken


@pytest.mark.parametrize("kind", KINDS)
def test_each_api_in_turn_ends_out_of_memory_before_the_limit(world: World, kind: str) -> None:
    """HAMi-core #55, #79, PR #81."""
    _, filled, info = world.ask(["start"], ["fill", kind, 256 * MIB], ["info"])
    assert isinstance(filled, list)
    assert isinstance(info, list)
    assert filled[1] == OUT_OF_MEMORY
    assert (
        5 * GIB - 512 * MIB
        < filled[0] * 256 * MIB * (1 + 1 / 8 + 1 / 64 if kind == "mipmapped" else 1)
        <= 5 * GIB
    )
    assert info[2] == 5 * GIB
    assert max(world.physical.read().used_bytes) <= 5 * GIB


@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_driver_leaks_nothing(make_world: MakeWorld, kind: str) -> None:
    """HAMi-core #96, #306, PR #307."""
    driver = DRIVER_FUNCTIONS[kind]
    world = make_world(extra=(f"fail {driver} 999 0 3",))
    step = [f"by_{kind}", 256 * MIB]
    answers = world.ask(["start"], step, step, step, ["info"], ["alloc", "a", 5 * GIB])
    assert answers[1:4] == [999, 999, 999]
    assert answers[5] == 0


def test_a_thousand_rounds_of_a_pool_end_in_no_false_out_of_memory(world: World) -> None:
    """HAMi-core #96."""
    assert world.ask(["start"], ["pool_rounds", 1000, 4 * GIB]) == [[0, 0, 0], [0]]


def test_memory_from_a_pool_is_counted_and_its_free_succeeds(world: World) -> None:
    """HAMi-core #93, PR #217 (RAPIDS)."""
    answers = world.ask(
        ["start"], ["pool", "p"], ["keep", "p", 8 * GIB], ["pool_alloc", "p", "a", 2 * GIB],
        ["info"], ["free_async", "a"], ["info"], ["synchronise"], ["info"],
        ["alloc", "b", 4 * GIB], ["info"], ["destroy_pool", "p"],
    )  # fmt: skip
    assert answers[1:4] == [0, 0, 0]
    assert answers[4] == [0, 3 * GIB, 5 * GIB]
    # The pool keeps it, until something else needs it.
    assert (answers[5], answers[6]) == (0, [0, 3 * GIB, 5 * GIB])
    assert answers[8] == [0, 3 * GIB, 5 * GIB]
    assert answers[9:] == [0, [0, GIB, 5 * GIB], 0]


def test_threads_that_share_a_pool_get_no_false_out_of_memory(world: World) -> None:
    """What one has just taken is not counted again for the other, whose call is under way."""
    assert world.ask(["start"], ["pool_threads", 2, 2000, 2 * GIB])[1] == [0]


def test_what_is_handed_out_of_a_pool_counts_beyond_its_end(world: World) -> None:
    answers = world.ask(
        ["start"], ["pool", "p"], ["pool_alloc", "p", "a", 3 * GIB], ["destroy_pool", "p"],
        ["info"], ["alloc", "b", 3 * GIB], ["free_async", "a"], ["info"], ["alloc", "b", 5 * GIB],
    )  # fmt: skip
    assert answers[3:] == [0, [0, 2 * GIB, 5 * GIB], 2, 0, [0, 5 * GIB, 5 * GIB], 0]
    assert world.physical.read().used_bytes == (0,)


def test_hundreds_of_pools_leak_nothing(world: World) -> None:
    steps: list[object] = []
    for _ in range(300):
        steps += [["pool", "p"], ["pool_alloc", "p", "a", 16 * MIB], ["free_async", "a"],
                  ["destroy_pool", "p"]]  # fmt: skip
    answers = world.ask(["start"], *steps, ["alloc", "b", 5 * GIB])
    assert set(map(str, answers[1:])) == {"0"}


def test_a_devices_own_pool_is_charged_to_that_device(make_world: MakeWorld) -> None:
    world = make_world(
        devices=(FakeDevice(UUIDS[0]), FakeDevice(UUIDS[1])),
        limits=(GpuLimit(UUIDS[0], GIB, 100), GpuLimit(UUIDS[1], GIB, 100)),
    )
    steps = (["start", 0], ["device_pool", "p", 1], ["pool_alloc", "p", "a", 768 * MIB])
    with world.asking(*steps, ["sleep", 60]):
        until(lambda: any(world.region.read().used_bytes))
        assert world.region.read().used_bytes == (0, 768 * MIB)
    assert world.ask(*steps, ["pool_alloc", "p", "b", 512 * MIB])[3] == OUT_OF_MEMORY


def test_what_a_stream_records_is_charged_when_its_graph_is_launched(world: World) -> None:
    answers = world.ask(
        ["start"], ["captured", "g", 3 * GIB], ["info"], ["captured", "h", 6 * GIB],
        ["forget_graph", "g"], ["alloc", "a", 5 * GIB],
    )  # fmt: skip
    assert answers[1:] == [0, [0, 2 * GIB, 5 * GIB], OUT_OF_MEMORY, [0, 0], 0]


def test_a_graph_needs_no_room_for_another_that_is_gone(world: World) -> None:
    answers = world.ask(
        ["start"], ["graph", "large", 4 * GIB], ["forget_graph", "large"], ["alloc", "a", 3 * GIB],
        ["graph", "small", GIB], ["info"],
    )  # fmt: skip
    assert answers[1:] == [0, [0, 0], 0, 0, [0, GIB, 5 * GIB]]


@pytest.mark.parametrize(
    ("array", "num_bytes"),
    [
        ((65536, 4096, 0x01, 4), 2**30),
        ((65536, 4096, 0x91, 4), 2**27),  # BC1: half a byte, whatever its channels
        ((65536, 4096, 0xC2, 4), 2**30),  # four normalised bytes
        ((65536, 4096, 0x20, 4, 0x40), 0),  # sparse: memory comes by mapping
        ((2**62, 2**62, 0x20, 4), 0),  # the driver says what is wrong
    ],
    ids=["bytes", "BC1", "normalised", "sparse", "beyond all bounds"],
)
def test_arrays_are_charged_what_they_take(
    world: World, array: tuple[int, ...], num_bytes: int
) -> None:
    with world.asking(["start"], ["array", *array], ["alloc", "a", 4096], ["sleep", 60]):
        until(lambda: any(world.region.read().used_bytes))
        until(lambda: world.region.read().used_bytes[0] % GIB % (2**27) == 4096)
        assert world.region.read().used_bytes == (num_bytes + 4096,)


def test_memory_is_made_on_a_thread_without_a_context(world: World) -> None:
    """HAMi-core #187, #186, #188, PR #172: PyTorch's expandable segments."""
    answers = world.ask(
        ["init"], ["create", "a", 4 * GIB], ["create", "b", 2 * GIB],
        ["reserve_and_map", "at", "a", 4 * GIB], ["release", "a"], ["create", "b", 2 * GIB],
        ["unmap", "at", 4 * GIB], ["create", "b", 5 * GIB],
    )  # fmt: skip
    # The mapping still holds what the handle no longer does.
    assert answers == [0, 0, OUT_OF_MEMORY, [0, 0], 0, OUT_OF_MEMORY, 0, 0]


def test_null_pointers_and_pointers_of_others_are_the_drivers_business(world: World) -> None:
    """HAMi-core #321, #333, #234: an answer of the driver's, whatever it is, and no crash."""
    answers = world.ask(["start"], ["info_null"], ["free_address", 0], ["free_address", 4096])
    assert answers[1:] == [[0, 0, 5 * GIB], 0, 1]


def test_a_context_takes_memory_once_per_process(make_world: MakeWorld) -> None:
    world = make_world(limits=(GpuLimit(UUIDS[0], GIB, 100, context_bytes=300 * MIB),))
    answers = world.ask(
        ["start"], ["primary"], ["info"], ["alloc", "a", 725 * MIB], ["alloc", "a", 724 * MIB],
        ["release_primary"], ["release_primary"], ["nvml"],
    )  # fmt: skip
    assert answers[2] == [0, GIB - 300 * MIB, GIB]
    assert answers[3:5] == [OUT_OF_MEMORY, 0]
    # With its last context all that it held is gone.
    assert isinstance(answers[7], dict)
    assert answers[7]["used"] == 0


def test_use_drops_when_a_process_exits(world: World) -> None:
    """HAMi-core source: use stayed after exit."""
    world.ask(["start"], ["alloc", "a", 5 * GIB])
    assert world.region.read().used_bytes == (0,)


def test_a_forked_child_begins_with_nothing_and_shares_the_limit(world: World) -> None:
    answers = world.ask(["init"], ["fork_then", 4 * GIB], ["start"], ["alloc", "a", 5 * GIB])
    assert answers[1] == [5 * GIB, 0]
    assert answers[3] == 0


def test_a_child_of_a_killed_parent_does_not_keep_its_memory(world: World) -> None:
    script = (
        "import os, sys, time; sys.argv = ['x']; sys.path.insert(0, sys.path[0])\n"
        f"exec(open({str(CALLER)!r}).read().split('def main')[0])\n"
        "c = Caller(); c.start(); print(c.alloc('a', 5 << 30), flush=True)\n"
        "if os.fork() == 0: time.sleep(30)\n"
        "time.sleep(30)"
    )
    parent = world.start([sys.executable, "-S", "-c", script])
    assert parent.stdout is not None
    assert parent.stdout.readline() == "0\n"
    listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    until(listed.read_text)
    children = listed.read_text().split()
    until(lambda: not has_open(int(children[0]), world.region.path))
    try:
        os.kill(parent.pid, signal.SIGKILL)
        assert world.ask(["start"], ["alloc", "a", 5 * GIB])[1] == 0
    finally:
        os.kill(int(children[0]), signal.SIGKILL)
        parent.communicate()


def test_three_hundred_processes_start_without_a_minutes_delay(world: World) -> None:
    """HAMi #1662: here children of one process, since each Python would take 20 ms."""
    began = time.monotonic()
    script = (
        "import os, sys\n"
        f"exec(open({str(CALLER)!r}).read().split('def main')[0])\n"
        "r, w = os.pipe(); hold, go = os.pipe()\n"
        "for _ in range(300):\n"
        "    if os.fork() == 0:\n"
        "        os.close(go); c = Caller(); c.start()\n"
        "        os.write(w, bytes([c.alloc('a', 1 << 20)])); os.read(hold, 1); os._exit(0)\n"
        "print(sum(os.read(r, 1)[0] for _ in range(300))); os.close(go)\n"
        "for _ in range(300): os.wait()"
    )
    assert world.run([sys.executable, "-S", "-c", script]) == "0\n"
    assert time.monotonic() - began < 20


def test_nothing_of_the_users_process_is_changed(world: World) -> None:
    """HAMi-core source: no SIGUSR handlers, umask or exit handlers of ours."""
    names = world.run(["nm", "-D", "--undefined-only", world.libraries.cuda])
    for forbidden in ("signal", "sigaction", "umask", "exit", "getenv", "setenv"):
        assert f" {forbidden}@" not in names, forbidden
    assert "libcuda.so" not in world.run(["readelf", "-d", world.libraries.preload])


# ---------------------------------------------------------------- devices by UUID


@pytest.mark.parametrize(
    ("visible", "limit"),
    [(UUIDS[1], 2 * GIB), ("1", 2 * GIB), ("1,0", 2 * GIB), ("0", GIB), (UUIDS[1][:12], None)],
)
def test_limits_follow_the_device_however_the_user_orders_them(
    make_world: MakeWorld, visible: str, limit: int | None
) -> None:
    """HAMi #1218: UUIDs in CUDA_VISIBLE_DEVICES."""
    if limit is None:
        visible, limit = "0,1", GIB
    world = make_world(
        devices=(FakeDevice(UUIDS[0]), FakeDevice(UUIDS[1])),
        limits=(GpuLimit(UUIDS[0], GIB, 100), GpuLimit(UUIDS[1], 2 * GIB, 200)),
    )
    answers = world.ask(["start"], ["info"], CUDA_VISIBLE_DEVICES=visible)
    assert answers[1] == [0, limit, limit]


def test_what_rules_swap_out_is_noted_while_its_process_lives(make_world: MakeWorld) -> None:
    world = make_world(
        devices=(FakeDevice(UUIDS[0]), FakeDevice(UUIDS[1])),
        limits=(GpuLimit(UUIDS[0], GIB, 100), GpuLimit(UUIDS[1], GIB, 100)),
    )
    steps = (["start"], ["by_managed", MIB], ["create", "shared", 2 * MIB, 1, 1])
    with world.asking(*steps, ["sleep", 60]):
        until(lambda: world.region.read().flags == Flag.MANAGED | Flag.EXPORTABLE)
        world.ask(["start"], ["by_managed", MIB])
        assert world.region.read().flags == Flag.MANAGED | Flag.EXPORTABLE
        with world.asking(["start", 1], ["sleep", 60]):
            until(lambda: Flag.SEVERAL_GPUS in world.region.read().flags)
        until(lambda: world.region.read().flags == Flag.MANAGED | Flag.EXPORTABLE)
    assert world.region.read().flags == Flag(0)
    # Who takes the slot of the dead inherits nothing.
    with world.asking(["start"], ["sleep", 60]):
        until(lambda: world.region.read().processes)
        assert world.region.read().flags == Flag(0)


def test_what_failed_does_not_rule_swap_out(make_world: MakeWorld) -> None:
    world = make_world(limits=(GpuLimit(UUIDS[0], GIB, 100),))
    steps = (["start"], ["by_managed", 2 * GIB], ["create", "shared", 2 * GIB, 0, 1])
    with world.asking(*steps, ["alloc", "last", MIB], ["sleep", 60]):
        until(lambda: world.region.read().used_bytes[0] >= MIB)
        assert world.region.read().flags == Flag(0)
