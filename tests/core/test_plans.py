"""Whole plans on random small clusters: stable, deterministic, sessions untouched.

A run is a story: workloads arrive in waves, some end, and after each wave the planner is asked
again and again. So every state looked at is one that can be reached.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.cycle import plan
from scheduling.core.types import NodeTypeName, Policy, Snapshot
from tests.core.invariants import check_plan
from tests.core.worlds import arrive, cluster, leave, shuffled, workload

MAX_CYCLES = 12


def settle(snapshot: Snapshot, policy: Policy, now_s: float, random: Random) -> Snapshot:
    """Plan and carry out until nothing changes any more."""
    for _ in range(MAX_CYCLES):
        decided = plan(snapshot, policy, now_s)
        assert decided == plan(shuffled(random, snapshot), policy, now_s)
        after = check_plan(snapshot, decided, now_s)
        if after == snapshot:
            return snapshot
        snapshot = after
    raise AssertionError(f"still changing after {MAX_CYCLES} cycles")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**9), st.booleans())
def test_plans_settle(seed: int, fits: bool) -> None:
    random = Random(seed)
    snapshot = cluster(random, fits=fits)
    number = 0
    for _wave in range(3):
        snapshot = leave(random, snapshot, 0.2)
        for _ in range(random.randint(1, 8)):
            snapshot = arrive(snapshot, workload(random, snapshot, number))
            number += 1
        snapshot = settle(snapshot, Policy(), 0.0, random)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_plans_settle_when_nodes_are_lost(seed: int) -> None:
    random = Random(seed)
    snapshot = cluster(random)
    for number in range(random.randint(3, 12)):
        snapshot = arrive(snapshot, workload(random, snapshot, number))
    snapshot = settle(snapshot, Policy(), 0.0, random)
    nodes = tuple(replace(node, is_ready=random.random() > 0.4) for node in snapshot.nodes)
    snapshot = settle(replace(snapshot, nodes=nodes), Policy(), 0.0, random)
    nodes = tuple(replace(node, is_ready=True) for node in snapshot.nodes)
    settle(replace(snapshot, nodes=nodes), Policy(), 0.0, random)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_plans_settle_under_other_policies(seed: int) -> None:
    random = Random(seed)
    policy = Policy(
        min_runtime_s={NodeTypeName("t4"): 60.0},
        placement={NodeTypeName("a100"): "spread"},
        max_victims=random.choice((0, 1, 3, 256)),
        consolidation_max_moves=random.choice((0, 2, 16)),
    )
    snapshot = cluster(random)
    for wave in range(3):
        for i in range(random.randint(1, 6)):
            snapshot = arrive(snapshot, workload(random, snapshot, 10 * wave + i))
        snapshot = settle(snapshot, policy, 50.0 * wave, random)


def test_a_search_that_may_not_go_on_says_so() -> None:
    random = Random(3)
    for seed in range(40):
        random = Random(seed)
        snapshot = cluster(random)
        for number in range(12):
            snapshot = arrive(snapshot, workload(random, snapshot, number))
        check_plan(snapshot, plan(snapshot, Policy(), 0.0, should_stop=lambda: True))
