"""An agent of its own per test: data and run folder, cgroups, and nothing left behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduling.agent import isolation
from scheduling.agent.folders import Folders
from scheduling.agent.fraction.install import Fractions
from scheduling.agent.protocol import ExitCause
from scheduling.agent.site import Site
from tests import needs
from tests.agent.driver import INVENTORY, PYTHON, Driver
from tests.fraction.conftest import BUILDS


@pytest.fixture
def folders() -> Iterator[Folders]:
    """Short paths, since sockets have little room."""
    root = Path(tempfile.mkdtemp(prefix="allot-agent-"))
    var, run = root / "var", root / "run"
    var.mkdir()
    run.mkdir()
    yield Folders(var, run)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def site(folders: Folders) -> Iterator[Site]:
    """What this machine allows."""
    allowed = isolation.probe(folders)
    fractions = Fractions(folders, INVENTORY, allowed, builds=BUILDS)
    found = Site(folders, allowed, PYTHON, fractions=fractions)
    yield found
    if found.isolation.cgroups is not None:
        found.isolation.cgroups.leave()


@pytest.fixture
def driver(site: Site) -> Iterator[Driver]:
    """A running agent; whatever it started is ended with the test."""
    needs.root()
    running = Driver(site)
    yield running
    end(running)


def end(driver: Driver) -> None:
    """End everything that runs in the driver's folders."""
    last = driver.restarted()
    for attempt in last.runner.attempts.values():
        attempt.spec = attempt.spec.__class__(
            **{name: getattr(attempt.spec, name) for name in attempt.spec.__slots__}
            | {"grace_s": 0.0}
        )
        attempt.stop(ExitCause.STOPPED)
    last.until(lambda: last.runner.num_running == 0)
    driver.runner.close()
    last.runner.close()
