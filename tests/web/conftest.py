"""What every test of pages needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import Client
from django.utils import timezone, translation

from projects import tokens
from tests.web.api_program import Api
from tests.web.organisation import Organisation, make_organisation


@pytest.fixture(autouse=True)
def nobodys_language_stays() -> Iterator[None]:
    """A request leaves its reader's language and zone active in the thread."""
    yield
    translation.deactivate()
    timezone.deactivate()


@pytest.fixture
def organisation(db: None) -> Organisation:
    return make_organisation()


@pytest.fixture
def vera(client: Client, organisation: Organisation) -> Client:
    """Vera's browser."""
    client.force_login(organisation.vera)
    return client


@pytest.fixture
def api(organisation: Organisation) -> Api:
    return Api(tokens.issue(organisation.vera, name="tests").secret)
