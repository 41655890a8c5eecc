"""Analytics of what was measured: use, idleness, cores and memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduling import history
from tests.scheduling.history import Cluster, at, held, measured
from tests.scheduling.spring import DAY, World, ask, day10, totals, world

__all__ = ["world"]


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
