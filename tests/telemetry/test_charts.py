"""Charts: what was measured, gaps where nothing was, words, units and zones."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import plotly
import pytest
from django.conf import settings
from django.template.loader import render_to_string
from django.test import Client
from django.utils import timezone

from projects.models import User
from telemetry import charts, cost, history
from telemetry.figures import Frame, Line, figure, wall, with_gaps, zone_label
from telemetry.ingestion import ingest
from telemetry.messages import Sample, SampleBatch
from telemetry.metrics import METRICS
from telemetry.models import SAMPLE_MODELS
from telemetry.texts import WORDS
from tests.telemetry.noon import DAY, NEXT_DAY, NOON


def store(subject: str, metric: str, values: Mapping[int, float | None]) -> None:
    """Store values by seconds before `NOON`."""
    samples = [Sample(subject, NOON.timestamp() - s, {metric: v}) for s, v in values.items()]
    ingest(SampleBatch("here", "n", str(hash(subject)), samples), nodes={"n"}, now=NOON)


def chart(subject: str, *metrics: str, minutes: int = 10, **options: object) -> charts.Chart:
    return charts.figure_for(subject, metrics, minutes, clock=lambda: NOON, **options)


class TestGaps:
    at = staticmethod(lambda s: NOON + timedelta(seconds=s))

    def test_a_silence_breaks_the_line(self) -> None:
        points = with_gaps([self.at(0), self.at(5), self.at(40)], [1.0, 2.0, 3.0], 15)
        assert [value for _, value in points] == [1.0, 2.0, None, 3.0]
        assert self.at(5) < points[2][0] < self.at(40)

    def test_samples_that_come_a_little_late_do_not(self) -> None:
        assert len(with_gaps([self.at(0), self.at(14)], [1.0, 2.0], 15)) == 2

    def test_no_data_stays_none_and_zero_stays_zero(self) -> None:
        frame = Frame(self.at(-60), self.at(0), ZoneInfo("UTC"), "%")
        points = with_gaps([self.at(0), self.at(5), self.at(10)], [0.0, None, 1.0], 15)
        (trace,) = figure([Line("GPU", points)], frame)["data"]
        assert list(trace["y"]) == [0.0, None, 1.0]
        assert trace["connectgaps"] is False


class TestZones:
    @pytest.mark.parametrize(
        ("zone", "label"),
        [
            ("Europe/Moscow", "Europe/Moscow (UTC+3)"),
            ("Asia/Kolkata", "Asia/Kolkata (UTC+5:30)"),
            ("America/St_Johns", "America/St_Johns (UTC−3:30)"),
            ("Pacific/Kiritimati", "Pacific/Kiritimati (UTC+14)"),
            ("Pacific/Pago_Pago", "Pacific/Pago_Pago (UTC−11)"),
        ],
    )
    def test_each_chart_names_its_zone(self, zone: str, label: str) -> None:
        assert zone_label(ZoneInfo(zone), NOON) == label

    def test_times_are_those_on_the_wall(self) -> None:
        assert wall(NOON, ZoneInfo("Europe/Moscow")) == f"{DAY}T15:00:00.000"
        assert wall(NOON, ZoneInfo("Pacific/Kiritimati")) == f"{NEXT_DAY}T02:00:00.000"


def test_every_metric_has_a_column_and_words() -> None:
    for kind, metrics in METRICS.items():
        names = [metric.name for metric in metrics]
        assert list(WORDS[kind]) == names or set(WORDS[kind]) == set(names)
        columns = {f.column for f in SAMPLE_MODELS[kind]._meta.concrete_fields}
        assert columns == {"subject_id", "at", *names}


def test_the_bundle_is_that_of_the_package() -> None:
    bundle = settings.STATICFILES_DIRS[0] / "vendor" / "plotly" / "plotly-basic.min.js"
    own = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    versions = {path.read_text()[:200].split("plotly.js")[1].split()[-1] for path in (own,)}
    head = bundle.read_text()[:200]
    assert all(version in head for version in versions)


@pytest.mark.django_db
class TestFigures:
    def test_shows_what_was_stored_in_the_unit_of_the_page(self) -> None:
        store("workload:w", "memory_mib", {20: 1024.0, 15: None, 10: 0.0, 5: 2048.0})
        shown = chart("workload:w", "memory_mib", zone="Asia/Kolkata")
        (trace,) = shown.payload["figure"]["data"]
        assert list(trace["y"]) == [1.0, None, 0.0, 2.0]
        assert trace["x"][-1] == f"{DAY}T17:29:55.000"
        assert (shown.unit, shown.zone, shown.has_data) == (
            "GiB",
            "Asia/Kolkata (UTC+5:30)",
            True,
        )
        assert shown.topics == ("telemetry:workload:w",)

    def test_a_stopped_collector_leaves_a_gap(self) -> None:
        store("device:d", "gpu_util_percent", {100: 50.0, 95: 50.0, 10: 40.0, 5: 40.0})
        (trace,) = chart("device:d", "gpu_util_percent").payload["figure"]["data"]
        assert list(trace["y"]) == [50.0, 50.0, None, 40.0, 40.0]

    def test_a_long_period_is_drawn_as_means_and_keeps_its_gaps(self) -> None:
        values = {s: 10.0 if s % 10 else 30.0 for s in range(0, 7200, 5) if not 3000 < s < 4000}
        store("device:d", "gpu_util_percent", values)
        shown = chart("device:d", "gpu_util_percent", minutes=1440)
        (trace,) = shown.payload["figure"]["data"]
        assert len(trace["y"]) < 1000
        assert trace["y"].count(None) == 1
        # Whole buckets hold as many 10s as 30s; those beside the gap and the ends are cut.
        assert [y for y in trace["y"][1:-1] if y is not None].count(20.0) > 40
        assert max(y for y in trace["y"] if y is not None) < 22.0

    def test_means_leave_out_what_has_no_data(self) -> None:
        store("device:d", "gpu_util_percent", {305: None, 300: 80.0, 5: None})
        since = NOON - timedelta(days=1)
        series = history.read("device:d", ["gpu_util_percent"], since, NOON)
        assert [v for v in series.columns["gpu_util_percent"] if v is not None] == [80.0]
        assert series.columns["gpu_util_percent"][-1] is None

    def test_what_was_watched_every_second_weighs_no_more(self) -> None:
        unwatched = dict.fromkeys(range(1000, 500, -5), 10.0)
        store("device:d", "gpu_util_percent", unwatched | dict.fromkeys(range(500, 0, -1), 20.0))
        for minutes, low, high in ((20, 10.0, 20.0), (600, 10.0, 20.0)):
            shown = chart("device:d", "gpu_util_percent", minutes=minutes)
            (trace,) = shown.payload["figure"]["data"]
            values = [y for y in trace["y"] if y is not None]
            assert (min(values), max(values)) == (low, high)
            assert sum(values) / len(values) == pytest.approx(15.0, abs=0.4)
            assert trace["y"].count(None) == 0

    def test_a_minute_watched_in_part_has_the_mean_over_its_time(self) -> None:
        store(
            "device:d",
            "gpu_util_percent",
            dict.fromkeys(range(60, 30, -5), 10.0) | dict.fromkeys(range(30, 0, -1), 20.0),
        )
        series = history.read("device:d", ["gpu_util_percent"], NOON - timedelta(hours=10), NOON)
        (mean,) = series.columns["gpu_util_percent"]
        assert mean == pytest.approx(15.0, abs=1.0)

    def test_nothing_yet_is_an_empty_chart(self) -> None:
        shown = chart("device:new", "gpu_util_percent")
        assert not shown.has_data
        assert list(shown.payload["figure"]["data"][0]["y"]) == []

    def test_lines_of_several_devices_are_told_apart(self) -> None:
        uuids = {f"GPU-{n}": f"GPU {n}" for n in range(8)}
        traces = charts.devices_chart(uuids).payload["figure"]["data"]
        looks = {(t["meta"]["series"], t["line"]["dash"]) for t in traces}
        assert len(looks) == 8
        assert [t["name"] for t in traces] == list(uuids.values())

    @pytest.mark.parametrize(
        ("subject", "metrics", "minutes", "options", "field"),
        [
            ("disk:a", ["cpu_cores"], 10, {}, "subject"),
            ("node:n", ["fan_rpm"], 10, {}, "metric"),
            ("node:n", [], 10, {}, "metric"),
            ("node:n", ["cpu_cores", "memory_mib"], 10, {}, "metric"),
            ("node:n", ["cpu_cores"], 0, {}, "minutes"),
            ("node:n", ["cpu_cores"], 527_041, {}, "minutes"),
            ("node:n", ["cpu_cores"], 10, {"zone": "Mars/Olympus"}, "zone"),
            ("node:n", ["cpu_cores"], 10, {"zone": "../../etc/passwd"}, "zone"),
        ],
    )
    def test_what_cannot_be_drawn_is_refused_by_field(
        self, subject: str, metrics: list[str], minutes: int, options: dict[str, str], field: str
    ) -> None:
        with pytest.raises(charts.ChartError, match=f"^{field} is ") as refused:
            charts.figure_for(subject, metrics, minutes, **options)
        assert refused.value.field == field

    def test_the_template_escapes_and_holds_its_data(self) -> None:
        shown = charts.devices_chart({"GPU-1": "</script><b>"})
        html = render_to_string("telemetry/_chart.html", {"chart": shown})
        assert "<b>" not in html
        assert 'data-topic="telemetry:device:GPU-1"' in html
        data = html.split('type="application/json">')[1].split("</script>")[0]
        assert json.loads(data)["minutes"] == charts.DEFAULT_MINUTES


@pytest.mark.django_db
class TestSeries:
    url = "/telemetry/series"

    def client(self, name: str = "anna") -> Client:
        client = Client()
        client.force_login(User.objects.create_user(name))
        return client

    def test_answers_with_what_the_page_draws(self) -> None:
        answer = self.client().get(self.url, {"subject": "node:n", "metric": "cpu_cores"})
        assert answer.status_code == 200
        assert answer.json()["figure"]["data"][0]["y"] == []
        assert answer.json()["lines"][0]["metric"] == "cpu_cores"

    @pytest.mark.parametrize(
        ("query", "status", "field"),
        [
            ({}, 400, "subject"),
            ({"subject": "node:n"}, 400, "metric"),
            ({"subject": "node:n", "metric": "cpu_cores", "minutes": "-5"}, 400, "minutes"),
            ({"subject": "node:n", "metric": "cpu_cores", "minutes": "9" * 5000}, 400, "minutes"),
            ({"subject": "node:n", "metric": "cpu_cores", "minutes": "٣"}, 400, "minutes"),
            ({"subject": "node:\x00", "metric": "cpu_cores"}, 400, "subject"),
            ({"subject": "workload:w", "metric": "cpu_cores"}, 403, "subject"),
        ],
    )
    def test_bad_questions_name_their_field(
        self, query: dict[str, str], status: int, field: str
    ) -> None:
        answer = self.client().get(self.url, query)
        assert (answer.status_code, answer.json()["field"]) == (status, field)
        if field == "minutes":
            assert repr(query["minutes"][:80]) in answer.json()["error"]

    def test_the_same_figures_come_as_csv(self) -> None:
        now = timezone.now().timestamp()
        samples = [
            Sample("node:n", now - 20, {"cpu_cores": 1.5}),
            Sample("node:n", now - 10, {"cpu_cores": None}),
        ]
        ingest(SampleBatch("z", "n", "b", samples), nodes={"n"})
        query = {"subject": "node:n", "metric": "cpu_cores", "zone": "UTC"}
        answer = self.client().get(self.url, query | {"format": "csv"})
        assert answer["Content-Type"] == "text/csv; charset=utf-8"
        headings, *rows = csv.reader(io.StringIO(answer.content.decode()))
        assert headings == ["Time, UTC (UTC+0)", "CPU, cores"]
        drawn = self.client("boris").get(self.url, query).json()["figure"]["data"][0]
        shown = [
            [at, "" if y is None else f"{y:g}"]
            for at, y in zip(drawn["x"], drawn["y"], strict=True)
        ]
        assert rows == shown
        assert "1.5" in {row[1] for row in rows}

    def test_lines_of_several_subjects_are_told_apart(self) -> None:
        query = {"subject": ["device:a", "device:b"], "metric": "gpu_util_percent"}
        answer = self.client().get(self.url, query | {"format": "csv"})
        (headings,) = csv.reader(io.StringIO(answer.content.decode()))
        assert headings[1:] == ["device:a, %", "device:b, %"]

    def test_needs_a_login(self) -> None:
        assert Client().get(self.url).status_code == 302


class TestCost:
    class Prices:
        gpu_price_per_hour = Decimal("0.90")
        cpu_price_per_hour = Decimal("0.03")
        memory_price_per_hour = Decimal("0.004")

    def test_a_third_of_a_gpu_with_two_cores_and_two_gib(self) -> None:
        per_hour = cost.cost_per_hour(333, 2000, 2048, self.Prices())
        assert per_hour == Decimal("0.2997") + Decimal("0.06") + Decimal("0.008")

    def test_work_without_a_gpu_costs_too(self) -> None:
        assert cost.cost_per_hour(0, 500, 0, self.Prices()) == Decimal("0.015")

    def test_negative_amounts_are_refused(self) -> None:
        with pytest.raises(ValueError, match="0 or more"):
            cost.cost_per_hour(-1, 0, 0, self.Prices())

    def test_the_page_holds_what_a_browser_needs_to_go_on(self) -> None:
        now = cost.CostNow("1.23 RUB", Decimal("1.23456"), Decimal("0.5"), NOON, "telemetry:node:n")
        html = render_to_string("telemetry/_running_cost.html", {"cost": now})
        assert ">1.23 RUB<" in html
        assert 'data-cost-amount="1.23456"' in html
        assert f'data-cost-at="{NOON.timestamp()}"' in html

    def test_a_cost_that_no_longer_grows_listens_to_nothing(self) -> None:
        html = render_to_string(
            "telemetry/_running_cost.html",
            {"cost": cost.CostNow("1.23 RUB", Decimal("1.23"), Decimal(0), NOON)},
        )
        assert "data-" not in html
