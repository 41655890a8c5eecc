"""Days and months that are kept say the same as computed ones."""

from __future__ import annotations

from datetime import timedelta

import pytest

from scheduling.analytics import keeping
from scheduling.analytics.answer import Answer
from scheduling.models import UsageDay, UsageMonthVector, UsageVector
from telemetry.models import RolledQuarter
from tests.scheduling import history
from tests.scheduling.history import Cluster, at, held, measured
from tests.scheduling.spring import NOW, World, ask, span, world

__all__ = ["world"]


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
