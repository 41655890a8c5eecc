"""Claims on clusters too large to empty node by node in the order of victims alone."""

from __future__ import annotations

from scheduling.core.cycle import plan
from scheduling.core.decisions import Evict, Hold
from scheduling.core.reclaim import LARGE
from scheduling.core.types import Policy, Workload
from tests.core.invariants import check_plan
from tests.core.small import node, project, session, snapshot, training

COUNT = LARGE + 6
NODES = [node(f"n{i:03}", 2) for i in range(COUNT)]


def borrowers(first: int = 0) -> list[Workload]:
    """One training on each GPU; the newest are spread over all nodes."""
    return [
        training(
            f"w{i:03}{device}", "q", 1000, f"n{i:03}:{device}", submitted=float(device * COUNT + i)
        )
        for i in range(first, COUNT)
        for device in range(2)
    ]


def test_two_gpus_of_one_node_cost_two_victims_of_one_node() -> None:
    world = snapshot(
        *NODES, project("p", 2000), project("q"), *borrowers(), training("c", "p", 2000)
    )
    decided = plan(world, Policy(), 0.0)
    check_plan(world, decided)
    evictions = [d for d in decided.decisions if isinstance(d, Evict)]
    assert len(evictions) == 2
    assert len({e.workload[:4] for e in evictions}) == 1


def test_the_node_that_lacks_least_is_taken() -> None:
    """One node has a GPU free already: one victim suffices, though others are newer."""
    running = [w for w in borrowers() if w.id != "w0101"]
    world = snapshot(*NODES, project("p", 2000), project("q"), *running, training("c", "p", 2000))
    decided = plan(world, Policy(consolidation_max_moves=0), 0.0)
    check_plan(world, decided)
    assert [d.workload for d in decided.decisions if isinstance(d, Evict)] == ["w0100"]


def test_no_node_could_be_completed() -> None:
    """A session on each node looked at: nobody stops, and the claimant is told."""
    sessions = [session(f"s{i:03}", "s", 1000, f"n{i:03}:0") for i in range(COUNT)]
    others = [w for w in borrowers() if w.id.endswith("1")]
    world = snapshot(
        *NODES,
        project("p", 2000),
        project("q"),
        project("s", 1000 * COUNT),
        *sessions,
        *others,
        training("c", "p", 2000),
    )
    decided = plan(world, Policy(consolidation_max_moves=0), 0.0)
    check_plan(world, decided)
    assert not any(isinstance(d, Evict) for d in decided.decisions)
    (hold,) = [d for d in decided.decisions if d.workload == "c"]
    assert isinstance(hold, Hold)
    assert hold.reason.code in ("no_fit", "quota_exceeds_capacity")


def test_the_only_node_that_can_be_completed_is_found_behind_many_that_cannot() -> None:
    """All others have a session on one GPU, and lack less: their other GPU is free."""
    last = f"n{COUNT - 1:03}"
    sessions = [session(f"s{i:03}", "s", 1000, f"n{i:03}:0") for i in range(COUNT - 1)]
    others = [w for w in borrowers() if w.id.endswith("1") or w.id.startswith(f"w{COUNT - 1:03}")]
    world = snapshot(
        *NODES,
        project("p", 2000),
        project("q"),
        project("s", 1000 * COUNT),
        *sessions,
        *others,
        training("c", "p", 2000),
    )
    decided = plan(world, Policy(consolidation_max_moves=0), 0.0)
    check_plan(world, decided)
    places = {
        w.id: replica.placement
        for w in world.workloads
        for replica in w.replicas
        if replica.placement is not None
    }
    victims = [d.workload for d in decided.decisions if isinstance(d, Evict)]
    assert {places[victim].node for victim in victims} == {last}
