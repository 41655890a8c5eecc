"""A filled database of before departments had bounds is upgraded: everybody has and may do what
they had and might do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import psycopg
import pytest
from django.conf import settings

Run = Callable[..., str]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs Python on a database of this test's own."""
    server = os.environ["ALLOT_DATABASE_URL"]
    name = f"upgrade_{os.getpid()}"

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=settings.BASE_DIR,
            env={**os.environ, "ALLOT_DATABASE_URL": server.replace("/allot?", f"/{name}?")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield run
        connection.execute(f"DROP DATABASE {name}")


def test_a_filled_database_is_upgraded(run: Run) -> None:
    run("-m", "tests.projects.upgrading", "fill")
    run("manage.py", "migrate", "--no-input")

    assert json.loads(run("-m", "tests.projects.upgrading", "look")) == {
        # A department has the sum of its projects' quotas and weights, and no limit, as before.
        "shares": {
            "vision": [1500, 3000, 3],
            "language": [1000, None, 1],
            "speech": [4000, None, 2],
            "department:research": [2500, None, 4],
        },
        "parents": {
            "vision": "department:research",
            "language": "department:research",
            "speech": None,
            "department:research": None,
        },
        "departments": [["empty", None], ["research", None]],
        "bounds": 0,
        "see": ["max", "root", "vera", "viktor"],
        "submit": ["max", "vera"],
        "administer": ["max", "root"],
        "elsewhere": ["root"],
        "unfinished": ["interactive-running", "training-queued"],
        "max_run_s": None,
        "projects": 3,
    }
