"""Really running servers for tests of the proxy: uvicorn in a thread, and an upstream that talks.

The upstream stands where a session's Jupyter does. It says what it was sent and does what it is
told, which Jupyter would not.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from scheduling.agent.cells import Cells
from scheduling.agent.protocol import CheckAnswer, CheckRequest, FieldProblem, WatchRequest
from scheduling.agent.relay import SessionEndpoint

WAIT_S = 30.0


@contextmanager
def served(app: Any, socket_path: Path | None = None, **options: Any) -> Iterator[int]:
    """Serve an ASGI app on a Unix socket or a free port, which it yields."""
    where: dict[str, Any] = {"uds": str(socket_path)} if socket_path else {"port": 0}
    config = uvicorn.Config(app, **where, log_config=None, **{"lifespan": "auto", **options})
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started
        yield 0 if socket_path else server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def wait_until(is_so: Any) -> None:
    """Wait for something that happens in another thread or process."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@dataclass(slots=True)
class Gpus:
    """The GPUs of all sessions: here, or away until a test says otherwise."""

    away: bool = False
    is_lost: bool = False
    num_wakes: int = 0
    expected_s: float | None = None
    tongue: str = ""

    def is_away(self, attempt_id: str) -> bool:
        return self.away

    def wake_for_cell(self, attempt_id: str) -> None:
        self.num_wakes += 1

    async def until_back(self, attempt_id: str) -> bool:
        while self.away and not self.is_lost:
            await asyncio.sleep(0.005)
        return not self.is_lost

    def expected_wake_s(self, attempt_id: str) -> float | None:
        return self.expected_s

    def language(self, attempt_id: str) -> str:
        return self.tongue


@dataclass(slots=True)
class Host:
    """An agent as far as the relay is concerned."""

    secret: str = "the-relays-secret"
    sessions: dict[str, SessionEndpoint] = field(default_factory=dict)
    logs: dict[str, Path] = field(default_factory=dict)
    num_woken: int = 0
    watched: list[WatchRequest] = field(default_factory=list)
    gpus: Gpus = field(default_factory=Gpus)
    buttons: list[str] = field(default_factory=list)
    held_by: Cells | None = None

    @property
    def cells(self) -> Cells:
        self.held_by = self.held_by or Cells(self.gpus)
        return self.held_by

    async def wake_session(self, attempt_id: str) -> bool:
        self.buttons.append(attempt_id)
        return attempt_id in self.sessions

    def wake(self) -> None:
        self.num_woken += 1

    def watch(self, request: WatchRequest) -> None:
        self.watched.append(request)

    def log_path(self, attempt_id: str) -> Path | None:
        return self.logs.get(attempt_id)

    def session(self, attempt_id: str) -> SessionEndpoint | None:
        return self.sessions.get(attempt_id)

    async def check(self, request: CheckRequest) -> CheckAnswer:
        return CheckAnswer([FieldProblem("command", "not_found", request.command[0])])


@dataclass(slots=True)
class TalkingUpstream:
    """Answers with what it was asked; by path it streams, hangs, refuses or breaks off."""

    extra_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    num_hanging: int = 0
    num_released: int = 0
    closes: list[tuple[int, str]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        task = scope["path"].rpartition("/")[2]
        await getattr(self, f"_{task}", self._echo)(scope, receive, send)

    async def _echo(self, scope: Any, receive: Any, send: Any) -> None:
        digest, size, is_open = hashlib.sha256(), 0, True
        while is_open:
            message = await receive()
            digest.update(message.get("body", b""))
            size += len(message.get("body", b""))
            is_open = message.get("more_body", False)
        seen = {
            "method": scope["method"],
            "target": (scope["raw_path"] + b"?" + scope["query_string"]).decode(),
            "headers": [[key.decode(), value.decode()] for key, value in scope["headers"]],
            "sha256": digest.hexdigest(),
            "size": size,
        }
        body = json.dumps(seen).encode()
        headers = [(b"content-length", str(len(body)).encode()), *self.extra_headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _download(self, scope: Any, receive: Any, send: Any) -> None:
        """As many mebibytes as the query says, without a length."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(int(scope["query_string"])):
            await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _hang(self, scope: Any, receive: Any, send: Any) -> None:
        """One line, then nothing until the client leaves."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first\n", "more_body": True})
        self.num_hanging += 1
        while (await receive())["type"] != "http.disconnect":
            await asyncio.sleep(0)
        self.num_released += 1

    async def _breakoff(self, scope: Any, receive: Any, send: Any) -> None:
        """Less than it promised."""
        headers = [(b"content-length", b"100")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"short", "more_body": True})

    async def _websocket(self, scope: Any, receive: Any, send: Any) -> None:
        """Echo messages; `close CODE REASON` closes; a path that ends in `refuse` is refused."""
        await receive()
        if scope["path"].endswith("refuse"):
            start = {"type": "websocket.http.response.start", "status": 418, "headers": []}
            await send(start)
            await send({"type": "websocket.http.response.body", "body": b"no tea here"})
            return
        offered = scope["subprotocols"]
        await send({"type": "websocket.accept", "subprotocol": offered[-1] if offered else None})
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.closes.append((message["code"], message.get("reason") or ""))
                return
            text = message.get("text") or ""
            if text == "headers":
                text = json.dumps([[key.decode(), val.decode()] for key, val in scope["headers"]])
                await send({"type": "websocket.send", "text": text})
            elif text.startswith("close "):
                _, code, reason = text.split(" ", 2)
                await send({"type": "websocket.close", "code": int(code), "reason": reason})
                return
            else:
                await send({**message, "type": "websocket.send"})
