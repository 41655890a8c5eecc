"""Lending on random clusters: sessions fall idle and wake, and whatever happens the plan settles,
nothing is given twice, and no steady work is touched because of a loan.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.cycle import plan
from scheduling.core.decisions import Evict, Hold, Lend, Move, Recall, Start
from scheduling.core.incremental import Increment, WarmPlanner
from scheduling.core.scenario import follow
from scheduling.core.types import (
    GpuRequest,
    Idleness,
    Kind,
    Policy,
    Replica,
    ReplicaState,
    Snapshot,
    Workload,
)
from tests.core import small
from tests.core.test_incremental import plain, told_at_once
from tests.core.test_plans import settle
from tests.core.worlds import arrive, close_loans, cluster, leave, rest, workload

POLICIES = (Policy(), Policy(lending_margin_s=0.0), Policy(consolidation_max_moves=0))


def _grow(random: Random, snapshot: Snapshot, number: int) -> Snapshot:
    for i in range(random.randint(1, 8)):
        snapshot = arrive(snapshot, workload(random, snapshot, number + i))
    return snapshot


def _small(random: Random, newcomer: Workload) -> Workload:
    """A session so small that it may fit beside all that runs."""
    return replace(
        newcomer,
        kind=Kind.INTERACTIVE,
        priority=100,
        is_preemptible=False,
        gpu=random.choice((GpuRequest(), GpuRequest(1, 100))),
        cpu_milli=500,
        min_replicas=1,
        replicas=newcomer.replicas[:1],
        node_types=None,
    )


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 10**9), st.booleans())
def test_plans_with_loans_settle(seed: int, fits: bool) -> None:
    random = Random(seed)
    policy = random.choice(POLICIES)
    snapshot = cluster(random, fits=fits)
    for wave in range(4):
        now_s = 1000.0 * (wave + 1)
        snapshot = close_loans(leave(random, snapshot, 0.15))
        snapshot = _grow(random, snapshot, 10 * wave)
        snapshot = settle(snapshot, policy, now_s, random)
        snapshot = settle(rest(random, snapshot, now_s), policy, now_s, random)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_a_newcomer_that_starts_beside_loans_is_answered_as_by_a_full_cycle(seed: int) -> None:
    random = Random(seed)
    snapshot = cluster(random)
    for wave in range(3):
        now_s = 1000.0 * (wave + 1)
        for after in (_grow(random, snapshot, 10 * wave), None):
            snapshot = after or rest(random, snapshot, now_s)
            for _ in range(6):
                snapshot = follow(snapshot, plan(snapshot, Policy(), now_s), now_s)
        planner = WarmPlanner(snapshot, Policy(), now_s)
        if not planner.is_warm:
            continue
        newcomer = _small(random, plain(workload(random, snapshot, 10 * wave + 9)))
        increment = planner.arrive(newcomer, now_s)
        if increment is not None and snapshot.loans:
            full = plan(arrive(snapshot, newcomer), Policy(), now_s, with_estimates=False)
            assert list(increment.decisions) == [
                told_at_once(d, increment.decisions)
                for d in full.decisions
                if d.workload == newcomer.id
            ]
            assert not planner.is_warm, "a full cycle looks at the loans"


def test_a_session_starts_beside_a_loan_without_a_full_cycle() -> None:
    """Only what starts beside it: a training, or a session with no room left, waits for that."""
    resting = Idleness(0.0, expected_left_s=3600.0, memory_mib=3000)
    parts = small.snapshot(
        small.node("n", 2),
        small.project("p", 2000),
        small.project("q", 0),
        small.session("lender", "p", 1000, "n:0", idle=resting),
        small.session("beside", "p", 500, "n:1"),
        small.training("borrower", "q", 1000),
    )
    parts = follow(parts, plan(parts, Policy(), 1000.0), 1000.0)
    assert [loan.borrower for loan in parts.loans] == ["borrower/0"]

    def answer(newcomer: Workload) -> Increment | None:
        planner = WarmPlanner(parts, Policy(), 1000.0)
        assert planner.is_warm
        return planner.arrive(newcomer, 1001.0)

    started = answer(small.session("new", "p", 500))
    assert started is not None
    assert isinstance(started.decisions[-1], Start)
    assert answer(small.session("new", "p", 1000)) is None
    assert answer(small.training("new", "p", 500)) is None


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_idle_sessions_change_nothing_but_that_they_lend(seed: int) -> None:
    random = Random(seed)
    snapshot = cluster(random)
    for wave in range(3):
        snapshot = settle(_grow(random, snapshot, 10 * wave), Policy(), 0.0, random)
    before = plan(snapshot, Policy(), 1000.0)
    idle = rest(random, snapshot, 1000.0)
    decided = plan(idle, Policy(), 1000.0)
    others = [d for d in decided.decisions if not isinstance(d, Lend | Hold)]
    assert not others
    assert decided.numbers == before.numbers, "a loan counts for quota or share"
    lent = {d.workload for d in decided.decisions if isinstance(d, Lend)}
    holds = {d.workload: d for d in decided.decisions if isinstance(d, Hold)}
    for decision in before.decisions:
        assert isinstance(decision, Hold)
        assert decision.workload in lent or holds[decision.workload].reason == decision.reason


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_borrowers_are_in_nobodys_way(seed: int) -> None:
    """Whoever would start if nobody borrowed starts, or has its place held while a borrower goes;
    and nobody else is stopped than would be then.
    """
    random = Random(seed)
    snapshot = cluster(random)
    for wave in range(3):
        snapshot = settle(_grow(random, snapshot, 10 * wave), Policy(), 0.0, random)
    snapshot = settle(rest(random, snapshot, 1000.0), Policy(), 1000.0, random)
    if not any(r.state is ReplicaState.LENT for w in snapshot.workloads for r in w.replicas):
        return
    newcomer = workload(random, snapshot, 90)
    decided = plan(arrive(snapshot, newcomer), Policy(), 1000.0)
    alone = plan(_without_loans(arrive(snapshot, newcomer)), Policy(), 1000.0)
    mine = next(d for d in decided.decisions if d.workload == newcomer.id)
    there = next(d for d in alone.decisions if d.workload == newcomer.id)
    if isinstance(there, Start) or (isinstance(there, Hold) and there.held):
        assert isinstance(mine, Start) or (isinstance(mine, Hold) and mine.held)
    stopped = {d.workload for d in decided.decisions if isinstance(d, Evict | Move)}
    stopped_alone = {d.workload for d in alone.decisions if isinstance(d, Evict | Move)}
    assert len(stopped) <= len(stopped_alone)
    assert all(d.reason.message for d in decided.decisions if isinstance(d, Recall))


def _without_loans(snapshot: Snapshot) -> Snapshot:
    return replace(
        snapshot,
        loans=(),
        workloads=tuple(
            replace(
                w,
                idle=None,
                replicas=tuple(
                    Replica(r.id, ReplicaState.PENDING)
                    if r.state in (ReplicaState.LENT, ReplicaState.PARKED)
                    else r
                    for r in w.replicas
                ),
            )
            for w in snapshot.workloads
        ),
    )
