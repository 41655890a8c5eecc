"""The proxy as an ASGI application: check, pass on, and keep checking what stays open."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.db import Error as DatabaseError

from scheduling.agent.cells import CHANNELS
from scheduling.agent.forward import (
    Answer,
    Client,
    ClientGoneError,
    Close,
    HttpForwarder,
    Onward,
    Receive,
    Scope,
    Send,
    UnreachableError,
    forward_websocket,
    get_header,
    has_dot_segments,
    target_of,
)
from scheduling.agent.relay import OWN_ANSWER_HEADER
from scheduling.proxy.access import Refusal, SessionFinder, SessionTarget, Why
from scheduling.proxy.headers import back_headers, is_from_here, onward_headers
from scheduling.proxy.held import HeldCells
from scheduling.proxy.pages import refuse

log = logging.getLogger(__name__)

RECHECK_S: Final = 2.0

_SESSION_PATH: Final = re.compile(
    rb"/s/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/.*", re.DOTALL
)


class RefusedError(Exception):
    """Somebody may not pass."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.why.name)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class _Visit:
    """One request, or WebSocket, to a session."""

    client: Client
    request: ASGIRequest
    login: str | None
    workload_id: uuid.UUID
    raw_path: bytes


class SessionProxy:
    """Passes browsers to their sessions' Jupyter, through the relay of its zone.

    Belongs to one event loop.
    """

    def __init__(self, *, recheck_s: float = RECHECK_S) -> None:
        self._recheck_s = recheck_s
        self._finder = SessionFinder()
        self._forwarder = HttpForwarder()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = Client(scope, receive, send)
        if scope["type"] == "lifespan":
            await self._forwarder.lifespan(client)
            return
        request = _as_request(scope)
        try:
            try:
                await self._serve(client, request)
            except RefusedError as error:
                await refuse(client, request, error.refusal)
        except ClientGoneError:
            log.debug("the browser left before it was answered")

    async def _serve(self, client: Client, request: ASGIRequest) -> None:
        visit = _read(client, request)
        target = await self._find(visit)
        if isinstance(target, Refusal):
            raise RefusedError(target)
        try:
            await self._pass_on(visit, target)
        except UnreachableError as error:
            # The agent may be back at another address, or with another secret.
            self._finder.forget(visit.login, visit.workload_id)
            log.warning("session of workload %s does not answer: %s", visit.workload_id, error)
            raise RefusedError(Refusal(Why.NO_ANSWER, visit.workload_id)) from error

    async def _find(self, visit: _Visit) -> SessionTarget | Refusal:
        try:
            return await self._finder.find(visit.login, visit.workload_id)
        except DatabaseError:
            log.warning("the database does not answer: access cannot be checked", exc_info=True)
            return Refusal(Why.NO_DATABASE)

    async def _pass_on(self, visit: _Visit, target: SessionTarget) -> None:
        scope = visit.client.scope
        path = b"/attempts/%b/session%b" % (str(target.attempt_id).encode(), visit.raw_path)
        onward = Onward(
            target.relay,
            target_of(path, scope["query_string"]),
            onward_headers(scope, visit.request, target.relay_secret),
        )

        def rewrite(answer: Answer) -> Answer:
            if get_header(answer.headers, OWN_ANSWER_HEADER) is not None:
                raise UnreachableError(f"the relay answers {answer.status}")
            return Answer(answer.status, back_headers(answer, f"/s/{target.workload_id}/"))

        held = HeldCells(visit.client, visit.request)

        async def until_refused() -> Close:
            refusal = await self._until_refused(visit, target)
            held.is_closed_by_us = True
            return Close(refusal.why.close_code, refusal.why.value)

        if scope["type"] == "websocket":
            client = held.client if CHANNELS.fullmatch(visit.raw_path) else visit.client
            await forward_websocket(client, onward, rewrite=rewrite, until=until_refused)
        else:
            await self._forwarder.forward(
                visit.client, onward, rewrite=rewrite, until=until_refused
            )

    async def _until_refused(self, visit: _Visit, target: SessionTarget) -> Refusal:
        """Check again and again, until the visitor may no longer be there.

        A session that is merely not ready (its agent restarts, say) is no reason to hang up, nor
        is a database that is away: nobody can have been refused meanwhile.
        """
        while True:
            await asyncio.sleep(self._recheck_s)
            found = await self._find(visit)
            if isinstance(found, SessionTarget):
                if found.attempt_id != target.attempt_id:
                    return Refusal(Why.ENDED)
            elif found.why not in {Why.NOT_READY, Why.NO_DATABASE}:
                return found


def _as_request(scope: Scope) -> ASGIRequest:
    """The scope as Django reads it: host, scheme, cookies. WebSockets open with a GET."""
    schemes = {"ws": "http", "wss": "https"}
    scheme = scope.get("scheme", "http")
    return ASGIRequest({"method": "GET", **scope, "scheme": schemes.get(scheme, scheme)}, BytesIO())


def _read(client: Client, request: ASGIRequest) -> _Visit:
    """Read which session is meant, and refuse what no login makes acceptable.

    Raises:
        RefusedError: the host, the path or the origin is not acceptable.
    """
    try:
        request.get_host()
    except DisallowedHost as error:
        raise RefusedError(Refusal(Why.BAD_ADDRESS)) from error
    raw_path = bytes(client.scope["raw_path"]).partition(b"?")[0]
    if has_dot_segments(raw_path):
        raise RefusedError(Refusal(Why.BAD_ADDRESS))
    match = _SESSION_PATH.fullmatch(raw_path)
    if match is None:
        raise RefusedError(Refusal(Why.UNKNOWN))
    if not is_from_here(client.scope, request):
        raise RefusedError(Refusal(Why.OTHER_SITE))
    login = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    return _Visit(client, request, login, uuid.UUID(match[1].decode()), raw_path)
