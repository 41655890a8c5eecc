"""The product's main story, decided: sessions on thirds, a training that borrows and gives back.

The organisation is the demonstration's: T4 quotas of 1.5, 1, 4 and 0.5 over eight T4s.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.core.cycle import plan, would_start
from scheduling.core.decisions import Evict, Hold, Plan, Start
from scheduling.core.scenario import follow
from scheduling.core.types import (
    CPU,
    MEMORY,
    UNCOUNTED,
    GpuRequest,
    Kind,
    Node,
    NodeName,
    NodeTypeName,
    Placement,
    Policy,
    Project,
    ProjectId,
    Replica,
    ReplicaId,
    ReplicaState,
    ResourceKey,
    Share,
    Snapshot,
    Workload,
    WorkloadId,
)
from tests.core.invariants import check_plan

T4 = ResourceKey("gpu:t4")
THIRD = GpuRequest(1, 333)


def node(name: str, node_type: str, gpus: int, memory_mib: int, cores: int = 32) -> Node:
    return Node(
        name=NodeName(name),
        num_devices=gpus,
        gpu_memory_mib=memory_mib,
        cpu_milli=cores * 1000,
        memory_mib=131072,
        gpu_key=ResourceKey(f"gpu:{node_type}"),
        node_type=NodeTypeName(node_type),
    )


NODES = (
    node("t4-a", "t4", 4, 15360),
    node("t4-b", "t4", 4, 15360),
    node("v100", "v100", 4, 16384),
    node("a100", "a100", 2, 40960),
    node("cpu", "cpu", 0, 0),
)


def project(name: str, parent: str | None, quota: int, created: int) -> Project:
    shares = {CPU: UNCOUNTED, MEMORY: UNCOUNTED, T4: Share(quota=quota)}
    return Project(ProjectId(name), ProjectId(parent) if parent else None, 100, created, shares)


PROJECTS = (
    project("science", None, 2500, 0),
    project("products", None, 4500, 1),
    project("vision", "science", 1500, 2),
    project("language", "science", 1000, 3),
    project("speech", "products", 4000, 4),
    project("ilya", "products", 500, 5),
)


def workload(
    name: str,
    owner: str,
    gpu: GpuRequest,
    *,
    submitted: float,
    kind: Kind = Kind.TRAINING,
    node_types: tuple[str, ...] = ("t4",),
) -> Workload:
    return Workload(
        id=WorkloadId(name),
        project=ProjectId(owner),
        kind=kind,
        priority=100 if kind is Kind.INTERACTIVE else 50,
        is_preemptible=kind is Kind.TRAINING,
        submitted=submitted,
        gpu=gpu,
        cpu_milli=2000,
        memory_mib=2048,
        min_replicas=1,
        replicas=(Replica(ReplicaId(f"{name}/0"), ReplicaState.PENDING),),
        node_types=tuple(NodeTypeName(t) for t in node_types) or None,
    )


def session(name: str, owner: str, gpu: GpuRequest, submitted: float) -> Workload:
    return workload(name, owner, gpu, submitted=submitted, kind=Kind.INTERACTIVE)


class World:
    """Submits, plans, carries out."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(NODES, PROJECTS, ())
        self.decided = plan(self.snapshot, Policy(), 0.0)

    def submit(self, *workloads: Workload) -> Plan:
        self.snapshot = replace(self.snapshot, workloads=(*self.snapshot.workloads, *workloads))
        return self.cycle()

    def cycle(self) -> Plan:
        self.decided = plan(self.snapshot, Policy(), 0.0)
        check_plan(self.snapshot, self.decided)
        self.snapshot = follow(self.snapshot, self.decided, 0.0)
        return self.decided

    def end(self, *names: str) -> Plan:
        kept = tuple(w for w in self.snapshot.workloads if w.id not in names)
        self.snapshot = replace(self.snapshot, workloads=kept)
        return self.cycle()

    def place(self, name: str) -> Placement | None:
        replica = next(w for w in self.snapshot.workloads if w.id == name).replicas[0]
        return replica.placement if replica.state is ReplicaState.RUNNING else None

    def answer(self, name: str) -> Start | Hold:
        return next(
            d for d in self.decided.decisions if d.workload == name and isinstance(d, Start | Hold)
        )


@pytest.fixture
def world() -> World:
    return World()


def fill_with_sessions(world: World) -> None:
    world.submit(*(session(f"s{i}", "vision", THIRD, i) for i in range(4)))


def test_three_sessions_of_a_third_share_a_device_and_the_fourth_takes_another(
    world: World,
) -> None:
    fill_with_sessions(world)
    places = [world.place(f"s{i}") for i in range(4)]
    assert places[:3] == [Placement(NodeName("t4-a"), (0,), 333)] * 3
    assert places[3] == Placement(NodeName("t4-a"), (1,), 333)


def test_the_whole_story(world: World) -> None:
    fill_with_sessions(world)
    # language borrows: quota 1, four GPUs of one node
    world.submit(workload("t", "language", GpuRequest(4, 1000), submitted=10))
    start = world.answer("t")
    assert isinstance(start, Start)
    assert start.is_borrowed
    assert start.reason.code == "started_borrowing"
    assert world.place("t") == Placement(NodeName("t4-b"), (0, 1, 2, 3), 1000)
    # speech claims its quota of four: two are free beside the sessions, two must come back
    claims = [workload(f"c{i}", "speech", GpuRequest(1, 1000), submitted=20 + i) for i in range(4)]
    decided = world.submit(*claims)
    evictions = [d for d in decided.decisions if isinstance(d, Evict)]
    assert [(e.workload, e.rule, e.reason.code) for e in evictions] == [
        ("t", "reclaim", "reclaimed")
    ]
    details = evictions[0].reason.details
    assert details["claimant_project"] == "speech"
    assert details["victim_allocated"] == 4000 + 4 * 333
    held = world.answer(str(evictions[0].claimant))
    assert isinstance(held, Hold)
    assert held.reason.code == "awaiting_release"
    assert held.victims == ("t",)
    assert held.held
    # once the victim has gone all claimants run, and the borrower waits at its old place
    world.cycle()
    assert all(world.place(f"c{i}") for i in range(4))
    waiting = world.answer("t")
    assert isinstance(waiting, Hold)
    assert waiting.reason.code == "over_share"
    assert world.decided.queue_positions[WorkloadId("t")] == (1, 1)
    # sessions were never touched; vision is full
    fifth = session("s5", "vision", THIRD, 40)
    world.submit(fifth)
    refused = world.answer("s5")
    assert isinstance(refused, Hold)
    assert refused.reason.code == "interactive_over_quota"
    assert refused.reason.details["used_gpu_milli"] == 4 * 333
    assert refused.reason.details["quota_gpu_milli"] == 1500
    assert {"id": "smaller", "gpu_milli": 1500 - 4 * 333} in refused.reason.offers
    # when speech's work ends the borrower resumes
    world.end(*(f"c{i}" for i in range(4)))
    assert world.place("t") == Placement(NodeName("t4-b"), (0, 1, 2, 3), 1000)


def test_one_project_fills_every_device_that_it_may_use(world: World) -> None:
    world.submit(
        *(workload(f"t{i}", "language", GpuRequest(1, 1000), submitted=i) for i in range(9))
    )
    places = [world.place(f"t{i}") for i in range(9)]
    assert all(places[:8])
    assert places[8] is None


def test_work_without_gpus_goes_to_the_node_without(world: World) -> None:
    world.submit(workload("c", "ilya", GpuRequest(), submitted=1, node_types=()))
    assert world.place("c") == Placement(NodeName("cpu"), (), 0)


def test_a_session_that_would_start_says_so_before_it_is_submitted(world: World) -> None:
    answer = would_start(world.snapshot, Policy(), 0.0, session("s", "vision", THIRD, 1))
    assert isinstance(answer, Start)
    assert not answer.is_borrowed


def test_a_session_that_would_reclaim_names_the_victims(world: World) -> None:
    world.submit(
        *(workload(f"t{i}", "language", GpuRequest(4, 1000), submitted=i) for i in range(2))
    )
    answer = would_start(world.snapshot, Policy(), 0.0, session("s", "vision", THIRD, 5))
    assert isinstance(answer, Hold)
    assert answer.held
    assert answer.victims == ("t1",)
    assert world.place("t1"), "asking changes nothing"


def test_a_session_beyond_quota_would_wait_and_says_what_would_do(world: World) -> None:
    answer = would_start(
        world.snapshot, Policy(), 0.0, session("s", "ilya", GpuRequest(1, 1000), 1)
    )
    assert isinstance(answer, Hold)
    assert answer.reason.code == "interactive_over_quota"
    assert {"id": "smaller", "gpu_milli": 500} in answer.reason.offers
