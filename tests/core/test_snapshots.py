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
    ProjectId,
    Replica,
    ReplicaState,
    ResourceKey,
    Snapshot,
    Workload,
)
from tests.core.small import answer, node, project, session, snapshot, training


@pytest.mark.parametrize(
    ("world", "problem"),
    [
        pytest.param(
            snapshot(project("p", parent="d")), "parent 'd', which is not there", id="no parent"
        ),
        pytest.param(snapshot(project("p"), project("p")), "'p' is there twice", id="twice"),
        pytest.param(
            snapshot(project("p", parent="q"), project("q", parent="p")),
            "ancestor",
            id="circle",
        ),
    ],
)
def test_a_tree_that_contradicts_itself_is_refused(world: Snapshot, problem: str) -> None:
    with pytest.raises(SnapshotError, match=problem):
        plan(world, Policy(), 0.0)


def _runs_nowhere() -> Workload:
    one = training("w", "p", min_replicas=2)
    return replace(
        one, replicas=(replace(one.replicas[0], state=ReplicaState.RUNNING), one.replicas[1])
    )


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        pytest.param(training("w", "q"), "names the project 'q', which is", id="project"),
        pytest.param(
            training("w", "p", 1000, "b:0", pending=1),
            "on node 'b', which is not there",
            id="node",
        ),
        pytest.param(_runs_nowhere(), "'w/0' runs nowhere", id="nowhere"),
    ],
)
def test_one_bad_workload_is_set_aside_and_the_rest_is_planned(bad: Workload, problem: str) -> None:
    decided = plan(
        snapshot(node("a", 1), project("p", 1000), bad, training("v", "p")), Policy(), 0.0
    )
    assert problem in decided.set_aside[bad.id]
    start, hold = sorted(decided.decisions, key=lambda decision: decision.workload)
    assert isinstance(start, Start)
    assert start.workload == "v"
    assert isinstance(hold, Hold)
    assert hold.reason.code == "set_aside"
    assert problem in hold.reason.message
    assert hold.workload not in decided.queue_positions


def test_what_is_set_aside_still_occupies_its_devices() -> None:
    bad = training("w", "q", 1000, "a:0")
    decided = plan(
        snapshot(node("a", 1), project("p", 1000), bad, training("v", "p")), Policy(), 0.0
    )
    (hold,) = decided.decisions
    assert isinstance(hold, Hold)
    assert hold.workload == "v"
    assert decided.set_aside.keys() == {"w"}
    assert decided.numbers[ProjectId("p")][ResourceKey("gpu")].allocated == 0


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
