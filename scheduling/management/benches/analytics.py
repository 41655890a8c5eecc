"""How long charts over a year of a large cluster take, and how much room that year needs."""

from __future__ import annotations

import secrets
import shlex
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from django.utils import timezone

from projects.models import User
from scheduling.analytics import answer, keeping, query
from scheduling.analytics.metrics import METRICS, Group
from scheduling.management import first_start
from scheduling.management.benches.database import own_servers, sizes
from scheduling.management.benches.figures import (
    Bench,
    Report,
    at_least,
    figure,
    new_folder,
    repeat,
)
from scheduling.management.benches.year import Year, build, counted

TARGET_S = 0.3
TARGET_YEAR_GB = 60
ZONE = "Europe/Moscow"
LOGIN = "bench"

# A sample every 5 s, roll-ups per minute and quarter-hour; a workload per GPU and a node per eight.
RAW_DAYS, MINUTE_DAYS = 2, 30
SUBJECTS_PER_GPU = 2 + 1 / 8


@dataclass(frozen=True, slots=True)
class Chart:
    """One question; its figure is named after it."""

    metric: str
    group_by: str
    step: str = "1d"
    zone: str = ZONE
    days: int = 366

    @property
    def name(self) -> str:
        period = "" if self.days == 366 else f"_{self.days}d"
        zone = "" if self.zone == ZONE else f"_{self.zone.rpartition('/')[2].lower()}"
        return f"{self.metric}_by_{self.group_by}{period}{zone}_s"


CHARTS = (
    Chart("allocated_gpu_hours", "project"),
    Chart("allocated_gpu_hours", "user"),
    Chart("allocated_gpu_hours", "node"),
    Chart("allocated_gpu_hours", "template"),
    Chart("allocated_gpu_hours", "node_type", zone="Asia/Kathmandu"),
    Chart("allocated_gpu_hours", "project", step="15m", days=7),
    Chart("utilisation", "project"),
    Chart("utilisation", "user"),
    Chart("utilisation", "department", step="1h", days=31),
    Chart("borrowed_gpu_hours", "project"),
    Chart("allocation_ratio", "project"),
    Chart("requested_core_hours", "kind"),
    Chart("cpu_utilisation", "node"),
    Chart("memory_utilisation", "total"),
    Chart("peak_memory_gib", "project"),
    Chart("cost", "project"),
    Chart("cost", "department", step="1mo"),
    Chart("idle_cost", "user"),
    Chart("wait_s_p95", "project"),
    Chart("run_s_p50", "kind"),
    Chart("preemptions", "project"),
    Chart("lost_work_s", "user"),
    Chart("completion_s", "template"),
    Chart("cost_per_training", "project", step="1mo"),
)


def _measure(options: Mapping[str, Any]) -> Report:
    keep: Path | None = options["keep"]
    password = secrets.token_urlsafe(9)
    with own_servers(keep):
        admin = User.objects.create_superuser(LOGIN, password=password)
        started = time.monotonic()
        year = build(options["gpus"], options["days"], options["seed"])
        built_s = time.monotonic() - started
        now = timezone.now()
        started = time.monotonic()
        num_days = keeping.keep_days(now, budget_s=float("inf"))
        keeping.keep_months(now)
        kept_s = (time.monotonic() - started) / num_days
        _check(year, admin, now)
        figures = {}
        for chart in CHARTS:
            action = partial(_ask, chart, year, admin, now)
            times = repeat(_steps(action), options["runs"], options["warmup"])
            figures[chart.name] = figure(times.wall_s, "s", TARGET_S)
        slowest = max(figures.items(), key=lambda item: float(str(item[1]["median"])))
        figures["slowest_s"] = {**slowest[1]}
        figures["keep_day_s"] = figure([kept_s], "s")
        figures |= _room(options["gpus"], options["days"])
    if keep:
        login = f"  {LOGIN:<8} {password:<14} administrator"
        first_start.keep_secret(keep / "logins.txt", f"Login to the year:\n{login}")
    return Report(
        params={
            **{name: options[name] for name in ("gpus", "days", "seed")},
            "workloads": len(year.started),
        },
        figures=figures,
        phases={"build": round(built_s, 1)},
        note=f"To look at that year: ALLOT_VAR={shlex.quote(str(keep))} make run" if keep else "",
    )


def _steps(action: Callable[[], object]) -> Callable[[object], object]:
    """Without steps of its own."""
    return lambda _done: action()


def _ask(chart: Chart, year: Year, viewer: User, now: datetime) -> answer.Answer:
    until = year.until
    since = max(year.since, until - timedelta(days=chart.days))
    asked = query.Query(
        METRICS[chart.metric],
        Group(chart.group_by),
        since,
        until,
        chart.step,
        ZoneInfo(chart.zone),
    )
    return answer.run(asked, viewer, now)


def _check(year: Year, viewer: User, now: datetime) -> None:
    """The year's sum is that of its workloads, and of nothing else."""
    found = _ask(Chart("allocated_gpu_hours", "project"), year, viewer, now).whole.total or 0.0
    expected = float(((year.ended - year.started) * year.milli).sum()) / 1000 / 3600
    if abs(found - expected) > expected / 1000:
        raise AssertionError(f"{found} GPU-hours, but {expected} were held")


def _room(gpus: int, days: int) -> dict[str, dict[str, object]]:
    """What the year takes here, and would take with every roll-up and sample that is kept."""
    by_table = sizes("")
    quarters = counted("SELECT count(*) FROM telemetry_workload_quarter")
    per_quarter = by_table["telemetry_workload_quarter"] / quarters
    history = sum(size for name, size in by_table.items() if name.startswith("scheduling_"))
    subjects = SUBJECTS_PER_GPU * gpus
    rolled = subjects * (365 * 96 + MINUTE_DAYS * 1440) * per_quarter * 1.2
    raw = subjects * RAW_DAYS * 17_280 * 160
    return {
        "bytes_per_sample": figure([per_quarter], "B"),
        "year_gb": figure([(history * 365 / days + rolled + raw) / 1e9], "GB", TARGET_YEAR_GB),
    }


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--gpus", type=at_least(1), default=1000)
    parser.add_argument("--days", type=at_least(1), default=365)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=new_folder, metavar="FOLDER", help="leave the year there, to look at"
    )


BENCHES = {
    "analytics": Bench("charts over a year", _add_arguments, _measure, runs=5, warmup=1),
}
