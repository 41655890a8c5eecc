"""When what waits will start: ranges, what they rest on, and that nothing is guessed."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.cycle import plan
from scheduling.core.decisions import Eta, Hold
from scheduling.core.predict import eta as module
from scheduling.core.types import NodeTypeName, Policy, ResourceKey, Workload
from tests.core.small import answer, node, project, session, snapshot, training
from tests.core.test_plans import settle
from tests.core.worlds import arrive, cluster, workload

NOW = 1000.0


# `Any`: passed on to the dataclasses.
def eta(name: str, *parts: Any, policy: Policy | None = None) -> Eta | None:
    world = snapshot(*parts)
    for decision in plan(world, policy or Policy(), NOW).decisions:
        if decision.workload == name:
            assert isinstance(decision, Hold), decision
            return decision.eta
    raise AssertionError(f"nothing was decided about {name}")


def ends(one: Workload, at_s: float, early_s: float | None = None, basis: str = "") -> Workload:
    return replace(one, expected_end_s=at_s, early_end_s=early_s, expected_basis=basis)


def busy(*ends_s: float | None, quota: int = 4000, **more: Any) -> list[Any]:
    """One node, a device for each of these ends."""
    parts: list[Any] = [node("a", len(ends_s)), project("p", quota)]
    for i, at_s in enumerate(ends_s):
        one = training(f"r{i}", "p", 1000, f"a:{i}", priority=90)
        parts.append(one if at_s is None else ends(one, at_s, **more))
    return parts


def test_without_predicted_ends_nothing_is_said() -> None:
    assert eta("w", *busy(None), training("w", "p")) is None


def test_the_first_to_end_makes_room_for_the_first_that_waits() -> None:
    parts = busy(1600.0, 2200.0, early_s=1300.0, basis="history")
    found = eta("w", *parts, training("w", "p"))
    assert found == Eta(1300.0, 1600.0, "history", "low")


def test_nodes_without_gpus_make_no_room_for_those_who_ask_for_some() -> None:
    without = replace(node("c", 0), gpu_key=ResourceKey("gpu:cpu"))
    parts = busy(1600.0, basis="history")
    assert eta("w", *parts, without, training("w", "p")) == eta("w", *parts, training("w", "p"))


def test_who_waits_longer_in_the_queue_waits_for_the_next_end() -> None:
    parts = busy(1600.0, 2200.0, basis="time_limits")
    both = [training("v", "p", submitted=1.0), training("w", "p", submitted=2.0)]
    assert eta("v", *parts, *both) == Eta(NOW, 1600.0, "time_limits", "medium")
    assert eta("w", *parts, *both) == Eta(NOW, 2200.0, "time_limits", "medium")
    ahead = [both[0], replace(both[1], priority=70)]
    assert eta("w", *parts, *ahead) == Eta(NOW, 1600.0, "time_limits", "medium")
    assert eta("v", *parts, *ahead) == Eta(NOW, 2200.0, "time_limits", "medium")


def test_what_ends_soon_after_its_start_makes_room_again() -> None:
    parts = busy(1600.0, None)
    short = replace(training("v", "p", submitted=1.0), expected_run_s=60.0)
    assert eta("w", *parts, short, training("w", "p", submitted=2.0)) == Eta(
        NOW, 1660.0, "prediction", "medium"
    )
    endless = replace(short, expected_run_s=None)
    assert eta("w", *parts, endless, training("w", "p", submitted=2.0)) is None


def test_several_devices_of_one_node_are_looked_for_in_earnest() -> None:
    parts: list[Any] = [node("a", 2), node("b", 2), project("p", 8000)]
    for name, end_s in (("a:0", 1100.0), ("a:1", 1900.0), ("b:0", 1200.0), ("b:1", 1800.0)):
        parts.append(ends(training(f"r{name}", "p", 1000, name, priority=90), end_s))
    found = eta("w", *parts, training("w", "p", 2000))
    assert found is not None
    assert found.max_at_s == 1800.0


def test_a_session_waits_for_work_that_counts_against_its_quota() -> None:
    parts: list[Any] = [node("a", 4), project("p", 1000), project("q", 3000, created=1)]
    parts.append(ends(session("s", "p", 1000, "a:0"), 1500.0))
    parts.append(ends(training("t", "q", 1000, "a:1"), 1100.0))
    assert eta("w", *parts, session("w", "p", 500)) == Eta(NOW, 1500.0, "prediction", "medium")
    parts[3] = session("s", "p", 1000, "a:0")
    assert eta("w", *parts, session("w", "p", 500)) is None


def test_a_limit_waits_for_anything_of_its_project() -> None:
    parts: list[Any] = [node("a", 4), project("p", 0, limit=1000)]
    parts.append(ends(training("t", "p", 1000, "a:0", priority=90), 1500.0))
    assert eta("w", *parts, training("w", "p")) == Eta(NOW, 1500.0, "prediction", "medium")


def test_what_is_being_freed_comes_within_the_deadline() -> None:
    parts = [node("a", 1), project("p", 1000), project("q", 0, created=1)]
    found = eta("w", *parts, training("v", "q", 1000, "a:0"), training("w", "p"))
    assert found == Eta(NOW, NOW + 120.0, "release", "high")


def test_times_that_are_set_are_told() -> None:
    parts = [node("a", 1), project("p", 1000)]
    later = replace(training("w", "p"), not_before_s=1200.0)
    assert eta("w", *parts, later) == Eta(1200.0, None, "schedule")
    failed = replace(later, failures=2)
    assert eta("w", *parts, failed) == Eta(1200.0, None, "schedule")
    policy = Policy(min_runtime_s={NodeTypeName("t4"): 300.0})
    victim = training("v", "q", 1000, "a:0")
    victim = replace(victim, replicas=(replace(victim.replicas[0], started_s=900.0),))
    others = [*parts, project("q", 0, created=1), victim]
    assert eta("w", *others, training("w", "p"), policy=policy) == Eta(1200.0, 1320.0, "policy")


def test_a_reserved_gang_is_told_the_time_of_its_reservation() -> None:
    gang = training("g", "p", 2000, min_replicas=2)
    parts = [node("a", 2), node("b", 2), project("p", 4000), project("q", 0, created=1)]
    runs = ends(training("r", "q", 2000, "a:0,1", priority=90), 1400.0)
    runs = replace(runs, is_preemptible=False)
    assert eta("g", *parts, runs, gang) == Eta(NOW, 1400.0, "reservation")
    one = replace(training("w", "p", submitted=1.0), expected_run_s=900.0)
    behind = eta("w", *parts, runs, gang, one)
    assert behind is None or (behind.max_at_s or 0) >= 1400.0


def test_what_no_end_would_help_is_not_given_a_time() -> None:
    parts = busy(1600.0)
    assert eta("w", *parts, training("w", "p", 4000)) is None
    labels = training("w", "p", required_labels={"net": "ib"})
    assert eta("w", *parts, labels) is None


def test_cpu_only_work_waits_for_cores() -> None:
    parts: list[Any] = [node("c", 0, cpu_milli=4000), project("p", 0)]
    parts.append(ends(training("r", "p", 0, "c", cpu_milli=4000, priority=90), 1300.0))
    found = eta("w", *parts, training("w", "p", 0, cpu_milli=2000))
    assert found == Eta(NOW, 1300.0, "prediction", "medium")


def test_no_more_than_so_many_are_estimated(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_ESTIMATED", 2)
    monkeypatch.setattr(module, "MAX_EXACT", 1)
    parts = busy(1600.0, 1700.0, 1800.0, 1900.0)
    waiting = [training(f"w{i}", "p", submitted=float(i)) for i in range(4)]
    decided = plan(snapshot(*parts, *waiting), Policy(), NOW).decisions
    assert sum(isinstance(d, Hold) and d.eta is not None for d in decided) == 2
    short = replace(training("x", "p", 2000), expected_run_s=10.0)
    pair = [short, training("y", "p", 3000, submitted=1.0)]
    found = [eta(name, *parts, *pair) for name in "xy"]
    assert [one.confidence for one in found if one] == ["medium", "low"]


def test_backing_off_says_how_it_ended() -> None:
    parts: list[Any] = [node("a", 1), project("p", 1000)]
    failed = replace(training("w", "p"), not_before_s=1200.0, failures=2, last_error="boom")
    start = answer("w", *parts, failed)
    assert start.reason.message == "Its start failed 2 times; again in 1200 s: boom."
    ran = answer("w", *parts, replace(failed, last_exit_code=3))
    assert ran.reason.message == "It ended with exit code 3, 2 times; again in 1200 s: boom."
    assert ran.reason.details["exit_code"] == 3


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_estimates_are_ranges_and_move_with_priority(seed: int) -> None:
    random = Random(seed)
    world = cluster(random)
    for number in range(12):
        one = workload(random, world, number)
        if random.random() < 0.7:
            one = replace(one, expected_end_s=NOW + random.randint(1, 900))
        world = arrive(world, one)
    world = settle(world, Policy(), NOW, random)
    decided = plan(world, Policy(), NOW)
    holds = [d for d in decided.decisions if isinstance(d, Hold) and d.eta is not None]
    for hold in holds:
        assert hold.eta is not None
        assert hold.eta.min_at_s >= NOW
        assert hold.eta.max_at_s is None or hold.eta.max_at_s >= hold.eta.min_at_s
    for hold in holds[:2]:
        raised = tuple(
            replace(w, priority=w.priority + 1000)
            if w.id == hold.workload and w.is_preemptible
            else w
            for w in world.workloads
        )
        after = plan(replace(world, workloads=raised), Policy(), NOW)
        again = next(d for d in after.decisions if d.workload == hold.workload)
        if isinstance(again, Hold) and again.reason.code == hold.reason.code:
            assert again.eta is not None
            assert (again.eta.max_at_s or 0) <= (hold.eta.max_at_s or 0)  # type: ignore[union-attr]
