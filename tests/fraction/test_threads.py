"""Threads of one program, at work in the library at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scheduling.agent.fraction.limits import GpuLimit
from tests.fraction.world import GIB, MIB, OUT_OF_MEMORY, UUIDS, FakeDevice, World, until


def test_who_takes_of_a_pool_and_who_makes_a_context_never_wait_for_each_other(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    world = make_world(
        devices=(FakeDevice(UUIDS[0]), FakeDevice(UUIDS[1])),
        limits=(GpuLimit(UUIDS[0], GIB, 100), GpuLimit(UUIDS[1], GIB, 100)),
    )
    steps = (
        ["start", 0],
        ["device_pool", "p", 1],
        ["pool_alloc", "p", "a", 64 * MIB],
        ["wait_for", str(tmp_path / "go")],
        ["contexts_beside_pool", "p", 20_000],
    )
    with world.asking(*steps) as asked:
        until(lambda: any(world.region.read().used_bytes))
        # More than is left, as the agent has seen it of an earlier context.
        (process,) = world.region.read().processes
        world.region.set_measured(process, 1, GIB)
        (tmp_path / "go").touch()
        assert asked.answers()[-1] == [0, OUT_OF_MEMORY]


@pytest.mark.parametrize(
    "let_go",
    [
        [["release", "a"]],
        [["reserve_and_map", "m", "a", 64 * MIB], ["release", "a"], ["unmap", "m", 64 * MIB]],
    ],
    ids=["released", "unmapped"],
)
def test_a_handle_that_is_used_again_at_once_is_charged_for_what_it_is_now(
    make_world: Callable[..., World], let_go: list[list[object]]
) -> None:
    """The driver has given it to the next before the call that let it go returns."""
    world = make_world(extra=("lag 300000000",))
    *before, last = let_go
    answers = world.ask(
        ["start"], ["create", "a", 64 * MIB], *before, ["beside", last, ["create", "b", 128 * MIB]],
        ["info"], ["release", "b"], ["info"],
    )  # fmt: skip
    created, held, _, free = answers[-4:]
    assert created == 0
    assert held == [0, 5 * GIB - 128 * MIB, 5 * GIB]
    assert free == [0, 5 * GIB, 5 * GIB]


def test_what_a_primary_context_held_is_given_back_however_soon_the_next_is_there(
    make_world: Callable[..., World],
) -> None:
    answers = make_world(extra=("lag 300000000",)).ask(
        ["start"], ["alloc", "a", GIB], ["beside", ["release_primary"], ["start"]], ["info"],
        ["alloc", "b", GIB], ["info"],
    )  # fmt: skip
    again, free, _, held = answers[2:]
    assert again == [0, 0, 0]
    assert free == [0, 5 * GIB, 5 * GIB]
    assert held == [0, 4 * GIB, 5 * GIB]
