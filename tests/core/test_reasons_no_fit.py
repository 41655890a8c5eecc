"""Why something fits nowhere: of which node type what is lacking, and what is offered."""

from __future__ import annotations

from scheduling.core.types import (
    Node,
    NodeName,
    NodeTypeName,
    Project,
    Workload,
)
from tests.core.small import answer, check, node, project, session, training

Part = Node | Project | Workload
V100 = {"node_type": NodeTypeName("v100")}


def test_no_fit_when_too_little_is_free() -> None:
    hold = answer(
        "w",
        node("a", 2),
        project("p", 2000),
        project("q"),
        session("s", "q", 1000, "a:0"),
        training("w", "p", 2000),
    )
    check(hold.reason, "no_fit", "2 GPU asked, 1 free")


def test_no_fit_when_no_node_is_large_enough() -> None:
    hold = answer("w", node("a", 2), node("b", 2), project("p", 4000), training("w", "p", 4000))
    check(hold.reason, "no_fit", "no node is large enough")
    assert hold.reason.details["constraint"] == "node_size"


def test_no_fit_without_a_gpu() -> None:
    hold = answer(
        "w",
        node("a", 0, cpu_milli=200_000),
        node("b", 0, cpu_milli=64_000),
        project("p"),
        session("s", "p", 0, "a", cpu_milli=150_000),
        training("w", "p", 0, cpu_milli=100_000),
    )
    check(hold.reason, "no_fit", "no node has 100 cores")
    assert hold.reason.details["requested_gpu_milli"] == 0
    assert hold.reason.details["constraint"] == "cpu_or_memory"


def test_no_fit_when_scattered() -> None:
    hold = answer(
        "w",
        node("a", 2),
        node("b", 2),
        project("p", 4000),
        session("s1", "p", 1000, "a:0"),
        session("s2", "p", 1000, "b:0"),
        training("w", "p", 2000),
    )
    check(hold.reason, "no_fit", "2 GPU free, but at most 1 together")
    assert {"id": "smaller", "gpu_milli": 1000} in hold.reason.offers


def test_no_fit_beside_the_gpus() -> None:
    hold = answer(
        "w",
        node("a", 2, cpu_milli=4000),
        project("p", 2000),
        session("s", "p", 1000, "a:0", cpu_milli=3000),
        training("w", "p", 1000, cpu_milli=2000),
    )
    check(hold.reason, "no_fit", "no node has the CPU and memory beside them")
    assert hold.reason.details["constraint"] == "cpu_or_memory"


def test_one_entry_per_node_type_and_an_offer_of_the_other() -> None:
    types = tuple(map(NodeTypeName, ("t4", "v100")))
    hold = answer(
        "w",
        node("a", 1),
        node("b", 1, **V100),
        project("p", 2000),
        session("s1", "p", 1000, "a:0"),
        session("s2", "p", 1000, "b:0"),
        training("w", "p", node_types=types),
    )
    assert [entry["node_type"] for entry in hold.reason.per_node_type] == ["t4", "v100"]
    assert {"id": "choose_node_type", "node_type": "v100"} in hold.reason.offers


def test_node_type_offline() -> None:
    hold = answer(
        "w", node("a", is_ready=False), project("p", 9000), training("w", "p", node_types=("t4",))
    )
    check(hold.reason, "node_type_offline", "No node is online of t4")


def test_no_fit_names_the_labels() -> None:
    ib = {"net": "ib"}
    lacking = answer("w", node("a"), project("p", 4000), training("w", "p", required_labels=ib))
    check(lacking.reason, "no_fit", "t4: no node has the labels net=ib")
    assert lacking.reason.details["constraint"] == "labels"
    assert lacking.reason.details["labels"] == ib
    assert {"id": "notify_admin"} in lacking.reason.offers
    assert lacking.reason.per_node_type[0]["constraint"] == "labels"
    full = answer(
        "w",
        node("a", 1, labels=ib),
        node("b", 4),
        project("p", 4000),
        session("s", "p", 1000, "a:0"),
        training("w", "p", required_labels=ib),
    )
    check(full.reason, "no_fit", "1 GPU asked, 0 free")
    assert full.reason.details["constraint"] == "gpu"
    assert full.reason.details["nodes"] == 1
    small = answer(
        "w",
        node("a", 1, labels=ib),
        node("b", 4),
        project("p", 4000),
        training("w", "p", 2000, required_labels=ib),
    )
    check(small.reason, "no_fit", "no node is large enough")
    assert small.reason.details["constraint"] == "node_size"


def test_no_fit_says_that_its_start_failed_everywhere() -> None:
    failed = frozenset({NodeName("a")})
    hold = answer("w", node("a"), project("p", 4000), training("w", "p", avoided_nodes=failed))
    check(hold.reason, "no_fit", "its start failed on every node that would do")
    assert hold.reason.details["constraint"] == "failed_here"
