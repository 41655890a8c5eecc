"""What probes see, with the servers there and away."""

from dataclasses import replace
from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

from config import env


def test_alive_without_any_server(client: Client) -> None:
    assert client.get("/healthz").content == b"ok\n"


@pytest.mark.django_db
def test_ready_when_database_and_redis_answer(client: Client) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "checks": {"database": "ok", "redis": "ok"}}


@pytest.mark.django_db
def test_not_ready_names_what_is_away(client: Client, settings: Settings, tmp_path: Path) -> None:
    settings.ALLOT = replace(settings.ALLOT, redis_url=env.redis_socket_url(tmp_path))
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"] == {"database": "ok", "redis": "failed: ConnectionError"}


@pytest.mark.django_db
def test_every_page_forbids_inline_scripts(client: Client) -> None:
    policy = client.get("/admin/login/").headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
