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
SUFFIX = re.compile(r"_(bucket|sum|count)$")


@pytest.mark.django_db
def test_every_series_of_the_dashboard_exists() -> None:
    now = timezone.now()
    known = {family.name for family in (*devices.families(now), *organisation.families(now))}
    board: Any = json.loads((settings.BASE_DIR / "deploy" / "grafana" / "allot.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [
        one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"
    ]
    names = {name for text in asked for name in NAME.findall(text)}
    assert len(names) > 12
    assert {
        name for name in names if name not in known and SUFFIX.sub("", name) not in known
    } == set()


def test_panels_have_a_title_and_a_sentence_and_do_not_overlap() -> None:
    board: Any = json.loads((settings.BASE_DIR / "deploy" / "grafana" / "allot.json").read_text())
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
