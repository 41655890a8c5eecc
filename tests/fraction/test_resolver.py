"""The proxy between a program and the driver: which function answers, and when a call waits."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduling.agent.fraction import symbols
from scheduling.agent.fraction.region import State
from tests.fraction.world import (
    ILLEGAL_STATE,
    World,
)

MakeWorld = Callable[..., World]
TRACES = sorted((Path(__file__).parent / "cudart").glob("*.txt"))


Question = tuple[str, int, int, str]
"""Name, version and flags that a program asks for, and the symbol that should answer."""


def answered_otherwise(world: World, questions: list[Question]) -> list[Question]:
    answers = world.ask(["init"], *(["resolved_is", *question] for question in questions))
    return [each for each, is_so in zip(questions, answers[1:], strict=True) if not is_so]


@pytest.mark.parametrize(
    ("extra", "questions"),
    [
        (
            (),
            [
                ("cuCtxCreate", 3020, 0, "cuCtxCreate_v2"),
                ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
                ("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"),
                ("cuCtxCreate", 12049, 0, "cuCtxCreate_v3"),
                ("cuMemAlloc", 12000, 0, "cuMemAlloc_v2"),
                ("cuMemAllocAsync", 11020, 0, "cuMemAllocAsync"),
                ("cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz"),
                ("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"),
                ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
                ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
            ],
        ),
        (
            ("hides",),
            [
                ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
                ("cuMemAlloc", 12000, 0, "cuMemAlloc_v2"),
                ("cuMemAlloc", 12000, 2, "cuMemAlloc_v2"),
                ("cuMemAllocAsync", 12000, 2, "cuMemAllocAsync_ptsz"),
                ("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"),
                ("cuCtxSynchronize", 12000, 2, "cuCtxSynchronize"),
            ],
        ),
    ],
    ids=["as the driver chose", "by version where it hands out what it does not export"],
)
def test_the_resolver_gives_the_drivers_variant(
    make_world: MakeWorld, extra: tuple[str, ...], questions: list[Question]
) -> None:
    """HAMi-core #233: cuCtxCreate at 3020, 11040, 12050 is _v2, _v3, _v4."""
    assert answered_otherwise(make_world(extra=extra), questions) == []


def test_every_hook_is_what_the_resolver_answers(world: World) -> None:
    questions = [
        (hook.base, hook.version, 2 if hook.is_per_thread else 0, hook.symbol)
        for hook in symbols.read("cuda")
    ]
    wrong = answered_otherwise(world, questions)
    # Between two of one version the driver takes the one that it lists last.
    newest = {(base, version, flags): symbol for base, version, flags, symbol in questions}
    assert [w for w in wrong if newest[w[0], w[1], w[2]] == w[3]] == []


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.stem)
def test_what_each_runtime_asks_gets_the_drivers_choice_from_us(world: World, trace: Path) -> None:
    """Recorded from cudart of CUDA 11.8, 12.9, 13.0 and 13.5 (see cudart/recorder.c)."""
    first = "cuGetProcAddress" if trace.stem.startswith("11.") else "cuGetProcAddress_v2"
    ask = ["replay", str(trace), first]
    through = world.ask(["init"], ask)[1]
    plain = world.prefix / "plain"
    plain.mkdir()
    (plain / "libcuda.so.1").write_bytes(world.libraries.fake_cuda.read_bytes())
    (plain / "driver.conf").write_bytes((world.prefix / "driver.conf").read_bytes())
    driver = world.ask(["init"], ask, LD_LIBRARY_PATH=str(plain))[1]
    assert isinstance(through, list)
    assert isinstance(driver, list)
    hooked = {hook.symbol for hook in symbols.read("cuda")}
    num_hooked = 0
    for ours, theirs in zip(through, driver, strict=True):
        # Result and variant are the driver's; what is hooked comes from the proxy.
        assert ours[:3] == theirs[:3]
        if ours[2]:
            is_ours = ours[3] == str(world.libraries.cuda)
            assert is_ours == (ours[2] in hooked), ours
            num_hooked += is_ours
    assert num_hooked > 90


def test_the_resolvers_errors_are_the_drivers(world: World) -> None:
    answers = world.ask(
        ["init"], ["resolve", "", 12000], ["resolve", "cuNoSuchThing", 12000],
        ["resolve", "cuMemAllocAsync", 5000],
    )  # fmt: skip
    assert answers[1:] == [[500, 0, 1], [500, 0, 1], [500, 0, 2]]


@pytest.mark.parametrize(
    ("steps", "answers"),
    [
        ([["start"], ["alloc", "a", 1024]], [[0, 0, 0], 0]),
        ([["init"], ["load_module"]], [0, 0]),
    ],
    ids=["memory", "a module"],
)
def test_a_call_waits_while_the_session_is_away_and_asks_for_it(
    make_world: MakeWorld, steps: list[object], answers: list[object]
) -> None:
    """Whatever a program begins with after a pause."""
    world = make_world()
    world.gate = str(world.prefix / "gate.sock")
    world.write_limits()
    world.region.set_state(State.SWAPPED_OUT)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(world.gate)
        listener.settimeout(20)
        with world.asking(*steps) as waiting:
            asked = listener.recv(1000).decode()
            assert asked == f"allot-gate/1 session-1 {waiting.pid}\n"
            assert world.region.read().num_held == 1
            assert world.region.last_call_s() is not None
            time.sleep(0.1)
            assert waiting.process.poll() is None
            world.region.set_state(State.RUNNING)
            began = time.monotonic()
            assert waiting.answers() == answers
            assert time.monotonic() - began < 1
    assert world.region.read().num_held == 0
    assert world.region.read().num_wakes >= 1


def test_a_call_of_a_lost_session_fails_instead_of_waiting(world: World) -> None:
    world.region.set_state(State.FAILED)
    assert world.ask(["init"], ["alloc", "a", 1]) == [0, ILLEGAL_STATE]
