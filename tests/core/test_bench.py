"""`manage.py bench`: the form of its figures, on a cluster small enough for a test."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from scheduling.core.cycle import plan
from scheduling.core.types import Policy
from scheduling.management.benches.cluster import Size, build
from scheduling.management.benches.figures import figure
from scheduling.management.benches.planner import check
from tests.core.invariants import check_plan

SMALL = {"nodes": 12, "running": 40, "pending": 60, "projects": 20}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cycle", {"cycle_s", "cycle_cpu_s", "placements_per_s", "peak_rss_mib"}),
        (
            "incremental",
            {
                "decide_s",
                "decide_cpu_s",
                "decided_by_full_cycle",
                "followed_by_full_cycle",
                "peak_rss_mib",
            },
        ),
        ("reclaim", {"decide_s", "full_cycle_s", "peak_rss_mib"}),
    ],
)
def test_figures(name: str, expected: set[str]) -> None:
    out = io.StringIO()
    options = {**SMALL, "runs": 2, "warmup": 1, "json": True}
    call_command("bench", name, **options, stdout=out)
    report = json.loads(out.getvalue())
    assert (report["format"], report["bench"]) == ("bench/1", name)
    assert (report["runs"], report["warmup"]) == (2, 1)
    assert set(report["figures"]) == expected
    assert report["params"]["nodes"] == 12
    for values in report["figures"].values():
        assert values["min"] <= values["median"] <= values["max"]
        assert values["unit"]


def test_table() -> None:
    out = io.StringIO()
    call_command("bench", "reclaim", **SMALL, runs=1, warmup=0, stdout=out)
    assert out.getvalue().startswith("decide_s")


def test_the_same_seed_makes_the_same_cluster() -> None:
    size = Size(nodes=6, running=20, pending=20, projects=10, seed=7)
    assert build(size) == build(size)


def test_the_plan_for_it_holds_all_invariants() -> None:
    snapshot = build(Size(nodes=20, running=80, pending=120, projects=20, seed=3))
    for _ in range(3):
        decided = plan(snapshot, Policy(), 0.0)
        check(snapshot, decided)
        snapshot = check_plan(snapshot, decided)


def test_the_99th_percentile_of_few_is_the_largest() -> None:
    assert figure([3.0, 1.0, 2.0], "s")["p99"] == 3.0


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("cycle", "--nodes", "0"), ("reclaim", "--pending", "-5"), ("swap", "--wakes", "-1")],
)
def test_a_size_that_cannot_be_is_refused_by_name(name: str, option: str, value: str) -> None:
    with pytest.raises(CommandError, match=f"{option}: {value} is less than"):
        call_command("bench", name, f"{option}={value}")
