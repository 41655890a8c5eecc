"""Analytics against histories computed by hand: zones, prices, downtime, borrowing."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from projects.models import (
    QuotaChange,
    WorkloadKind,
)
from projects.quotas import set_gpu_quota
from tests.scheduling import history
from tests.scheduling.history import Cluster, at, held, measured
from tests.scheduling.spring import DAY, NOW, World, ask, by_key, day10, span, totals, world

__all__ = ["world"]


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
