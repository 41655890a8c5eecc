"""The agent's own small HTTP server: how the web reaches what runs on this zone's nodes.

Jupyter listens on a Unix socket that only the agent can open, and logs lie on the node's disk; the
web process, perhaps on another machine, asks here for both. The web has checked who asks and
what for; the relay checks only that it is the web (the secret of the agent's reports), on each
request and at each WebSocket's opening. Routes: the docstring of `protocol`.

Serve it with `uvicorn.Config(create_app(host), **RELAY_SERVER_OPTIONS, uds=…)`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

from scheduling.agent.cells import CHANNELS, Cells
from scheduling.agent.forward import (
    SERVER_OPTIONS,
    Client,
    ClientGoneError,
    Headers,
    HttpForwarder,
    Onward,
    Receive,
    Scope,
    Send,
    UnreachableError,
    Upstream,
    end_to_end,
    forward_websocket,
    get_header,
    has_dot_segments,
    target_of,
)
from scheduling.agent.protocol import (
    CheckAnswer,
    CheckRequest,
    ProtocolError,
    WatchRequest,
    decode,
    encode,
)

log = logging.getLogger(__name__)

RELAY_SERVER_OPTIONS: Final[dict[str, Any]] = {
    **SERVER_OPTIONS,
    # The web sends the pings: a slow browser makes it read late, and ours would go unanswered.
    "ws_ping_interval": None,
    "proxy_headers": False,
    "server_header": False,
    "access_log": False,
}

OWN_ANSWER_HEADER: Final = b"x-allot-relay"
"""Marks what the relay itself says, so that the web can tell it from Jupyter's answers."""

LOG_CHUNK_BYTES: Final = 64 * 1024
LOG_MAX_BYTES: Final = 4 * 1024 * 1024
CHECK_MAX_BYTES: Final = 1024 * 1024

_AUTHORIZATION: Final = b"authorization"
_ATTEMPT_PATH: Final = re.compile(
    rb"/attempts/([0-9A-Za-z-]{1,64})/(log$|wake$|session/.*)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class SessionEndpoint:
    """Where an attempt's Jupyter listens, and the token that it expects."""

    socket_path: Path
    token: str


class RelayHost(Protocol):
    """What the relay needs of the agent. All but `check` and `wake_session` answer at once, from
    memory."""

    @property
    def secret(self) -> str:
        """What the web presents as its bearer token."""
        ...

    def wake(self) -> None:
        """Read the desired state soon."""
        ...

    def watch(self, request: WatchRequest) -> None:
        """Measure these nodes every second for a while."""
        ...

    def log_path(self, attempt_id: str) -> Path | None:
        """The attempt's log; None if this agent never had the attempt."""
        ...

    def session(self, attempt_id: str) -> SessionEndpoint | None:
        """The attempt's Jupyter; None if it is no session of ours or has ended."""
        ...

    @property
    def cells(self) -> Cells:
        """The connections to kernels, which wait while a GPU is away."""
        ...

    async def wake_session(self, attempt_id: str) -> bool:
        """Bring a session's GPU back; False if there is no such attempt."""
        ...

    async def check(self, request: CheckRequest) -> CheckAnswer:
        """Whether a workload could run this command in this folder."""
        ...


class RelayError(Exception):
    """Answered with a status and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def create_app(host: RelayHost) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The relay as an ASGI application."""
    return _Relay(host)


class _Relay:
    def __init__(self, host: RelayHost) -> None:
        self._host = host
        self._forwarder = HttpForwarder()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = Client(scope, receive, send)
        if scope["type"] == "lifespan":
            await self._forwarder.lifespan(client)
            return
        try:
            self._authenticate(scope)
            await self._route(client)
        except RelayError as error:
            await _say(client, error.status, error.text)
        except UnreachableError as error:
            await _say(client, 502, f"The session's server does not answer ({error}).")
        except ClientGoneError:
            log.debug("the web left before it was answered")

    def _authenticate(self, scope: Scope) -> None:
        given = get_header(scope["headers"], b"authorization") or b""
        expected = b"Bearer " + self._host.secret.encode()
        if not hmac.compare_digest(given, expected):
            raise RelayError(401, "The relay's secret is missing or wrong.")

    async def _route(self, client: Client) -> None:
        """The table of routes."""
        path, kind = _raw_path(client.scope), client.scope["type"]
        method = client.scope["method"] if kind == "http" else "WEBSOCKET"
        match = _ATTEMPT_PATH.fullmatch(path)
        if match and match[2].startswith(b"session/"):
            await self._session(client, match[1].decode(), match[2].removeprefix(b"session"))
        elif match and match[2] == b"wake" and method == "POST":
            await self._wake_session(client, match[1].decode())
        elif match and match[2] == b"log" and method in {"GET", "HEAD"}:
            await self._log(client, match[1].decode())
        elif path == b"/wake" and method == "POST":
            self._host.wake()
            await client.respond(204, [], b"")
        elif path == b"/check" and method == "POST":
            await self._check(client)
        elif path == b"/watch" and method == "POST":
            await self._watch(client)
        else:
            raise RelayError(404, "The relay has no such route.")

    async def _session(self, client: Client, attempt_id: str, path: bytes) -> None:
        if has_dot_segments(path):
            raise RelayError(400, "A path with . or .. as a segment is not passed on.")
        endpoint = self._host.session(attempt_id)
        if endpoint is None:
            raise RelayError(404, f"Attempt {attempt_id} has no session here.")
        headers = [
            item for item in end_to_end(client.scope["headers"]) if item[0] != _AUTHORIZATION
        ]
        headers.append((_AUTHORIZATION, b"token " + endpoint.token.encode()))
        onward = Onward(
            Upstream(socket_path=endpoint.socket_path),
            target_of(path, client.scope["query_string"]),
            headers,
        )
        if client.scope["type"] != "websocket":
            self._host.cells.ordered(attempt_id, client.scope["method"], path)
            await self._forwarder.forward(client, onward)
        elif match := CHANNELS.fullmatch(path):
            kernel = match[1].decode("latin-1")
            async with self._host.cells.connection(attempt_id, kernel, client) as held:
                await forward_websocket(held.client, onward)
        else:
            await forward_websocket(client, onward)

    async def _wake_session(self, client: Client, attempt_id: str) -> None:
        if not await self._host.wake_session(attempt_id):
            raise RelayError(404, f"Attempt {attempt_id} is not here.")
        await client.respond(204, [], b"")

    async def _log(self, client: Client, attempt_id: str) -> None:
        query = parse_qs(client.scope["query_string"].decode("latin-1"))
        offset = _number(query, "offset", default=0)
        limit = min(_number(query, "limit", default=LOG_CHUNK_BYTES), LOG_MAX_BYTES)
        path = self._host.log_path(attempt_id)
        if path is None:
            raise RelayError(404, f"Attempt {attempt_id} has no log here.")
        piece = await asyncio.to_thread(read_log, path, offset, limit)
        headers: Headers = [
            (b"content-type", b"application/octet-stream"),
            (b"x-log-size", str(piece.size).encode()),
            (b"x-log-offset", str(piece.offset).encode()),
        ]
        await client.respond(200, headers, piece.data)

    async def _check(self, client: Client) -> None:
        try:
            request = decode(await _read_body(client), CheckRequest)
        except ProtocolError as error:
            raise RelayError(400, str(error)) from error
        answer = await self._host.check(request)
        await client.respond(200, [(b"content-type", b"application/json")], encode(answer))

    async def _watch(self, client: Client) -> None:
        try:
            request = decode(await _read_body(client), WatchRequest)
        except ProtocolError as error:
            raise RelayError(400, str(error)) from error
        self._host.watch(request)
        await client.respond(204, [], b"")


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Part of a log: `data` begins at byte `offset` of `size`."""

    data: bytes
    offset: int
    size: int


def read_log(path: Path, offset: int, limit: int) -> LogPiece:
    """Read part of a log.

    The folder may belong to the workload: what is no plain file (a link to somebody's secrets, a
    pipe that never ends) counts as an empty log, as does one that is not there yet.

    Args:
        path: The log.
        offset: First byte; negative counts from the end.
        limit: At most so many bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return LogPiece(b"", 0, 0)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return LogPiece(b"", 0, 0)
        start = min(offset, status.st_size) if offset >= 0 else max(0, status.st_size + offset)
        return LogPiece(os.pread(descriptor, limit, start), start, status.st_size)
    finally:
        os.close(descriptor)


def _raw_path(scope: Scope) -> bytes:
    raw_path: bytes = scope["raw_path"]
    return raw_path.split(b"?", 1)[0]


def _number(query: dict[str, list[str]], name: str, *, default: int) -> int:
    try:
        value = int(query.get(name, [str(default)])[0])
    except ValueError as error:
        raise RelayError(400, f"{name} is not a whole number.") from error
    if name == "limit" and value < 0:
        raise RelayError(400, f"limit is {value}, the least is 0.")
    return value


async def _read_body(client: Client) -> bytes:
    body = b""
    while True:
        message = await client.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body += bytes(message.get("body", b""))
        if len(body) > CHECK_MAX_BYTES:
            raise RelayError(413, f"The body is larger than {CHECK_MAX_BYTES} bytes.")
        if not message.get("more_body", False):
            return body


async def _say(client: Client, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (OWN_ANSWER_HEADER, b"1")]
    try:
        await client.respond(status, headers, text.encode() + b"\n")
    except ClientGoneError:
        log.debug("the web left before it was told: %s", text)
