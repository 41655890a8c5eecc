"""What a test cannot do without and a developer's machine may lack.

`make test` skips it there and says so; CI lacks nothing but a GPU, whose mark is in `conftest`.
"""

from __future__ import annotations

import os
import shutil

import pytest

from scheduling.agent.fraction import build
from scheduling.agent.isolation import Isolation

STRICT = "TESTS_NEED_ALL"
"""Set where nothing may lack, so that no gap goes unseen: a skip is a failure then."""


def root() -> None:
    """For processes of other users and limits on them, and for files of others."""
    _need(os.geteuid() == 0, "only root may do what it tests")


def compiler() -> None:
    """For the C parts."""
    _need(bool(build.compiler()), "no C compiler is installed")


def gettext() -> None:
    """For finding strings to translate."""
    _need(shutil.which("xgettext") is not None, "the gettext programs are not installed")


def mounts(allowed: Isolation) -> None:
    """For libraries that stand in workloads at the driver's place."""
    _need(allowed.has_namespaces, "workloads cannot have mounts of their own here")


def _need(is_there: bool, lack: str) -> None:
    if is_there:
        return
    if os.environ.get(STRICT):
        pytest.fail(f"{STRICT} is set, and {lack}")
    pytest.skip(lack)
