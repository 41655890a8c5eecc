"""Bands of a node's page: who ran when, whose names one sees, and that none covers another."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from itertools import combinations
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from projects.models import User
from scheduling.models import Node
from scheduling.views.bands import Band, bands_of
from scheduling.views.charts import RANGES
from tests.scheduling.history import Cluster, held, workload
from tests.web.history_scene import Past, make_past

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture
def past() -> Past:
    return make_past()


@pytest.fixture
def node(past: Past) -> Node:
    """Three of vision's and one of speech's in the last hours, two of them on one device."""
    now = timezone.now()
    node = Cluster(since=now - 10 * HOUR).node(past.t4)
    first = workload(past.vision, past.vera, name="first")
    held(first, node, (now - 6 * HOUR, now - 4 * HOUR), devices=2)
    second = workload(past.vision, past.vera, name="second")
    held(second, node, (now - 3 * HOUR, None), devices=1, milli=500)
    third = workload(past.speech, past.sergey, name="third")
    held(third, node, (now - 2 * HOUR, None), devices=1, milli=250)
    alone = workload(past.vision, past.vera, name="without-gpu")
    held(alone, node, (now - 5 * HOUR, now - HOUR))
    return node


def opened(user: User, node: Node, address: str = "", language: str = "en") -> Any:
    client = Client(headers={"Accept-Language": language})
    client.force_login(user)
    return client.get(f"/nodes/{node.name}{address}")


def bands(user: User, node: Node, hours: float = 24) -> list[Band]:
    now = timezone.now()
    return bands_of(node, user, now - hours * HOUR, now)


def test_who_held_something_in_the_range_has_a_band(past: Past, node: Node) -> None:
    assert [band.name for band in bands(past.admin, node)] == [
        "first",
        "without-gpu",
        "second",
        "third",
    ]
    assert [band.name for band in bands(past.admin, node, 0.5)] == ["second", "third"]
    assert bands(past.admin, node)[0].devices == "0, 1"


def test_no_band_covers_another(past: Past, node: Node) -> None:
    now = timezone.now()
    for one, other in combinations(bands(past.admin, node), 2):
        for row in one.places.keys() & other.places.keys():
            (low, high), (from_, to) = one.places[row], other.places[row]
            at_once = one.start < (other.end or now) and other.start < (one.end or now)
            assert not at_once or high <= from_ + 1e-9 or to <= low + 1e-9
            assert 0 <= low < high <= 1 + 1e-9


def test_other_projects_have_neither_name_nor_colour(past: Past, node: Node) -> None:
    text = opened(past.sergey, node, "?range=24h").content.decode()
    for name in ("first", "second", "without-gpu", "Vision"):
        assert f">{name}<" not in text
        assert f'"{name}' not in text
    assert "another project" in text
    assert [band.tint.series for band in bands(past.sergey, node) if not band.allocation] == [0] * 3


@pytest.mark.parametrize("language", ["en", "ru"])
def test_the_page_has_the_bands_as_a_table_too(past: Past, node: Node, language: str) -> None:
    response = opened(past.admin, node, "?range=24h", language)
    text = response.content.decode()
    assert response.status_code == 200
    found = re.search(r'<script id="bands-data"[^>]*>(.*?)</script>', text, re.S)
    assert found is not None
    payload = json.loads(found.group(1))
    assert [band["name"] for band in payload["bands"]][-1] == "third"
    assert [row for row, _label in payload["rows"]["devices"]] == ["0", "1", "2", "3"]
    assert text.count("<tr><th") >= 5


@pytest.mark.parametrize("name", [*RANGES, ""])
def test_one_range_is_that_of_all_charts(past: Past, node: Node, name: str) -> None:
    response = opened(past.admin, node, f"?range={name}")
    assert response.status_code == 200
    minutes = set(re.findall(r'"minutes": (\d+)', response.content.decode()))
    assert len(minutes) == 1
    assert name in RANGES or minutes == {"30"}


def test_a_part_that_asks_for_itself_reads_no_history(past: Past, node: Node) -> None:
    client = Client(headers={"HX-Request": "true"})
    client.force_login(past.admin)
    assert "data-chart" not in client.get(f"/nodes/{node.name}").content.decode()
