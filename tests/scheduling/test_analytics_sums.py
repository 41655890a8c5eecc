"""Over random histories: groups and the rest are what there was, and nothing is counted twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projects.models import NodeType, Project, User, WorkloadKind
from scheduling.analytics import answer, query
from scheduling.analytics.metrics import METRICS, Group
from tests.factories import make_member, make_node_type, make_project
from tests.scheduling import history
from tests.scheduling.history import Cluster, at, held

START = at("2026-03-27 00:00")
PERIOD_MINUTES = 3 * 24 * 60
NOW = at("2026-06-01 00:00")
GPUS = 2

Span = tuple[int, int]


def spans(num: int) -> st.SearchStrategy[list[Span]]:
    """Up to so many spans, in minutes, that do not overlap."""
    times = st.lists(st.integers(-600, PERIOD_MINUTES + 600), max_size=2 * num, unique=True)
    return times.map(lambda found: list(_pairs(sorted(found))))


def _pairs(times: Sequence[int]) -> Iterator[Span]:
    yield from zip(times[::2], times[1::2], strict=False)


@dataclass(frozen=True, slots=True)
class History:
    """Per node: when it was ready, and what each half of each device was held for."""

    ready: list[list[Span]]
    halves: list[list[list[Span]]]
    zone: str
    step: str


histories = st.builds(
    History,
    ready=st.lists(spans(3), min_size=2, max_size=2),
    halves=st.lists(
        st.lists(spans(3), min_size=2 * GPUS, max_size=2 * GPUS), min_size=2, max_size=2
    ),
    zone=st.sampled_from(
        [
            "UTC",
            "Europe/Moscow",
            "Europe/Berlin",
            "Pacific/Kiritimati",
            "Pacific/Pago_Pago",
            "Asia/Kathmandu",
            "America/St_Johns",
            "Australia/Lord_Howe",
        ]
    ),
    step=st.sampled_from(["1h", "6h", "1d", "all"]),
)


@dataclass(frozen=True, slots=True)
class Organisation:
    types: tuple[NodeType, NodeType]
    people: tuple[tuple[Project, User], ...]
    admin: User


@pytest.fixture
def organisation(db: None) -> Organisation:
    types = make_node_type("t4"), make_node_type("a100")
    people = []
    for name in ("vision", "speech", "language"):
        project = make_project(name)
        people.append((project, make_member(project, f"{name}-user")))
    return Organisation(types, tuple(people), User.objects.create_superuser("root"))


def moment(minutes: int) -> datetime:
    return START + timedelta(minutes=minutes)


def write(organisation: Organisation, told: History) -> float:
    """Write the history down; returns the GPU-hours held while ready, added up by hand."""
    cluster = Cluster(START)
    hours = 0.0
    for number, (ready, halves) in enumerate(zip(told.ready, told.halves, strict=True)):
        node = cluster.node(organisation.types[number], gpus=GPUS, until=START)
        for since, until in ready:
            cluster.ready(node, moment(since), moment(until))
        for slot, held_spans in enumerate(halves):
            for order, span in enumerate(held_spans):
                project, owner = organisation.people[(slot + order) % 3]
                work = history.workload(
                    project,
                    owner,
                    cpu_milli=1000,
                    memory_mib=1024,
                    kind=list(WorkloadKind)[(slot + order) % 2],
                    template=("", "notebook")[order % 2],
                )
                held(
                    work,
                    node,
                    (moment(span[0]), moment(span[1])),
                    devices=1,
                    milli=500,
                    first=slot // 2,
                )
                hours += 0.5 * sum(_overlap(span, up) for up in ready) / 60
    return hours


def _overlap(one: Span, other: Span) -> int:
    period = (0, PERIOD_MINUTES)
    start, end = max(one[0], other[0], period[0]), min(one[1], other[1], period[1])
    return max(0, end - start)


@pytest.mark.django_db
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(told=histories)
def test_groups_and_the_rest_are_the_capacity(organisation: Organisation, told: History) -> None:
    with transaction.atomic():
        hours = write(organisation, told)
        for name in ("allocated_gpu_hours", "requested_core_hours", "requested_gib_hours", "cost"):
            totals = set()
            for group in METRICS[name].groups:
                found = ask(organisation.admin, name, told, group)
                assert_adds_up(found)
                totals.add(round(found.whole.total or 0.0, 6))
            assert len(totals) == 1, "the same sum, however it is told apart"
        found = ask(organisation.admin, "allocated_gpu_hours", told, Group.PROJECT)
        # Before the first node is ready there is no data; then nothing can be held either.
        assert (found.whole.total or 0.0) == pytest.approx(hours, abs=1e-6)
        transaction.set_rollback(True)


def ask(viewer: User, metric: str, told: History, group: Group) -> answer.Answer:
    params = {
        "metric": metric,
        "group_by": str(group),
        "from": START.isoformat(),
        "to": moment(PERIOD_MINUTES).isoformat(),
        "tz": told.zone,
        "step": told.step,
    }
    return answer.run(query.read(params, NOW, viewer), viewer, NOW)


def assert_adds_up(found: answer.Answer) -> None:
    """Within 0.1 % in each bucket and over the period."""
    assert found.capacity is not None
    for number, whole in enumerate([*found.capacity.values, found.capacity.total]):
        parts = [[*one.values, one.total][number] for one in found.series]
        if whole is None:
            assert parts == [None] * len(parts)
        else:
            assert sum(part or 0.0 for part in parts) == pytest.approx(whole, rel=1e-3, abs=1e-9)
