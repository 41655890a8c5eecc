"""What holds of the project as a whole."""

import subprocess
import sys

import pytest
from django.conf import settings
from django.core.management import call_command


@pytest.mark.django_db
def test_migrations_match_the_models() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_what_runs_on_a_node_starts_without_django() -> None:
    code = (
        "import sys, scheduling.agent.controller, scheduling.agent.shim, telemetry.sampling;"
        "print(sorted({'django', 'celery', 'channels'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=settings.BASE_DIR,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]"
