"""People as the kernel knows them, and their lasting folders."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from scheduling.agent.folders import safe_name
from scheduling.agent.protocol import AttemptSpec, CheckRequest
from scheduling.agent.site import Site

UID_BASE, GID_BASE = 200_000, 300_000
# What the machine gives to every new user: settings of the shell.
_SKELETON = Path("/etc/skel")
_EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
_making_homes = threading.Lock()


@dataclass(frozen=True, slots=True)
class Person:
    """For whom something runs, by names that are safe in paths and by numbers."""

    project: str
    owner: str
    uid: int
    gid: int


def person(order: AttemptSpec | CheckRequest) -> Person:
    """Who asks: numbers are what the kernel separates by."""
    return Person(
        project=safe_name(order.project, str(order.project_number)),
        owner=safe_name(order.owner, str(order.user_number)),
        uid=UID_BASE + order.user_number,
        gid=GID_BASE + order.project_number,
    )


def make_home(site: Site, who: Person) -> Path:
    """Make a person's lasting folder in a project, with the examples in it, at its first use.

    It is filled before it gets its name: root never writes into a folder that a user owns already.
    """
    home = site.folders.home(who.project, who.owner)
    # A person's first two workloads may start together.
    with _making_homes:
        if not home.is_dir():
            _make_home(site, who, home)
    return home


def _make_home(site: Site, who: Person, home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    home.parent.chmod(0o711)
    temporary = home.parent / f".{who.owner}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    if _SKELETON.is_dir():
        shutil.copytree(_SKELETON, temporary)
    else:
        temporary.mkdir()
    if _EXAMPLES.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(_EXAMPLES, temporary / "examples", ignore=ignored)
    _give(site, who, temporary)
    temporary.chmod(0o700)
    temporary.rename(home)


def _give(site: Site, who: Person, folder: Path) -> None:
    if not site.isolation.has_identities:
        return
    for parent, subfolders, files in os.walk(folder):
        for name in ("", *subfolders, *files):
            os.chown(os.path.join(parent, name), who.uid, who.gid, follow_symlinks=False)
