"""The benches of telemetry at a small size: they check sums and counts themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from django.conf import settings


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
    command = [sys.executable, "manage.py", "bench", name, "--runs", "1", "--warmup", "0", "--json"]
    done = subprocess.run(
        [*command, *options],
        cwd=settings.BASE_DIR,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report: Any = json.loads(done.stdout)
    assert (report["format"], report["bench"]) == ("bench/1", name)
    assert figures <= report["figures"].keys()
    assert all(figure["median"] > 0 for figure in report["figures"].values())
