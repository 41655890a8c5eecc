"""The C parts, built once, and a fake machine per test."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from scheduling.agent.fraction import build
from scheduling.agent.fraction.build import Libraries
from tests import needs
from tests.fraction.world import World

# Kept between runs: a build is named after what it was made from.
BUILDS = Path(tempfile.gettempdir()) / f"allot-fraction-builds-{os.geteuid()}"


@pytest.fixture(scope="session")
def prefix() -> Iterator[Path]:
    """A folder of this process's own, of a name that a later run builds for again."""
    for number in count():
        folder = Path(tempfile.gettempdir()) / f"allot-fraction-{os.geteuid()}-{number}"
        with open(f"{folder}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Another worker's, or another run's.
                continue
            yield folder
            shutil.rmtree(folder, ignore_errors=True)
            return


@pytest.fixture(scope="session")
def libraries(prefix: Path) -> Libraries:
    """What the compiler made of the sources as they are."""
    needs.compiler()
    return build.build(BUILDS, str(prefix))


@pytest.fixture
def make_world(prefix: Path, libraries: Libraries) -> Callable[..., World]:
    """Make a machine with other devices, limits or driver than usual."""

    def make(**changes: object) -> World:
        return World(prefix, libraries, **changes).make()  # type: ignore[arg-type]

    return make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A T4 of which the session may use 5 GiB."""
    return make_world()
