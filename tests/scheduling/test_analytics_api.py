"""Analytics for programs: JSON, CSV, and what is wrong with a question."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from django.test import Client

from projects import tokens
from projects.models import User
from scheduling.analytics.table import harmless
from tests.factories import make_member, make_node_type, make_project
from tests.scheduling import history
from tests.scheduling.history import Cluster, at, held, measured

pytestmark = pytest.mark.django_db
PERIOD = {"from": "2026-03-10", "to": "2026-03-12", "tz": "Europe/Moscow", "step": "1d"}


@pytest.fixture
def vera() -> User:
    t4 = make_node_type("t4")
    vision = make_project("vision")
    vision.title = "=HYPERLINK(1)"
    vision.save()
    vera = make_member(vision, "vera")
    node = Cluster(at("2026-03-10 21:00")).node(t4, gpus=2)
    work = history.workload(vision, vera)
    held(work, node, (at("2026-03-11 10:00"), at("2026-03-11 12:00")), devices=1)
    measured(work, at("2026-03-11 10:00"), at("2026-03-11 11:00"), gpu_util_percent=40.0)
    return vera


def get(
    user: User, path: str = "analytics", accept: str = "application/json", **params: str
) -> Any:
    secret = tokens.issue(user, name="tests").secret
    client = Client(headers={"Authorization": f"Bearer {secret}", "Accept": accept})
    return client.get(f"/api/v1/{path}", params)


def test_an_answer_names_zone_steps_and_what_is_missing(vera: User) -> None:
    found = get(vera, metric="allocated_gpu_hours", group_by="project", **PERIOD).json()
    assert found["time_zone"] == "Europe/Moscow"
    assert [bucket["start"] for bucket in found["buckets"]] == [
        "2026-03-10T00:00:00+03:00",
        "2026-03-11T00:00:00+03:00",
    ]
    series = {one["key"]: one["values"] for one in found["series"]}
    assert series == {"vision": [None, 2.0], "unallocated": [None, 46.0]}
    assert found["capacity"]["total"] == 48.0


def test_a_question_that_is_wrong_changed_nothing_and_does_not_say_so(vera: User) -> None:
    problem = get(vera, metric="nonsense").json()
    assert problem["code"] == "invalid_fields"
    assert problem["detail"] == "Some parameters are wrong."


def test_coverage_stands_beside_what_samples_tell(vera: User) -> None:
    found = get(vera, metric="utilisation", **PERIOD).json()["whole"]
    assert found["values"] == [None, 40.0]
    assert found["coverage"] == [None, 0.5]


def test_csv_says_the_same_and_no_data_is_empty(vera: User) -> None:
    answer = get(
        vera, accept="text/csv", metric="allocated_gpu_hours", group_by="project", **PERIOD
    )
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer["Content-Disposition"]
    rows = list(csv.reader(io.StringIO(answer.content.decode())))
    assert rows[0][3:] == ["'=HYPERLINK(1)", "Unallocated"]
    assert [row[0] for row in rows[1:]] == [
        "2026-03-10T00:00:00+03:00",
        "2026-03-11T00:00:00+03:00",
    ]
    assert [row[3:] for row in rows[1:]] == [["", ""], ["2", "46"]]


def test_csv_for_spreadsheets_has_a_mark_and_semicolons(vera: User) -> None:
    answer = get(vera, accept="text/csv", metric="cost", spreadsheet="1", **PERIOD)
    text = answer.content.decode()
    assert text.startswith("\ufefffrom;to;partial;")


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+7 900", "'+7 900"),
        ("@sum", "'@sum"),
        ("-cmd", "'-cmd"),
        ("\t=1", "'\t=1"),
        ("-1.5", "-1.5"),
        ("vision", "vision"),
        ("", ""),
    ],
)
def test_no_cell_is_a_formula(cell: str, written: str) -> None:
    assert harmless(cell) == written


@pytest.mark.parametrize(
    ("params", "field", "code"),
    [
        ({"metric": "happiness"}, "metric", "unknown_metric"),
        ({}, "metric", "unknown_metric"),
        ({"group_by": "colour"}, "group_by", "unknown_group"),
        ({"metric": "capacity_gpu_hours", "group_by": "user"}, "group_by", "unknown_group"),
        ({"tz": "Mars/Olympus"}, "tz", "unknown_time_zone"),
        ({"tz": "../../etc/passwd"}, "tz", "unknown_time_zone"),
        ({"from": "2026-03-12", "to": "2026-03-10"}, "from", "period_reversed"),
        ({"from": "2026-03-10", "to": "2026-03-10"}, "from", "period_reversed"),
        ({"from": "2016-03-10", "to": "2026-03-10"}, "from", "period_too_long"),
        ({"from": "2090-03-10", "to": "2090-03-11"}, "from", "period_in_future"),
        ({"from": "yesterday"}, "from", "invalid_time"),
        ({"from": "0001-01-01"}, "from", "too_early"),
        ({"from": "1999-12-31T23:59+14:00"}, "from", "too_early"),
        ({"to": "9999-12-31"}, "to", "too_late"),
        ({"to": "2026-02-30"}, "to", "invalid_time"),
        ({"step": "5m"}, "step", "invalid_choice"),
        (
            {"from": "2025-06-01", "to": "2026-05-01", "step": "15m"},
            "step",
            "too_many_points",
        ),
        ({"project": "speech"}, "project", "unknown_project"),
    ],
)
def test_a_wrong_question_is_refused_by_field(
    vera: User, params: dict[str, str], field: str, code: str
) -> None:
    given = {"metric": "cost", **params} if params else params
    answer = get(vera, **given)
    assert answer.status_code == 422
    assert answer["Content-Type"] == "application/problem+json"
    found = {error["field"]: error for error in answer.json()["errors"]}
    assert found[field]["code"] == code
    value = "3652 days" if code == "period_too_long" else params.get(field, "")
    assert value[:4] in found[field]["message"]


def test_a_wrong_period_is_told_in_the_zone_that_was_asked_for(vera: User) -> None:
    period = {"from": "2026-03-12", "to": "2026-03-10", "tz": "Europe/Moscow"}
    (error,) = get(vera, metric="cost", **period).json()["errors"]
    begins, ends = "2026-03-12T00:00+03:00", "2026-03-10T00:00+03:00"
    assert error["message"] == f"The period begins at {begins} and ends at {ends}."
    assert error["limit"] == ends


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("en", "“1970-01-01” is too early: nothing was recorded before 2000-01-01."),
        ("ru", "«1970-01-01» — слишком рано: до 2000-01-01 ничего не записано."),
    ],
)
def test_what_is_too_early_is_told_with_the_earliest(vera: User, language: str, words: str) -> None:
    client = Client(headers={"Accept-Language": language})
    client.force_login(vera)
    answer = client.get("/api/v1/analytics", {"metric": "cost", "from": "1970-01-01"})
    (error,) = answer.json()["errors"]
    assert (error["message"], error["limit"]) == (words, "2000-01-01")


def test_everything_wrong_is_said_at_once(vera: User) -> None:
    answer = get(vera, metric="x", group_by="y", tz="z", step="w", to="v")
    assert {error["field"] for error in answer.json()["errors"]} == {
        "metric",
        "group_by",
        "tz",
        "step",
        "to",
    }


def test_errors_are_problems_whatever_was_asked_for(vera: User) -> None:
    answer = get(vera, accept="text/csv", metric="x")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "metric"


def test_a_time_may_have_an_offset_or_be_the_zones(vera: User) -> None:
    one = get(vera, metric="cost", **{**PERIOD, "from": "2026-03-11T00:00:00+03:00"}).json()
    two = get(vera, metric="cost", **{**PERIOD, "from": "2026-03-11T00:00"}).json()
    assert one["start"] == two["start"] == "2026-03-11T00:00:00+03:00"


def test_strangers_get_nothing() -> None:
    assert Client().get("/api/v1/analytics?metric=cost").status_code == 401
    assert Client().get("/api/v1/idle").status_code == 401
