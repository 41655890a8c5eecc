"""The dashboard asks only for series that `/metrics` has."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from scheduling.prometheus import devices, organisation

NAME = re.compile(r"\b((?:DCGM_FI|allot)_[A-Za-z_]+)")
SELECTOR = re.compile(r"\b((?:DCGM_FI|allot)_[A-Za-z_]+)(?:\{([^}]*)\})?")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def dashboards() -> list[Any]:
    """All that are shipped."""
    found = sorted((settings.BASE_DIR / "deploy" / "grafana").glob("*.json"))
    return [json.loads(file.read_text()) for file in found]


def queries() -> list[str]:
    """What their panels and their variables ask for."""
    asked = []
    for board in dashboards():
        asked += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        variables = board["templating"]["list"]
        asked += [one["query"]["query"] for one in variables if one["type"] == "query"]
    return asked


def needs(query: str) -> dict[str, set[str]]:
    """Labels that a query asks of each series in it: to choose, to group, to list."""
    grouped = {
        name.strip() for text in re.findall(r"by \(([^)]*)\)", query) for name in text.split(",")
    }
    if listed := re.fullmatch(r"label_values\((\w+), (\w+)\)", query):
        grouped = {listed[2]}
    found: dict[str, set[str]] = {}
    for name, matchers in SELECTOR.findall(query):
        found.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!]", matchers), grouped)
    return found


def test_needs_of_a_query() -> None:
    query = 'sum by (le, node_type) (rate(allot_a_bucket{project=~"$p"}[1h])) / allot_b{x!="1"} > 0'
    assert needs(query) == {
        "allot_a_bucket": {"project", "le", "node_type"},
        "allot_b": {"x", "le", "node_type"},
    }
    assert needs("label_values(allot_a, project)") == {"allot_a": {"project"}}


@pytest.mark.django_db
def test_every_series_of_the_dashboard_exists() -> None:
    now = timezone.now()
    known = {family.name for family in (*devices.families(now), *organisation.families(now))}
    names = {name for text in queries() for name in NAME.findall(text)}
    assert len(names) > 12
    assert {
        name for name in names if name not in known and SUFFIX.sub("", name) not in known
    } == set()


def test_panels_have_a_title_and_a_sentence_and_do_not_overlap() -> None:
    (board,) = dashboards()
    seen: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["title"]
        assert panel["description"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & seen
        assert max(x for x, _ in cells) < 24
        seen |= cells
