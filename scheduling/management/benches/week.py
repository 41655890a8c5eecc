"""A generated week of forty sessions on four GPUs: what trainings gain by lending.

People come and go by day, work in bursts, pause, meet, and leave their sessions open over night.
The scheduler's own `plan` runs over it in virtual time (`core.scenario.swapping`), once with
lending and once without; what a person's sessions did so far is all that its prediction knows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from scheduling.core.decisions import Evict, Move, Plan
from scheduling.core.scenario.swapping import Activity, LoanRecord, SwappingZone, Use, Work
from scheduling.core.types import (
    CPU,
    MEMORY,
    UNCOUNTED,
    GpuRequest,
    Idleness,
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
from scheduling.management.benches.figures import figure

DAY_S = 86_400.0
HOUR_S = 3600.0
GPU = ResourceKey("gpu:t4")
T4 = NodeTypeName("t4")
T4_MIB = 14_917
SWAP_MIB_PER_S = 6000.0
"""Half of what pinned memory reaches over PCIe 3: what drivers do with memory not pinned."""
PART_MILLI = 100
WEEKEND = (5, 6)
NUM_WAITING = 12
"""Trainings that wait at any time: there is always something to lend to."""


@dataclass(frozen=True, slots=True)
class Week:
    """What one run came to.

    Attributes:
        gpu_h: Of trainings.
        idle_gpu_h: Of sessions: how much there was to lend, at most.
        device_h: All devices over the whole time.
    """

    gpu_h: float
    idle_gpu_h: float
    device_h: float
    loans: list[LoanRecord]
    num_plans: int

    @property
    def wakes_s(self) -> list[float]:
        return [loan.wake_s for loan in self.loans if loan.wake_s is not None]


def measure(
    days: int, sessions: int, devices: int, seed: int
) -> Mapping[str, Mapping[str, object]]:
    """The figures: with lending, and what there is without."""
    lending = run(days, sessions, devices, seed, lends=True)
    nothing = run(days, sessions, devices, seed, lends=False)
    if nothing.loans:
        raise AssertionError("loans were made where none may be")
    gain = lending.gpu_h - nothing.gpu_h
    wakes = lending.wakes_s or [0.0]
    lasted = [loan.to_s - loan.from_s for loan in lending.loans if loan.to_s is not None] or [0.0]
    return {
        "week_gain_gpu_h": figure([gain], "GPU-h"),
        "week_without_lending_gpu_h": figure([nothing.gpu_h], "GPU-h"),
        "week_gain_fraction": figure([gain / lending.device_h], "of all device hours"),
        "week_idle_gpu_h": figure([lending.idle_gpu_h], "GPU-h"),
        "week_loans": figure([len(lending.loans)], "loans"),
        "week_loan_s": figure([statistics.median(lasted)], "s"),
        "week_wakes": figure([len(lending.wakes_s)], "wakes"),
        "week_wakes_per_session_day": figure([len(lending.wakes_s) / sessions / days], "wakes"),
        "week_wake_s": figure(wakes, "s"),
    }


def run(days: int, sessions: int, devices: int, seed: int, *, lends: bool) -> Week:
    """One week, and the checks that nothing was given twice and no session was touched."""
    random = Random(seed)
    people = [_person(random, days) for _ in range(sessions)]
    until_s = days * DAY_S
    trainings = _trainings(random)
    names = [WorkloadId(f"session-{number:02}") for number in range(sessions)]
    held = tuple(
        _session(random, name, number % devices, devices) for number, name in enumerate(names)
    )
    waiting = [next(trainings) for _ in range(NUM_WAITING)]
    activity = Activity(
        until_s=until_s,
        uses={name: Use(used) for name, used in zip(names, people, strict=True)},
        works={training.id: work for training, work in waiting},
        period_s=300.0,
    )
    snapshot = Snapshot(
        (_node(devices),),
        _projects(sessions),
        (*held, *(training for training, _ in waiting)),
    )
    policy = Policy(lends=lends, swap_mib_per_s={T4: SWAP_MIB_PER_S})
    zone = SwappingZone(snapshot, policy, activity)
    zone.on_end = lambda: zone.submit(*next(trainings))
    zone.run(_check)
    _check_loans(zone.records())
    idle_s = sum(_idle_s(used, until_s) for used in people)
    return Week(
        gpu_h=sum(zone.run_gpu_s.values()) / HOUR_S,
        idle_gpu_h=idle_s / HOUR_S * PART_MILLI / 1000,
        device_h=devices * until_s / HOUR_S,
        loans=zone.records(),
        num_plans=zone.num_plans,
    )


def _check(decided: Plan) -> None:
    if any(isinstance(decision, Evict | Move) for decision in decided.decisions):
        raise AssertionError("a loan made somebody stop")


def _check_loans(loans: list[LoanRecord]) -> None:
    """A session lends to one at a time."""
    last: dict[WorkloadId, float] = {}
    for loan in loans:
        if loan.from_s < last.get(loan.lender, 0.0):
            raise AssertionError(f"{loan.lender} lent twice at once")
        last[loan.lender] = math.inf if loan.to_s is None else loan.to_s


def _idle_s(used: tuple[tuple[float, float], ...], until_s: float) -> float:
    return until_s - sum(min(b, until_s) - a for a, b in used if a < until_s)


# ---------------------------------------------------------------- people


def _person(random: Random, days: int) -> tuple[tuple[float, float], ...]:
    """When somebody uses the GPU over the days: bursts of cells between pauses, by day."""
    begins_h, ends_h = random.gauss(9.5, 1.2), random.gauss(18.5, 1.5)
    is_owl, is_diligent = random.random() < 0.15, random.random() < 0.2
    spans: list[tuple[float, float]] = []
    for day in range(days):
        is_weekend = day % 7 in WEEKEND
        if random.random() < (0.85 if is_weekend and not is_diligent else 0.06):
            continue
        begin = day * DAY_S + max(6.0, random.gauss(begins_h, 0.5)) * HOUR_S
        hours = max(1.0, ends_h - begins_h + random.gauss(0, 1.0)) * (0.4 if is_weekend else 1.0)
        spans += _bursts(random, begin, begin + hours * HOUR_S)
        if is_owl and random.random() < 0.5:
            late = day * DAY_S + random.uniform(20.5, 22.5) * HOUR_S
            spans += _bursts(random, late, late + random.uniform(0.5, 2.5) * HOUR_S)
    return tuple(_joined(spans))


def _bursts(random: Random, begin_s: float, end_s: float) -> Iterator[tuple[float, float]]:
    """Cells in bursts of some minutes; now and then one that computes for hours."""
    at = begin_s
    while at < end_s:
        lasts = random.expovariate(1 / 240.0) + 5.0
        if random.random() < 0.03:
            lasts = random.uniform(0.5, 4.0) * HOUR_S
        yield at, at + lasts
        at += lasts + _pause(random)


def _pause(random: Random) -> float:
    """Reading and typing mostly; sometimes coffee, a talk, a meeting."""
    kind = random.random()
    if kind < 0.72:
        return random.lognormvariate(math.log(100.0), 0.9)
    if kind < 0.90:
        return random.lognormvariate(math.log(720.0), 0.6)
    return random.lognormvariate(math.log(3300.0), 0.5)


def _joined(spans: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Overlapping times as one."""
    current: tuple[float, float] | None = None
    for begin, end in sorted(spans):
        if current is not None and begin <= current[1]:
            current = (current[0], max(current[1], end))
            continue
        if current is not None:
            yield current
        current = (begin, end)
    if current is not None:
        yield current


# ---------------------------------------------------------------- cluster


def _node(devices: int) -> Node:
    return Node(
        name=NodeName("node"),
        num_devices=devices,
        gpu_memory_mib=T4_MIB,
        cpu_milli=256_000,
        memory_mib=1_048_576,
        gpu_key=GPU,
        node_type=T4,
    )


def _projects(sessions: int) -> tuple[Project, ...]:
    quota = sessions * PART_MILLI
    steady = {GPU: Share(quota), CPU: UNCOUNTED, MEMORY: UNCOUNTED}
    borrowing = {GPU: Share(0), CPU: UNCOUNTED, MEMORY: UNCOUNTED}
    return (
        Project(ProjectId("people"), None, 100, 0, steady),
        Project(ProjectId("research"), None, 100, 1, borrowing),
        Project(ProjectId("products"), None, 100, 2, borrowing),
    )


def _session(random: Random, name: WorkloadId, device: int, devices: int) -> Workload:
    place = Placement(NodeName("node"), (device % devices,), PART_MILLI)
    return Workload(
        id=name,
        project=ProjectId("people"),
        kind=Kind.INTERACTIVE,
        priority=100,
        is_preemptible=False,
        submitted=0.0,
        gpu=GpuRequest(1, PART_MILLI),
        cpu_milli=1000,
        memory_mib=4096,
        min_replicas=1,
        replicas=(Replica(ReplicaId(f"{name}/0"), ReplicaState.RUNNING, place),),
        idle=Idleness(None, memory_mib=random.randint(300, T4_MIB * PART_MILLI // 1000)),
    )


def _trainings(random: Random) -> Iterator[tuple[Workload, Work]]:
    """Work without end, in the order in which it was submitted."""
    number = 0
    while True:
        number += 1
        milli = random.choice((1000, 1000, 1000, 500, 500, 300, 200))
        name = WorkloadId(f"training-{number:04}")
        workload = Workload(
            id=name,
            project=ProjectId(random.choice(("research", "products"))),
            kind=Kind.TRAINING,
            priority=50,
            is_preemptible=True,
            submitted=float(number),
            gpu=GpuRequest(1, milli),
            cpu_milli=2000,
            memory_mib=8192,
            min_replicas=1,
            replicas=(Replica(ReplicaId(f"{name}/0"), ReplicaState.PENDING),),
            node_types=(T4,),
        )
        lasts = random.lognormvariate(math.log(2 * HOUR_S), 0.8)
        yield workload, Work(lasts, memory_mib=round(T4_MIB * milli / 1000 * 0.6))
