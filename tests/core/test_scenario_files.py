"""Scenario files that cannot be read: each mistake is named with its JSON path."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from scheduling.core.errors import ScenarioError
from scheduling.core.scenario import export_scenario, load_scenario, load_scenarios
from scheduling.core.types import (
    EvictionCost,
    FailedStart,
    GpuRequest,
    NodeName,
    Placement,
    Policy,
    ResourceKey,
    WorkloadId,
)
from tests.core.small import node, project, snapshot, training

# `Any`: the tests below damage parsed JSON in every way.
Damage = Callable[[Any], object]

SHARE = {"quota": 1000, "limit": None, "weight": 1}
BASE: dict[str, Any] = {
    "format": "scenario/1",
    "id": "base",
    "about": "A small one.",
    "nodes": [
        {
            "name": "n0",
            "gpus": 2,
            "gpu_memory_mib": 16384,
            "cpu_milli": 8000,
            "memory_mib": 16384,
            "max_replicas": 10,
            "node_type": "t4",
            "labels": {"rack": "r1"},
        }
    ],
    "projects": [
        {
            "name": "dept",
            "parent": None,
            "priority": 100,
            "created": 0,
            "gpu_milli": SHARE,
            "cpu_milli": SHARE,
            "memory_mib": SHARE,
        },
        {
            "name": "team",
            "parent": "dept",
            "priority": 100,
            "created": 1,
            "gpu_milli": SHARE,
            "cpu_milli": SHARE,
            "memory_mib": SHARE,
        },
    ],
    "workloads": [
        {
            "name": "w0",
            "project": "team",
            "kind": "training",
            "priority": 50,
            "preemptible": True,
            "submitted": 0,
            "gpu_milli": 1000,
            "gpu_memory_mib": None,
            "cpu_milli": 1000,
            "memory_mib": 954,
            "min_replicas": 1,
            "node_types": ["t4"],
            "replicas": [
                {"name": "w0-0", "state": "running", "node": "n0", "devices": [0]},
                {"name": "w0-1", "state": "pending"},
            ],
        }
    ],
    "cycles": 2,
    "stable_cycles": 5,
    "expect": {"replicas": {"w0-0": {"outcome": "kept", "node": "n0"}}},
}


def damaged(damage: Damage) -> dict[str, Any]:
    data = copy.deepcopy(BASE)
    damage(data)
    return data


def setting(*path: str | int, to: object) -> Damage:
    def damage(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = to

    return damage


def without(*path: str | int) -> Damage:
    def damage(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        del data[path[-1]]

    return damage


def test_the_undamaged_one_is_read() -> None:
    scenario = load_scenario(BASE)
    assert scenario.cycles == 2
    workload = scenario.snapshot.workloads[0]
    assert workload.gpu == GpuRequest(1, 1000)
    assert workload.replicas[0].placement == Placement(scenario.snapshot.nodes[0].name, (0,), 1000)


def test_optional_fields_may_be_left_out() -> None:
    data = copy.deepcopy(BASE)
    for name in ("about", "cycles", "stable_cycles", "expect"):
        del data[name]
    for name in ("max_replicas", "node_type", "labels"):
        del data["nodes"][0][name]
    del data["workloads"][0]["node_types"]
    scenario = load_scenario(data)
    assert (scenario.cycles, scenario.stable_cycles, scenario.expected) == (2, 5, None)
    assert scenario.snapshot.nodes[0].max_replicas is None


W = ("workloads", 0)
R = ("workloads", 0, "replicas", 0)


@pytest.mark.parametrize(
    ("damage", "path", "problem"),
    [
        (setting("format", to="scenario/2"), "$.format", "scenario/1"),
        (without("format"), "$", "'format' is missing"),
        (without("nodes"), "$", "'nodes' is missing"),
        (setting("id", to=""), "$.id", "text"),
        (setting("surprise", to=1), "$.surprise", "unknown"),
        (setting("nodes", to={}), "$.nodes", "a list is needed, not an object"),
        (setting("nodes", 0, to=[]), "$.nodes[0]", "an object is needed, not a list"),
        (setting("nodes", 0, "gpus", to=1.5), "$.nodes[0].gpus", "whole number"),
        (setting("nodes", 0, "gpus", to=True), "$.nodes[0].gpus", "whole number"),
        (setting("nodes", 0, "gpus", to=-1), "$.nodes[0].gpus", "-1 is less than 0"),
        (setting("nodes", 0, "colour", to="red"), "$.nodes[0].colour", "unknown"),
        (setting("nodes", 0, "labels", "rack", to=7), "$.nodes[0].labels.rack", "text"),
        (lambda d: d["nodes"].append(d["nodes"][0]), "$.nodes[1].name", "already"),
        (setting("projects", 1, "parent", to="dep"), "$.projects[1].parent", "no project 'dep'"),
        (setting("projects", 0, "parent", to="team"), "$.projects[0].parent", "own ancestor"),
        (setting("projects", 1, "name", to="dept"), "$.projects[1].name", "already"),
        (
            setting("projects", 0, "gpu_milli", to={"quota": 1, "limit": None}),
            "$.projects[0].gpu_milli",
            "'weight' is missing",
        ),
        (
            setting("projects", 0, "gpu_milli", to={"quota": "2", "limit": 1, "weight": 1}),
            "$.projects[0].gpu_milli.quota",
            "whole number",
        ),
        (setting(*W, "project", to="nobody"), "$.workloads[0].project", "no project 'nobody'"),
        (setting(*W, "kind", to="batch"), "$.workloads[0].kind", "'batch' is none of"),
        (setting(*W, "kind", to="interactive"), "$.workloads[0].preemptible", "never preemptible"),
        (setting(*W, "preemptible", to=1), "$.workloads[0].preemptible", "true or false"),
        (setting(*W, "submitted", to="now"), "$.workloads[0].submitted", "number"),
        (setting(*W, "gpu_milli", to=1500), "$.workloads[0].gpu_milli", "1500 is neither"),
        (setting(*W, "gpu_milli", to=None), "$.workloads[0].gpu_milli", "either"),
        (setting(*W, "gpu_memory_mib", to=5), "$.workloads[0].gpu_milli", "not both"),
        (setting(*W, "num_devices", to=0), "$.workloads[0].num_devices", "less than 1"),
        (setting(*W, "min_replicas", to=0), "$.workloads[0].min_replicas", "less than 1"),
        (setting(*W, "node_types", to=["t4", "t4"]), "$.workloads[0].node_types", "twice"),
        (setting(*W, "node_types", to=[4]), "$.workloads[0].node_types[0]", "text"),
        (lambda d: d["workloads"].append(d["workloads"][0]), "$.workloads[1].name", "already"),
        (setting(*R, "state", to="asleep"), "$.workloads[0].replicas[0].state", "'asleep'"),
        (setting(*R, "node", to="n9"), "$.workloads[0].replicas[0].node", "no node 'n9'"),
        (without(*R, "node"), "$.workloads[0].replicas[0]", "'node' is missing"),
        (setting(*R, "devices", to=[2]), "$.workloads[0].replicas[0].devices", "has 2 devices"),
        (setting(*R, "devices", to=[0, 1]), "$.workloads[0].replicas[0].devices", "1 different"),
        (setting(*R, "devices", to=["0"]), "$.workloads[0].replicas[0].devices[0]", "number"),
        (setting(*R, "name", to="w0-1"), "$.workloads[0].replicas[1].name", "already"),
        (
            setting("workloads", 0, "replicas", 1, "node", to="n0"),
            "$.workloads[0].replicas[1].node",
            "unknown",
        ),
        (
            setting("expect", "replicas", to={"w9-0": {"outcome": "kept"}}),
            "$.expect.replicas.w9-0",
            "no replica",
        ),
        (
            setting("expect", "replicas", "w0-0", "outcome", to="lost"),
            "$.expect.replicas.w0-0.outcome",
            "'lost' is none of",
        ),
        (
            setting("expect", "replicas", "w0-0", "node", to="n9"),
            "$.expect.replicas.w0-0.node",
            "no node",
        ),
        (
            setting(*W, "required_labels", to={"net": 1}),
            "$.workloads[0].required_labels.net",
            "text",
        ),
        (setting(*W, "early_end_s", to="soon"), "$.workloads[0].early_end_s", "number"),
        (setting(*W, "last_exit_code", to=1.5), "$.workloads[0].last_exit_code", "whole number"),
        (
            setting("nodes", 0, "failed_starts", to=[{"workload": "w", "at_s": 1, "why": ""}]),
            "$.nodes[0].failed_starts[0].why",
            "unknown",
        ),
        (
            setting("projects", 1, "past_use_ppm", to={"gpu": -1}),
            "$.projects[1].past_use_ppm.gpu",
            "less than 0",
        ),
        (setting("policy", to={"topology": "rack"}), "$.policy.topology", "a list is needed"),
        (
            setting("policy", to={"cordon_failures": 0.5}),
            "$.policy.cordon_failures",
            "whole number",
        ),
        (setting("now_s", to=float("nan")), "$.now_s", "a finite number is needed, not nan"),
        (setting(*W, "submitted", to=float("inf")), "$.workloads[0].submitted", "not inf"),
        (setting("cycles", to=0), "$.cycles", "less than 1"),
        (setting("policy", to={"speed": 1}), "$.policy.speed", "unknown"),
        (
            setting("policy", to={"placement": {"t4": "random"}}),
            "$.policy.placement.t4",
            "'random' is none of",
        ),
    ],
)
def test_a_mistake_is_named_with_its_path(damage: Damage, path: str, problem: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(damaged(damage))
    assert caught.value.path == path
    assert problem in caught.value.problem


def running(name: str, gpu_milli: int, **more: object) -> dict[str, Any]:
    replica = {"name": f"{name}-0", "state": "running", "node": "n0"}
    devices = more.pop("devices", None)
    if devices is not None:
        replica["devices"] = devices  # type: ignore[assignment]  # a list among texts
    return {
        **copy.deepcopy(BASE["workloads"][0]),
        "name": name,
        "gpu_milli": gpu_milli,
        "replicas": [replica],
        **more,
    }


@pytest.mark.parametrize(
    ("extra", "path", "problem"),
    [
        (running("w1", 500, devices=[0]), "$.workloads[1].replicas[0].devices", "device 0"),
        (running("w1", 1000, cpu_milli=7001), "$.workloads[1].replicas[0].node", "CPU"),
        (running("w1", 1000, memory_mib=16000), "$.workloads[1].replicas[0].node", "memory"),
        (running("w1", 2000), "$.workloads[1].replicas[0].node", "no 2 devices left"),
    ],
)
def test_over_commitment_is_refused(extra: dict[str, Any], path: str, problem: str) -> None:
    data = damaged(lambda d: d["workloads"].append(extra))
    with pytest.raises(ScenarioError, match=r"over-committed|devices left") as caught:
        load_scenario(data)
    assert caught.value.path == path
    assert problem in caught.value.problem


def test_omitted_devices_are_packed_around_the_named_ones() -> None:
    data = damaged(lambda d: d["workloads"].insert(0, running("w1", 250)))
    placements = {
        str(replica.id): replica.placement
        for workload in load_scenario(data).snapshot.workloads
        for replica in workload.replicas
        if replica.placement
    }
    assert placements["w1-0"].devices == (1,)
    assert placements["w1-0"].milli_per_device == 250


def test_a_list_names_the_entry() -> None:
    with pytest.raises(ScenarioError, match=r"\$\[1\]\.id: 'base' is already the id of \$\[0\]"):
        load_scenarios([BASE, BASE])
    with pytest.raises(ScenarioError, match=r"\$\[1\]\.nodes\[0\]\.gpus"):
        load_scenarios([BASE, damaged(setting("nodes", 0, "gpus", to=None)) | {"id": "other"}])


def test_every_field_of_a_snapshot_survives_its_file() -> None:
    """A captured cycle is read back as it was, field by field."""
    one = training(
        "w",
        "p",
        failures=2,
        last_error="boom",
        last_exit_code=3,
        not_before_s=9.0,
        avoided_nodes=frozenset({NodeName("a")}),
        required_labels={"net": "ib"},
        waiting_since_s=1.0,
        expected_run_s=60.0,
        expected_basis="history",
    )
    runs = training(
        "r",
        "p",
        1000,
        "a:0",
        expected_end_s=90.0,
        early_end_s=30.0,
        expected_basis="time_limits",
        incomplete_since_s=4.0,
        eviction_cost=EvictionCost(1.0, 2.0, 3.0),
    )
    starts = (FailedStart(WorkloadId("x"), 5.0),)
    used = {ResourceKey("gpu"): 250_000}
    world = snapshot(
        node("a", labels={"rack": "r1"}, failed_starts=starts),
        project("p", 2000, past_use_ppm=used),
        one,
        runs,
    )
    policy = Policy(
        topology=("rack", "zone"),
        cordon_failures=2,
        cordon_window_s=60.0,
        history_factor_milli=500,
        history_window_s=100.0,
        history_half_life_s=50.0,
    )
    file = export_scenario(world, policy, 7.0, scenario_id="all")
    read = load_scenario(json.loads(json.dumps(file)))
    assert read.policy == policy
    assert read.snapshot.nodes == world.nodes
    assert read.snapshot.projects == world.projects
    assert read.snapshot.workloads == world.workloads
