"""What goes into the log: a line for what was refused, a traceback for what failed."""

import pytest
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from pytest_django import Settings

from config.logs import KeyValueFormatter


def refused(_request: HttpRequest) -> HttpResponse:
    raise PermissionDenied


def broken(_request: HttpRequest) -> HttpResponse:
    raise ValueError("a mistake of ours")


urlpatterns = [path("refused", refused), path("broken", broken)]


@pytest.mark.parametrize(
    ("address", "status"), [("/refused", 403), ("/nowhere", 404), ("/broken", 500)]
)
@pytest.mark.django_db
def test_only_failures_have_a_traceback(
    settings: Settings, caplog: pytest.LogCaptureFixture, address: str, status: int
) -> None:
    settings.ROOT_URLCONF = __name__
    client = Client(raise_request_exception=False)
    assert client.get(address).status_code == status
    (record,) = [record for record in caplog.records if record.name == "django.request"]
    lines = KeyValueFormatter().format(record).splitlines()
    assert address in lines[0]
    assert f"status_code={status}" in lines[0]
    assert (len(lines) == 1) is (status < 500)
