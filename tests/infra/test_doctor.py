"""The doctor's lines on the machine at hand."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command

from config import env
from scheduling.management.doctor import Finding, Installation, examine

NAMES = (
    *("Python", "workload environment", "PostgreSQL", "Redis", "disk", "clock"),
    *("GPUs", "fractions", "Swap", "cgroups"),
    *("user namespace", "mount namespace", "PID namespace", "other users", "isolation"),
    "Chromium for tests",
)


def test_a_line_each_with_its_remedy() -> None:
    out = StringIO()
    call_command("doctor", stdout=out)
    lines = out.getvalue().splitlines()
    assert len(lines) == len(NAMES)
    for name, line in zip(NAMES, lines, strict=True):
        assert f" {name}: " in line
        assert line.startswith("ok ") or (line.startswith("lacking ") and " → " in line)


def test_json_says_the_same() -> None:
    out = StringIO()
    call_command("doctor", "--json", stdout=out)
    rows = json.loads(out.getvalue())
    assert [row["name"] for row in rows] == list(NAMES)
    assert all(bool(row["remedy"]) != row["is_ok"] for row in rows)


def findings(installation: Installation) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(installation)}


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(
        var=tmp_path,
        run=tmp_path / "run",
        workload_python=settings.ALLOT.workload_python,
        database_url=settings.ALLOT.database_url,
        redis_url=settings.ALLOT.redis_url,
        has_embedded_database=False,
        has_embedded_redis=False,
    )


def test_what_is_away_is_required_and_named(installation: Installation, tmp_path: Path) -> None:
    broken = replace(
        installation,
        workload_python=tmp_path / "none" / "python",
        database_url=env.database_socket_url(tmp_path),
        redis_url=env.redis_socket_url(tmp_path),
    )
    found = findings(broken)
    for name, words in (
        ("workload environment", "is not there"),
        ("PostgreSQL", "ALLOT_DATABASE_URL does not answer"),
        ("Redis", "ALLOT_REDIS_URL does not answer"),
    ):
        assert not found[name].is_ok
        assert found[name].is_required
        assert words in found[name].text


def test_servers_in_the_environment_are_asked(installation: Installation) -> None:
    found = findings(installation)
    assert found["PostgreSQL"].text.endswith("answers at ALLOT_DATABASE_URL")
    assert found["Redis"].text == "answers at ALLOT_REDIS_URL"


def test_the_mechanisms_are_those_that_the_agent_would_choose(installation: Installation) -> None:
    found = findings(installation)
    assert "holds each session to its share" in found["fractions"].text
    assert found["Swap"].text.endswith(".")


def test_without_a_compiler_nothing_holds_fractions_and_it_says_what_to_install(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = findings(installation)["fractions"]
    assert not found.is_ok
    assert "no C compiler" in found.text
    assert "apt-get install gcc libc6-dev" in found.remedy
    assert "no prebuilt libraries are in" in found.remedy


@pytest.mark.gpu
def test_real_devices_are_counted_by_name(installation: Installation) -> None:
    found = findings(installation)
    assert found["GPUs"].is_ok
    assert " × " in found["GPUs"].text
    assert ", driver " in found["GPUs"].text
    assert "simulated" not in found["fractions"].text
