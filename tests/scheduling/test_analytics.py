"""Analytics against histories computed by hand: zones, prices, downtime, borrowing, idleness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from projects.models import (
    Department,
    NodeType,
    Project,
    QuotaChange,
    Role,
    User,
    WorkloadKind,
)
from projects.quotas import set_gpu_quota
from scheduling.analytics import answer, keeping, query
from scheduling.analytics.answer import Answer, Series
from scheduling.models import UsageDay, UsageMonthVector, UsageVector
from telemetry.models import RolledQuarter
from tests.factories import make_member, make_node_type, make_project
from tests.scheduling import history
from tests.scheduling.history import Cluster, at, held, measured

NOW = at("2026-06-01 00:00")
DAY = ("2026-03-10", "2026-03-11")


def span(since: str, until: str) -> tuple[datetime, datetime]:
    return at(since), at(until)


def day10(since: str, until: str) -> tuple[datetime, datetime]:
    """Of the tenth of March."""
    return span(f"2026-03-10 {since}", f"2026-03-10 {until}")


@dataclass(frozen=True, slots=True)
class World:
    t4: NodeType
    vision: Project
    speech: Project
    vera: User
    sergey: User
    admin: User


@pytest.fixture
def world(db: None) -> World:
    t4 = make_node_type("t4")
    vision = make_project("vision", department=Department.objects.create(name="research"))
    speech = make_project("speech")
    return World(
        t4=t4,
        vision=vision,
        speech=speech,
        vera=make_member(vision, "vera"),
        sergey=make_member(speech, "sergey"),
        admin=User.objects.create_superuser("root"),
    )


def ask(viewer: User, metric: str, since: str, until: str, **params: str) -> Answer:
    given = {"metric": metric, "from": since, "to": until, "tz": "UTC", "step": "all", **params}
    return answer.run(query.read(given, NOW, viewer), viewer, NOW)


def by_key(found: Answer) -> Mapping[str, Series]:
    return {one.key: one for one in found.series}


def totals(found: Answer) -> dict[str, float | None]:
    return {one.key: one.total for one in found.series}


class TestAllocated:
    def test_groups_and_the_rest_are_what_there_was(self, world: World) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=4, cores=32, gib=128)
        one = history.workload(world.vision, world.vera, cpu_milli=2000, memory_mib=2048)
        two = history.workload(world.speech, world.sergey, cpu_milli=8000, memory_mib=4096)
        held(one, node, day10("06:00", "08:00"), devices=1, milli=500)
        held(two, node, span("2026-03-10 23:00", "2026-03-11 01:30"), devices=2, first=1)
        found = ask(world.admin, "allocated_gpu_hours", *DAY, group_by="project")
        assert totals(found) == {"vision": 1.0, "speech": 2.0, "unallocated": 93.0}
        assert found.capacity is not None
        assert found.capacity.total == 96.0
        assert found.whole.total == 3.0
        found = ask(world.admin, "requested_core_hours", *DAY, group_by="project")
        assert totals(found) == {"speech": 8.0, "vision": 4.0, "unallocated": 32 * 24 - 12.0}
        found = ask(world.admin, "requested_gib_hours", *DAY, group_by="project")
        assert totals(found) == {"speech": 4.0, "vision": 4.0, "unallocated": 128 * 24 - 8.0}

    @pytest.mark.parametrize(
        ("group", "expected"),
        [
            ("department", {"research": 1.0, "none": 2.0}),
            ("user", {"vera": 1.0, "sergey": 2.0}),
            ("node_type", {"t4": 3.0}),
            ("kind", {"interactive": 1.0, "training": 2.0}),
            ("template", {"notebook": 1.0, "none": 2.0}),
            ("total", {"all": 3.0}),
        ],
    )
    def test_each_group(self, world: World, group: str, expected: dict[str, float]) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=2)
        one = history.workload(
            world.vision, world.vera, kind=WorkloadKind.INTERACTIVE, template="notebook"
        )
        two = history.workload(world.speech, world.sergey)
        held(one, node, day10("06:00", "07:00"), devices=1)
        held(two, node, day10("06:00", "08:00"), devices=1, first=1)
        found = ask(world.admin, "allocated_gpu_hours", *DAY, group_by=group)
        assert totals(found) == {**expected, "unallocated": 45.0}

    def test_while_a_node_is_down_there_is_neither_capacity_nor_allocation(
        self, world: World
    ) -> None:
        cluster = Cluster(at("2026-03-01"))
        node = cluster.node(world.t4, gpus=1, until=at("2026-03-10 10:00"))
        cluster.ready(node, at("2026-03-10 14:00"), None)
        work = history.workload(world.vision, world.vera)
        held(work, node, day10("08:00", "16:00"), devices=1)
        found = ask(world.admin, "allocated_gpu_hours", *DAY)
        assert totals(found) == {"all": 4.0, "unallocated": 16.0}

    def test_before_the_first_node_there_is_no_data(self, world: World) -> None:
        Cluster(at("2026-03-10 12:00")).node(world.t4, gpus=1)
        found = ask(
            world.admin, "allocated_gpu_hours", "2026-03-09", "2026-03-12", step="1d", tz="UTC"
        )
        rest = by_key(found)["unallocated"]
        assert rest.values == (None, 12.0, 24.0)

    def test_a_workload_that_holds_no_gpu_counts_its_cores(self, world: World) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=0, cores=8)
        work = history.workload(world.vision, world.vera, cpu_milli=3000)
        held(work, node, day10("00:00", "10:00"))
        found = ask(world.admin, "requested_core_hours", *DAY)
        assert totals(found) == {"all": 30.0, "unallocated": 8 * 24 - 30.0}

    def test_what_runs_now_counts_until_now(self, world: World) -> None:
        node = Cluster(at("2026-05-01")).node(world.t4, gpus=1)
        node.last_report_at = NOW
        node.save()
        work = history.workload(world.vision, world.vera)
        held(work, node, (NOW - 5 * history.HOUR, None), devices=1)
        found = ask(world.admin, "allocated_gpu_hours", "2026-05-31", "2026-06-02", step="1d")
        assert found.whole.values[0] == 5.0
        assert found.query.until == NOW


class TestZones:
    """One GPU, held from 20:00 UTC for 8 hours: across midnight in most zones."""

    @pytest.mark.parametrize(
        ("zone", "since", "until", "expected"),
        [
            ("UTC", "2026-03-10", "2026-03-12", (4.0, 4.0)),
            ("Europe/Moscow", "2026-03-10", "2026-03-12", (1.0, 7.0)),
            ("Pacific/Kiritimati", "2026-03-10", "2026-03-12", (0.0, 8.0)),
            ("Pacific/Pago_Pago", "2026-03-10", "2026-03-12", (8.0, 0.0)),
            ("Asia/Kathmandu", "2026-03-10", "2026-03-12", (0.0, 8.0)),
            ("America/St_Johns", "2026-03-10", "2026-03-12", (6.5, 1.5)),
        ],
    )
    def test_days_are_those_of_the_zone(
        self, world: World, zone: str, since: str, until: str, expected: tuple[float, ...]
    ) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=1)
        work = history.workload(world.vision, world.vera)
        held(work, node, span("2026-03-10 20:00", "2026-03-11 04:00"), devices=1)
        found = ask(world.admin, "allocated_gpu_hours", since, until, step="1d", tz=zone)
        assert found.whole.values == expected
        assert not any(bucket.is_partial for bucket in found.buckets)

    @pytest.mark.parametrize(
        ("zone", "day", "hours"),
        [
            ("Europe/Berlin", "2026-03-29", 23),
            ("Europe/Berlin", "2025-10-26", 25),
            ("Australia/Lord_Howe", "2026-04-05", 24.5),
        ],
    )
    def test_a_day_on_which_clocks_change_is_as_long_as_it_is(
        self, world: World, zone: str, day: str, hours: float
    ) -> None:
        Cluster(at("2025-06-01")).node(world.t4, gpus=1)
        next_day = (datetime.fromisoformat(day) + timedelta(days=1)).date().isoformat()
        found = ask(world.admin, "capacity_gpu_hours", day, next_day, step="1d", tz=zone)
        assert found.whole.values == (hours,)
        by_hour = ask(world.admin, "capacity_gpu_hours", day, next_day, step="1h", tz=zone)
        assert len(by_hour.buckets) == -(-hours // 1)
        assert sum(value or 0 for value in by_hour.whole.values) == hours

    def test_a_period_that_cuts_its_days_says_so(self, world: World) -> None:
        found = ask(
            world.admin, "cost", "2026-03-10T12:00", "2026-03-12T06:00", step="1d", tz="UTC"
        )
        assert [bucket.is_partial for bucket in found.buckets] == [True, False, True]

    def test_weeks_begin_on_mondays_and_months_on_the_first(self, world: World) -> None:
        weeks = ask(world.admin, "cost", "2026-03-04", "2026-03-18", step="7d")
        assert [f"{bucket.start:%m-%d}" for bucket in weeks.buckets] == ["03-04", "03-09", "03-16"]
        months = ask(world.admin, "cost", "2026-03-04", "2026-05-02", step="1mo")
        assert [f"{bucket.start:%m-%d}" for bucket in months.buckets] == ["03-04", "04-01", "05-01"]


class TestCost:
    def test_a_new_price_in_mid_period_splits_the_cost(self, world: World) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=1, cores=4, gib=8)
        history.priced(world.t4, at("2026-03-10 10:10"), gpu=100, cpu=3, memory=2)
        work = history.workload(world.vision, world.vera, cpu_milli=2000, memory_mib=4096)
        held(work, node, day10("10:00", "11:00"), devices=1, milli=500)
        found = ask(world.admin, "cost", *DAY, group_by="project")
        # 10 minutes at 45, 2 and 1; 50 minutes at 100, 3 and 2.
        before = (0.5 * 45 + 2 * 2 + 4 * 1) / 6
        after = (0.5 * 100 + 2 * 3 + 4 * 2) * 5 / 6
        assert totals(found)["vision"] == pytest.approx(before + after)
        cluster = (45 + 4 * 2 + 8) * (10 + 1 / 6) + (100 + 4 * 3 + 8 * 2) * (13 + 5 / 6)
        assert found.capacity is not None
        assert found.capacity.total == pytest.approx(cluster)
        assert totals(found)["unallocated"] == pytest.approx(cluster - before - after)

    def test_saving_a_price_keeps_the_old_one_for_the_past(self, world: World) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=1)
        work = history.workload(world.vision, world.vera, cpu_milli=100, memory_mib=64)
        held(work, node, day10("10:00", "11:00"), devices=1)
        before = ask(world.admin, "cost", *DAY).whole.total
        world.t4.gpu_price_per_hour = 1000
        world.t4.save()
        assert ask(world.admin, "cost", *DAY).whole.total == before

    def test_idle_cost_is_a_part_shown_apart(self, world: World) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=1)
        work = history.workload(world.vision, world.vera, cpu_milli=1000, memory_mib=1024)
        held(work, node, day10("10:00", "12:00"), devices=1)
        quiet: dict[str, Any] = {"gpu_util_percent": 0.0, "cpu_cores": 0.01}
        measured(work, at("2026-03-10 10:00"), at("2026-03-10 11:00"), **quiet)
        measured(
            work, at("2026-03-10 11:00"), at("2026-03-10 12:00"), gpu_util_percent=80, cpu_cores=1
        )
        assert ask(world.admin, "idle_cost", *DAY).whole.total == pytest.approx(45 + 2 + 1)
        assert ask(world.admin, "cost", *DAY).whole.total == pytest.approx(2 * 48)
        assert ask(world.admin, "idle_gpu_hours", *DAY).whole.total == 1.0


class TestBorrowing:
    def test_what_exceeds_the_quota_moment_by_moment(self, world: World) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=4)
        history.promised(world.vision, world.t4, at("2026-03-01 00:00"), 1.5)
        history.promised(world.vision, world.t4, at("2026-03-10 11:00"), 0.5)
        for number, (start, end) in enumerate([("10:00", "12:00"), ("10:30", "12:00")]):
            work = history.workload(world.vision, world.vera)
            held(work, node, day10(start, end), devices=1, first=number)
        borrowed = ask(world.admin, "borrowed_gpu_hours", *DAY, group_by="project")
        # 10:30 to 11:00: 2 of 1.5; 11:00 to 12:00: 2 of 0.5.
        assert totals(borrowed) == {"vision": pytest.approx(0.25 + 1.5)}
        quota = ask(world.admin, "quota_gpu_hours", *DAY, group_by="project")
        assert totals(quota) == {"vision": pytest.approx(1.5 * 11 + 0.5 * 13)}
        ratio = ask(world.admin, "allocation_ratio", *DAY)
        assert ratio.whole.total == pytest.approx(100 * 3.5 / 23)

    def test_quotas_are_noted_by_the_database(self, world: World) -> None:
        set_gpu_quota(world.vision, world.t4, quota_milli=2000)
        set_gpu_quota(world.vision, world.t4, quota_milli=3000)
        world.vision.gpu_quotas.all().delete()
        rows = QuotaChange.objects.filter(project=world.vision).values_list("gpu_milli", flat=True)
        # A change is an end and a beginning.
        assert [row for row in rows if row] == [2000, 3000]
        assert list(rows)[-1] == 0


class TestSignals:
    def test_used_is_weighted_by_what_was_held_and_covers_what_was_measured(
        self, world: World
    ) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=2)
        whole = history.workload(world.vision, world.vera)
        half = history.workload(world.vision, world.vera)
        held(whole, node, day10("10:00", "12:00"), devices=1)
        held(half, node, day10("10:00", "12:00"), devices=1, milli=500, first=1)
        measured(whole, at("2026-03-10 10:00"), at("2026-03-10 12:00"), gpu_util_percent=50)
        # Measured for half of the first hour only.
        measured(
            half,
            at("2026-03-10 10:00"),
            at("2026-03-10 11:00"),
            covered_s=450,
            gpu_util_percent=100,
        )
        used = ask(world.admin, "used_gpu_hours", *DAY).whole
        assert used.total == pytest.approx(2 * 0.5 + 0.5 * 0.5)
        assert used.total_coverage == pytest.approx(2.25 / 3)
        utilisation = ask(world.admin, "utilisation", *DAY).whole
        assert utilisation.total == pytest.approx(100 * 1.25 / 2.25)
        assert ask(world.admin, "gpu_hours_50_75", *DAY).whole.total == pytest.approx(2.0)
        assert ask(world.admin, "gpu_hours_75_100", *DAY).whole.total == pytest.approx(0.25)

    def test_without_samples_there_is_no_data_and_no_zero(self, world: World) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=1)
        work = history.workload(world.vision, world.vera)
        held(work, node, day10("10:00", "13:00"), devices=1)
        measured(work, at("2026-03-10 10:00"), at("2026-03-10 11:00"), gpu_util_percent=0.0)
        found = ask(
            world.admin, "utilisation", "2026-03-10T10:00", "2026-03-10T13:00", step="1h"
        ).whole
        assert found.values == (0.0, None, None)
        assert found.coverage == (1.0, 0.0, 0.0)
        assert found.total == 0.0
        idle = ask(world.admin, "idle_gpu_hours", "2026-03-10T11:00", "2026-03-10T13:00")
        assert idle.whole.total is None

    def test_idle_needs_half_an_hour_and_all_signals(self, world: World) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=4)
        quiet: dict[str, Any] = {"gpu_util_percent": 1.0, "cpu_cores": 0.1}
        cases: dict[str, tuple[dict[str, Any], str, float | None]] = {
            "a quarter only": ({**quiet}, "10:15", 0.0),
            "half an hour": ({**quiet}, "10:30", 0.5),
            "busy network": (
                {**quiet, "net_rx_bytes_per_s": 60_000.0, "net_tx_bytes_per_s": 0.0},
                "12:00",
                0.0,
            ),
            "no word of the GPU": ({"cpu_cores": 0.1}, "12:00", None),
        }
        for number, (name, (values, end, _expected)) in enumerate(cases.items()):
            work = history.workload(world.vision, world.vera, template=name)
            held(work, node, day10("10:00", "12:00"), devices=1, first=number)
            measured(work, at("2026-03-10 10:00"), at(f"2026-03-10 {end}"), **values)
        found = ask(world.admin, "idle_gpu_hours", *DAY, group_by="template")
        assert totals(found) == {name: expected for name, (_, _, expected) in cases.items()}

    def test_a_short_run_across_a_quarter_is_not_idle(self, world: World) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=1)
        work = history.workload(world.vision, world.vera)
        held(work, node, day10("10:10", "10:20"), devices=1)
        quiet: dict[str, Any] = {"gpu_util_percent": 1.0, "cpu_cores": 0.1}
        measured(work, at("2026-03-10 10:10"), at("2026-03-10 10:20"), **quiet)
        assert ask(world.admin, "idle_gpu_hours", *DAY).whole.total == 0.0

    def test_cores_and_memory(self, world: World) -> None:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=0)
        work = history.workload(world.vision, world.vera, cpu_milli=4000, memory_mib=8192)
        held(work, node, day10("10:00", "12:00"))
        measured(
            work,
            at("2026-03-10 10:00"),
            at("2026-03-10 12:00"),
            cpu_cores=3.0,
            cpu_throttled_s_per_s=0.5,
            memory_mib=2048.0,
        )
        expected = {
            "used_core_hours": 6.0,
            "idle_core_hours": 2.0,
            "cpu_utilisation": 75.0,
            "throttled_s": 3600.0,
            "used_gib_hours": 4.0,
            "idle_gib_hours": 12.0,
            "memory_utilisation": 25.0,
        }
        assert {m: ask(world.admin, m, *DAY).whole.total for m in expected} == {
            m: pytest.approx(v) for m, v in expected.items()
        }


class TestWhoSeesWhat:
    @pytest.fixture
    def busy(self, world: World) -> World:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=4)
        colleague = make_member(world.vision, "viktor", Role.MANAGER)
        for number, (project, owner) in enumerate(
            [(world.vision, world.vera), (world.vision, colleague), (world.speech, world.sergey)]
        ):
            work = history.workload(project, owner, cpu_milli=100, memory_mib=64)
            held(work, node, day10("10:00", "11:00"), devices=1, first=number)
        return world

    def test_members_see_their_own_projects_and_one_total_of_others(self, busy: World) -> None:
        found = ask(busy.vera, "allocated_gpu_hours", *DAY, group_by="project")
        assert totals(found) == {"vision": 2.0, "others": 1.0, "unallocated": 93.0}
        found = ask(busy.vera, "allocated_gpu_hours", *DAY, group_by="user")
        assert totals(found) == {"vera": 1.0, "viktor": 1.0, "others": 1.0, "unallocated": 93.0}

    def test_cost_is_a_researchers_own(self, busy: World) -> None:
        found = ask(busy.vera, "cost", *DAY, group_by="project")
        assert totals(found) == {"vision": pytest.approx(45.0, abs=1)}
        assert found.is_restricted
        assert found.capacity is None

    def test_cost_is_a_managers_projects(self, busy: World) -> None:
        viktor = User.objects.get(username="viktor")
        found = ask(viktor, "cost", *DAY, group_by="user")
        assert set(totals(found)) == {"vera", "viktor"}
        found = ask(viktor, "cost", *DAY, group_by="kind")
        assert totals(found) == {"training": pytest.approx(90.0, abs=1)}

    def test_cost_by_kind_is_refused_to_a_researcher(self, busy: World) -> None:
        with pytest.raises(query.QueryError, match="told apart"):
            ask(busy.vera, "cost", *DAY, group_by="kind")

    def test_one_project_may_be_asked_for(self, busy: World) -> None:
        found = ask(busy.vera, "allocated_gpu_hours", *DAY, project="vision")
        assert totals(found) == {"all": 2.0}
        with pytest.raises(query.QueryError, match="speech"):
            ask(busy.vera, "cost", *DAY, project="speech")


def assert_same(one: Answer, other: Answer) -> None:
    """Equal but for the last digits: sums by hour and by quarter-hour round differently."""
    assert [s.key for s in one.series] == [s.key for s in other.series]
    for ours, theirs in zip((*one.series, one.whole), (*other.series, other.whole), strict=True):
        assert list(ours.values) == [
            None if value is None else pytest.approx(value) for value in theirs.values
        ]


class TestKeptDays:
    def test_kept_days_say_the_same_as_computed_ones(self, world: World) -> None:
        node = Cluster(at("2026-05-20")).node(world.t4, gpus=2)
        work = history.workload(world.vision, world.vera)
        held(work, node, span("2026-05-25 10:10", "2026-05-27 11:07"), devices=1)
        measured(work, at("2026-05-25 10:15"), at("2026-05-25 20:00"), gpu_util_percent=30.0)
        params = ("2026-05-24", "2026-05-29")

        def everything() -> list[object]:
            return [
                ask(world.admin, metric, *params, step="6h", tz="Asia/Kolkata", group_by=group)
                for metric, group in [
                    ("allocated_gpu_hours", "project"),
                    ("utilisation", "user"),
                    ("cost", "node"),
                    ("capacity_core_hours", "node_type"),
                ]
            ]

        before = everything()
        assert keeping.keep_days(NOW) == 13
        assert everything() == before
        assert UsageVector.objects.exists()
        assert keeping.keep_days(NOW) == 2, "only the day that runs and the one not yet settled"

    def test_kept_months_say_the_same_in_zones_of_whole_hours(self, world: World) -> None:
        node = Cluster(at("2026-03-20")).node(world.t4, gpus=2)
        work = history.workload(world.vision, world.vera)
        held(work, node, span("2026-03-25 10:10", "2026-04-27 11:07"), devices=1)
        measured(
            work,
            at("2026-04-10 10:15"),
            at("2026-04-10 20:00"),
            gpu_util_percent=30.0,
        )

        def everything() -> list[Answer]:
            return [
                ask(
                    world.admin,
                    metric,
                    "2026-03-01",
                    "2026-05-20",
                    step="1d",
                    tz=zone,
                    group_by=group,
                )
                for metric, group in [("allocated_gpu_hours", "user"), ("utilisation", "node")]
                for zone in ("Europe/Berlin", "Asia/Kathmandu")
            ]

        keeping.keep_days(NOW)
        before = everything()
        assert keeping.keep_months(NOW) == 2, "of May not all days are old enough"
        assert UsageMonthVector.objects.exists()
        assert len(everything()) == len(before)
        for one, other in zip(everything(), before, strict=True):
            assert_same(one, other)
        assert keeping.keep_months(NOW) == 0

    def test_late_samples_make_a_day_anew(self, world: World) -> None:
        node = Cluster(at("2026-05-30")).node(world.t4, gpus=1)
        work = history.workload(world.vision, world.vera)
        held(work, node, span("2026-05-30 10:00", "2026-05-30 11:00"), devices=1)
        keeping.keep_days(NOW)
        found = ask(world.admin, "utilisation", "2026-05-30", "2026-05-31").whole
        assert found.total is None
        measured(work, at("2026-05-30 10:00"), at("2026-05-30 11:00"), gpu_util_percent=70.0)
        RolledQuarter.objects.update(rolled_at=NOW + timedelta(seconds=1))
        keeping.keep_days(NOW + timedelta(seconds=2))
        assert ask(world.admin, "utilisation", "2026-05-30", "2026-05-31").whole.total == 70.0
        assert UsageDay.objects.count() == 3
