"""The accounting region: exact, shared by processes, and right again after any SIGKILL."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scheduling.agent.fraction import build
from scheduling.agent.fraction.build import NATIVE, Libraries
from scheduling.agent.fraction.limits import GpuLimit, LimitsError, uuid_bytes
from scheduling.agent.fraction.region import (
    MAX_GPUS,
    MAX_SLOTS,
    SIZE,
    Region,
    RegionError,
    State,
)
from tests import needs
from tests.fraction.world import UUIDS, until

LIMIT = 1_000_000
# Nobody waits for another's death or stop: others of this kind were stuck for minutes.
PATIENCE_S = 20.0


class Account:
    """A process's hold of a region, by the C code itself."""

    def __init__(self, libraries: Libraries, path: Path) -> None:
        self.lib = ctypes.CDLL(str(libraries.region))
        self.lib.allot_account_used.restype = ctypes.c_uint64
        self.memory = ctypes.create_string_buffer(256)
        why = ctypes.c_char_p()
        self.opened = self.lib.allot_account_open(self.memory, os.fsencode(path), ctypes.byref(why))
        self.why = (why.value or b"").decode()
        self.joined = self.lib.allot_account_join(self.memory) if self.opened == 0 else -1

    def reserve(self, num_bytes: int, limit: int = LIMIT, gpu: int = 0) -> bool:
        size = ctypes.c_uint64(num_bytes)
        return bool(self.lib.allot_account_reserve(self.memory, gpu, size, ctypes.c_uint64(limit)))

    def release(self, num_bytes: int, gpu: int = 0) -> None:
        self.lib.allot_account_release(self.memory, gpu, ctypes.c_uint64(num_bytes))

    def used(self, gpu: int = 0) -> int:
        return int(self.lib.allot_account_used(self.memory, gpu))

    def drop(self) -> None:
        self.lib.allot_account_drop(self.memory)


@pytest.fixture
def region(tmp_path: Path) -> Region:
    return Region.create(tmp_path / "region", [GpuLimit(UUIDS[0], LIMIT, 1000)])


@pytest.fixture(scope="module")
def hammer(tmp_path_factory: pytest.TempPathFactory, libraries: Libraries) -> Path:
    """The program that takes and gives back without end."""
    program = tmp_path_factory.mktemp("hammer") / "hammer"
    source = Path(__file__).with_name("hammer.c")
    parts = (build.compiler(), "-O2", "-pthread", f"-I{NATIVE}", source, NATIVE / "region.c")
    subprocess.run([*map(str, parts), "-o", str(program)], check=True)
    return program


def test_a_new_region_says_what_it_was_made_for(region: Region) -> None:
    reading = region.read()
    assert reading.state is State.RUNNING
    assert reading.device_uuids == (uuid_bytes(UUIDS[0]),)
    assert reading.limit_bytes == (LIMIT,)
    assert reading.used_bytes == (0,)
    assert reading.last_call_s is None
    found = region.path.stat()
    assert found.st_size == SIZE
    # On a full disk a process that wrote into a hole would die of it.
    assert found.st_blocks * 512 >= SIZE


def test_a_region_of_before_contexts_were_counted_is_still_read(
    libraries: Libraries, region: Region
) -> None:
    """Sessions run on while their agent is upgraded."""
    account = Account(libraries, region.path)
    assert account.reserve(600_000)
    with region.path.open("r+b") as file:
        file.seek(8)
        file.write((2).to_bytes(4, "little"))
        file.truncate(SIZE - 2 * MAX_GPUS * MAX_SLOTS * 8)
    region.set_state(State.SWAPPED_OUT)
    reading = region.read()
    assert reading.used_bytes == (600_000,)
    assert reading.state is State.SWAPPED_OUT
    (process,) = reading.processes
    assert process.context_bytes == (0,)
    region.set_measured(process, 0, 1)
    assert region.path.stat().st_size < SIZE


def test_what_a_workload_writes_into_its_region_stays_a_number_that_can_be_told(
    libraries: Libraries, region: Region
) -> None:
    accounts = [Account(libraries, region.path) for _ in range(3)]
    assert all(account.reserve(1) for account in accounts)
    with region.path.open("r+b") as file:
        # All that lies behind the table of processes.
        behind = 64 + MAX_GPUS * 64 + MAX_SLOTS * 64
        file.seek(behind)
        file.write(b"\xff" * (SIZE - behind))
    reading = region.read()
    (used,) = reading.used_bytes
    assert LIMIT < used < 2**63
    assert all(process.context_bytes[0] < 2**63 for process in reading.processes)


def test_what_processes_take_is_summed_and_never_beyond_the_limit(
    libraries: Libraries, region: Region
) -> None:
    one, two = Account(libraries, region.path), Account(libraries, region.path)
    assert one.reserve(600_000)
    assert not two.reserve(400_001)
    assert two.reserve(400_000)
    assert region.read().used_bytes == (LIMIT,)
    assert [process.used_bytes for process in region.read().processes] == [(600_000,), (400_000,)]
    one.release(600_000)
    assert two.reserve(600_000)
    assert not one.reserve(2**64 - 1)
    one.drop()
    two.drop()
    assert region.read().used_bytes == (0,)


def test_a_death_gives_everything_back_at_the_next_miss(
    libraries: Libraries, region: Region
) -> None:
    one, two = Account(libraries, region.path), Account(libraries, region.path)
    assert one.reserve(LIMIT)
    assert not two.reserve(1)
    one.drop()
    assert two.reserve(LIMIT)
    assert two.used() == LIMIT


@pytest.mark.parametrize("looked_at_ns", [0, 2**64 - 1], ids=["long ago", "garbage"])
def test_the_memory_of_the_dead_is_soon_not_shown_as_used(
    libraries: Libraries, region: Region, looked_at_ns: int
) -> None:
    """Not at once: who asks shares a look at the living with the others of its session."""
    one, two = Account(libraries, region.path), Account(libraries, region.path)
    assert one.reserve(600_000)
    assert two.used() == 600_000
    with region.path.open("r+b") as file:
        file.seek(48)
        file.write(looked_at_ns.to_bytes(8, "little"))
    one.drop()
    until(lambda: two.used() == 0)
    two.drop()


def test_of_two_who_race_for_the_last_bytes_exactly_one_wins(
    libraries: Libraries, region: Region
) -> None:
    """HAMi-core PRs #242, #227, #273, #282."""
    for _ in range(50):
        wins = 0
        pipes = []
        ready, go = os.pipe()
        told, tell = os.pipe()
        for _ in range(2):
            reading, writing = os.pipe()
            if os.fork() == 0:
                account = Account(libraries, region.path)
                os.close(go)
                os.close(tell)
                os.read(ready, 1)
                os.write(writing, b"1" if account.reserve(600_000) else b"0")
                # Until both have tried: an end gives back what it held.
                os.read(told, 1)
                os._exit(0)
            os.close(writing)
            pipes.append(reading)
        os.close(ready)
        os.close(go)
        for pipe in pipes:
            wins += int(os.read(pipe, 1))
            os.close(pipe)
        os.close(tell)
        os.close(told)
        for _ in range(2):
            os.wait()
        assert wins == 1


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.write_bytes(b"x" * SIZE), "another format"),
        (lambda path: os.truncate(path, 100), "right size"),
        (lambda path: path.unlink(), "cannot be opened"),
    ],
    ids=["garbage", "cut short", "gone"],
)
def test_an_unusable_region_is_refused(
    libraries: Libraries, region: Region, damage: object, why: str
) -> None:
    damage(region.path)  # type: ignore[operator]
    account = Account(libraries, region.path)
    assert account.opened == -1
    assert why in account.why
    with pytest.raises(RegionError):
        region.read()


def test_a_state_word_that_is_none_reads_as_failed(region: Region) -> None:
    region.set_state(State.SWAPPED_OUT)
    assert region.state() is State.SWAPPED_OUT
    with open(region.path, "r+b") as file:
        file.seek(16)
        file.write(b"\xff")
    assert region.read().state is State.FAILED


@pytest.mark.parametrize("gpu", [GpuLimit(UUIDS[0], 0, 333), GpuLimit(UUIDS[0], -1, 333),
                                 GpuLimit(UUIDS[0], 5, 0), GpuLimit("GPU-5f0c", 5, 333)],
                         ids=["no memory", "less than none", "no time", "no UUID"])  # fmt: skip
def test_limits_that_nobody_can_be_given_are_refused(gpu: GpuLimit) -> None:
    from scheduling.agent.fraction.limits import Limits

    with pytest.raises(LimitsError):
        Limits("session", "/region", (gpu,)).text()


def test_who_lets_go_closes_its_own_file_and_no_other(libraries: Libraries, region: Region) -> None:
    """A program that closes all its descriptors may have opened others in their place."""
    account = Account(libraries, region.path)
    (number,) = (
        each
        for each in map(int, os.listdir("/proc/self/fd"))
        if Path(f"/proc/self/fd/{each}").resolve() == region.path
    )
    theirs = os.open("/dev/null", os.O_RDONLY)
    os.dup2(theirs, number)
    account.drop()
    os.fstat(number)
    os.close(number)
    os.close(theirs)


def test_who_has_another_file_in_its_regions_place_takes_nobody_for_dead(
    libraries: Libraries, region: Region, tmp_path: Path
) -> None:
    """On a file of its own nobody holds a lock."""
    neighbour = Account(libraries, region.path)
    assert neighbour.reserve(600_000)
    account = Account(libraries, region.path)
    number = ctypes.c_int.from_buffer(account.memory).value
    assert Path(f"/proc/self/fd/{number}").resolve() == region.path
    with (tmp_path / "theirs").open("wb") as theirs:
        os.dup2(theirs.fileno(), number)
    assert not account.reserve(600_000)
    assert region.read().used_bytes == (600_000,)
    assert (tmp_path / "theirs").read_bytes() == b""
    account.drop()
    os.close(number)


def test_a_region_is_never_a_standard_stream(libraries: Libraries, region: Region) -> None:
    script = (
        "import ctypes, os, sys\n"
        "lib = ctypes.CDLL(sys.argv[1]); memory = ctypes.create_string_buffer(256)\n"
        "os.close(0); why = ctypes.c_char_p()\n"
        "assert lib.allot_account_open(memory, sys.argv[2].encode(), ctypes.byref(why)) == 0\n"
        "assert lib.allot_account_join(memory) == 0\n"
        "found = [n for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')"
        " and os.readlink(f'/proc/self/fd/{n}') == sys.argv[2]]\n"
        "assert found and '0' not in found, found"
    )
    subprocess.run([sys.executable, "-S", "-c", script, libraries.region, region.path], check=True)


class Crowd:
    """Processes that take and give back, some in PID namespaces of their own."""

    def __init__(self, hammer: Path, region: Region) -> None:
        self.hammer, self.region, self.count = hammer, region, 0
        self.members: dict[int, subprocess.Popen[str]] = {}

    def add(self) -> None:
        self.count += 1
        apart = ["apart"] if self.count % 2 and os.geteuid() == 0 else []
        process = subprocess.Popen(
            [self.hammer, self.region.path, str(LIMIT), str(self.count), *apart],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        self.members[int(process.stdout.readline())] = process

    def kill(self, pid: int) -> None:
        process = self.members.pop(pid)
        os.kill(pid, signal.SIGKILL)
        assert process.wait(10) in (0, -signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()

    def stopped(self) -> int:
        """What is granted while nobody moves: the dead and the living."""
        for pid in self.members:
            os.kill(pid, signal.SIGSTOP)
        for pid in self.members:
            while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.0005)
        sum_of_living = self.region.read().used_bytes[0]
        for pid in self.members:
            os.kill(pid, signal.SIGCONT)
        return sum_of_living

    def end(self) -> None:
        for pid in list(self.members):
            with suppress(ProcessLookupError):
                self.kill(pid)


@pytest.fixture
def crowd(hammer: Path, region: Region) -> Iterator[Crowd]:
    found = Crowd(hammer, region)
    yield found
    found.end()


def test_a_thousand_sigkills_break_no_limit_and_leak_nothing(
    libraries: Libraries, region: Region, crowd: Crowd
) -> None:
    """HAMi #2500, HAMi-core #86, PRs #260, #248: SIGKILL at every point, others go on within 1 s;
    half of the processes in PID namespaces of their own."""
    chance = random.Random(5)
    for _ in range(6):
        crowd.add()
    for number in range(1000):
        time.sleep(chance.random() * 0.003)
        crowd.kill(chance.choice(sorted(crowd.members)))
        crowd.add()
        if number % 20 == 0:
            assert crowd.stopped() <= LIMIT
    crowd.end()
    account = Account(libraries, region.path)
    began = time.monotonic()
    assert account.reserve(LIMIT)
    assert time.monotonic() - began < PATIENCE_S
    assert region.read().used_bytes == (LIMIT,)
    account.release(LIMIT)
    assert account.used() == 0


def test_others_go_on_beside_one_that_was_stopped_in_the_middle(
    libraries: Libraries, region: Region, crowd: Crowd
) -> None:
    for _ in range(3):
        crowd.add()
    for pid in crowd.members:
        os.kill(pid, signal.SIGSTOP)
    account = Account(libraries, region.path)
    began = time.monotonic()
    account.reserve(1)
    assert time.monotonic() - began < PATIENCE_S
    for pid in crowd.members:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("apart", [[], ["apart"]], ids=["here", "in a PID namespace"])
def test_hammers_end_with_tests_that_are_killed(
    hammer: Path, region: Region, apart: list[str]
) -> None:
    if apart:
        needs.root()
    starter = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
    tests = subprocess.Popen(
        [sys.executable, "-S", "-c", starter, hammer, region.path, str(LIMIT), "1", *apart],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert tests.stdout is not None
    pid = int(tests.stdout.readline())
    until(lambda: region.read().processes)
    tests.kill()
    tests.wait()
    until(lambda: not region.read().processes)
    tests.stdout.close()
    with suppress(FileNotFoundError):
        assert hammer.name not in Path(f"/proc/{pid}/cmdline").read_text()
