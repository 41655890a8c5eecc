"""The demonstration's numbers: eight T4 in two nodes, four projects, one of them a person's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from django.db.models import Model

from projects.models import Department, Project, User
from tests.factories import FakeAgent, make_member, make_node_type, make_project


@dataclass(frozen=True, slots=True)
class Organisation:
    agent: FakeAgent
    vision: Project
    language: Project
    speech: Project
    vera: User
    lena: User
    sergey: User


@pytest.fixture(autouse=True)
def nothing_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan rests on is read with the rest: one late field of each row costs a query each."""
    refresh = Model.refresh_from_db

    def refreshed(row: Model, using: str | None = None, fields: Any = None, **more: Any) -> None:
        assert fields is None, f"{fields} of a {type(row).__name__} are read late"
        refresh(row, using, fields, **more)

    monkeypatch.setattr(Model, "refresh_from_db", refreshed)


@pytest.fixture
def organisation(db: None) -> Organisation:
    make_node_type("t4", gpus=8)
    research = Department.objects.create(name="research", title="Research")
    products = Department.objects.create(name="products", title="Products")
    vision = make_project("vision", department=research, t4=1500)
    language = make_project("language", department=research, t4=1000)
    speech = make_project("speech", department=products, t4=4000)
    agent = FakeAgent()
    agent.report()
    return Organisation(
        agent=agent,
        vision=vision,
        language=language,
        speech=speech,
        vera=make_member(vision, "vera"),
        lena=make_member(language, "lena"),
        sergey=make_member(speech, "sergey"),
    )
