"""What pages explain, against what the planner does: shares, borrowers, who gives way next."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from scheduling.core.cycle import plan
from scheduling.core.decisions import Evict, Hold, Start
from scheduling.core.outlook import Outlook, next_to_give_way
from scheduling.core.scenario import follow
from scheduling.core.types import (
    CPU,
    MEMORY,
    UNCOUNTED,
    GpuRequest,
    Idleness,
    NodeTypeName,
    Policy,
    Project,
    ProjectId,
    ResourceKey,
    Snapshot,
    Workload,
    WorkloadId,
)
from scheduling.core.what_if import on_node_type, smaller_requests, starts_as, with_request
from tests.core.small import GPU, node, project, session, snapshot, training
from tests.core.worlds import arrive, cluster
from tests.core.worlds import workload as random_workload


def names(found: tuple[object, ...]) -> list[str]:
    return [str(getattr(item, "workload", item)) for item in found]


FILLING_MILLI = (1000, 500, 250, 100, 50, 20, 10, 5, 2, 1)


def tiny(name: str, owner: str, milli: int, world: Snapshot, key: ResourceKey) -> Workload:
    """A session that asks for nothing but a part of a GPU of one pool."""
    types = {n.node_type for n in world.nodes if n.gpu_key == key and n.node_type}
    return replace(
        session(name, owner, milli, submitted=99.0),
        gpu=GpuRequest(1, milli),
        cpu_milli=0,
        memory_mib=0,
        node_types=tuple(sorted(types)),
    )


def unbounded(name: str, key: ResourceKey) -> Project:
    shares = {key: UNCOUNTED, CPU: UNCOUNTED, MEMORY: UNCOUNTED}
    return Project(ProjectId(name), None, 100, 99, shares)


def full(random: Random) -> tuple[Snapshot, ResourceKey] | None:
    """A settled cluster in which sessions fill one pool to the last thousandth."""
    world = cluster(random, fits=False)
    key = next((n.gpu_key for n in world.nodes if n.num_devices), None)
    if key is None:
        return None
    for number in range(14):
        world = arrive(world, random_workload(random, world, number))
    for _ in range(3):
        world = follow(world, plan(world, Policy(), 0.0), 0.0)
    world = replace(world, projects=(*world.projects, unbounded("filler", key)))
    is_running = {w.id for w in world.workloads if any(r.placement for r in w.replicas)}
    world = replace(world, workloads=tuple(w for w in world.workloads if w.id in is_running))
    for milli in FILLING_MILLI:
        while True:
            filler = tiny(f"f{len(world.workloads)}", "filler", milli, world, key)
            if not starts_as(world, Policy(), 0.0, filler):
                break
            world = follow(arrive(world, filler), plan(arrive(world, filler), Policy(), 0.0), 0.0)
    return world, key


BORROWERS = (
    node("n1", 8),
    node("n2", 2),
    project("a", 2000),
    project("b", 0),
    project("guest", 8000),
    training("a1", "a", 2000, "n1:0,1", submitted=1.0),
    training("a2", "a", 2000, "n1:2,3", submitted=2.0),
    training("a3", "a", 3000, "n1:4,5,6", submitted=3.0, priority=60),
    training("b1", "b", 2000, "n2:0,1", submitted=4.0),
    training("b2", "b", 1000, "n1:7", submitted=5.0),
)


def test_the_next_to_give_way_are_those_whom_the_planner_stops_in_its_order() -> None:
    world = snapshot(*BORROWERS)
    foretold = next_to_give_way(world, Policy(), 0.0, GPU)
    # b holds 3 at a share of 3 (ratio 1), a has borrowed 5 of 7 (0.71): b yields its newest and is
    # at 2/3, so a yields the newest of its lowest priority and is at 3/7, so b yields again.
    assert names(foretold) == ["b2", "a2", "b1", "a1", "a3"]
    assert [way.over_ratio for way in foretold] == [1.0, 5 / 7, 2 / 3, 3 / 7, 1 / 7]

    claims = [session(f"g{i}", "guest", 1000, submitted=10.0 + i) for i in range(4)]
    world = arrive(world, *claims)
    foretold = next_to_give_way(world, Policy(), 0.0, GPU)
    victims = [d.workload for d in plan(world, Policy(), 0.0).decisions if isinstance(d, Evict)]
    assert len(victims) == 3
    assert victims == names(foretold)[:3]


def test_nobody_inside_quota_gives_way() -> None:
    world = snapshot(
        node("n", 4),
        project("a", 4000),
        project("guest", 0),
        training("a1", "a", 4000, "n:0,1,2,3"),
    )
    assert next_to_give_way(world, Policy(), 0.0, GPU) == ()


def test_a_session_never_gives_way() -> None:
    world = snapshot(node("n", 4), project("a", 0), session("s", "a", 4000, "n:0,1,2,3"))
    assert next_to_give_way(world, Policy(), 0.0, GPU) == ()


def test_work_without_gpus_does_not_give_way_for_gpus() -> None:
    world = snapshot(
        node("n", 4),
        project("a", 0),
        training("cpu", "a", 0, "n"),
        training("a1", "a", 1000, "n:0"),
    )
    assert names(next_to_give_way(world, Policy(), 0.0, GPU)) == ["a1"]


def test_minimum_runtime_protects() -> None:
    world = snapshot(node("n", 4), project("a", 0), training("a1", "a", 1000, "n:0"))
    policy = Policy(min_runtime_s={NodeTypeName("t4"): 60.0})
    assert next_to_give_way(world, policy, 30.0, GPU) == ()
    assert names(next_to_give_way(world, policy, 61.0, GPU)) == ["a1"]


def test_inside_a_department_only_its_own_projects_may_take_its_quota_back() -> None:
    world = snapshot(
        node("n", 8),
        project("dept", 8000),
        project("a", 0, parent="dept"),
        project("b", 8000, parent="dept"),
        project("outside", 0),
        training("a1", "a", 4000, "n:0,1,2,3"),
    )
    assert names(next_to_give_way(world, Policy(), 0.0, GPU, ProjectId("b"))) == ["a1"]
    assert next_to_give_way(world, Policy(), 0.0, GPU, ProjectId("outside")) == ()


def test_the_first_to_give_way_is_the_one_that_a_small_guarantee_stops() -> None:
    """On random full clusters: a newcomer with a guarantee asks for a thousandth of a GPU."""
    num_victims = num_spared = 0
    for seed in range(40):
        filled = full(Random(seed))
        if filled is None:
            continue
        world, key = filled
        world = replace(world, projects=(*world.projects, unbounded("guest", key)))
        claim = tiny("claim", "guest", 1, world, key)
        world = arrive(world, claim)
        decisions = plan(world, Policy(), 0.0).decisions
        evictions = [d for d in decisions if isinstance(d, Evict)]
        foretold = next_to_give_way(world, Policy(), 0.0, key)
        if evictions:
            assert {d.claimant for d in evictions} == {claim.id}, seed
            assert names(foretold)[:1] == [d.workload for d in evictions], seed
            num_victims += 1
        elif any(d.workload == claim.id and isinstance(d, Hold) for d in decisions):
            assert foretold == (), seed
            num_spared += 1
    assert num_victims > 5
    assert num_spared > 5


def test_a_share_is_quota_plus_a_part_by_weight() -> None:
    """Quota 6, weight 3 of 6, 20 unused GPUs: 6 + 10 = 16."""
    world = snapshot(
        *(node(f"n{i}", 13) for i in range(2)),
        project("vision", 6000, weight=3),
        project("language", 0, weight=2),
        project("speech", 0, weight=1),
        *(
            training(f"{owner}-{i}", owner, 1000)
            for owner in ("vision", "language", "speech")
            for i in range(26)
        ),
    )
    (step,) = Outlook(world, Policy(), 0.0).share_steps(ProjectId("vision"), GPU)
    assert (step.guarantee, step.by_weight, step.fair_share) == (6000, 10000, 16000)
    assert (step.surplus, step.weight, step.weights, step.capacity) == (20000, 3, 6, 26000)
    decided = plan(world, Policy(), 0.0)
    assert decided.numbers[ProjectId("vision")][GPU].fair_share == step.fair_share


def test_shares_up_the_tree_are_those_of_the_plan() -> None:
    for seed in range(30):
        random = Random(seed)
        world = cluster(random)
        for number in range(10):
            world = arrive(world, random_workload(random, world, number))
        world = follow(world, plan(world, Policy(), 0.0), 0.0)
        numbers = plan(world, Policy(), 0.0).numbers
        outlook = Outlook(world, Policy(), 0.0)
        for row in world.projects:
            for key, told in numbers[row.id].items():
                step = (*outlook.share_steps(row.id, key), None)[-2]
                assert step is not None
                assert step.id == row.id
                assert step.fair_share == told.fair_share
                assert step.requested == told.requested
                assert step.by_weight >= 0
        assert outlook.share_steps(ProjectId("nobody"), GPU) == ()


def test_borrowers_come_by_over_ratio() -> None:
    world = snapshot(*BORROWERS)
    outlook = Outlook(world, Policy(), 0.0)
    found = outlook.holders(GPU)
    # The order and the amounts of `ordering`: b without quota first.
    assert [holder.project for holder in found] == ["b", "a"]
    assert [holder.borrowed for holder in found] == [3000, 5000]
    assert outlook.next_to_give_way(GPU)
    assert outlook.holders(GPU) == found, "looking changes nothing"


WAITING = (
    node("n", 1),
    node("v", 1, node_type=NodeTypeName("v100")),
    project("a", 4000),
    training("half", "a", 500, "n:0", is_preemptible=False),
)


def test_what_if_asks_the_planner() -> None:
    whole = session("whole", "a", 1000, node_types=(NodeTypeName("t4"),))
    world = snapshot(*WAITING, whole)
    assert not starts_as(world, Policy(), 0.0, whole)
    assert starts_as(world, Policy(), 0.0, with_request(whole, GpuRequest(1, 500)))
    assert not starts_as(world, Policy(), 0.0, with_request(whole, GpuRequest(1, 501)))
    assert starts_as(world, Policy(), 0.0, on_node_type(whole, NodeTypeName("v100")))


def test_smaller_requests_are_smaller_and_begin_with_the_largest() -> None:
    def total(gpu: GpuRequest) -> int:
        return gpu.num_devices * (gpu.milli_per_device or 0)

    assert [total(g) for g in smaller_requests(GpuRequest(4, 1000))] == [
        2000,
        1000,
        500,
        333,
        250,
        125,
    ]
    assert [total(g) for g in smaller_requests(GpuRequest(1, 333))] == [250, 125]
    assert smaller_requests(GpuRequest(1, None, 4000)) == ()
    assert smaller_requests(GpuRequest()) == ()


def test_a_workload_that_would_only_start_by_displacing_others_does_not_start_at_once() -> None:
    claim = session("claim", "a", 1000, node_types=(NodeTypeName("t4"),))
    world = snapshot(
        node("n", 1), project("a", 1000), project("b", 0), training("b1", "b", 1000, "n:0"), claim
    )
    answer = next(d for d in plan(world, Policy(), 0.0).decisions if d.workload == claim.id)
    assert isinstance(answer, Hold)
    assert answer.held
    assert not isinstance(answer, Start)
    assert not starts_as(world, Policy(), 0.0, with_request(claim, GpuRequest(1, 500)))
    assert names(next_to_give_way(world, Policy(), 0.0, GPU)) == [WorkloadId("b1")]


def test_a_loan_beside_it_hides_nobody_who_would_give_way() -> None:
    resting = Idleness(0.0, expected_left_s=3600.0, memory_mib=3000)
    parts = snapshot(
        node("n", 1),
        project("p", 500),
        project("q", 0),
        session("lender", "p", 500, "n:0", idle=resting),
        training("beside", "q", 500, "n:0"),
        training("borrower", "q", 500),
    )
    parts = follow(parts, plan(parts, Policy(), 1000.0), 1000.0)
    assert [loan.borrower for loan in parts.loans] == ["borrower/0"]
    assert names(next_to_give_way(parts, Policy(), 1000.0, GPU)) == ["beside"]
