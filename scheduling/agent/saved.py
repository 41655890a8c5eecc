"""Which entries of a training's checkpoint folder are whole.

A program that keeps to the contract writes under another name and then renames, and a rename moves
an inode's change time past its last write: that alone tells a whole entry from a half-written one,
whoever looked on meanwhile. Entries that were written in place count once they have been quiet.
Standard library only, since the shim starts with nothing else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass

# An entry written in place is whole after this long without a change.
QUIET_NS = 2_000_000_000
_UNFINISHED = (".tmp", ".partial", ".part")


@dataclass(frozen=True, slots=True)
class Entry:
    """One whole entry: `written_ns` and `inode` tell it from a later one of the same name."""

    name: str
    inode: int
    written_ns: int
    is_folder: bool


def entries(
    folder_fd: int,
    now_ns: int,
    *,
    is_over: bool = False,
    arrived: Collection[tuple[str, int]] = (),
) -> list[Entry]:
    """Whole entries of a folder, oldest first.

    Args:
        folder_fd: The training's checkpoint folder.
        now_ns: Wall clock.
        is_over: The training ended by itself, so it has closed what it wrote.
        arrived: Names and inodes that are known to have come by rename (`renames`).
    """
    found = []
    for name in os.listdir(folder_fd):
        if name.startswith(".") or name.endswith(_UNFINISHED):
            continue
        try:
            status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            is_folder = stat.S_ISDIR(status.st_mode)
            if not is_folder and not stat.S_ISREG(status.st_mode):
                continue
            written_ns = _last_write(name, folder_fd) if is_folder else status.st_mtime_ns
        except (OSError, RecursionError):
            # Gone meanwhile; or nested more deeply than anybody could copy.
            continue
        renamed = status.st_ctime_ns > written_ns or (name, status.st_ino) in arrived
        if renamed or is_over or now_ns - max(written_ns, status.st_ctime_ns) > QUIET_NS:
            found.append(Entry(name, status.st_ino, written_ns, is_folder))
    return sorted(found, key=lambda entry: (entry.written_ns, entry.name))


def _last_write(name: str, folder_fd: int) -> int:
    latest = 0
    for _, folders, files, fd in os.fwalk(name, dir_fd=folder_fd):
        latest = max(latest, os.fstat(fd).st_mtime_ns)
        for file in (*files, *folders):
            latest = max(latest, os.stat(file, dir_fd=fd, follow_symlinks=False).st_mtime_ns)
    return latest
