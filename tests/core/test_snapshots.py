"""Pictures that contradict themselves, and pictures of a cluster that has lost something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.core.cycle import plan
from scheduling.core.decisions import Hold, Start
from scheduling.core.errors import SnapshotError
from scheduling.core.types import (
    NodeName,
    Placement,
    Policy,
    Project,
    Replica,
    ReplicaState,
    Snapshot,
    Workload,
)
from tests.core.small import answer, node, project, session, snapshot, training


@pytest.mark.parametrize(
    ("world", "problem"),
    [
        pytest.param(
            snapshot(node("a"), training("w", "p")),
            "workload 'w' names the project 'p'",
            id="unknown project",
        ),
        pytest.param(
            snapshot(project("p", parent="d")), "parent 'd', which is not there", id="no parent"
        ),
        pytest.param(snapshot(project("p"), project("p")), "'p' is there twice", id="twice"),
        pytest.param(
            snapshot(project("p", parent="q"), project("q", parent="p")),
            "ancestor",
            id="circle",
        ),
        pytest.param(
            snapshot(project("p"), training("w", "p", 1000, "a:0")),
            "on node 'a', which is not there",
            id="unknown node",
        ),
    ],
)
def test_contradictions_are_refused(world: Snapshot, problem: str) -> None:
    with pytest.raises(SnapshotError, match=problem):
        plan(world, Policy(), 0.0)


def test_a_replica_that_runs_nowhere_is_a_contradiction() -> None:
    workload = training("w", "p")
    lost = replace(workload.replicas[0], state=ReplicaState.RUNNING)
    with pytest.raises(SnapshotError, match="runs nowhere"):
        plan(snapshot(project("p"), replace(workload, replicas=(lost,))), Policy(), 0.0)


def test_a_device_that_fell_off_its_node_stays_counted_and_stops_no_cycle() -> None:
    """A session ran on the second device; the node now reports one."""
    parts: tuple[Project | Workload, ...] = (project("p", 1000), session("s", "p", 1000, "a:1"))
    start = answer("w", node("a", 1), *parts, training("w", "p"))
    assert isinstance(start, Start)
    refused = answer("v", node("a", 1), *parts, session("v", "p"))
    assert isinstance(refused, Hold)
    assert refused.reason.code == "interactive_over_quota"


def test_a_place_held_on_a_device_that_fell_off_is_given_up() -> None:
    held = Placement(NodeName("a"), (3,), 1000)
    workload = training("w", "p")
    waiting = Replica(workload.replicas[0].id, ReplicaState.PENDING, None, held)
    start = answer("w", node("a", 1), project("p", 1000), replace(workload, replicas=(waiting,)))
    assert isinstance(start, Start)
    (place,) = start.placements.values()
    assert place.devices == (0,)
