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
from scheduling.core.types import Policy, Replica, ReplicaState, Snapshot
from tests.core.test_plans import settle
from tests.core.worlds import arrive, close_loans, cluster, leave, rest, workload

POLICIES = (Policy(), Policy(lending_margin_s=0.0), Policy(consolidation_max_moves=0))


def _grow(random: Random, snapshot: Snapshot, number: int) -> Snapshot:
    for i in range(random.randint(1, 8)):
        snapshot = arrive(snapshot, workload(random, snapshot, number + i))
    return snapshot


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
