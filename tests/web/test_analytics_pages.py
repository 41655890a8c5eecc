"""Analytics as a page: what is drawn, named and refused, and that it equals the answer itself."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import translation

from projects.models import User
from scheduling import palette
from scheduling.analytics import answer, query
from scheduling.analytics.metrics import METRICS
from scheduling.views.figures import place
from tests.factories import make_project
from tests.scheduling.history import Cluster, held, workload
from tests.web.history_scene import DAY, NEXT, NOW, Past, make_past

pytestmark = pytest.mark.django_db

FROM, TO = DAY.date().isoformat(), NEXT.date().isoformat()
PERIOD = f"from={FROM}&to={TO}&tz=UTC"


@pytest.fixture
def past() -> Past:
    return make_past()


def opened(user: User, address: str, language: str = "en") -> Any:
    client = Client(headers={"Accept-Language": language})
    client.force_login(user)
    return client.get(address)


def text_of(response: Any) -> str:
    return str(response.content.decode())


def figure_of(response: Any) -> dict[str, Any]:
    found = re.search(r'<script id="analytics-data"[^>]*>(.*?)</script>', text_of(response), re.S)
    assert found is not None
    figure: dict[str, Any] = json.loads(found.group(1))
    return figure


def traces_of(response: Any) -> dict[str, dict[str, Any]]:
    """As the script completes them."""
    figure = figure_of(response)
    shared = figure["shared"]
    return {
        trace["meta"]["key"]: {
            **shared,
            **trace,
            "marker": {**shared["marker"], **trace.get("marker", {})},
        }
        for trace in figure["data"]
    }


def test_a_stranger_must_log_in() -> None:
    assert Client().get("/analytics").status_code == 302


@pytest.mark.parametrize("language", ["en", "ru"])
def test_without_any_choice_it_shows_the_last_week_by_project(past: Past, language: str) -> None:
    response = opened(past.vera, "/analytics", language)
    assert response.status_code == 200
    assert "Europe/Moscow (UTC+3)" in text_of(response)


def test_bars_are_the_answers_values_and_add_up_to_capacity(past: Past) -> None:
    address = f"/analytics?metric=allocated_gpu_hours&group_by=project&step=1h&{PERIOD}"
    traces = traces_of(opened(past.admin, address))
    params = {"metric": "allocated_gpu_hours", "group_by": "project", "step": "1h", "tz": "UTC"}
    params |= {"from": FROM, "to": TO}
    found = answer.run(query.read(params, NOW, past.admin), past.admin, NOW)
    for one in found.series:
        assert traces[one.key]["y"] == pytest.approx(list(one.values), rel=1e-5)
    assert len(traces) == len(found.series)
    assert [sum(column) for column in zip(*(t["y"] for t in traces.values()), strict=True)] == (
        pytest.approx([4.0] * 24)
    )


def test_where_nothing_was_measured_the_line_has_a_gap_and_the_coverage_says_so(past: Past) -> None:
    address = f"/analytics?metric=utilisation&group_by=project&step=6h&{PERIOD}"
    response = opened(past.admin, address)
    assert traces_of(response)["vision"]["y"] == pytest.approx([60, 60, None, None])
    assert traces_of(response)["vision"]["connectgaps"] is False
    assert "measured: 50" in text_of(response)


def test_a_project_has_one_colour_whatever_is_asked(past: Past) -> None:
    tint = palette.project_tints_by_name()["speech"]
    for metric in ("allocated_gpu_hours", "utilisation", "idle_gpu_hours"):
        for project in ("", "&project=speech"):
            address = f"/analytics?metric={metric}&group_by=project&{PERIOD}{project}"
            assert traces_of(opened(past.admin, address))["speech"]["meta"]["series"] == tint.series


def test_colours_do_not_change_as_projects_come() -> None:
    for number in range(8):
        make_project(f"first-{number}")
    before = palette.project_tints_by_name()
    make_project("aaa-later")
    after = palette.project_tints_by_name()
    assert {name: after[name] for name in before} == before
    assert len(set(before.values())) == 8


def test_who_may_not_see_a_project_sees_others_as_one(past: Past) -> None:
    response = opened(past.vera, f"/analytics?{PERIOD}")
    assert set(traces_of(response)) == {"vision", "others", "unallocated"}
    assert "Speech" not in text_of(response)


def test_a_bucket_cut_by_the_period_is_paler_and_marked(past: Past) -> None:
    address = f"/analytics?step=1d&from={FROM}T06:00&to={NEXT + timedelta(days=1):%Y-%m-%d}&tz=UTC"
    response = opened(past.admin, address)
    assert traces_of(response)["vision"]["marker"]["opacity"] == [0.45, 1]
    assert "not whole" in text_of(response)


def test_closed_eyes_are_in_the_address(past: Past) -> None:
    response = opened(past.admin, f"/analytics?{PERIOD}&hide=unallocated")
    traces = traces_of(response)
    assert traces["unallocated"]["visible"] is False
    assert traces["vision"]["visible"] is True
    assert text_of(response).count('aria-pressed="false"') >= 1


def test_many_projects_are_drawn_as_the_largest_and_one_more(past: Past) -> None:
    node = Cluster(since=DAY).node(past.t4)
    for number in range(20):
        work = workload(make_project(f"small-{number}"), past.vera)
        held(work, node, (DAY, DAY + timedelta(hours=1)), devices=1, milli=10)
    traces = traces_of(opened(past.admin, f"/analytics?{PERIOD}&step=1d"))
    assert len(traces) == 14
    assert sum(trace["y"][0] for trace in traces.values()) == pytest.approx(4 * 24 + 4 * 24)


@pytest.mark.parametrize(
    ("address", "field", "words"),
    [
        (f"from={TO}&to={FROM}", "from", "ends at"),
        ("from=2015-01-01&to=2025-01-01", "from", "at most 366"),
        ("from=2199-01-01&to=2199-02-01", "from", "now it is"),
        ("from=yesterday", "from", "yesterday"),
        ("tz=Mars/Olympus", "tz", "Mars/Olympus"),
        ("tz=../../etc/passwd", "tz", "No time zone"),
        ("tz=Mars/Olympus&period=month", "tz", "Mars/Olympus"),
        ("metric=luck", "metric", "luck"),
        ("group_by=star", "group_by", "star"),
        ("step=1s", "step", "1s"),
        ("period=90d&step=15m", "step", "at most 1000"),
        ("project=secret", "project", "secret"),
    ],
    # The same in every process, also around midnight.
    ids=map(str, range(12)),
)
def test_what_is_wrong_is_said_at_its_field(
    past: Past, address: str, field: str, words: str
) -> None:
    response = opened(past.vera, f"/analytics?{address}")
    assert response.status_code == 422
    error = re.search(rf'id="{field}-error"[^>]*>([^<]*)<', text_of(response))
    assert error is not None
    assert words in error.group(1)
    assert f'aria-describedby="{field}-error"' in text_of(response)
    assert Client().get(f"/analytics/csv?{address}").status_code == 302
    assert opened(past.vera, f"/analytics/csv?{address}").status_code == 422


def test_hostile_text_stays_text(past: Past) -> None:
    response = opened(past.vera, "/analytics?tz=<script>alert(1)</script>&metric=<b>x")
    assert "<script>alert" not in text_of(response)
    assert "<b>x" not in text_of(response)


def test_csv_is_the_same_answer(past: Past) -> None:
    address = f"?metric=allocated_gpu_hours&group_by=project&step=1d&{PERIOD}"
    response = opened(past.admin, f"/analytics/csv{address}")
    assert response["Content-Type"].startswith("text/csv")
    headings, row = csv.reader(io.StringIO(text_of(response)))
    values = dict(zip(headings, row, strict=True))
    assert float(values["Vision"]) == pytest.approx(48)
    assert float(values["Unallocated"]) == pytest.approx(36)


def test_metrics_names_begin_alike(past: Past) -> None:
    for language in ("en", "ru"):
        with translation.override(language):
            names = [str(metric.title) for metric in METRICS.values()]
        assert [name for name in names if not name[0].isupper()] == []


def test_a_long_period_is_drawn_in_bars_that_can_be_told_apart(past: Past) -> None:
    since = (NOW - timedelta(days=300)).date()
    found = opened(
        past.admin, f"/analytics?metric=allocated_gpu_hours&from={since}&tz=UTC"
    ).context["chart"]
    assert found.num_buckets == pytest.approx(300 / 7, abs=2)


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "Asia/Kathmandu"])
def test_days_are_those_of_the_named_zone(past: Past, zone: str) -> None:
    address = f"/analytics?step=1d&from={FROM}&to={TO}&tz={zone}"
    trace = traces_of(opened(past.admin, address))["unallocated"]
    assert trace["x"] == [f"{FROM}T00:00:00"]
    assert trace["width"] == [24 * 3600 * 1000]


def test_an_hour_that_comes_twice_is_drawn_as_two_halves() -> None:
    zone = ZoneInfo("Europe/Berlin")
    begin = datetime(2026, 10, 24, 23, 0, tzinfo=UTC)
    places = [place(begin + timedelta(minutes=15 * number), zone) for number in range(16)]
    assert places == sorted(places)
    assert len(set(places)) == 16
    assert (
        place(datetime(2026, 10, 25, 0, 0, tzinfo=UTC), zone).isoformat() == "2026-10-25T02:00:00"
    )
    assert (
        place(datetime(2026, 10, 25, 1, 0, tzinfo=UTC), zone).isoformat() == "2026-10-25T02:30:00"
    )
    assert (
        place(datetime(2026, 10, 25, 2, 0, tzinfo=UTC), zone).isoformat() == "2026-10-25T03:00:00"
    )


def test_without_scripts_there_is_a_table(past: Past) -> None:
    page = text_of(opened(past.admin, f"/analytics?step=1d&{PERIOD}"))
    table = page[page.index('id="analytics-table"') :]
    assert "<summary>" in table
    assert re.search(r'<td class="number">48</td>', table)
