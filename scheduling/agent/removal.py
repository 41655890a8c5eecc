"""Removes what workloads leave, however deeply they have nested it.

`shutil.rmtree` goes down by recursion, which ends at some thousand folders, and an agent that fails
at what a program left would fail at each of its starts. Here what is below a folder is moved up
first, so that two open folders are enough.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove a folder and all below it; what cannot be removed stays. Links are not followed."""
    with suppress(OSError):
        top = os.open(path, _FOLDER)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(path)


def _empty(top: int) -> None:
    prefix, stuck = secrets.token_hex(8), set[str]()
    free_names = (f".{prefix}-{number}" for number in count())
    while folders := [name for name in _subfolders(top) if name not in stuck]:
        for name in folders:
            try:
                _flatten(name, top, free_names)
                os.rmdir(name, dir_fd=top)
            except OSError:
                stuck.add(name)


def _flatten(name: str, top: int, free_names: Iterator[str]) -> None:
    """Move the folders in a folder to the top."""
    inner = os.open(name, _FOLDER, dir_fd=top)
    try:
        for each in _subfolders(inner):
            os.rename(each, next(free_names), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)


def _subfolders(fd: int) -> list[str]:
    """Names of the folders in a folder, of which all else is removed."""
    found = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
            else:
                with suppress(OSError):
                    os.unlink(entry.name, dir_fd=fd)
    return found
