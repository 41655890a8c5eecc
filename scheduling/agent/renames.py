"""What was renamed into a folder, as the kernel tells it.

A rename is how a program says that what it wrote is whole. The times of a file show it only when a
tick of the kernel's coarse clock (some milliseconds) lies between the last write and the rename;
for a small checkpoint none does, and a stop would wait until the file has been quiet for long.
Standard library only, since the shim starts with nothing else.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress

_IN_MOVED_TO, _IN_Q_OVERFLOW = 0x80, 0x4000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 65536


class Renames:
    """Entries of one folder that got their names by a rename since this was made."""

    def __init__(self, folder_fd: int) -> None:
        """Begin to listen; where that is impossible nothing is ever heard."""
        self._folder_fd = folder_fd
        self._arrived: set[tuple[str, int]] = set()
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            path = f"/proc/self/fd/{folder_fd}".encode()
            libc.inotify_add_watch(self._fd, path, _IN_MOVED_TO)

    def heard(self) -> frozenset[tuple[str, int]]:
        """Names and inodes of what arrived by rename so far."""
        while self._fd >= 0:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except OSError:
                break
            self._take(data)
        return frozenset(self._arrived)

    def _take(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            _, mask, _, size = _EVENT.unpack_from(data, at)
            name = os.fsdecode(data[at + _EVENT.size : at + _EVENT.size + size].rstrip(b"\0"))
            at += _EVENT.size + size
            if mask & _IN_Q_OVERFLOW or not mask & _IN_MOVED_TO:
                continue
            with suppress(OSError):
                status = os.stat(name, dir_fd=self._folder_fd, follow_symlinks=False)
                self._arrived.add((name, status.st_ino))
