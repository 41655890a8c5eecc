"""Gathering gangs: a preference that never decides whether they start, and what the reason says."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.cycle import plan
from scheduling.core.decisions import Start
from scheduling.core.types import GpuRequest, NodeName, NodeTypeName, Policy, Snapshot
from tests.core.small import node, project, session, snapshot, training
from tests.core.test_plans import settle
from tests.core.worlds import arrive, cluster, workload

LEVELS = Policy(topology=("rack", "zone"))


def labelled(random: Random, world: Snapshot) -> Snapshot:
    """Racks and zones for most nodes."""
    nodes = []
    for one in world.nodes:
        labels = {"zone": random.choice(("z1", "z2"))}
        if random.random() < 0.8:
            labels["rack"] = random.choice(("r1", "r2"))
        nodes.append(replace(one, labels=labels))
    return replace(world, nodes=tuple(nodes))


def gangs(random: Random, world: Snapshot, count: int, *, with_labels: bool) -> Snapshot:
    for number in range(count):
        one = workload(random, world, number)
        if with_labels and random.random() < 0.3:
            one = replace(one, required_labels={"zone": random.choice(("z1", "z2", "z3"))})
        if random.random() < 0.2:
            one = replace(one, failures=1, avoided_nodes=frozenset({NodeName("node-0")}))
        world = arrive(world, one)
    return world


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_the_first_gang_starts_with_levels_if_it_starts_without(seed: int) -> None:
    random = Random(seed)
    world = labelled(random, cluster(random))
    one = replace(workload(random, world, 0), min_replicas=random.randint(2, 4))
    world = arrive(world, one)
    assert {type(d) for d in plan(world, LEVELS, 0.0).decisions} == {
        type(d) for d in plan(world, Policy(), 0.0).decisions
    }


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_plans_with_levels_and_labels_settle(seed: int) -> None:
    random = Random(seed)
    world = labelled(random, cluster(random))
    world = gangs(random, world, random.randint(4, 16), with_labels=True)
    settle(world, LEVELS, 0.0, random)


def start(world: Snapshot, policy: Policy) -> Start:
    (decision,) = plan(world, policy, 0.0).decisions
    assert isinstance(decision, Start)
    return decision


def test_the_reason_says_where_it_was_gathered() -> None:
    gang = training("g", "p", min_replicas=2)
    one = start(snapshot(node("a"), project("p", 4000), gang), LEVELS)
    assert one.reason.details["together"] == "node"
    assert "on one node" in one.reason.message
    racks = [node(name, 1, labels={"rack": "r", "zone": "z"}) for name in "ab"]
    two = start(snapshot(*racks, project("p", 4000), gang), LEVELS)
    assert two.reason.details["together"] == "rack"
    apart = [node(name, 1) for name in "ab"]
    three = start(snapshot(*apart, project("p", 4000), gang), LEVELS)
    assert three.reason.details["together"] is None
    assert (
        "together" not in start(snapshot(*apart, project("p", 4000), gang), Policy()).reason.details
    )


def test_a_spread_type_gathers_in_the_emptiest_domain() -> None:
    racks = [node("a", 2, labels={"rack": "r1", "zone": "z"})]
    racks += [node(name, 2, labels={"rack": "r2", "zone": "z"}) for name in "bc"]
    racks += [node(name, 1, labels={"rack": "r3", "zone": "z"}) for name in "de"]
    policy = replace(LEVELS, placement={NodeTypeName("t4"): "spread"})
    gang = training("g", "p", min_replicas=3)
    places = start(snapshot(*racks, project("p", 8000), gang), policy).placements.values()
    assert {place.node for place in places} == {"b", "c"}


def test_work_without_gpus_is_gathered_by_cores() -> None:
    racks = [node("a", 0, labels={"rack": "r1", "zone": "z"})]
    racks += [node(name, 0, labels={"rack": "r2", "zone": "z"}) for name in "bc"]
    gang = training("g", "p", 0, min_replicas=2, cpu_milli=40_000)
    decision = start(snapshot(*racks, project("p"), gang), LEVELS)
    assert {place.node for place in decision.placements.values()} == {"b", "c"}
    assert decision.reason.details["together"] == "rack"


def test_a_node_that_only_seems_to_hold_them_is_passed_over() -> None:
    """One free device holds four quarters, but not two pairs of devices."""
    full = session("s", "p", 1000, "a:1")
    nodes = [node("a", 2, labels={"rack": "r3", "zone": "z"})]
    nodes += [
        node(name, 2, cpu_milli=1000, labels={"rack": rack, "zone": "z"})
        for name, rack in (("b", "r1"), ("c", "r2"))
    ]
    gang = replace(training("g", "p", 250, min_replicas=2), gpu=GpuRequest(2, 250))
    decision = start(snapshot(*nodes, project("p", 4000), full, gang), LEVELS)
    assert {place.node for place in decision.placements.values()} == {"b", "c"}
    assert decision.reason.details["together"] == "zone"


def test_growth_has_no_home_where_its_replicas_are_apart() -> None:
    nodes = [node(name, 2, labels={"rack": f"r{name}", "zone": "z"}) for name in "abc"]
    grows = training("g", "p", 1000, "a:0", "b:0", min_replicas=2, pending=1)
    full = [session("s", "p", 1000, "a:1"), session("t", "p", 1000, "b:1")]
    decision = start(snapshot(*nodes, project("p", 6000), *full, grows), LEVELS)
    (place,) = decision.placements.values()
    assert place.node == "c"
    assert decision.reason.details["together"] == "zone"
