"""The ledger against a plain search over all nodes, and its rewinding."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.ledger import Ledger
from scheduling.core.rooms import Ask, Pool, Room, Spot
from scheduling.core.types import GpuRequest, NodeTypeName
from tests.core.small import node

ASKS = [
    Ask(GpuRequest(), 1000, 1024),
    Ask(GpuRequest(1, 333), 1000, 1024),
    Ask(GpuRequest(1, 500), 4000, 1024),
    Ask(GpuRequest(1, None, 5461), 1000, 1024),
    Ask(GpuRequest(2, 250), 1000, 1024),
    Ask(GpuRequest(1, 1000), 8000, 65536),
    Ask(GpuRequest(2, 1000), 1000, 1024),
    Ask(GpuRequest(4, 1000), 1000, 1024),
]


def ledger(random: Random) -> Ledger:
    nodes = [
        node(
            f"n{i}",
            random.choice((0, 2, 4)),
            cpu_milli=random.choice((8000, 64_000)),
            max_replicas=random.choice((None, 3)),
        )
        for i in range(6)
    ]
    spread = {NodeTypeName("t4"): random.choice(("bin_pack", "spread"))}
    made = Ledger(nodes, placement=spread)
    made.index()
    return made


def picture(made: Ledger) -> object:
    """All that a ledger knows, indexes included."""
    for pool in made.pools:
        pool.refresh()
    rooms = [
        (room.cpu, room.memory, room.slots, tuple(room.devices), room.free, room.whole, room.shared)
        for room in made.rooms.values()
    ]
    indexes = [
        (
            [list(bucket) for bucket in pool.by_whole],
            [list(bucket) for bucket in pool.by_shared],
            pool.free_units,
            pool.free_cpu,
            pool.free_memory,
        )
        for pool in made.pools
    ]
    return rooms, indexes


def has_place(room: Room, ask: Ask, pool: Pool) -> bool:
    units = ask.units_per_device(pool.gpu_memory_mib)
    fitting = sum(1 for free in room.devices if free >= units)
    return (
        room.cpu >= ask.cpu_milli
        and room.memory >= ask.memory_mib
        and room.slots > 0
        and (ask.gpu.num_devices == 0 or fitting >= ask.gpu.num_devices)
    )


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_finds_a_place_exactly_where_one_is_and_rewinds(seed: int) -> None:
    random = Random(seed)
    made = ledger(random)
    taken: list[tuple[Spot, Ask]] = []
    for _ in range(25):
        before, mark = picture(made), made.mark()
        ask = random.choice(ASKS)
        spot = made.find(ask, made.pools)
        anywhere = any(has_place(r, ask, p) for p in made.pools for r in p.nodes)
        assert (spot is not None) == anywhere
        if spot is not None:
            assert has_place(spot.room, ask, spot.room.pool)
            with made.supposing():
                made.take(spot, ask)
            assert picture(made) == before
            with made.supposing() as supposition:
                made.take(spot, ask)
                supposition.keep()
            taken.append((spot, ask))
        if taken and random.random() < 0.3:
            made.give_back(*taken.pop(random.randrange(len(taken))))
        if random.random() < 0.3:
            after = made.mark()
            if after > mark and spot is not None and taken and taken[-1][0] is spot:
                made.rewind(mark)
                assert picture(made) == before
                taken.pop()


def test_a_whole_device_is_no_place_once_shared() -> None:
    made = Ledger([node("a", 1)], placement={})
    made.index()
    third = made.find(Ask(GpuRequest(1, 333), 0, 0), made.pools)
    assert third is not None
    made.take(third, Ask(GpuRequest(1, 333), 0, 0))
    assert made.find(Ask(GpuRequest(1, 1000), 0, 0), made.pools) is None
    assert made.find(Ask(GpuRequest(1, 667), 0, 0), made.pools) is not None


def test_three_thirds_by_memory_are_recorded_as_one_device() -> None:
    made = Ledger([node("a", 1, gpu_memory_mib=15360)], placement={})
    made.index()
    ask = Ask(GpuRequest(1, None, 5120), 0, 0)
    recorded = []
    for _ in range(3):
        spot = made.find(ask, made.pools)
        assert spot is not None
        made.take(spot, ask)
        recorded.append(spot.placement().milli_per_device)
    assert recorded == [334, 333, 333]
    assert made.find(Ask(GpuRequest(1, None, 1), 0, 0), made.pools) is None


def test_sharers_by_memory_fill_a_device_to_the_last_mib() -> None:
    """80 of 1 GiB on 80 GiB: each is 12.5 thousandths, of which 80 times 13 would be too many."""
    made = Ledger([node("a", 1, gpu_memory_mib=81_920)], placement={})
    made.index()
    ask = Ask(GpuRequest(1, None, 1024), 100, 64)
    spots = []
    while (spot := made.find(ask, made.pools)) is not None:
        made.take(spot, ask)
        spots.append(spot)
    assert len(spots) == 80
    assert sum(spot.milli for spot in spots) == 1000
    assert {spot.milli for spot in spots} == {12, 13}


def test_what_is_recorded_never_passes_a_device_whoever_comes_and_goes() -> None:
    random = Random(5)
    made = Ledger([node("a", 1, gpu_memory_mib=16_384)], placement={})
    made.index()
    (room,) = made.rooms.values()
    taken: list[tuple[Spot, Ask]] = []
    for _ in range(3000):
        if taken and random.random() < 0.45:
            made.give_back(*taken.pop(random.randrange(len(taken))))
            continue
        by_memory = GpuRequest(1, None, random.randint(100, 3000))
        ask = Ask(random.choice((by_memory, GpuRequest(1, random.randint(50, 300)))), 1, 1)
        spot = made.find(ask, made.pools)
        if spot is None:
            continue
        made.take(spot, ask)
        taken.append((spot, ask))
        assert spot.milli >= 1
        assert room.milli[0] == sum(each.milli for each, _ in taken) <= 1000
        if ask.gpu.milli_per_device is not None and room.milli[0] < 1000:
            assert spot.milli == ask.gpu.milli_per_device
