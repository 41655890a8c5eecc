"""Early pytest plugin: a real PostgreSQL and Valkey for the whole run.

pytest-django reads the settings before any conftest is configured, so the servers and the
environment that names them must be there earlier: `-p tests.servers` in pyproject.toml. Workers of
pytest-xdist inherit both. Nothing here skips: without a database the run fails.
"""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from config import env
from scheduling.management import embedded, processes
from scheduling.management.translations import compile_translations

_running: list[tuple[processes.Program, subprocess.Popen[bytes]]] = []
_folder: Path | None = None


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests() -> Generator[None]:
    """Start the servers before any other plugin reads the settings."""
    global _folder
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _folder = Path(tempfile.mkdtemp(prefix="allot-test-"))
        # Workloads of tests run as other users, who must be able to pass.
        _folder.chmod(0o711)
        _replace_environment(_folder)
        _start_servers(_folder)
        compile_translations(env.REPOSITORY / "config" / "locale")
    yield


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Stop what we started; in reverse order."""
    while _running:
        processes.stop(*_running.pop())
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)


def _replace_environment(folder: Path) -> None:
    """Leave none of the person's own settings to tests."""
    for name in [name for name in os.environ if name.startswith("ALLOT_")]:
        del os.environ[name]
    run = folder / "run"
    os.environ |= {
        "ALLOT_VAR": str(folder / "var"),
        "ALLOT_RUN": str(run),
        "ALLOT_DATABASE_URL": env.database_socket_url(run),
        "ALLOT_REDIS_URL": env.redis_socket_url(run),
        "ALLOT_SECRET_KEY": secrets.token_urlsafe(env.MIN_SECRET_KEY_CHARS),
    }
    (folder / "var").mkdir()


def _start_servers(folder: Path) -> None:
    run = folder / "run"
    for program in (
        embedded.Postgres(folder / "postgres", run / "pg", is_durable=False).program(),
        embedded.Valkey(folder / "valkey", run / "valkey.sock", is_durable=False).program(),
    ):
        log = folder / f"{program.name}.log"
        process = processes.start(program, log)
        _running.append((program, process))
        processes.wait_until_ready(program, process, log)
