"""What every test of pages needs."""

from __future__ import annotations

import pytest
from django.test import Client

from projects import tokens
from tests.web.api_program import Api
from tests.web.organisation import Organisation, make_organisation


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
