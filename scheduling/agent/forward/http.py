"""Passes HTTP requests on, streaming both ways."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from scheduling.agent.forward.connection import (
    Answer,
    Client,
    ClientGoneError,
    Headers,
    Onward,
    Receive,
    Rewrite,
    UnreachableError,
    Upstream,
    end_to_end,
    get_header,
    race,
    unchanged,
)

log = logging.getLogger(__name__)

# A read may take as long as the upstream thinks: when the client has enough, it leaves.
TIMEOUTS_S: Final = {"connect": 5.0, "read": None, "write": None, "pool": None}

KEEPALIVE_S: Final = 30.0
"""An unused connection to an upstream is kept this long."""

POOL_IDLE_S: Final = 120.0
"""An upstream that nobody used for so long is forgotten: sessions end."""


class HttpForwarder:
    """Passes requests on, and keeps connections to each upstream for the next ones.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._pools: dict[Upstream, _Pool] = {}
        self._swept_at = time.monotonic()

    async def aclose(self) -> None:
        """Close the connections that are kept."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.transport.aclose()

    async def lifespan(self, client: Client) -> None:
        """Serve the `lifespan` scope of an app that has nothing to close but these connections."""
        while True:
            message = await client.receive()
            if message["type"] == "lifespan.shutdown":
                await self.aclose()
                await client.send({"type": "lifespan.shutdown.complete"})
                return
            await client.send({"type": "lifespan.startup.complete"})

    async def forward(
        self,
        client: Client,
        onward: Onward,
        *,
        rewrite: Rewrite = unchanged,
        until: Callable[[], Coroutine[Any, Any, object]] | None = None,
    ) -> None:
        """Pass a request on and its answer back.

        Args:
            client: Who asks.
            onward: What the upstream is sent.
            rewrite: Changes status and headers of the answer; may raise instead.
            until: When what it starts ends before the answer does, the answer is cut off.

        Raises:
            UnreachableError: the upstream gave no answer.
        """
        body = _RequestBody(client.receive)
        framing = _framing(client.scope["headers"])
        if not framing and get_header(onward.headers, b"content-length") is None:
            body.is_finished.set()
        request = httpx.Request(
            client.scope["method"],
            onward.upstream.address,
            headers=[*onward.headers, *framing],
            stream=body,
            extensions={"target": onward.target, "timeout": TIMEOUTS_S},
        )
        contenders: list[Coroutine[Any, Any, object]] = [
            self._exchange(client, onward.upstream, request, rewrite),
            body.until_client_leaves(),
        ]
        if until is not None:
            contenders.append(until())
        try:
            await race(*contenders)
        except ClientGoneError:
            log.debug("the client left before %s was answered", onward.target)

    async def _exchange(
        self, client: Client, upstream: Upstream, request: httpx.Request, rewrite: Rewrite
    ) -> None:
        async with self._transport(upstream) as transport:
            response = await _ask(transport, request)
            try:
                answer = rewrite(Answer(response.status_code, end_to_end(response.headers.raw)))
                await client.tell(
                    {
                        "type": "http.response.start",
                        "status": answer.status,
                        "headers": answer.headers,
                    }
                )
                await _stream_back(client, response)
            finally:
                await response.aclose()

    @asynccontextmanager
    async def _transport(self, upstream: Upstream) -> AsyncIterator[httpx.AsyncHTTPTransport]:
        await self._sweep()
        pool = self._pools.get(upstream)
        if pool is None:
            pool = self._pools[upstream] = _Pool(_new_transport(upstream))
        pool.num_active += 1
        try:
            yield pool.transport
        finally:
            pool.num_active -= 1
            pool.used_at = time.monotonic()

    async def _sweep(self) -> None:
        now = time.monotonic()
        if now - self._swept_at < POOL_IDLE_S:
            return
        self._swept_at = now
        idle = [
            upstream
            for upstream, pool in self._pools.items()
            if not pool.num_active and now - pool.used_at > POOL_IDLE_S
        ]
        for transport in [self._pools.pop(upstream).transport for upstream in idle]:
            await transport.aclose()


@dataclass(slots=True)
class _Pool:
    transport: httpx.AsyncHTTPTransport
    num_active: int = 0
    used_at: float = 0.0


@dataclass(slots=True)
class _RequestBody(httpx.AsyncByteStream):
    """A request's body as it arrives; asks for the next part only when the last one has gone on."""

    receive: Receive
    is_finished: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self.is_finished.is_set():
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            if not message.get("more_body", False):
                self.is_finished.set()
            if body := message.get("body"):
                yield body

    async def until_client_leaves(self) -> None:
        await self.is_finished.wait()
        while (await self.receive())["type"] != "http.disconnect":
            pass


def _new_transport(upstream: Upstream) -> httpx.AsyncHTTPTransport:
    return httpx.AsyncHTTPTransport(
        uds=str(upstream.socket_path) if upstream.socket_path else None,
        verify=upstream.is_secure,  # reading the certificates takes long: only where they matter
        trust_env=False,
        limits=httpx.Limits(
            max_connections=None, max_keepalive_connections=32, keepalive_expiry=KEEPALIVE_S
        ),
    )


def _framing(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """`Transfer-Encoding` for a body whose length the client did not say."""
    if get_header(headers, b"transfer-encoding") is None:
        return []
    return [(b"transfer-encoding", b"chunked")]


async def _ask(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
    """Send the request; once more if a kept connection turned out to be closed.

    Only what has no body and changes nothing is sent twice.

    Raises:
        UnreachableError: the upstream gave no answer.
    """
    has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
    is_repeatable = request.method in {"GET", "HEAD", "OPTIONS"} and not has_body
    try:
        try:
            return await transport.handle_async_request(request)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            if not is_repeatable:
                raise
            return await transport.handle_async_request(request)
    except httpx.HTTPError as error:
        raise UnreachableError(str(error) or type(error).__name__) from error


async def _stream_back(client: Client, response: httpx.Response) -> None:
    """Pass the answer's body on; one that breaks off stays visibly incomplete."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    try:
        async for chunk in response.stream:
            await client.tell({"type": "http.response.body", "body": chunk, "more_body": True})
    except httpx.HTTPError as error:
        log.info("an upstream broke its answer off: %s", error)
        return
    await client.tell({"type": "http.response.body", "body": b"", "more_body": False})
