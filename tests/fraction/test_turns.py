"""Compute share: GPU time in proportion to fractions, between sessions and alone."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from scheduling.agent.fraction.limits import GpuLimit
from scheduling.agent.fraction.region import Region, State
from scheduling.agent.fraction.utilisation import Utilisation
from tests.fraction.world import GIB, UUIDS, Asked, FakeDevice, World, has_open, until

pytestmark = pytest.mark.alone

MakeWorld = Callable[..., World]
KERNEL_NS = 1_000_000
MEASURED_S = 4.0
# For all processes to be ready.
STARTS_S = 2.0
# Of the issue: within three points of a hundred.
TOLERANCE = 0.03


class Sessions:
    """Sessions on one device of a fake machine, each with the library that has its own limits."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self.world, self.stack = world, stack
        self.turns = world.prefix / "turns"
        self.turns.write_bytes(b"")
        self.count = 0

    def folder(self, gpu_milli: int, *, is_strict: bool) -> Path:
        folder = self.world.prefix / f"session-{self.count}"
        folder.mkdir()
        for name, source in (
            ("libcuda.so.1", self.world.libraries.fake_cuda),
            ("preload.so", self.world.libraries.preload),
            ("driver.conf", self.world.prefix / "driver.conf"),
        ):
            (folder / name).write_bytes(source.read_bytes())
        limit = GpuLimit(
            UUIDS[0], GIB, gpu_milli, share_file=str(self.turns), share_slot=self.count
        )
        session = World(
            folder, self.world.libraries, limits=(limit,), is_strict=is_strict,
            session=str(self.count),
        )  # fmt: skip
        session.write_limits()
        Region.create(session.region.path, (limit,))
        self.count += 1
        return folder

    def spin(
        self,
        gpu_milli: int,
        until_s: float,
        *,
        measured_s: float = MEASURED_S,
        is_strict: bool = False,
        folder: Path | None = None,
    ) -> Asked:
        """A process that keeps the device busy for a while before a time."""
        folder = folder or self.folder(gpu_milli, is_strict=is_strict)
        steps = (["start"], ["spin", KERNEL_NS, until_s - measured_s, until_s])
        return self.stack.enter_context(
            self.world.asking(
                *steps, LD_LIBRARY_PATH=str(folder), LD_PRELOAD=str(folder / "preload.so")
            )
        )


@pytest.fixture
def sessions(make_world: MakeWorld) -> Iterator[Sessions]:
    with ExitStack() as stack:
        yield Sessions(make_world(), stack)


def signals_blocked(task: Path) -> int:
    """A thread's mask of signals."""
    (line,) = (
        each for each in (task / "status").read_text().splitlines() if each.startswith("SigBlk")
    )
    return int(line.split()[1], 16)


def spun(asked: Asked) -> tuple[int, float]:
    """Kernels, and seconds from the first launch on."""
    answer = asked.answers()[1]
    assert isinstance(answer, list)
    return answer[0], answer[1]


def counts(*asked: Asked) -> list[int]:
    return [spun(each)[0] for each in asked]


def shares(*asked: Asked) -> list[float]:
    found = counts(*asked)
    return [count / sum(found) for count in found]


@pytest.mark.parametrize(
    "millis",
    [(500, 500), (333,) * 3, (500, 333), (200, 800), (200,) * 5, (500, 300, 200)],
    ids=lambda millis: "-".join(map(str, millis)),
)
def test_under_contention_each_gets_its_part_of_the_time(
    sessions: Sessions, millis: tuple[int, ...]
) -> None:
    until_s = time.monotonic() + STARTS_S + MEASURED_S
    found = shares(*[sessions.spin(milli, until_s) for milli in millis])
    wanted = [milli / sum(millis) for milli in millis]
    assert found == pytest.approx(wanted, abs=TOLERANCE)


def test_in_fair_mode_a_session_alone_may_use_all(sessions: Sessions) -> None:
    count, seconds = spun(sessions.spin(200, time.monotonic() + STARTS_S + MEASURED_S))
    assert count * KERNEL_NS / 1e9 / seconds > 0.9


@pytest.mark.parametrize("milli", [500, 333, 200])
def test_in_strict_mode_a_session_alone_gets_its_part(sessions: Sessions, milli: int) -> None:
    asked = sessions.spin(milli, time.monotonic() + STARTS_S + MEASURED_S, is_strict=True)
    count, seconds = spun(asked)
    assert count * KERNEL_NS / 1e9 / seconds == pytest.approx(milli / 1000, abs=TOLERANCE)


def test_processes_of_one_session_share_its_part(sessions: Sessions) -> None:
    until_s = time.monotonic() + STARTS_S + MEASURED_S
    folder = sessions.folder(500, is_strict=False)
    found = shares(
        sessions.spin(500, until_s, folder=folder),
        sessions.spin(500, until_s, folder=folder),
        sessions.spin(500, until_s),
    )
    assert found[2] == pytest.approx(0.5, abs=TOLERANCE)


def test_who_comes_later_has_no_credit_from_its_idle_time(sessions: Sessions) -> None:
    until_s = time.monotonic() + STARTS_S + 2 + MEASURED_S
    first = sessions.spin(500, until_s, measured_s=2 + MEASURED_S)
    one, two = counts(first, sessions.spin(500, until_s))
    assert two / (two + one - 2e9 / KERNEL_NS) == pytest.approx(0.5, abs=TOLERANCE + 0.02)


def test_a_killed_holder_passes_the_turn_on(sessions: Sessions) -> None:
    until_s = time.monotonic() + STARTS_S + MEASURED_S
    killed = [sessions.spin(500, until_s + 60, measured_s=60 + MEASURED_S) for _ in range(2)]
    stays = sessions.spin(500, until_s)
    time.sleep(STARTS_S + MEASURED_S / 2)
    for each in killed:
        os.kill(each.pid, 9)
    (count,) = counts(stays)
    assert count * KERNEL_NS / 1e9 > 0.85 * MEASURED_S / 2


def test_a_neighbour_that_was_stopped_slows_nobody_for_long(sessions: Sessions) -> None:
    """With Ctrl-Z, perhaps while it has the turn: others wait for it once, not at each launch."""
    until_s = time.monotonic() + STARTS_S + 2 * MEASURED_S
    stopped = [sessions.spin(500, until_s + 60, measured_s=60 + 2 * MEASURED_S) for _ in range(2)]
    goes_on = sessions.spin(500, until_s, measured_s=2 * MEASURED_S)
    time.sleep(STARTS_S + 1)
    for each in stopped:
        os.kill(each.pid, signal.SIGSTOP)
    try:
        (count,) = counts(goes_on)
    finally:
        for each in stopped:
            os.kill(each.pid, signal.SIGCONT)
    # Of the last seven seconds two are waited for.
    assert count * KERNEL_NS / 1e9 > 2


def with_turns(make_world: MakeWorld, *, num_devices: int = 1) -> World:
    """A session whose launches take turns, alone on its devices."""
    world = make_world(devices=tuple(FakeDevice(uuid) for uuid in UUIDS[:num_devices]))
    world.limits = tuple(
        GpuLimit(device.uuid, GIB, 500, share_file=str(world.prefix / f"turns-{number}"))
        for number, device in enumerate(world.devices)
    )
    for limit in world.limits:
        Path(limit.share_file).write_bytes(b"")
    world.write_limits()
    world.region.path.unlink()
    Region.create(world.region.path, world.limits)
    return world


def test_a_turn_ends_after_the_context_that_it_was_for(make_world: MakeWorld) -> None:
    """The driver is not asked for one that is gone: the fake one aborts then."""
    answers = with_turns(make_world).ask(["init"], *[["launch_and_destroy"], ["sleep", 0.03]] * 20)
    assert answers[1:] == [[0, 0, 0], 0] * 20


def test_turns_go_on_after_all_descriptors_were_closed_and_leave_others_files_alone(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    """As a daemon closes them."""
    world = with_turns(make_world)
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"mine" * 1000)
    turns = Path(world.limits[0].share_file)
    with world.asking(
        ["start"],
        ["spin", KERNEL_NS, 0, time.monotonic() + 0.3],
        ["take_descriptors", str(theirs)],
        ["wait_for", str(tmp_path / "go")],
        ["spin", KERNEL_NS, 0, time.monotonic() + 60],
    ) as asked:
        until(lambda: turns.read_bytes().strip(b"\0"))
        until(lambda: has_open(asked.pid, theirs))
        before = turns.read_bytes()
        (tmp_path / "go").touch()
        until(lambda: turns.read_bytes() != before)
        with turns.open("rb+") as file:
            until(lambda: has_turn(file.fileno()))
    assert theirs.read_bytes() == b"mine" * 1000


def test_a_turn_that_ends_does_not_spoil_a_recording(make_world: MakeWorld) -> None:
    """cuStreamBeginCaptureToGraph: waiting for the device would."""
    assert with_turns(make_world).ask(["start"], ["record", 0.1])[1] == 0


def test_a_kernel_that_takes_long_holds_up_no_other_device(make_world: MakeWorld) -> None:
    """It may wait for a kernel there (NCCL in one process): nothing would ever go on."""
    world = with_turns(make_world, num_devices=2)
    assert world.ask(["init"], ["beside_a_long_kernel", 5_000_000_000])[1] is True


def test_who_is_swapped_out_gives_its_turn_up(make_world: MakeWorld) -> None:
    world = with_turns(make_world)
    until_s = time.monotonic() + 60
    with (
        (world.prefix / "turns-0").open("rb+") as file,
        world.asking(["start"], ["spin", KERNEL_NS, 0, until_s]) as asked,
    ):
        until(lambda: has_turn(file.fileno()))
        world.region.set_state(State.LOCKING)
        assert world.ask(["init"], ["lock_process", asked.pid]) == [0, 0]
        until(lambda: not has_turn(file.fileno()))


def has_turn(fd: int) -> bool:
    """Whether some process has the turn."""
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1 << 20, 1, 0)
    found = fcntl.fcntl(fd, 36, asked)  # F_OFD_GETLK
    return bool(struct.unpack("hhqqi4x", found)[0] != fcntl.F_UNLCK)


def test_a_file_that_somebody_cut_short_stops_nobody(sessions: Sessions) -> None:
    until_s = time.monotonic() + STARTS_S + 2
    asked = [sessions.spin(500, until_s, measured_s=2) for _ in range(2)]
    time.sleep(STARTS_S)
    for _ in range(10):
        time.sleep(0.15)
        os.truncate(sessions.turns, 0)
    assert min(counts(*asked)) > 100


def test_a_sessions_own_nvml_shows_the_time_that_it_took(make_world: MakeWorld) -> None:
    limit = GpuLimit(UUIDS[0], GIB, 500, share_slot=0)
    world = make_world()
    turns = world.prefix / "turns"
    turns.write_bytes(b"")
    world.limits = (replace(limit, share_file=str(turns)),)
    world.write_limits()
    shown = Utilisation()
    until_s = time.monotonic() + STARTS_S + MEASURED_S
    steps = (["start"], ["spin", KERNEL_NS, until_s - MEASURED_S, until_s])
    with world.asking(*steps) as asked:
        time.sleep(STARTS_S + 1)
        masks = [signals_blocked(path) for path in Path(f"/proc/{asked.pid}/task").iterdir()]
        # The user's own thread hears all signals; ours none, but for those that libc keeps.
        assert (len(masks), min(masks)) == (2, 0)
        assert max(masks).bit_count() >= 58
        shown.update({"x": world.region}, time.monotonic())
        time.sleep(2)
        shown.update({"x": world.region}, time.monotonic())
        assert world.ask(["utilisation"])[0] == pytest.approx(100, abs=10)
    shown.update({"x": world.region}, time.monotonic() + 1)
    assert world.ask(["utilisation"]) == [0]
