"""Roll-ups: means over time, coverage, late samples, and what is dropped when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from psycopg import sql

from telemetry import history, partitions, rollups, tasks
from telemetry.ingestion import ingest
from telemetry.messages import Sample, SampleBatch
from telemetry.metrics import Kind
from telemetry.models import Batch, RolledQuarter

START = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
LATER = START + timedelta(hours=2)


def send(
    *samples: tuple[float, float | None], number: str = "b1", metric: str = "cpu_cores"
) -> None:
    """Store (seconds after START, value) of one workload."""
    batch = [Sample("workload:w", START.timestamp() + at, {metric: v}) for at, v in samples]
    ingest(SampleBatch("here", "n", number, batch), nodes={"n"}, now=LATER)


def every(step_s: float, since_s: float, until_s: float, value: float) -> list[tuple[float, float]]:
    count = round((until_s - since_s) / step_s)
    return [(since_s + step_s * n, value) for n in range(count)]


def rolled(width: timedelta, column: str = "cpu_cores") -> dict[int, tuple[float | None, int]]:
    """(mean, seconds covered) by seconds after START."""
    query = sql.SQL("SELECT at, {}, {} FROM {} ORDER BY at").format(
        sql.Identifier(column),
        sql.Identifier(f"{column}_s"),
        sql.Identifier(rollups.table_of(Kind.WORKLOAD, width)),
    )
    with connection.cursor() as cursor:
        cursor.execute(query)
        return {int((at - START).total_seconds()): (m, s) for at, m, s in cursor.fetchall()}


@pytest.mark.django_db
class TestRollingUp:
    def test_a_minute_is_the_mean_of_its_samples(self) -> None:
        send(*every(5, 0, 30, 1.0), *every(5, 30, 60, 3.0))
        assert rollups.roll_up_new(now=LATER) >= 1
        assert rolled(rollups.MINUTE)[0] == (2.0, 60)
        assert rolled(rollups.QUARTER) == {0: (2.0, 60)}

    def test_a_silence_is_not_covered_and_is_no_zero(self) -> None:
        send(*every(5, 0, 60, 2.0), (300.0, 2.0))
        rollups.roll_up_new(now=LATER)
        minutes = rolled(rollups.MINUTE)
        assert minutes[0] == (2.0, 60)
        assert 60 not in minutes
        assert minutes[300] == (2.0, 5)
        assert rolled(rollups.QUARTER)[0] == (2.0, 65)

    def test_samples_without_the_value_cover_nothing(self) -> None:
        send(*every(5, 0, 30, 4.0), *[(at, None) for at, _ in every(5, 30, 60, 0.0)])
        rollups.roll_up_new(now=LATER)
        assert rolled(rollups.MINUTE)[0] == (4.0, 30)

    def test_no_data_at_all_is_null_and_covers_nothing(self) -> None:
        send((0.0, None))
        rollups.roll_up_new(now=LATER)
        assert rolled(rollups.MINUTE)[0] == (None, 0)
        assert rolled(rollups.QUARTER)[0] == (None, 0)

    def test_more_samples_a_second_weigh_no_more(self) -> None:
        send(*every(5, 0, 30, 1.0), *every(1, 30, 60, 3.0))
        rollups.roll_up_new(now=LATER)
        mean, covered = rolled(rollups.MINUTE)[0]
        assert mean == pytest.approx(2.0, abs=0.1)
        assert covered == 60

    def test_late_samples_roll_their_bucket_anew(self) -> None:
        send(*every(5, 0, 30, 1.0))
        rollups.roll_up_new(now=LATER)
        assert rolled(rollups.MINUTE)[0] == (1.0, 30)
        send(*every(5, 30, 60, 3.0), number="late")
        rollups.roll_up_new(now=LATER + timedelta(minutes=5))
        assert rolled(rollups.MINUTE)[0] == (2.0, 60)
        assert RolledQuarter.objects.get().rolled_at == LATER + timedelta(minutes=5)

    def test_once_rolled_there_is_nothing_to_do(self) -> None:
        send(*every(5, 0, 60, 1.0))
        rollups.roll_up_new(now=LATER)
        assert rollups.roll_up_new(now=LATER) == 0
        assert not Batch.objects.filter(is_rolled=False).exists()

    def test_a_minute_that_still_runs_waits(self) -> None:
        send(*every(5, 0, 30, 1.0))
        assert rollups.roll_up_new(now=START + timedelta(seconds=65)) == 0
        assert rollups.roll_up_new(now=START + timedelta(seconds=71)) >= 1

    def test_a_long_backlog_is_cut_by_the_budget_and_goes_on(self) -> None:
        clock = iter([0.0, 100.0])
        send(*every(5, 0, 60, 1.0))
        assert rollups.roll_up_new(now=LATER, budget_s=1.0, clock=lambda: next(clock)) >= 1

    def test_the_peak_stays_a_peak(self) -> None:
        send((0.0, 10.0), (5.0, 90.0), (70.0, 20.0), metric="memory_mib")
        rollups.roll_up_new(now=LATER)
        with connection.cursor() as cursor:
            cursor.execute("SELECT memory_mib_peak FROM telemetry_workload_quarter")
            assert cursor.fetchall() == [(90.0,)]

    def test_charts_of_long_periods_read_roll_ups(self) -> None:
        send(*every(5, 0, 60, 2.0), *every(5, 60, 120, 4.0))
        rollups.roll_up_new(now=LATER)
        series = history.read("workload:w", ["cpu_cores"], START - timedelta(days=2), LATER)
        assert series.width_s >= 60
        assert [v for v in series.columns["cpu_cores"] if v is not None] == [
            pytest.approx(3.0, abs=0.1)
        ]


@pytest.mark.django_db
def test_minutes_are_dropped_after_a_month_and_quarters_stay() -> None:
    old = datetime.now(UTC) - timedelta(days=40)
    partitions.ensure_days([old.date()], partitions.MINUTE_TABLES)
    partitions.ensure_months([old.date()])
    tasks.expire()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT to_regclass(%s) IS NULL, to_regclass(%s) IS NOT NULL",
            [f"telemetry_device_minute_{old:%Y%m%d}", f"telemetry_device_quarter_{old:%Y%m}"],
        )
        assert cursor.fetchone() == (True, True)
