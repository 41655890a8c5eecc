"""Hears CUDA calls that wait because their session's device memory is away.

The proxy library sends a datagram to a socket of the session's own, at first and then every second
(`fraction.limits` has the format). Which session it is is known by the socket, so none can wake
another's; what the datagram says is not read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_MAX_BYTES = 512
# A program may send without end; the agent's other work goes on in between.
_MAX_AT_ONCE = 64


class Gates:
    """The sockets of all sessions with a device; in the loop that runs."""

    def __init__(
        self, path_of: Callable[[str], Path | None], wake: Callable[[str], object]
    ) -> None:
        """Set up.

        Args:
            path_of: Where a session's calls send their datagrams; None where none are sent.
            wake: Called with the session's attempt.
        """
        self._path_of = path_of
        self._wake = wake
        self._open: dict[str, socket.socket] = {}

    def keep(self, attempt_ids: Iterable[str]) -> None:
        """Listen for these sessions and no others."""
        wanted = set(attempt_ids)
        for attempt_id in self._open.keys() - wanted:
            self._close(attempt_id)
        for attempt_id in wanted - self._open.keys():
            path = self._path_of(attempt_id)
            if path is not None and path.parent.is_dir():
                self._listen(attempt_id, path)

    def close(self) -> None:
        """Stop listening; what waits asks again when the next agent listens."""
        for attempt_id in list(self._open):
            self._close(attempt_id)

    def _listen(self, attempt_id: str, path: Path) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            # The session's processes write to it as whatever user they run.
            path.chmod(0o666)
        except OSError as error:
            listener.close()
            log.warning("calls of attempt %s cannot be heard: %s", attempt_id, error)
            return
        self._open[attempt_id] = listener
        asyncio.get_running_loop().add_reader(listener, self._heard, attempt_id, listener)

    def _heard(self, attempt_id: str, listener: socket.socket) -> None:
        with suppress(BlockingIOError):
            for _ in range(_MAX_AT_ONCE):
                listener.recv(_MAX_BYTES)
                self._wake(attempt_id)

    def _close(self, attempt_id: str) -> None:
        listener = self._open.pop(attempt_id)
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()
