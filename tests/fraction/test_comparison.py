"""What the driver takes beside what it is asked for is counted; who avoids the library is seen."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduling.agent.fraction.comparison import (
    Compared,
    Comparison,
    Contexts,
    RealUse,
    SimulatedUse,
    UseReader,
    key_of,
)
from scheduling.agent.fraction.limits import GpuLimit
from tests.fraction.world import GIB, MIB, OUT_OF_MEMORY, UUIDS, World, until

CONTEXT = 300 * MIB
KIND = "580.95.05, Tesla T4"
MakeWorld = Callable[..., World]


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A T4 on which each process's context takes 300 MiB, and nobody has said so yet."""
    return make_world(extra=(f"context {CONTEXT}",))


@pytest.fixture
def contexts(tmp_path: Path) -> Contexts:
    return Contexts(tmp_path / "contexts.json")


class Look:
    """An agent that compares one session."""

    def __init__(self, world: World, contexts: Contexts, **changes: object) -> None:
        self.world, self.comparison, self.changes = world, Comparison(contexts), changes
        self.reader: UseReader = SimulatedUse(world.prefix / "devices")

    def again(self, *pids: int) -> None:
        one = Compared(
            "a1", self.world.region, set(pids), (UUIDS[0],), (KIND,), **self.changes,  # type: ignore[arg-type]
        )  # fmt: skip
        self.comparison.update([one], self.reader)


def physical(world: World) -> int:
    return world.physical.read().used_bytes[0]


def test_what_a_context_takes_is_charged_to_its_process(
    world: World, contexts: Contexts, tmp_path: Path
) -> None:
    look = Look(world, contexts)
    with world.asking(
        ["start"], ["alloc", "a", GIB], ["info"], ["wait_for", str(tmp_path / "go")], ["info"],
        ["alloc", "b", 4 * GIB - CONTEXT + 1], ["alloc", "b", 4 * GIB - CONTEXT], ["free", "b"],
        ["release_primary"], ["nvml"],
    ) as held:  # fmt: skip
        until(lambda: physical(world) == GIB + CONTEXT)
        look.again(held.pid)
        assert contexts.of(KIND) == 0, "once might be chance"
        look.again(held.pid)
        (tmp_path / "go").touch()
        answers = held.answers()
    assert answers[2] == [0, 4 * GIB, 5 * GIB]
    assert answers[4] == [0, 4 * GIB - CONTEXT, 5 * GIB]
    assert answers[5:7] == [OUT_OF_MEMORY, 0]
    assert isinstance(answers[9], dict)
    assert answers[9]["used"] == 0, "its end gives back just what was charged"
    assert look.comparison.around("a1") is None
    assert contexts.of(KIND) == CONTEXT


def test_what_is_known_is_charged_at_once_to_the_next(
    make_world: MakeWorld, contexts: Contexts, tmp_path: Path
) -> None:
    contexts.saw(KIND, CONTEXT)
    contexts.saw(KIND, CONTEXT + 1)
    contexts.saw(KIND, 0)
    known = Contexts(tmp_path / "contexts.json").of(KIND)
    assert known == CONTEXT, "the least, kept for the next agent"
    limit = GpuLimit(UUIDS[0], 5 * GIB, 333, context_bytes=known)
    world = make_world(extra=(f"context {CONTEXT}",), limits=(limit,))
    look = Look(world, contexts)
    with world.asking(["start"], ["fill", "alloc", 100 * MIB], ["sleep", 60]) as held:
        # 48 times 100 MiB beside 300 MiB: 5,100 of 5,120.
        until(lambda: physical(world) == 5100 * MIB)
        look.again(held.pid)
        look.again(held.pid)
        (process,) = world.region.read().processes
        assert process.context_bytes == (CONTEXT,)
        assert world.region.read().used_bytes == (5100 * MIB,)
        assert look.comparison.around("a1") is None


@pytest.mark.parametrize("text", ["", "[]", '{"a": "b"}', "{"])
def test_what_was_kept_and_cannot_be_read_is_forgotten(tmp_path: Path, text: str) -> None:
    (tmp_path / "contexts.json").write_text(text)
    assert Contexts(tmp_path / "contexts.json").of(KIND) == 0


def test_a_program_that_opens_the_real_driver_is_seen(world: World, contexts: Contexts) -> None:
    look, real = Look(world, contexts), str(world.prefix / "libcuda.real")
    with world.asking(["go_on_by", real], ["start"], ["alloc", "a", GIB], ["sleep", 60]) as held:
        until(lambda: physical(world) == GIB + CONTEXT)
        look.again(held.pid)
        assert look.comparison.around("a1") is None
        look.again(held.pid)
        found = look.comparison.around("a1")
        assert found is not None
        assert (found.device_uuid, found.share_mib) == (UUIDS[0], 5 * 1024)
        assert found.used_mib == found.uncounted_mib == 1024 + 300
        # Nobody's business: another session's process.
        other = Look(world, contexts)
        other.again(os.getpid())
        other.again(os.getpid())
        assert other.comparison.around("a1") is None
    look.again()
    look.again()
    assert look.comparison.around("a1") is None, "it has ended"


def test_a_program_that_uses_both_is_seen_once_it_is_past_its_share(
    world: World, contexts: Contexts, tmp_path: Path
) -> None:
    look, real = Look(world, contexts), str(world.prefix / "libcuda.real")
    with world.asking(
        ["start"], ["alloc", "a", GIB], ["go_on_by", real], ["start"], ["alloc", "b", 3 * GIB],
        ["wait_for", str(tmp_path / "go")], ["alloc", "c", 2 * GIB], ["sleep", 60],
    ) as held:  # fmt: skip
        until(lambda: physical(world) == 4 * GIB + CONTEXT)
        look.again(held.pid)
        look.again(held.pid)
        assert look.comparison.around("a1") is None, "within its share it takes nothing of others"
        assert contexts.of(KIND) == 0, "so much is no context"
        (tmp_path / "go").touch()
        until(lambda: physical(world) == 6 * GIB + CONTEXT)
        look.again(held.pid)
        look.again(held.pid)
        found = look.comparison.around("a1")
        assert found is not None
        assert (found.used_mib, found.uncounted_mib) == (6 * 1024 + 300, 0)


def test_where_the_driver_holds_the_share_nobody_gets_around_it(
    world: World, contexts: Contexts
) -> None:
    look = Look(world, contexts, is_held_by_driver=True)
    real = str(world.prefix / "libcuda.real")
    with world.asking(["go_on_by", real], ["start"], ["alloc", "a", GIB], ["sleep", 60]) as held:
        until(lambda: physical(world) == GIB + CONTEXT)
        look.again(held.pid)
        look.again(held.pid)
        assert look.comparison.around("a1") is None


def test_a_driver_that_tells_of_nobody_says_nothing(world: World, contexts: Contexts) -> None:
    look = Look(world, contexts)
    with world.asking(["start"], ["alloc", "a", GIB], ["sleep", 60]) as held:
        until(lambda: physical(world) == GIB + CONTEXT)
        (world.prefix / "devices").rename(world.prefix / "away")
        look.again(held.pid)
        look.again(held.pid)
        assert contexts.of(KIND) == 0
        assert world.region.read().used_bytes == (GIB,)


def test_real_devices_are_read_through_nvml(world: World, tmp_path: Path) -> None:
    """In a process whose NVML is the fake one."""
    for name in ("libnvidia-ml.so.1", "driver.conf"):
        source = "libnvidia-ml.real" if name.endswith(".1") else name
        shutil.copy(world.prefix / source, tmp_path / name)
    program = (
        "import json; from scheduling.agent.fraction.comparison import RealUse\n"
        f"print(json.dumps(sorted((RealUse().used({UUIDS[0]!r}) or {{}}).items())))"
    )
    with world.asking(["start"], ["alloc", "a", GIB], ["sleep", 60]) as held:
        until(lambda: physical(world) == GIB + CONTEXT)
        output = world.run([sys.executable, "-c", program], LD_LIBRARY_PATH=str(tmp_path))
        key = key_of(held.pid)
        assert key is not None
        assert json.loads(output) == [[list(key), GIB + CONTEXT]]
    assert key_of(held.pid) is None
    assert RealUse().used(UUIDS[0]) is None, "no driver, no answer"
