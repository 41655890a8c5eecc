"""The two ends of what is forwarded, and the headers that may pass between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes

# ASGI's messages are open dictionaries, hence Any.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# For uvicorn, when it serves an app that forwards. Its defaults refuse a WebSocket message of more
# than 16 MiB and compress on each hop; and connections must outlive `KEEPALIVE_S` of the asker.
SERVER_OPTIONS: Final[dict[str, Any]] = {
    "ws": "websockets-sansio",
    "ws_max_size": 1 << 30,
    "ws_per_message_deflate": False,
    "timeout_keep_alive": 75,
}

# RFC 9110, 7.6.1, and older practice: these concern one connection only.
HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer"
    b" transfer-encoding upgrade".split()
)
# Each server writes its own; `Expect` is answered by ours.
OWN_PER_SERVER: Final = frozenset(b"date server expect".split())


class UnreachableError(Exception):
    """The upstream gave no answer, and the client has been sent nothing yet."""


class ClientGoneError(Exception):
    """The client has closed its connection: nobody is left to answer."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server to pass things on to.

    Attributes:
        socket_path: Its Unix socket; None for one reached by address.
        address: `http://host:port` or `https://host:port`; for a Unix socket a stand-in.
    """

    socket_path: Path | None = None
    address: str = "http://localhost"

    @classmethod
    def parse(cls, url: str) -> Upstream:
        """Read `unix:/path` or `http://host:port`.

        Raises:
            ValueError: it is neither.
        """
        if url.startswith("unix:/"):
            return cls(socket_path=Path(url.removeprefix("unix:")))
        if url.startswith(("http://", "https://")):
            return cls(address=url.rstrip("/"))
        raise ValueError(f"upstream {url!r} is neither unix:/path nor http://host:port")

    @property
    def is_secure(self) -> bool:
        """Whether TLS is spoken."""
        return self.address.startswith("https://")


@dataclass(frozen=True, slots=True)
class Onward:
    """What the upstream is sent.

    Attributes:
        target: Raw path and query, passed on byte for byte.
        headers: End-to-end headers, `Host` included; names in lower case.
    """

    upstream: Upstream
    target: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and headers of an upstream's answer."""

    status: int
    headers: Headers


Rewrite = Callable[[Answer], Answer]


def unchanged(answer: Answer) -> Answer:
    """The answer as it is."""
    return answer


@dataclass(frozen=True, slots=True)
class Close:
    """How a WebSocket ended."""

    code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks: one ASGI connection."""

    scope: Scope
    receive: Receive
    send: Send

    async def tell(self, message: Message) -> None:
        """Send a message.

        Raises:
            ClientGoneError: nobody is there any more.
        """
        try:
            await self.send(message)
        except OSError as error:
            raise ClientGoneError from error

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer a request in full; a WebSocket that is not open yet is refused with the answer.

        Raises:
            ClientGoneError: nobody is there any more.
        """
        kind = "http.response"
        if self.scope["type"] == "websocket":
            kind = "websocket.http.response"
            if kind not in self.scope.get("extensions", {}):
                await self.tell({"type": "websocket.close", "code": 1011})
                return
        headers = [item for item in headers if item[0] != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        if self.scope.get("method") == "HEAD":
            body = b""
        await self.tell({"type": f"{kind}.start", "status": status, "headers": headers})
        await self.tell({"type": f"{kind}.body", "body": body, "more_body": False})


def get_header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The first value of the header `name` (lower case), or None."""
    return next((value for key, value in headers if key.lower() == name), None)


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers without those that concern one connection only; names in lower case."""
    headers = [(name.lower(), value) for name, value in headers]
    dropped = set(HOP_BY_HOP | OWN_PER_SERVER)
    for name, value in headers:
        if name == b"connection":
            dropped |= {token.strip().lower() for token in value.split(b",")}
    return [
        (name, value)
        for name, value in headers
        if name not in dropped and not name.startswith(b"sec-websocket-")
    ]


def has_dot_segments(raw_path: bytes) -> bool:
    """Whether a path could lead out of its folder, e.g. `/a/../b` or `/a/%2e%2e/b`."""
    return not {b".", b".."}.isdisjoint(unquote_to_bytes(raw_path).split(b"/"))


def target_of(raw_path: bytes, query: bytes) -> bytes:
    """A request's target from its path and query."""
    return raw_path + b"?" + query if query else raw_path


async def race(*contenders: Coroutine[Any, Any, Any]) -> Any:
    """Run all until the first one ends, cancel the others; return or raise what the first did."""
    tasks = [asyncio.ensure_future(contender) for contender in contenders]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winner = next(task for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return winner.result()
