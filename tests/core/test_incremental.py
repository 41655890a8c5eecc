"""A warm planner's answer for one new workload is that of a full cycle, on random clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.cycle import plan
from scheduling.core.decisions import Decision, Evict, Hold, Move, Plan, Start
from scheduling.core.incremental import Increment, WarmPlanner
from scheduling.core.scenario import follow
from scheduling.core.types import NodeTypeName, Policy, ReplicaState, Snapshot, Workload
from tests.core.invariants import check_plan
from tests.core.worlds import arrive, cluster, leave, workload

MAX_CYCLES = 12


def warm(snapshot: Snapshot, policy: Policy, now_s: float) -> tuple[WarmPlanner, Snapshot]:
    """Plan and carry out until a planner stays warm."""
    for _ in range(MAX_CYCLES):
        planner = WarmPlanner(snapshot, policy, now_s)
        if planner.is_warm:
            return planner, snapshot
        snapshot = follow(snapshot, planner.plan, now_s)
    raise AssertionError("never settled")


def for_newcomer(decided: Plan, newcomer: Workload) -> list[Decision]:
    """What a plan decides about a workload, and for it."""
    return [
        decision
        for decision in decided.decisions
        if decision.workload == newcomer.id
        or (isinstance(decision, Evict | Move) and decision.claimant == newcomer.id)
    ]


def check_increment(
    increment: Increment, snapshot: Snapshot, newcomer: Workload, policy: Policy, now_s: float
) -> Snapshot:
    """Compare with a full cycle; the snapshot after the increment was carried out."""
    grown = arrive(snapshot, newcomer)
    full = plan(grown, policy, now_s, with_estimates=False)
    # Room gathered for others is the full cycle's matter; it changes the numbers of a sentence.
    moved = any(isinstance(d, Move) and d.claimant != newcomer.id for d in full.decisions)
    if not moved:
        expected = for_newcomer(full, newcomer)
        if not increment.is_settled:
            expected = [told_at_once(decision, increment.decisions) for decision in expected]
        assert list(increment.decisions) == expected
    if increment.is_settled and not moved:
        before = {hold.workload: hold.held for hold in waiting(snapshot, increment)}
        for decision in full.decisions:
            if decision.workload != newcomer.id:
                assert isinstance(decision, Hold)
                assert decision.held == before[decision.workload]
        assert full.queue_positions.get(newcomer.id) == increment.position
        for project, numbers in increment.numbers.items():
            assert numbers == full.numbers[project]
    decisions = (*increment.decisions, *waiting(grown, increment))
    return check_plan(grown, Plan(decisions, full.numbers, {}), now_s)


def told_at_once(decision: Decision, told: Sequence[Decision]) -> Decision:
    """Where others of its project get something in the same cycle, a start is told by a full cycle
    what its project holds with that, and by an increment, which leaves it to the next, without."""
    last = told[-1]
    if not isinstance(decision, Start) or not isinstance(last, Start):
        return decision
    reason, details = decision.reason, dict(decision.reason.details)
    details.pop("allocated")
    assert {key: last.reason.details[key] for key in details} == details
    return replace(decision, reason=replace(last.reason, code=reason.code, offers=reason.offers))


def waiting(snapshot: Snapshot, increment: Increment) -> list[Hold]:
    """Everybody but whom an increment touches waits on, with what is kept for them."""
    newcomer = increment.decisions[-1].workload
    return [
        Hold(
            w.id,
            increment.decisions[-1].reason,
            {replica.id: replica.held for replica in w.replicas if replica.held is not None},
        )
        for w in snapshot.workloads
        if w.id != newcomer and any(r.state is ReplicaState.PENDING for r in w.replicas)
    ]


def story(random: Random, policy: Policy, *, fits: bool) -> Counter[str]:
    """Fill a cluster, then let newcomers come one by one; how they were answered."""
    snapshot = cluster(random, fits=fits)
    number, answers = 0, Counter[str]()
    for _ in range(random.randint(1, 12)):
        snapshot = arrive(snapshot, plain(workload(random, snapshot, number)))
        number += 1
    planner, snapshot = warm(snapshot, policy, 0.0)
    for step in range(8):
        now_s = 10.0 * step
        newcomer = plain(workload(random, snapshot, number))
        number += 1
        increment = planner.arrive(newcomer, now_s)
        if increment is None:
            answers["full"] += 1
            planner, snapshot = warm(arrive(snapshot, newcomer), policy, now_s)
            continue
        last = increment.decisions[-1]
        answers[type(last).__name__ + ("+" if len(increment.decisions) > 1 else "")] += 1
        snapshot = check_increment(increment, snapshot, newcomer, policy, now_s)
        if not planner.is_warm or random.random() < 0.2:
            planner, snapshot = warm(leave(random, snapshot, 0.1), policy, now_s)
    return answers


@pytest.mark.parametrize(
    "seed",
    [
        *(253, 1232, 1417),  # a session starts; another project may take from its project for that
        *(4031, 5932, 7196),  # others gain by its request, too; it comes first
        *(1912, 2089, 2356),  # they come first, or it gets nothing
        *(2443, 3139, 7030),  # it has claimed a place, and others gain by that
        *(100, 500, 2140),  # it starts, and might be stopped at once
    ],
)
def test_so_it_does_where_others_gain_by_its_arrival(seed: int) -> None:
    story(Random(seed), Policy(), fits=True)


@pytest.mark.parametrize("seed", [4285, 7949])
def test_what_once_went_round_for_ever_settles(seed: int) -> None:
    story(Random(seed), Policy(), fits=False)


@pytest.mark.parametrize("seed", [11192, 12673])
def test_what_it_borrows_may_change_hands_inside_its_project(seed: int) -> None:
    story(Random(seed), Policy(), fits=False)


@pytest.mark.parametrize("seed", [2358])
def test_what_is_protected_from_its_start_on_may_turn_a_search_to_others(seed: int) -> None:
    random = Random(seed)
    story(random, other_policy(random), fits=True)


def plain(arrived: Workload) -> Workload:
    """Without predictions: where room may be kept for gangs, a full cycle is always asked."""
    return replace(arrived, expected_end_s=None, expected_run_s=None)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 10**9), st.booleans())
def test_a_newcomer_gets_what_a_full_cycle_would_give_it(seed: int, fits: bool) -> None:
    story(Random(seed), Policy(), fits=fits)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_so_it_does_under_other_policies(seed: int) -> None:
    random = Random(seed)
    story(random, other_policy(random), fits=True)


def other_policy(random: Random) -> Policy:
    return Policy(
        min_runtime_s={NodeTypeName("t4"): 25.0},
        placement={NodeTypeName("a100"): "spread"},
        max_victims=random.choice((0, 1, 3, 256)),
        consolidation_max_moves=random.choice((0, 2, 16)),
        preemption_delay_s=random.choice((0.0, 15.0)),
    )
