"""An address that asks for what is not known: its page says so at the field, and keeps the rest."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from tests.web.scene import Scene, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    return make_scene()


def opened(scene: Scene, address: str, language: str = "en") -> Any:
    client = Client(headers={"Accept-Language": language})
    client.force_login(scene.organisation.vera)
    address = address.format(session=scene.session.pk)
    return client.get(address)


def told(response: Any) -> dict[str, str]:
    """What stands at which field."""
    text = response.content.decode()
    return dict(re.findall(r'<span class="error" id="(\w+)-error" role="alert">(.*?)</span>', text))


UNKNOWN = [
    ("/workloads?state=nonsense", "state", "waiting, active, queued, starting"),
    ("/workloads?kind=nonsense", "kind", "interactive, training"),
    ("/workloads?owner=nonsense", "owner", "me"),
    ("/swap?days=nonsense", "days", "1, 7, 30"),
    ("/analytics?period=nonsense", "period", "24h, 7d, 30d, 90d, 365d, month, last-month"),
    ("/analytics?step=nonsense", "step", "15m, 30m, 1h"),
    ("/cost?period=nonsense", "period", "24h, 7d, 30d, 90d, 365d, month, last-month"),
    ("/nodes/sim-t4-1?range=nonsense", "range", "30m, 3h, 24h, 7d, 30d"),
    ("/workloads/{session}?range=nonsense", "range", "30m, 3h, 24h, 7d, 30d"),
]


@pytest.mark.parametrize(("address", "field", "limit"), UNKNOWN)
def test_field_value_and_what_is_known_are_named(
    scene: Scene, address: str, field: str, limit: str
) -> None:
    for language, words in (
        ("en", f"“nonsense” is none of: {limit}"),
        ("ru", f"«nonsense» — не из списка: {limit}"),
    ):
        response = opened(scene, address, language)
        assert response.status_code == 422
        assert told(response)[field].startswith(words)
        assert f'aria-describedby="{field}-error"' in response.content.decode()


@pytest.mark.parametrize("address", ["/workloads", "/idle", "/analytics", "/cost"])
@pytest.mark.parametrize("name", ["nonsense", "speech", "<b>"])
def test_a_project_that_there_is_not_or_that_one_may_not_see_is_told(
    scene: Scene, address: str, name: str
) -> None:
    response = opened(scene, f"{address}?project={name}")
    assert response.status_code == 422
    shown = name.replace("<b>", "&lt;b&gt;")
    expected = {"project": f"There is no project “{shown}” that you may see."}
    assert told(response) == expected
    assert "This cannot be shown" in response.content.decode()


def test_other_filters_and_the_wrong_value_stay_and_nothing_is_listed(scene: Scene) -> None:
    response = opened(scene, "/workloads?state=nonsense&kind=training&search=x%00y&project=vision")
    text = response.content.decode()
    assert '<option value="nonsense" selected>nonsense</option>' in text
    assert '<option value="training" selected>' in text
    assert '<option value="vision" selected>' in text
    assert 'name="search" value="xy"' in text
    assert "explore" not in text
    text = opened(scene, "/analytics?period=nonsense&metric=cost&group_by=user").content.decode()
    assert '<option value="cost" selected>' in text
    assert '<option value="user" selected>' in text
    assert "?period=24h&amp;metric=cost" in text or "metric=cost&amp;group_by=user" in text
    assert '<input type="hidden" name="period"' not in text, "dates that are typed would be refused"


def test_all_that_is_wrong_is_said_at_once(scene: Scene) -> None:
    found = told(opened(scene, "/workloads?state=a&kind=b&owner=c&project=d"))
    assert set(found) == {"state", "kind", "owner", "project"}
    found = told(opened(scene, "/analytics?period=a&metric=b&step=c&tz=d&project=e"))
    assert set(found) == {"period", "metric", "step", "tz", "project"}


@pytest.mark.parametrize(
    ("address", "field"),
    [
        ("/idle/csv?project=nonsense", "project"),
        ("/cost/csv?period=nonsense", "period"),
        ("/analytics/csv?period=nonsense", "period"),
    ],
)
def test_in_place_of_a_file_plain_text_says_it(scene: Scene, address: str, field: str) -> None:
    response = opened(scene, address)
    assert response.status_code == 422
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response.content.decode().startswith(f"{field}: ")
    assert "nonsense" in response.content.decode()


@pytest.mark.parametrize("of", ["nodes/sim-t4-1/cost/series", "workloads/{session}/cost/series"])
def test_figures_of_an_unknown_range_are_refused_by_field(scene: Scene, of: str) -> None:
    response = opened(scene, f"/{of}?range=nonsense")
    assert response.status_code == 400
    assert response.json()["field"] == "range"
    assert "nonsense" in response.json()["error"]
