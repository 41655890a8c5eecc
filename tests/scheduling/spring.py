"""A cluster of four GPUs in spring, and questions about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import pytest

from projects.models import (
    Department,
    NodeType,
    Project,
    User,
)
from scheduling.analytics import answer, query
from scheduling.analytics.answer import Answer, Series
from tests.factories import make_member, make_node_type, make_project
from tests.scheduling.history import at

NOW = at("2026-06-01 00:00")
DAY = ("2026-03-10", "2026-03-11")


def span(since: str, until: str) -> tuple[datetime, datetime]:
    return at(since), at(until)


def day10(since: str, until: str) -> tuple[datetime, datetime]:
    """Of the tenth of March."""
    return span(f"2026-03-10 {since}", f"2026-03-10 {until}")


@dataclass(frozen=True, slots=True)
class World:
    t4: NodeType
    vision: Project
    speech: Project
    vera: User
    sergey: User
    admin: User


@pytest.fixture
def world(db: None) -> World:
    t4 = make_node_type("t4")
    vision = make_project("vision", department=Department.objects.create(name="research"))
    speech = make_project("speech")
    return World(
        t4=t4,
        vision=vision,
        speech=speech,
        vera=make_member(vision, "vera"),
        sergey=make_member(speech, "sergey"),
        admin=User.objects.create_superuser("root"),
    )


def ask(viewer: User, metric: str, since: str, until: str, **params: str) -> Answer:
    given = {"metric": metric, "from": since, "to": until, "tz": "UTC", "step": "all", **params}
    return answer.run(query.read(given, NOW, viewer), viewer, NOW)


def by_key(found: Answer) -> Mapping[str, Series]:
    return {one.key: one for one in found.series}


def totals(found: Answer) -> dict[str, float | None]:
    return {one.key: one.total for one in found.series}
