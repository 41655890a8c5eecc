"""Limits that are wrong, missing or new: without usable ones there is no GPU at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduling.agent.fraction.limits import GpuLimit
from tests import needs
from tests.fraction.world import (
    GIB,
    NOT_READY,
    OUT_OF_MEMORY,
    UUIDS,
    World,
    until,
)

MakeWorld = Callable[..., World]


def _garbage(world: World) -> None:
    (world.prefix / "limits").write_text("allot-limits/1\nregion\n")


def _cut_short(world: World) -> None:
    path = world.prefix / "limits"
    path.write_text(path.read_text().replace("end\n", ""))


def _zero(world: World) -> None:
    path = world.prefix / "limits"
    path.write_text(path.read_text().replace(str(5 * GIB), "0"))


def _negative(world: World) -> None:
    path = world.prefix / "limits"
    path.write_text(path.read_text().replace(str(5 * GIB), "-1"))


def _more_words(world: World) -> None:
    path = world.prefix / "limits"
    path.write_text(path.read_text().replace("- 0\n", "- 0 9999\n"))


def _writable(world: World) -> None:
    (world.prefix / "limits").chmod(0o666)


def _nobodys(world: World) -> None:
    needs.root()
    os.chown(world.prefix / "limits", 65534, 65534)


def _gone(world: World) -> None:
    (world.prefix / "limits").unlink()


def _no_region(world: World) -> None:
    world.region.path.write_bytes(b"garbage")


@pytest.mark.parametrize(
    "damage",
    [_garbage, _cut_short, _zero, _negative, _more_words, _writable, _nobodys, _gone, _no_region],
    ids=lambda damage: damage.__name__.strip("_"),
)
def test_without_usable_limits_there_is_no_gpu_at_all(
    world: World, damage: Callable[[World], None]
) -> None:
    damage(world)
    assert world.ask(["init"], ["alloc", "a", 1]) == [NOT_READY, NOT_READY]
    nvml = world.ask(["nvml"])[0]
    assert isinstance(nvml, dict)
    assert nvml["result"] != 0


def test_new_limits_hold_from_the_next_allocation_on(world: World, tmp_path: Path) -> None:
    asked_once, changed = tmp_path / "asked", tmp_path / "changed"
    steps = (
        ["start"], ["info"], ["touch", str(asked_once)], ["wait_for", str(changed)], ["info"],
        ["alloc", "a", GIB],
    )  # fmt: skip
    with world.asking(*steps) as asked:
        until(asked_once.exists)
        world.limits = (GpuLimit(UUIDS[0], GIB // 2, 33),)
        world.write_limits()
        world.region.limits_changed()
        changed.touch()
        answers = asked.answers()
    assert answers[1:] == [
        [0, 5 * GIB, 5 * GIB],
        0,
        0,
        [0, GIB // 2, GIB // 2],
        OUT_OF_MEMORY,
    ]
