"""Every reason: its code, its numbers, its sentence, its offers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.core.cycle import plan
from scheduling.core.decisions import Reason, Start
from scheduling.core.types import (
    EvictionCost,
    Node,
    NodeTypeName,
    Policy,
    Project,
    ResourceKey,
    Share,
    Workload,
)
from tests.core.small import answer, check, eviction, node, project, session, snapshot, training

Part = Node | Project | Workload
V100 = {"node_type": NodeTypeName("v100")}


def test_started_in_quota_and_borrowing() -> None:
    inside = answer("w", node("a"), project("p", 1000), training("w", "p"))
    check(inside.reason, "started_in_quota", "p then held 1 GPU of 1 GPU quota")
    assert inside.reason.details["fair_share"] == 1000
    beyond = answer("w", node("a"), project("p", 1000), training("w", "p", 2000))
    check(beyond.reason, "started_borrowing", "2 GPU of 1 GPU quota", "borrowed")


def test_a_session_never_borrows_though_a_training_of_its_project_does() -> None:
    """As after a restart: both start in one cycle, the training perhaps first."""
    parts = (
        node("a", 2),
        project("p", 1000),
        training("w", "p", 1000, "a:0", submitted=-1.0),
        session("s", "p", 1000),
    )
    mine = answer("s", *parts)
    assert isinstance(mine, Start)
    check(mine.reason, "started_in_quota", "p then held 1 GPU of 1 GPU quota")
    assert not mine.is_borrowed
    together = (node("a", 2), project("p", 1000), training("w", "p"), session("s", "p"))
    mine, other = (answer(name, *together) for name in ("s", "w"))
    assert isinstance(mine, Start)
    assert isinstance(other, Start)
    assert (mine.is_borrowed, other.is_borrowed) == (False, True)
    steady = answer(
        "v", node("a", 2), project("p", 1000), training("w", "p", 1000, "a:0"),
        training("v", "p", is_preemptible=False),
    )  # fmt: skip
    check(steady.reason, "started_in_quota")


def test_interactive_over_quota() -> None:
    hold = answer(
        "s2", node("a"), project("p", 500), session("s1", "p", 333), session("s2", "p", 333)
    )
    check(hold.reason, "interactive_over_quota", "0.333 GPU of 0.5 GPU", "0.333 GPU asked")
    assert hold.reason.details["level"] == "p"
    assert [offer["id"] for offer in hold.reason.offers] == [
        "smaller",
        "stop_own",
        "request_quota",
    ]
    assert hold.reason.offers[0]["gpu_milli"] == 167


def test_a_steady_training_may_be_made_preemptible() -> None:
    hold = answer("w", node("a"), project("p", 0), training("w", "p", is_preemptible=False))
    check(hold.reason, "interactive_over_quota")
    assert {"id": "make_preemptible"} in hold.reason.offers


def test_over_limit_names_the_level() -> None:
    hold = answer(
        "w",
        node("a"),
        project("d", 1000, limit=1000),
        project("p", 1000, parent="d"),
        training("v", "p", 1000, "a:0"),
        training("w", "p"),
    )
    check(hold.reason, "over_limit", "d holds 1 GPU", "never hold more than 1 GPU")
    assert hold.reason.details["level"] == "d"


def test_over_share() -> None:
    hold = answer(
        "w",
        node("a", 2),
        project("p", 1000),
        project("q", 1000),
        training("v", "p", 1000, "a:0"),
        training("w", "p"),
        training("u", "q", 1000, "a:1"),
    )
    check(hold.reason, "over_share", "fair share of 1 GPU", "nothing is idle")
    assert hold.reason.details["allocated"] == 1000


def test_a_gang_beyond_its_share_is_told_what_would_help() -> None:
    """More quota makes no more devices; fewer replicas or less of its own would help."""
    hold = answer(
        "w",
        node("a", 4),
        project("p", 4000),
        training("v", "p", 3000, "a:0,1,2"),
        training("w", "p", 1000, min_replicas=3),
    )
    check(hold.reason, "over_share", "only 1 of 3 GPU asked are free")
    assert hold.reason.message.endswith(" 1 of 3 replicas could be placed now.")
    assert (hold.reason.details["placeable"], hold.reason.details["minimum"]) == (1, 3)
    assert [offer["id"] for offer in hold.reason.offers] == ["stop_own", "fewer_replicas"]
    assert hold.reason.per_node_type[0]["constraint"] == "gpu"


@pytest.mark.parametrize(("milli", "placeable"), [(2000, 0), (1000, 2)])
def test_replicas_are_counted_where_they_would_go(milli: int, placeable: int) -> None:
    """One device is free on either node: whole replicas of two find none."""
    hold = answer(
        "w",
        node("a", 2),
        node("b", 2),
        project("p", 2000),
        training("v", "p", 1000, "a:0"),
        training("u", "p", 1000, "b:0"),
        training("w", "p", milli, min_replicas=3),
    )
    check(hold.reason, "over_share", f"{placeable} of 3 replicas could be placed now")
    offers = [offer["id"] for offer in hold.reason.offers]
    assert ("fewer_replicas" in offers) is bool(placeable)


def test_a_single_replica_is_not_counted() -> None:
    hold = answer(
        "w", node("a", 1), project("p"), training("v", "p", 1000, "a:0"), training("w", "p")
    )
    check(hold.reason, "over_share")
    assert "placeable" not in hold.reason.details
    assert "replica" not in hold.reason.message


def test_gang_incomplete() -> None:
    nodes = (node("a", 2), node("b", 1), node("c", 1))
    hold = answer("w", *nodes, project("p", 4000), training("w", "p", 2000, min_replicas=2))
    check(hold.reason, "gang_incomplete", "1 of 2 replicas fit")


def test_quota_exceeds_capacity() -> None:
    hold = answer(
        "w",
        node("a", 1),
        project("p", 1000),
        project("q", 1000),
        training("v", "q", 1000, "a:0"),
        training("w", "p"),
    )
    check(hold.reason, "quota_exceeds_capacity", "2 GPU are promised, 1 GPU are there")


def test_in_min_runtime() -> None:
    parts = (node("a", 1), project("p", 1000), project("q"))
    hold = answer(
        "w",
        *parts,
        training("v", "q", 1000, "a:0"),
        training("w", "p"),
        policy=Policy(min_runtime_s={NodeTypeName("t4"): 60.0}),
        now_s=20.0,
    )
    check(hold.reason, "in_min_runtime", "40 s more")


def test_in_delay() -> None:
    hold = answer(
        "w",
        node("a", 1),
        project("p", 1000),
        project("q"),
        training("v", "q", 1000, "a:0"),
        training("w", "p", waiting_since_s=10.0),
        policy=Policy(preemption_delay_s=30.0),
        now_s=20.0,
    )
    check(hold.reason, "in_delay", "in 20 s")


def test_backing_off_and_start_after() -> None:
    parts = (node("a", 1), project("p", 1000))
    failed = training("w", "p", not_before_s=90.0, failures=2, last_error="no such file")
    hold = answer("w", *parts, failed, now_s=30.0)
    check(hold.reason, "backing_off", "failed 2 times", "in 60 s", "no such file")
    later = answer("w", *parts, training("w", "p", not_before_s=90.0), now_s=30.0)
    check(later.reason, "start_after", "60 s")


def test_search_cut_short() -> None:
    parts = (node("a", 2), project("p", 2000), project("q"))
    hold = answer(
        "w",
        *parts,
        training("v", "q", 1000, "a:0"),
        training("u", "q", 1000, "a:1"),
        training("w", "p", 2000),
        policy=Policy(max_victims=1),
    )
    check(hold.reason, "search_cut_short", "after 1 tries")


def test_awaiting_release_names_the_victims() -> None:
    hold = answer(
        "w",
        node("a", 1),
        project("p", 1000),
        project("q"),
        training("v", "q", 1000, "a:0"),
        training("w", "p"),
    )
    check(hold.reason, "awaiting_release", "1 GPU kept for it", "by v", "120 s")
    assert hold.reason.details["victims"] == ["v"]


def test_reclaimed_tells_both_sides() -> None:
    evict = eviction(
        "v",
        node("a", 2),
        project("p", 1000),
        project("q"),
        training("v", "q", 2000, "a:0,1", eviction_cost=EvictionCost(5, 10, 300)),
        training("w", "p"),
    )
    check(evict.reason, "reclaimed", "w of p", "q held 2 GPU", "2 GPU beyond its quota of 0 GPU")
    assert evict.claimant == "w"
    assert evict.reason.details["checkpoint_age_s"] == 300
    assert evict.reason.details["victim_share"] == 1000


def test_preempted_tells_both_priorities() -> None:
    evict = eviction(
        "v", node("a", 1), project("p", 1000), training("v", "p", 1000, "a:0"), session("w", "p")
    )
    check(evict.reason, "preempted", "priority 100 is above 50")


def test_memory_and_cores_are_told_in_their_units() -> None:
    shares = {ResourceKey("memory"): Share(1024), ResourceKey("cpu"): Share(4000)}
    small = project("p", 1000, shares=shares)
    memory = answer("s", node("a"), small, session("s", "p", 0, memory_mib=2048))
    check(memory.reason, "interactive_over_quota", "0 GiB of 1 GiB", "2 GiB asked")
    cores = answer("s", node("a"), small, session("s", "p", 0, cpu_milli=8000))
    check(cores.reason, "interactive_over_quota", "0 cores of 4 cores", "8 cores asked")


def test_queue_positions_count_within_project_and_first_choice() -> None:
    decided = plan(
        snapshot(
            node("a", 1),
            project("p", 1000),
            project("q", 0),
            session("s", "p", 1000, "a:0"),
            training("w1", "p", submitted=1.0),
            training("w2", "p", submitted=2.0),
            training("w3", "p", submitted=3.0, priority=75),
            training("v1", "q"),
            training("c1", "p", 0, cpu_milli=100_000),
        ),
        Policy(),
        0.0,
    )
    assert decided.queue_positions == {
        "w3": (1, 3),
        "w1": (2, 3),
        "w2": (3, 3),
        "v1": (1, 1),
        "c1": (1, 1),
    }


def test_behind_reservation_names_the_gang_and_the_time() -> None:
    parts = (
        node("a", 2),
        node("b", 2),
        project("p", 2000),
        project("q", 4000),
        training("r", "p", 2000, "a:0,1", is_preemptible=False, expected_end_s=200.0),
        training("g", "q", 2000, min_replicas=2),
    )
    small = training("w", "q", 1000, priority=25, expected_run_s=600.0)
    hold = answer("w", *parts, small, now_s=100.0)
    check(hold.reason, "behind_reservation", "kept for g for 100 s more")
    assert hold.reason.details["own_run_s"] == 600.0
    gang = answer("g", *parts, small, now_s=100.0)
    check(gang.reason, "gang_incomplete", "1 of 2 replicas fit", "expected free in 100 s")
    assert gang.reason.details["reserved_nodes"] == ["a", "b"]


def test_stale_gang() -> None:
    decided = plan(
        snapshot(
            node("a", 1),
            project("p", 2000),
            training("g", "p", 1000, "a:0", min_replicas=2, pending=1, incomplete_since_s=0.0),
        ),
        Policy(),
        61.0,
    )
    reasons = [d.reason for d in decided.decisions if d.workload == "g"]
    check(reasons[0], "stale_gang", "only 1 of 2 replicas", "60 s")


def test_behind_priority_counts_who_came_first() -> None:
    world: list[Part] = [node("a", 2), project("p", 2000)]
    first = [training(f"h{i}", "p", priority=70 + i) for i in range(2)]
    hold = answer("w", *world, *first, training("w", "p", priority=30))
    check(hold.reason, "behind_priority", "2 of p with a higher priority came first")
    assert hold.reason.details == {"ahead": 2, "priority": 30}
    assert hold.reason.offers[0] == {"id": "ask_manager"}
    assert hold.reason.per_node_type


def test_it_is_not_behind_those_who_took_nothing_that_it_could_have() -> None:
    full: list[Part] = [
        node("a", 2),
        project("p", 2000),
        training("r", "p", 2000, "a:0,1", priority=90),
    ]
    hold = answer("w", *full, training("h", "p", priority=70), training("w", "p", priority=30))
    check(hold.reason, "over_share")
    large: list[Part] = [node("a", 1), project("p", 2000), training("h", "p", priority=70)]
    alone = answer("w", *large, training("w", "p", 2000, priority=30))
    check(alone.reason, "no_fit", "no node is large enough")
    equal: list[Part] = [node("a", 1), project("p", 1000), training("h", "p", priority=50)]
    later = answer("w", *equal, training("w", "p", priority=50, submitted=1.0))
    check(later.reason, "over_share")


def test_behind_priority_for_what_is_promised_only_within_its_share() -> None:
    borrowed = training("v", "q", 1000, "a:0")
    claims: list[Part] = [node("a", 1), project("p", 1000), project("q", 0, created=1), borrowed]
    first = training("h", "p", priority=70)
    hold = answer("w", *claims, first, training("w", "p", priority=30))
    check(hold.reason, "behind_priority", "1 of p")
    other: list[Part] = [node("a", 1), project("p", 1000), project("q", 0, created=1), borrowed]
    stranger = answer("w", *other, first, training("w", "q", priority=30))
    check(stranger.reason, "over_share")


def test_a_session_behind_a_session_of_its_project() -> None:
    world: list[Part] = [node("a", 2), project("p", 1000)]
    one = training("h", "p", priority=100, is_preemptible=False)
    two = training("w", "p", priority=50, is_preemptible=False)
    hold = answer("w", *world, one, two)
    check(hold.reason, "behind_priority", "1 of p")


def test_what_is_kept_of_a_reason_does_not_count_seconds() -> None:
    """Or each cycle would write anew why everything waits."""
    world = (node("a", 1), project("q", 1000), training("w", "q", not_before_s=1000.0))
    first = answer("w", *world, now_s=100.0).reason
    second = answer("w", *world, now_s=200.0).reason
    assert first.message != second.message
    assert reason_of(first) == reason_of(second)
    assert first.lasting == "Starts at 1970-01-01 00:16:40 UTC at the earliest, as its owner asked."


def reason_of(reason: Reason) -> Reason:
    return replace(reason, message=reason.lasting)
