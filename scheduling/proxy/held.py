"""Tells who waits for a cell that the relay holds that it is lost, when the agent dies with it.

The relay marks what it says of a held cell (`kernel_messages.HELD`). Only its own few messages and
the client's requests to run code are read; everything else passes unseen.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from django.core.handlers.asgi import ASGIRequest
from django.utils import translation
from django.utils.translation import gettext as _

from scheduling.agent import kernel_messages
from scheduling.agent.forward import Client
from scheduling.agent.forward.connection import Message
from scheduling.agent.kernel_messages import HELD, SHELL, Header

_EXECUTE: Final = "execute_request"
_MAX_ASKED: Final = 1000
_MAX_OWN_BYTES: Final = 64 * 1024
"""What the relay says itself is shorter, whatever was asked."""


class HeldCells:
    """One client's connection to one kernel.

    Attributes:
        is_closed_by_us: It closes because its visitor may no longer be there: the relay lives, and
            what it holds still runs.
    """

    def __init__(self, client: Client, request: ASGIRequest) -> None:
        self.is_closed_by_us = False
        self._client = client
        self._request = request
        self._subprotocol: str | None = None
        self._asked: deque[Header] = deque(maxlen=_MAX_ASKED)
        self._held = ""

    @property
    def client(self) -> Client:
        """The client, as it is to be forwarded."""
        return Client(self._client.scope, self._receive, self._send)

    async def _receive(self) -> Message:
        message = await self._client.receive()
        data = _data_of(message)
        if data is not None and _has(data, _EXECUTE):
            read = kernel_messages.read(data, self._subprotocol)
            if read is not None and read.channel == SHELL and read.kind == _EXECUTE:
                self._asked.append(read.header)
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "websocket.accept":
            self._subprotocol = message.get("subprotocol")
        elif message["type"] == "websocket.close" and self._held and not self.is_closed_by_us:
            await self._answer()
        elif (data := _data_of(message)) is not None:
            self._notice(data)
        await self._client.send(message)

    def _notice(self, data: str | bytes) -> None:
        if len(data) > _MAX_OWN_BYTES or not _has(data, kernel_messages.OWN_MARK):
            return
        read = kernel_messages.read(data, self._subprotocol)
        if read is not None and read.header.get("session") == kernel_messages.OWN:
            self._held = str(read.header.get(HELD, ""))

    async def _answer(self) -> None:
        """All from the one that waits on: the relay keeps their order."""
        ids = [header.get("msg_id") for header in self._asked]
        if self._held not in ids:
            return
        with translation.override(translation.get_language_from_request(self._request)):
            text = _(
                "The cell did not run: its node's agent stopped while the GPU was coming back. "
                "Run it again."
            )
        for header in list(self._asked)[ids.index(self._held) :]:
            for data in kernel_messages.failed(
                header, "AgentStopped", text, subprotocol=self._subprotocol
            ):
                kind = "text" if isinstance(data, str) else "bytes"
                await self._client.send({"type": "websocket.send", kind: data})


def _data_of(message: Message) -> str | bytes | None:
    if message["type"] not in ("websocket.send", "websocket.receive"):
        return None
    text: str | None = message.get("text")
    data: bytes | None = message.get("bytes")
    return data if text is None else text


def _has(data: str | bytes, word: str) -> bool:
    return word in data if isinstance(data, str) else word.encode() in data
