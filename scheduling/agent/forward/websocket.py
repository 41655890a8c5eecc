"""Passes a WebSocket on: the handshake with all its subprotocols, messages, and how it closes.

Each hop answers and sends pings for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import httpx
import websockets
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import EXTERNAL_CLOSE_CODES
from websockets.typing import Subprotocol

from scheduling.agent.forward.connection import (
    Answer,
    Client,
    ClientGoneError,
    Close,
    Onward,
    Rewrite,
    UnreachableError,
    end_to_end,
    get_header,
    race,
    unchanged,
)

log = logging.getLogger(__name__)

OPEN_TIMEOUT_S: Final = 60.0
"""Longer than connecting takes: Jupyter answers a kernel's WebSocket once the kernel is up."""

CLOSE_TIMEOUT_S: Final = 5.0

Until = Callable[[], Coroutine[Any, Any, Close]]


async def forward_websocket(
    client: Client, onward: Onward, *, rewrite: Rewrite = unchanged, until: Until | None = None
) -> None:
    """Open the same WebSocket at the upstream, then pass messages and the close both ways.

    Args:
        client: Who asks.
        onward: What the upstream is sent.
        rewrite: Changes status and headers of the upstream's refusal; may raise instead.
        until: When what it starts ends first, both sides are closed as it says.

    Raises:
        UnreachableError: the upstream gave no answer.
    """
    try:
        upstream = await _open(client.scope.get("subprotocols", []), onward)
    except InvalidStatus as error:
        await _refuse_likewise(client, error, rewrite)
        return
    try:
        ended_by, close = await _pass_messages(client, upstream, until)
    except BaseException:
        upstream.transport.abort()
        raise
    if ended_by != "client":
        await _close_client(client, close)
    if ended_by != "upstream":
        await upstream.close(close.code, close.reason)


class _Connect(websockets.connect):
    """Leaves redirects to the client, like every other answer."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def _open(offered: Iterable[str], onward: Onward) -> ClientConnection:
    """Open a WebSocket at the upstream.

    The URI's host only becomes the `Host` header; where to connect is said apart.
    """
    upstream = onward.upstream
    scheme = "wss" if upstream.is_secure else "ws"
    host = (get_header(onward.headers, b"host") or b"localhost").decode("latin-1")
    where: dict[str, Any]  # keyword arguments of the loop's create_connection
    if upstream.socket_path:
        where = {"unix": True, "path": str(upstream.socket_path)}
    else:
        url = httpx.URL(upstream.address)
        where = {"host": url.host, "port": url.port or (443 if upstream.is_secure else 80)}
    try:
        return await _Connect(
            f"{scheme}://{host}{onward.target.decode('latin-1')}",
            subprotocols=[Subprotocol(name) for name in offered] or None,
            additional_headers=[
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in onward.headers
                if name not in {b"host", b"content-length"}
            ],
            user_agent_header=None,
            compression=None,
            proxy=None,
            max_size=None,
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            # The peer on a Unix socket cannot vanish unnoticed, but may be busy for long.
            ping_interval=None if upstream.socket_path else 20,
            ping_timeout=60,
            **where,
        )
    except InvalidStatus:
        raise
    except (OSError, InvalidHandshake, InvalidURI) as error:  # TimeoutError is an OSError
        raise UnreachableError(str(error) or type(error).__name__) from error


async def _refuse_likewise(client: Client, error: InvalidStatus, rewrite: Rewrite) -> None:
    """Give the client the answer with which the upstream refused the handshake."""
    response = error.response
    headers = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in response.headers.raw_items()
    ]
    answer = rewrite(Answer(response.status_code, end_to_end(headers)))
    try:
        await client.respond(answer.status, answer.headers, bytes(response.body or b""))
    except ClientGoneError:
        log.debug("the client left before its WebSocket was refused")


async def _pass_messages(
    client: Client, upstream: ClientConnection, until: Until | None
) -> tuple[str, Close]:
    """Pass messages until one side, or `until`, ends it; says which."""
    try:
        await client.tell({"type": "websocket.accept", "subprotocol": upstream.subprotocol})
        contenders = [_back(client, upstream), _forth(client, upstream)]
        if until is not None:
            contenders.append(_by_us(until()))
        ended: tuple[str, Close] = await race(*contenders)
    except ClientGoneError:
        return "client", Close(1001)
    return ended


async def _back(client: Client, upstream: ClientConnection) -> tuple[str, Close]:
    """Messages from the upstream to the client, until the upstream closes."""
    try:
        while True:
            message = await upstream.recv()
            kind = "text" if isinstance(message, str) else "bytes"
            await client.tell({"type": "websocket.send", kind: message})
    except ConnectionClosed:
        return "upstream", _close_of(upstream)


async def _forth(client: Client, upstream: ClientConnection) -> tuple[str, Close]:
    """Messages from the client to the upstream, until the client closes."""
    while True:
        message = await client.receive()
        if message["type"] == "websocket.disconnect":
            code = _sendable(message.get("code"), otherwise=1001)
            return "client", Close(code, message.get("reason") or "")
        if message["type"] == "websocket.receive":
            text = message.get("text")
            try:
                await upstream.send(message["bytes"] if text is None else text)
            except ConnectionClosed:
                return "upstream", _close_of(upstream)


async def _by_us(closing: Coroutine[Any, Any, Close]) -> tuple[str, Close]:
    return "us", await closing


def _close_of(upstream: ClientConnection) -> Close:
    # 1014 (bad gateway) when the upstream broke off without a word.
    return Close(_sendable(upstream.close_code, otherwise=1014), upstream.close_reason or "")


def _sendable(code: int | None, *, otherwise: int) -> int:
    """A close code that may be sent: 1005 and 1006 only say that none was received."""
    if code == 1005:
        return 1000
    if code is None or not (code in EXTERNAL_CLOSE_CODES or 3000 <= code < 5000):
        return otherwise
    return code


async def _close_client(client: Client, close: Close) -> None:
    try:
        await client.tell({"type": "websocket.close", "code": close.code, "reason": close.reason})
    except ClientGoneError:
        log.debug("the client left before its WebSocket was closed")
