"""A token acts as its person while in force, and is in clear in the first answer only."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.asserts import assertRedirects

from projects import tokens
from projects.models import AuditEntry, Token, User

pytestmark = pytest.mark.django_db


@pytest.fixture
def vera() -> User:
    return User.objects.create_user("vera", password="secret-of-a-test")


def test_a_token_is_verified_by_its_hash_alone(vera: User) -> None:
    issued = tokens.issue(vera, name="notebook")

    row = Token.objects.values().get()
    assert issued.secret not in str(row)
    assert issued.secret.startswith("allot_pat_")
    found = tokens.verify(issued.secret)
    assert found is not None
    assert found.user == vera
    assert tokens.verify(issued.secret + "x") is None
    assert tokens.verify("") is None
    assert issued.secret not in str(list(AuditEntry.objects.values()))


def test_a_name_is_kept_as_one_line(vera: User) -> None:
    assert tokens.issue(vera, name=" my\0  note\tbook\n").token.name == "my note book"


def test_use_is_noted_at_most_once_a_minute(vera: User) -> None:
    issued = tokens.issue(vera, name="notebook")
    tokens.verify(issued.secret)
    first = Token.objects.get().last_used_at
    tokens.verify(issued.secret)
    assert Token.objects.get().last_used_at == first

    Token.objects.update(last_used_at=timezone.now() - timedelta(minutes=2))
    tokens.verify(issued.secret)
    later = Token.objects.get().last_used_at
    assert later is not None
    assert later > timezone.now() - timedelta(minutes=1)


def test_revoked_expired_and_inactive_ones_are_refused(vera: User) -> None:
    revoked, expired, inactive = (tokens.issue(vera, name=name) for name in "abc")
    tokens.revoke(revoked.token, actor=vera)
    tokens.revoke(revoked.token, actor=vera)
    Token.objects.filter(pk=expired.token.pk).update(expires_at=timezone.now())
    assert tokens.verify(revoked.secret) is None
    assert tokens.verify(expired.secret) is None

    User.objects.update(is_active=False)
    assert tokens.verify(inactive.secret) is None
    assert AuditEntry.objects.filter(action="token.revoked").count() == 1


def test_another_persons_token_is_revoked_by_an_admin_only(vera: User) -> None:
    issued = tokens.issue(vera, name="notebook")
    stranger = User.objects.create_user("lena")
    with pytest.raises(PermissionError):
        tokens.revoke(issued.token, actor=stranger)

    tokens.revoke(issued.token, actor=User.objects.create_superuser("root"))
    assert tokens.verify(issued.secret) is None


@pytest.mark.parametrize(
    ("name", "days", "field", "named"),
    [
        ("", 90, "name", ("80",)),
        ("x" * 81, 90, "name", ("81", "80")),
        ("notebook", 0, "days", ("0", "365")),
        ("notebook", 366, "days", ("366", "365")),
    ],
)
def test_a_wrong_request_names_value_and_limit(
    vera: User, name: str, days: int, field: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(ValidationError) as caught:
        tokens.issue(vera, name=name, days=days)
    (message,) = caught.value.message_dict[field]
    assert all(part in message for part in named)
    assert not Token.objects.exists()


def test_the_page_shows_a_new_token_once(client: Client, vera: User) -> None:
    client.force_login(vera)
    address = reverse("projects:tokens")

    made = client.post(address, {"name": "notebook", "days": "30"})
    # Whoever loads the page anew makes no second one.
    assertRedirects(made, address, fetch_redirect_response=False)
    answer = client.get(address)
    secret = answer.context["issued"].secret
    assert secret in answer.content.decode()
    assert answer["Cache-Control"] == "no-store"
    assert Token.objects.get().last_used_at is None
    assert tokens.verify(secret) is not None

    later = client.get(address).content.decode()
    assert secret not in later
    assert "notebook" in later

    token = Token.objects.get()
    assert client.post(reverse("projects:revoke-token", args=[token.pk])).status_code == 302
    assert tokens.verify(secret) is None


def test_a_new_token_is_carried_to_its_page_alone(client: Client, vera: User) -> None:
    client.force_login(vera)
    address = reverse("projects:tokens")
    made = client.post(address, {"name": "notebook", "days": "30"})
    (cookie,) = made.cookies.values()
    assert (cookie["path"], cookie["httponly"], cookie["samesite"]) == (address, True, "Strict")
    assert cookie["max-age"] <= 60
    assert cookie.value not in str(list(Session.objects.values()))

    # One that is not the reader's is not shown as theirs.
    client.force_login(User.objects.create_user("lena"))
    client.cookies[cookie.key] = cookie.value
    assert cookie.value not in client.get(address).content.decode()


@pytest.mark.parametrize("days", ["abc", "", "1e3", "400"])
def test_the_page_says_at_the_field_what_is_wrong(client: Client, vera: User, days: str) -> None:
    client.force_login(vera)
    answer = client.post(reverse("projects:tokens"), {"name": "notebook", "days": days})
    assert answer.status_code == 422
    page = answer.content.decode()
    assert 'aria-describedby="id_days_error"' in page
    assert "365" in page
    assert 'value="notebook"' in page
    assert not Token.objects.exists()


def test_a_strangers_token_is_not_found(client: Client, vera: User) -> None:
    issued = tokens.issue(vera, name="notebook")
    client.force_login(User.objects.create_user("lena"))
    address = reverse("projects:revoke-token", args=[issued.token.pk])
    assert client.post(address).status_code == 404
    assert tokens.verify(issued.secret) is not None
