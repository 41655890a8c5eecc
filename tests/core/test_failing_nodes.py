"""Closing nodes on which different workloads fail: what is decided, and with which words."""

from __future__ import annotations

import json
from dataclasses import replace

from scheduling.core.cycle import plan
from scheduling.core.scenario import follow
from scheduling.core.types import FailedStart, Node, NodeTypeName, Policy, WorkloadId
from tests.core.small import node, project, snapshot, training

NOW = 5000.0


def failing(name: str, *workloads: str) -> Node:
    starts = tuple(FailedStart(WorkloadId(w), NOW - 60 + i) for i, w in enumerate(workloads))
    return node(name, failed_starts=starts)


def test_a_cordon_says_who_failed() -> None:
    world = snapshot(failing("a", "x", "y", "z", "x"), node("b"), project("p", 8000))
    (cordon,) = plan(world, Policy(), NOW).cordons
    assert cordon.node == "a"
    assert cordon.reason.code == "failing_starts"
    assert "3 different workloads failed to start on a" in cordon.reason.message
    assert cordon.reason.details["workloads"] == ["y", "z", "x"]
    assert cordon.reason.details["last_at_s"] == NOW - 57
    json.dumps(cordon.reason.details)


def test_it_is_closed_once() -> None:
    world = snapshot(failing("a", "x", "y", "z"), node("b"), project("p", 8000))
    after = follow(world, plan(world, Policy(), NOW), NOW)
    assert [one.is_ready for one in after.nodes] == [False, True]
    assert plan(after, Policy(), NOW).cordons == ()


def test_of_several_the_last_one_of_a_type_stays_open() -> None:
    nodes = [failing(name, "x", "y", "z") for name in "cab"]
    world = snapshot(*nodes, project("p", 8000))
    assert [cordon.node for cordon in plan(world, Policy(), NOW).cordons] == ["a", "b"]


def test_each_type_is_judged_apart() -> None:
    other = replace(failing("c", "x", "y", "z"), node_type=NodeTypeName("a100"))
    world = snapshot(failing("a", "x", "y", "z"), node("b"), other, project("p", 8000))
    assert [cordon.node for cordon in plan(world, Policy(), NOW).cordons] == ["a"]


def test_its_capacity_is_no_longer_divided() -> None:
    world = snapshot(
        failing("a", "x", "y", "z"),
        node("b", 2),
        project("p", 0),
        training("w", "p", pending=6, min_replicas=1),
    )
    numbers = plan(world, Policy(), NOW).numbers
    ((gpu, share),) = [
        (key, n.fair_share) for key, n in next(iter(numbers.values())).items() if "gpu" in key
    ]
    assert (gpu, share) == ("gpu", 2000)
