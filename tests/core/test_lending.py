"""Lending in single decisions: reasons with their numbers, borrowers that keep what they had, and
the prediction of how long a session stays idle.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cycle import plan, would_start
from scheduling.core.decisions import Lend, Plan, Recall, Start
from scheduling.core.errors import ScenarioError
from scheduling.core.predict.idleness import PRIOR_SPELLS_S, Spell, expected_left_s
from scheduling.core.scenario import load_scenario, run_scenario
from scheduling.core.types import (
    GpuRequest,
    Idleness,
    Loan,
    NodeName,
    Placement,
    Policy,
    ReplicaId,
    ReplicaState,
    Snapshot,
    Workload,
)
from tests.core.small import node, project, session, snapshot, training
from tests.core.test_scenario_files import BASE

NOW_S = 1000.0
RESTING = Idleness(0.0, expected_left_s=3600.0, memory_mib=3000)


def _plan(*parts: Any, policy: Policy | None = None, loans: tuple[Loan, ...] = ()) -> Plan:
    return plan(replace(snapshot(*parts), loans=loans), policy or Policy(), NOW_S)


def _on_loan(workload: Workload) -> Workload:
    return replace(
        workload,
        replicas=tuple(replace(r, state=ReplicaState.LENT) for r in workload.replicas),
    )


def test_a_loan_names_its_lenders_and_what_is_expected_of_them() -> None:
    decided = _plan(
        node("n", 1),
        project("p", 1000),
        project("q"),
        session("s1", "p", 500, "n:0", idle=RESTING),
        session("s2", "p", 500, "n:0", idle=RESTING),
        training("t", "q"),
    )
    (loan,) = (d for d in decided.decisions if isinstance(d, Lend))
    assert loan.workload == "t"
    assert loan.lenders == {"t/0": ("s1/0", "s2/0")}
    assert loan.placements[ReplicaId("t/0")].devices == (0,)
    assert loan.reason.code == "lent"
    assert loan.reason.details == {
        "lenders": ["s1", "s2"],
        "expected_left_s": 1800.0,  # two who each stay for an hour
        "gpu_milli": 1000,
    }
    assert "2 idle sessions" in loan.reason.message
    assert not decided.not_lent
    assert "t" not in decided.queue_positions


@pytest.mark.parametrize(
    ("idle", "policy", "code", "numbers"),
    [
        (replace(RESTING, since_s=950.0), Policy(), "within_window", {"until_s": 1070.0}),
        (replace(RESTING, woke_s=990.0), Policy(), "just_woken", {"until_s": 1020.0}),
        (
            replace(RESTING, expected_left_s=60.5),
            Policy(),
            "short_idleness",
            {"expected_left_s": 60.5, "needed_s": 61.0},
        ),
        (
            replace(RESTING, expected_left_s=None),
            Policy(),
            "short_idleness",
            {"expected_left_s": None, "needed_s": 61.0},
        ),
        (replace(RESTING, obstacle="managed_memory"), Policy(), "managed_memory", {}),
    ],
    ids=["window", "woken", "short", "unknown", "obstacle"],
)
def test_an_idle_session_that_lends_nothing_is_told_why(
    idle: Idleness, policy: Policy, code: str, numbers: dict[str, object]
) -> None:
    decided = _plan(
        node("n", 1),
        project("p", 1000),
        project("q"),
        session("s", "p", 1000, "n:0", idle=idle),
        training("t", "q"),
        policy=policy,
    )
    assert decided.not_lent["s"].code == code  # type: ignore[index]  # ids are plain texts here
    assert decided.not_lent["s"].details == numbers  # type: ignore[index]
    assert decided.not_lent["s"].message  # type: ignore[index]


def _why(*parts: Any) -> tuple[str, dict[str, object]]:
    reason = dict(_plan(*parts).not_lent)["s"]  # type: ignore[index]  # ids are plain texts here
    return reason.code, dict(reason.details)


def test_reasons_that_lie_beside_the_session() -> None:
    projects = (project("p", 4000), project("q"))
    idle = session("s", "p", 500, "n:0", idle=RESTING)
    assert _why(node("n", 1), *projects, idle) == ("nobody_waits", {})
    busy = session("other", "p", 500, "n:0")
    assert _why(node("n", 1), *projects, idle, busy, training("t", "q")) == (
        "part_too_small",
        {"idle_gpu_milli": 500, "wanted_gpu_milli": 1000},
    )
    assert _why(node("n", 1, cpu_milli=1000), *projects, idle, training("t", "q", 500)) == (
        "no_room_beside",
        {"node": "n"},
    )
    assert _why(
        node("n", 1, swap_host_mib=1000), *projects, idle, busy, training("t", "q", 300)
    ) == (
        "swap_reserve_full",
        {"node": "n", "used_mib": 0, "needed_mib": 3000, "reserve_mib": 1000},
    )
    assert _why(node("n", 1, is_ready=False), *projects, idle)[0] == "node_not_ready"
    wide = session("s", "p", 2000, "n:0,1", idle=RESTING)
    assert _why(node("n", 2), *projects, wide, training("t", "q"))[0] == "several_devices"


def test_a_borrower_keeps_a_device_that_has_become_free() -> None:
    """Without a restart: the same place, and since when it has run."""
    mine = _on_loan(training("t", "q", 1000, "n:0"))
    decided = _plan(node("n", 1), project("p", 1000), project("q"), mine)
    (start,) = (d for d in decided.decisions if isinstance(d, Start))
    assert start.is_settled
    assert start.placements == {r.id: r.placement for r in mine.replicas}
    assert start.reason.code == "started_borrowing"


def test_what_goes_on_in_its_place_after_yielding_is_charged_like_any_other() -> None:
    third = GpuRequest(1, None, 5461)
    first = training("first", "p", 334, "n:0", gpu=third)
    new = training("new", "p", gpu=third)
    (replica,) = new.replicas
    there = replace(replica, state=ReplicaState.PARKED, placement=Placement(NodeName("n"), (0,), 0))

    def recorded(newcomer: Workload) -> int:
        decided = _plan(node("n", 1), project("p", 1000), first, newcomer)
        (start,) = (d for d in decided.decisions if isinstance(d, Start))
        return start.placements[replica.id].milli_per_device

    assert recorded(replace(new, replicas=(there,))) == recorded(new) == 333


def test_a_woken_lender_gets_its_device_back_whatever_the_minimum_runtime() -> None:
    decided = _plan(
        node("n", 1),
        project("p", 1000),
        project("q", 1000),
        session("s", "p", 1000, "n:0", idle=Idleness(None)),
        _on_loan(training("t", "q", 1000, "n:0")),
        loans=(Loan(ReplicaId("s/0"), ReplicaId("t/0")),),
        policy=Policy(min_runtime_s={"t4": 9999.0}),  # type: ignore[dict-item]
    )
    (recall,) = (d for d in decided.decisions if isinstance(d, Recall))
    assert recall.replicas == ("t/0",)
    assert recall.reason.code == "lender_woke"
    assert recall.reason.details == {"lender": "s", "lenders": ["s"]}


def test_a_gang_of_which_one_replica_left_for_its_lender_says_so() -> None:
    """The other still runs on loan: its lender is not gone."""
    gang = _on_loan(training("t", "q", 1000, "n:0", "n:1", min_replicas=2))
    first, second = gang.replicas
    gang = replace(gang, replicas=(replace(first, state=ReplicaState.PARKED), second))
    decided = _plan(
        node("n", 2),
        project("p", 2000),
        project("q"),
        session("s", "p", 1000, "n:0", idle=Idleness(None)),
        session("r", "p", 1000, "n:1", idle=RESTING),
        gang,
        loans=(Loan(ReplicaId("r/0"), ReplicaId("t/1")),),
    )
    (recall,) = (d for d in decided.decisions if isinstance(d, Recall))
    assert recall.reason.code == "lender_woke"
    assert "None" not in recall.reason.message


def test_a_form_says_that_a_training_would_borrow() -> None:
    there = snapshot(
        node("n", 1),
        project("p", 1000),
        project("q"),
        session("s", "p", 1000, "n:0", idle=RESTING),
    )
    assert isinstance(would_start(there, Policy(), NOW_S, training("t", "q")), Lend)
    assert not isinstance(would_start(there, Policy(lends=False), NOW_S, training("t", "q")), Lend)


# Prediction.


def test_with_no_history_the_imagined_spells_decide() -> None:
    assert expected_left_s([], 0.0) == sorted(PRIOR_SPELLS_S)[len(PRIOR_SPELLS_S) // 2 - 1]


def test_a_persons_own_spells_outweigh_them() -> None:
    short = [Spell(150.0)] * 60
    assert expected_left_s(short, 120.0) == 30.0
    long = [Spell(7200.0)] * 60
    assert expected_left_s(long, 120.0) == 7080.0


def test_only_spells_that_lasted_as_long_count() -> None:
    mixed = [Spell(60.0)] * 100 + [Spell(7200.0)] * 40
    assert expected_left_s(mixed, 120.0) == 7080.0


def test_a_spell_that_was_cut_off_counts_as_long_as_it_was_seen() -> None:
    seen = [Spell(1000.0)] * 20 + [Spell(600.0, is_cut_off=True)] * 100
    assert expected_left_s(seen, 120.0) == 880.0
    assert expected_left_s([Spell(1000.0)] * 20 + [Spell(600.0)] * 100, 120.0) == 480.0


def test_beyond_all_that_was_seen_it_goes_on_as_long_again() -> None:
    assert expected_left_s([Spell(10.0)], 90_000.0) == 90_000.0


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.booleans())),
    st.floats(0, 1e5),
    st.floats(0.05, 0.95),
    st.randoms(use_true_random=False),
)
def test_a_prediction_is_never_negative_and_does_not_depend_on_order(
    raw: list[tuple[float, bool]], idle_for_s: float, quantile: float, random: Any
) -> None:
    spells = [Spell(lasted_s, is_cut_off) for lasted_s, is_cut_off in raw]
    left_s = expected_left_s(spells, idle_for_s, quantile=quantile)
    assert left_s >= 0
    random.shuffle(spells)
    assert expected_left_s(spells, idle_for_s, quantile=quantile) == left_s
    assert expected_left_s(spells, idle_for_s, quantile=0.95) >= left_s


# Files.


def _file(**more: object) -> Any:
    file = json.loads(json.dumps(BASE))
    session_entry = {
        **file["workloads"][0],
        "name": "s",
        "kind": "interactive",
        "preemptible": False,
        "replicas": [{"name": "s-0", "state": "running", "node": "n0", "devices": [1]}],
    }
    file["workloads"].append(session_entry)
    return {**file, **more}


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"loans": [{"lender": "w0-0", "borrower": "w0-1"}]}, r"loans\[0\]\.lender: .*no session"),
        ({"loans": [{"lender": "s-0", "borrower": "w0-0"}]}, r"loans\[0\]\.borrower: .*on loan"),
        (
            {"activity": {"until_s": 10, "sessions": {"x": {"used": []}}}},
            r"activity\.sessions\.x: there is no workload",
        ),
        (
            {"activity": {"until_s": 10, "sessions": {"s": {"used": [[5, 4]]}}}},
            r"used\[0\]: \[from, to\]",
        ),
        ({"activity": {"until_s": 0, "sessions": {}}}, r"until_s: .*not after"),
    ],
    ids=["lender", "borrower", "session", "span", "until"],
)
def test_a_wrong_loan_or_activity_is_refused_by_name(more: dict[str, object], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        load_scenario(_file(**more))


def test_loans_of_an_activity_that_were_not_expected_fail_the_scenario() -> None:
    file = _file(activity={"until_s": 100, "sessions": {"s": {"used": []}}})
    file["expect"]["loans"] = [{"lender": "s", "borrower": "w0", "from_s": 5}]
    result = run_scenario(load_scenario(file))
    assert result.passed is False
    assert "expected" in result.differences[0]


def test_a_snapshot_without_loans_says_nothing_of_them() -> None:
    assert Snapshot((), (), ()).loans == ()
