"""Read an attempt's log through the relay of its node's agent, without holding a thread.

Logs lie on the node's disk; the relay gives bytes from an offset and says how long the whole log
is. Text is cut at line ends where a tail is asked for, and decoded so that a character split
between two reads survives.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from scheduling.models import Zone
from scheduling.relay_client import AgentAwayError, address_of, headers_for

TIMEOUT_S = 4.0
TAIL_LINES = 500
TAIL_BYTES = 256 * 1024
CHUNK_BYTES = 256 * 1024


class NoLogError(Exception):
    """The agent answers, but has no log of this attempt (yet, or any more)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a log.

    Attributes:
        offset: Of the first byte.
        size: Of the whole log when it was read.
    """

    data: bytes
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class LogReader:
    """One attempt's log at one relay."""

    def __init__(self, client: httpx.AsyncClient, attempt_id: object) -> None:
        self._client = client
        self._path = f"/attempts/{attempt_id}/log"

    async def read(self, offset: int, limit: int = CHUNK_BYTES) -> Piece:
        """Bytes from an offset.

        Raises:
            AgentAwayError: the relay does not answer.
            NoLogError: it does not know the attempt.
        """
        try:
            response = await self._client.get(self._path, params={"offset": offset, "limit": limit})
        except httpx.HTTPError as error:
            raise AgentAwayError(str(error)) from error
        if response.status_code == httpx.codes.NOT_FOUND:
            raise NoLogError(self._path)
        if response.status_code != httpx.codes.OK:
            raise AgentAwayError(f"the relay answered {response.status_code}")
        size = int(response.headers.get("X-Log-Size", offset + len(response.content)))
        return Piece(response.content, offset, size)

    async def tail(self, lines: int = TAIL_LINES) -> Piece:
        """The last lines, beginning at the start of a line."""
        size = (await self.read(0, 1)).size
        start = max(size - TAIL_BYTES, 0)
        piece = await self.read(start, TAIL_BYTES)
        data = piece.data
        if start:
            data = data[data.find(b"\n") + 1 :]
        kept = data.split(b"\n")[-(lines + 1) :]
        cut = b"\n".join(kept)
        return Piece(cut, piece.end - len(cut), piece.size)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The whole log as it is now, piece by piece, for a download."""
        offset, size = 0, 1
        while offset < size:
            piece = await self.read(offset)
            if not piece.data:
                return
            yield piece.data
            offset, size = piece.end, piece.size


@asynccontextmanager
async def log_reader(zone: Zone, attempt_id: object) -> AsyncIterator[LogReader]:
    """A reader for one attempt.

    Raises:
        AgentAwayError: the zone's agent has never reported.
    """
    base_url, socket = address_of(zone)
    transport = httpx.AsyncHTTPTransport(uds=socket)
    client = httpx.AsyncClient(
        base_url=base_url, transport=transport, timeout=TIMEOUT_S, headers=headers_for(zone)
    )
    async with client:
        yield LogReader(client, attempt_id)


def new_decoder() -> codecs.IncrementalDecoder:
    """Bytes to text; what is no UTF-8 becomes the replacement character."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
