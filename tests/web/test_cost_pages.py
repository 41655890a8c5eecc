"""Cost as a page: the parts make the whole, the idle part stands apart, and whose cost one sees."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from django.test import Client

from projects.models import User
from tests.web.history_scene import DAY, NEXT, Past, make_past

pytestmark = pytest.mark.django_db

PERIOD = f"from={DAY:%Y-%m-%d}&to={NEXT:%Y-%m-%d}&tz=UTC"


@pytest.fixture
def past() -> Past:
    return make_past()


def opened(user: User, address: str, language: str = "en") -> Any:
    client = Client(headers={"Accept-Language": language})
    client.force_login(user)
    return client.get(address)


def bill(user: User, group: str = "project") -> dict[str, list[str]]:
    """The rows of the CSV by their label, without the headings."""
    response = opened(user, f"/cost/csv?{PERIOD}&group_by={group}")
    assert response.status_code == 200
    rows = csv.reader(io.StringIO(response.content.decode()))
    return {label: values for label, *values in list(rows)[1:]}


def amounts(rows: dict[str, list[str]]) -> dict[str, float]:
    return {label: float(values[0]) for label, values in rows.items()}


@pytest.mark.parametrize("language", ["en", "ru"])
@pytest.mark.parametrize("group", ["project", "user", "node_type", "template"])
def test_the_parts_make_the_whole_cluster(past: Past, group: str, language: str) -> None:
    assert opened(past.admin, f"/cost?{PERIOD}&group_by={group}", language).status_code == 200
    found = amounts(bill(past.admin, group))
    # Four GPUs: half of the day at 10, half at 20.
    assert found["Whole cluster"] == pytest.approx(4 * 12 * (10 + 20))
    parts = [amount for label, amount in found.items() if label != "Whole cluster"]
    assert sum(parts) == pytest.approx(found["Whole cluster"])


def test_the_list_beside_the_chart_says_the_whole_as_the_bill_does(past: Past) -> None:
    text = opened(past.admin, f"/cost?{PERIOD}&group_by=project").content.decode()
    sums = re.findall(r'class="series-sum"><span>(.*?)</span><span>(.*?)</span>', text)
    assert sums[-1] == ("Whole cluster", "1,440.00")
    assert "1,440.00\u00a0RUB" in text


def test_a_price_splits_the_day_in_which_it_changed(past: Past) -> None:
    found = amounts(bill(past.admin))
    assert found["Vision"] == pytest.approx(2 * 12 * (10 + 20))
    assert found["Speech"] == pytest.approx(0.5 * 12 * (10 + 20))


def test_the_idle_part_is_known_where_it_was_measured(past: Past) -> None:
    rows = bill(past.admin)
    assert float(rows["Speech"][1]) == pytest.approx(0.5 * 12 * (10 + 20))
    assert float(rows["Vision"][1]) == 0
    assert rows["Unallocated"][1] == ""


def test_a_researcher_sees_their_own_cost_alone(past: Past) -> None:
    assert set(bill(past.sergey)) == {"Speech", "In all"}
    response = opened(past.sergey, f"/cost?{PERIOD}")
    page = response.content.decode()
    assert "what you hold yourself" in page
    assert "Vision" not in page
    assert "Unallocated" not in page


def test_a_manager_sees_the_project(past: Past) -> None:
    assert set(bill(past.max)) == {"Vision", "In all"}
    assert set(bill(past.max, "user")) == {"vera", "In all"}


def test_who_may_not_tell_templates_apart_is_told_at_the_field(past: Past) -> None:
    response = opened(past.vera, f"/cost?{PERIOD}&group_by=template")
    assert response.status_code == 422
    assert re.search(r'id="group_by-error"[^>]*>[^<]*template', response.content.decode())
    assert opened(past.vera, f"/cost/csv?{PERIOD}&group_by=template").status_code == 422


def test_prices_and_when_they_began_to_hold_are_listed(past: Past) -> None:
    page = opened(past.vera, "/cost").content.decode()
    prices = page[page.index('id="prices-title"') :]
    assert prices.index("20.00") < prices.index("10.00")


@pytest.mark.parametrize(
    "address", [f"from={NEXT:%Y-%m-%d}&to={DAY:%Y-%m-%d}", "tz=Nowhere"], ids="ab"
)
def test_a_wrong_period_is_said_at_its_field(past: Past, address: str) -> None:
    response = opened(past.admin, f"/cost?{address}")
    assert response.status_code == 422
    assert 'aria-invalid="true"' in response.content.decode()


def test_a_formula_in_a_name_is_harmless(past: Past) -> None:
    past.vision.title = '=HYPERLINK("http://example.org")'
    past.vision.save()
    assert any(label.startswith("'=") for label in bill(past.admin))


def test_nobody_sees_cost_without_logging_in() -> None:
    assert Client().get("/cost").status_code == 302
    assert Client().get("/cost/csv").status_code == 302
