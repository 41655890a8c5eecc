"""What may pass between a browser and Jupyter: origins and cookies, case by case."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest

from scheduling.proxy.headers import confine_cookie, is_from_here, is_navigation

OWN = "http://allot.example:8000"


@pytest.fixture(autouse=True)
def hosts(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["allot.example"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://front.example"]


def scope_of(method: str, headers: dict[str, str], kind: str = "http") -> dict[str, Any]:
    pairs = {"host": "allot.example:8000", **headers}
    return {
        "type": kind,
        "method": method,
        "path": "/s/x/",
        "headers": [(name.lower().encode(), value.encode()) for name, value in pairs.items()],
    }


def is_accepted(scope: dict[str, Any]) -> bool:
    return is_from_here(scope, ASGIRequest({**scope, "scheme": "http"}, BytesIO()))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Origin": OWN}, True),
        ({"Origin": "https://front.example"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "https://allot.example:8000"}, False),
        ({"Origin": "http://allot.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": ""}, False),
        ({"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "none", "Referer": f"{OWN}/lab"}, False),
        ({"Referer": f"{OWN}/lab"}, True),
        ({"Referer": f"http://evil.example/{OWN}/"}, False),
        ({"Referer": "http://allot.example:8000@evil.example/"}, False),
        ({}, False),
    ],
)
def test_an_unsafe_request_must_come_from_here(headers: dict[str, str], expected: bool) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "MKCOL"):
        assert is_accepted(scope_of(method, headers)) is expected
    assert is_accepted(scope_of("GET", headers))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Origin": OWN}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Sec-Fetch-Site": "same-origin", "Referer": f"{OWN}/lab"}, False),
        ({}, False),
    ],
)
def test_a_websocket_must_name_its_origin(headers: dict[str, str], expected: bool) -> None:
    assert is_accepted(scope_of("GET", headers, kind="websocket")) is expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Sec-Fetch-Mode": "navigate"}, True),
        ({"Sec-Fetch-Mode": "cors", "Accept": "text/html"}, False),
        ({"Accept": "text/html,*/*"}, True),
        ({"Accept": "*/*"}, False),
        ({}, False),
    ],
)
def test_a_person_is_told_from_a_script(headers: dict[str, str], expected: bool) -> None:
    assert is_navigation(scope_of("GET", headers)) is expected
    assert not is_navigation(scope_of("POST", headers))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a=1", "a=1; Path=/s/x/"),
        ("a=1; path=/; DOMAIN=example.org; Secure", "a=1; Secure; Path=/s/x/"),
        ("a=1; Path = /", "a=1; Path=/s/x/"),
        ("a==; Max-Age=0", "a==; Max-Age=0; Path=/s/x/"),
        (f" {settings.CSRF_COOKIE_NAME} =1", None),
        ("messages=1", None),
        ("allot_session_1=1", None),
        (f"={settings.SESSION_COOKIE_NAME}=1", None),
        ("nameless", None),
        ("", None),
    ],
)
def test_a_cookie_is_confined_or_dropped(given: str, expected: str | None) -> None:
    assert confine_cookie(given, "/s/x/") == expected
