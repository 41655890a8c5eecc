"""Who may see, change and enter what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.contrib.auth.models import AnonymousUser, Group
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from projects import access
from projects.models import AuditEntry, Membership, Role, User
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


def test_what_is_changed_of_a_person_is_on_the_record_and_no_password(client: Client) -> None:
    client.force_login(User.objects.create_superuser("root"))
    vera = User.objects.create_user("vera", first_name="Vera")
    group = Group.objects.create(name="guests")
    page = reverse("admin:auth_user_password_change", args=[vera.pk])
    secret = "a long enough secret 7"
    values = {"password1": secret, "password2": secret, "usable_password": "true"}
    assert client.post(page, {**values, "password2": "other"}).status_code == 200
    assert client.post(page, values).status_code == 302
    vera.refresh_from_db()
    assert vera.check_password(secret)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.entity_id) == ("user.password_set", "vera")
    assert entry.actor is not None
    assert (entry.before, entry.after) == (None, None)

    joined = vera.date_joined
    own = {
        "username": "vera",
        "is_active": "on",
        "groups": [group.pk],
        "date_joined_0": f"{joined:%Y-%m-%d}",
        "date_joined_1": f"{joined:%H:%M:%S}",
        "initial-date_joined_0": f"{joined:%Y-%m-%d}",
        "initial-date_joined_1": f"{joined:%H:%M:%S}",
        "first_name": "Vera",
    }
    address = reverse("admin:projects_user_change", args=[vera.pk])
    assert client.post(address, own).status_code == 302
    changed = AuditEntry.objects.get(action="user.changed")
    assert changed.before is not None
    assert changed.after is not None
    assert (changed.before["groups"], changed.after["groups"]) == ("", "guests")
