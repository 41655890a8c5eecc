"""Who may see, change and enter what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ValidationError
from django.utils import timezone

from projects import access
from projects.models import Membership, Role, User
from tests.factories import make_member, make_project

pytestmark = pytest.mark.django_db


@dataclass
class Thing:
    owner_id: int
    project_id: int


def answers(user: User | AnonymousUser, thing: Thing) -> tuple[bool, bool, bool, bool]:
    return (
        access.may_view_workload(user, thing),
        access.may_change_workload(user, thing),
        access.may_connect(user, thing),
        access.may_submit(user, thing.project_id),
    )


def test_the_table_of_roles() -> None:
    project, elsewhere = make_project("one"), make_project("two")
    owner = make_member(project)
    thing = Thing(owner.pk, project.pk)
    colleague = make_member(project)
    manager = make_member(project, role=Role.MANAGER)
    viewer = make_member(project, role=Role.VIEWER)
    stranger = make_member(elsewhere, role=Role.MANAGER)
    admin = User.objects.create_superuser("root-of-tests", password="x")
    #                                        view   change connect submit
    assert answers(owner, thing) == (True, True, True, True)
    assert answers(colleague, thing) == (True, False, False, True)
    assert answers(manager, thing) == (True, True, False, True)
    assert answers(viewer, thing) == (True, False, False, False)
    assert answers(stranger, thing) == (False, False, False, False)
    assert answers(admin, thing) == (True, True, False, False)
    assert answers(AnonymousUser(), thing) == (False, False, False, False)


def test_an_expired_membership_gives_nothing() -> None:
    project = make_project("one")
    owner = make_member(project)
    thing = Thing(owner.pk, project.pk)
    Membership.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert answers(owner, thing) == (False, False, False, False)


@pytest.mark.parametrize("zone", ["Mars/Base", "../etc/passwd", "europe moscow"])
def test_a_zone_that_does_not_exist_is_refused_with_an_example(zone: str) -> None:
    person = User(username="vera", password="x", time_zone=zone)
    with pytest.raises(ValidationError) as refused:
        person.full_clean()
    assert refused.value.message_dict == {
        "time_zone": [f"“{zone}” is not a time zone; an example is Europe/Moscow."]
    }
    person.time_zone = "Asia/Vladivostok"
    person.full_clean()
