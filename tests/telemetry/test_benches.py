"""The benches of telemetry at a small size: they check sums and counts themselves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from scheduling.management.stack import Stack, until


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, as sockets want it, and passable for servers and workloads of other users."""
    made = Path(tempfile.mkdtemp(prefix="allot-t-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def bench(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run one once."""
    command = [sys.executable, "manage.py", "bench", name, "--runs", "1", "--warmup", "0"]
    return subprocess.run(
        [*command, *options],
        cwd=settings.BASE_DIR,
        env=os.environ,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("name", "options", "figures"),
    [
        (
            "ingest",
            ["--devices", "16", "--seconds", "60", "--backlog", "6"],
            {"samples_per_s", "lag_s", "bytes_per_sample", "roll_up_minute_s"},
        ),
        (
            "analytics",
            ["--gpus", "80", "--days", "4"],
            {"allocated_gpu_hours_by_project_s", "slowest_s", "bytes_per_sample", "year_gb"},
        ),
    ],
    ids=["ingest", "analytics"],
)
def test_figures_come_in_their_format(name: str, options: list[str], figures: set[str]) -> None:
    done = bench(name, "--json", *options)
    assert done.returncode == 0, done.stderr
    report: Any = json.loads(done.stdout)
    assert (report["format"], report["bench"]) == ("bench/1", name)
    assert figures <= report["figures"].keys()
    assert all(figure["median"] > 0 for figure in report["figures"].values())


def test_a_year_that_is_kept_opens(folder: Path) -> None:
    """The folder is a data folder: its pages and its API show what the bench wrote down."""
    kept = folder / "year"
    done = bench("analytics", "--gpus", "24", "--days", "3", "--keep", str(kept))
    assert done.returncode == 0, done.stderr
    assert f"ALLOT_VAR={kept} make run" in done.stdout
    stack = Stack(var=kept, run=folder / "run")
    try:
        stack.start()
        with stack.client("bench") as client:
            today = datetime.now(UTC).date()
            asked = {
                "metric": "allocated_gpu_hours",
                "group_by": "department",
                "from": str(today - timedelta(days=3)),
                "to": str(today),
                "tz": "UTC",
            }
            found = client.get("/api/v1/analytics", params=asked).json()
            assert found["capacity"]["total"] == pytest.approx(24 * 72)
            page = client.get("/analytics", params=asked)
            assert page.status_code == 200
            assert "department-0" in page.text
            assert "of quota" in client.get("/").text
        # And life goes on there: the machine's own simulated nodes are measured.
        samples = "SELECT 1 FROM telemetry_nodesample LIMIT 1"
        until(lambda: stack.rows(samples), "samples are taken in")
    finally:
        stack.stop()


def test_a_year_is_not_kept_where_something_is(folder: Path) -> None:
    refused = bench("analytics", "--keep", str(folder))
    assert refused.returncode != 0
    assert f"{folder} exists: name a folder that does not" in refused.stderr
