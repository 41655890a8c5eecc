"""Logs of attempts: the tail as text, the whole as a download, and a stream that follows.

The stream is Server-Sent Events from an asynchronous generator. It holds neither a thread nor a
database connection while it waits; every few seconds it looks whether the reader may still see the
workload and whether a newer attempt has begun, which it then follows. Its event ids are `<attempt
number>[.<replica>]:<offset>`, so that a browser that was cut off goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from asgiref.sync import sync_to_async
from channels.db import database_sync_to_async
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from projects.logins import user_of_login
from projects.models import User
from scheduling.models import LEADER, MAX_REPLICAS, Attempt, AttemptPhase, Zone
from scheduling.relay_client import AgentAwayError
from scheduling.relay_log import CHUNK_BYTES, LogReader, NoLogError, log_reader, new_decoder
from scheduling.views.pages import PageRequest
from scheduling.views.workload import find_workload

POLL_S = 0.5
LOOK_AGAIN_S = 3.0
HEARTBEAT_S = 15.0
AWAY_POLL_S = 2.0
MAX_OFFSET = 2**53


@dataclass(frozen=True, slots=True)
class Source:
    """Where a log lies, and what is known of its attempt."""

    attempt: Attempt
    zone: Zone

    @property
    def is_over(self) -> bool:
        return self.attempt.phase == AttemptPhase.ENDED


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose log: a replica's, of its n-th attempt or of its newest."""

    replica: int
    number: int | None


def _wanted(request: PageRequest) -> Wanted:
    """Whose log an address names.

    Raises:
        Http404: by what is no number; another log in its place would be taken for it.
    """
    replica = _named(request.GET.get("replica"), MAX_REPLICAS)
    return Wanted(replica or LEADER, _named(request.GET.get("attempt"), 10**6))


def _named(text: str | None, largest: int) -> int | None:
    number = _number(text, largest)
    if text and number is None:
        raise Http404
    return number


def _find_source(user: User, workload_id: uuid.UUID, wanted: Wanted) -> Source:
    """The wanted attempt, or the newest.

    Raises:
        Http404: no such workload or attempt.
        PermissionDenied: the person may not see it.
    """
    workload = find_workload(user, workload_id)
    attempts = workload.attempts.select_related("node__zone").order_by("-number")
    attempts = attempts.filter(replica=wanted.replica)
    if wanted.number is not None:
        attempts = attempts.filter(number=wanted.number)
    attempt = attempts.first()
    if attempt is None:
        raise Http404
    return Source(attempt, attempt.node.zone)


# Gives the connection back to the pool after each call, since the caller then waits for long.
_source = database_sync_to_async(_find_source)


def _number(text: str | None, largest: int) -> int | None:
    """A count from an address; None where it is missing or no number."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 17):
        return None
    return min(int(text), largest)


async def _person(request: PageRequest) -> User:
    """Who asks: the lazy user of the session, read in a thread.

    Raises:
        PermissionDenied: nobody is logged in.
    """
    user = await request.auser()
    if not isinstance(user, User) or not user.is_active:
        raise PermissionDenied
    return user


@login_required
@require_safe
async def log(request: PageRequest, workload_id: uuid.UUID) -> HttpResponseBase:
    """The log as plain text: the last lines, from an offset, or (`download=1`) all of it."""
    user = await _person(request)
    source = await _source(user, workload_id, _wanted(request))
    if request.GET.get("download"):
        return _download(source)
    offset = _number(request.GET.get("offset"), MAX_OFFSET)
    try:
        async with log_reader(source.zone, source.attempt.pk) as reader:
            if offset is None:
                piece = await reader.tail()
            else:
                limit = _number(request.GET.get("limit"), CHUNK_BYTES) or CHUNK_BYTES
                piece = await reader.read(offset, limit)
    except (AgentAwayError, NoLogError):
        return _stored_lines(source)
    response = HttpResponse(piece.data, content_type="text/plain; charset=utf-8")
    response["X-Log-Offset"] = str(piece.offset)
    response["X-Log-Size"] = str(piece.size)
    response["X-Log-Attempt"] = str(source.attempt.number)
    response["Cache-Control"] = "private, no-store"
    return response


def _stored_lines(source: Source) -> HttpResponse:
    """What the last report kept of it, when the agent cannot be asked."""
    lines = [_("(The agent is away; these are the last lines that it reported.)")]
    text = "\n".join([*lines, *source.attempt.last_lines, ""])
    response = HttpResponse(text, content_type="text/plain; charset=utf-8", status=503)
    response["X-Log-Attempt"] = str(source.attempt.number)
    response["Cache-Control"] = "private, no-store"
    return response


def _download(source: Source) -> StreamingHttpResponse:
    attempt = source.attempt
    of_replica = f"-replica-{attempt.replica}" if attempt.workload.max_replicas > 1 else ""
    name = f"{attempt.workload.name}{of_replica}-{attempt.number}.log"
    response = StreamingHttpResponse(_whole(source), content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "private, no-store"
    return response


async def _whole(source: Source) -> AsyncIterator[bytes]:
    try:
        async with log_reader(source.zone, source.attempt.pk) as reader:
            async for data in reader.chunks():
                yield data
    except (AgentAwayError, NoLogError):
        yield ("\n" + _("(The agent is away: the log is cut off here.)") + "\n").encode()


@login_required
@require_safe
async def stream(request: PageRequest, workload_id: uuid.UUID) -> HttpResponseBase:
    """Follow a log: `text`, `attempt`, `away` and `end` events."""
    user = await _person(request)
    wanted = _wanted(request)
    last_id = request.headers.get("Last-Event-ID", "")
    source = await _source(user, workload_id, wanted)
    login = Login(user, request.session.session_key or "")
    follower = _Follower(
        login, workload_id, source, follows_newer=wanted.number is None, last_id=last_id
    )
    response = StreamingHttpResponse(follower.events(), content_type="text/event-stream")
    response["Cache-Control"] = "private, no-store"
    response["X-Accel-Buffering"] = "no"
    return response


def _event(name: str, data: object, event_id: str = "") -> bytes:
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def _name(attempt: Attempt) -> str:
    """An attempt in an event's id: its number, for all but the leader with the replica's."""
    return (
        str(attempt.number) if attempt.replica == LEADER else f"{attempt.number}.{attempt.replica}"
    )


@dataclass(frozen=True, slots=True)
class Login:
    """Who follows, and by which login session: a stream ends when they log out."""

    user: User
    session_key: str


class _Follower:
    """One browser's stream."""

    def __init__(
        self,
        login: Login,
        workload_id: uuid.UUID,
        source: Source,
        *,
        follows_newer: bool,
        last_id: str,
    ) -> None:
        self._login = login
        self._workload_id = workload_id
        self._source = source
        self._follows_newer = follows_newer
        self._looked_at = time.monotonic()
        self._sent_at = time.monotonic()
        self._offset = self._resumed(last_id)
        self._decoder = new_decoder()

    def _resumed(self, last_id: str) -> int | None:
        """The offset to go on from, if the browser was following this very attempt."""
        number, _colon, offset = last_id.partition(":")
        if number != _name(self._source.attempt):
            return None
        return _number(offset, MAX_OFFSET)

    async def events(self) -> AsyncIterator[bytes]:
        yield _event("attempt", self._about())
        while True:
            try:
                async with log_reader(self._source.zone, self._source.attempt.pk) as reader:
                    async for event in self._follow(reader):
                        yield event
            except AgentAwayError:
                yield await sync_to_async(self._away)()
            except NoLogError:
                if self._source.is_over:
                    yield await sync_to_async(self._away)()
            except (PermissionDenied, Http404):
                yield _event("end", {})
                return
            if self._source.is_over and not self._follows_newer:
                yield _event("end", {})
                return
            await asyncio.sleep(AWAY_POLL_S)
            try:
                if await self._look():
                    yield _event("attempt", self._about())
            except (PermissionDenied, Http404):
                yield _event("end", {})
                return
            yield b": alive\n\n"

    async def _follow(self, reader: LogReader) -> AsyncIterator[bytes]:
        """Send what is there and what comes, until the attempt is over and everything was sent."""
        if self._offset is None:
            piece = await reader.tail()
            self._offset = piece.offset
            yield self._text(piece.data)
        while True:
            piece = await reader.read(self._offset)
            if piece.data:
                yield self._text(piece.data)
                continue
            if self._source.is_over:
                return
            if time.monotonic() - self._sent_at > HEARTBEAT_S:
                self._sent_at = time.monotonic()
                yield b": alive\n\n"
            await asyncio.sleep(POLL_S)
            if time.monotonic() - self._looked_at > LOOK_AGAIN_S and await self._look():
                yield _event("attempt", self._about())
                return

    def _text(self, data: bytes) -> bytes:
        assert self._offset is not None  # set before anything is sent
        self._offset += len(data)
        self._sent_at = time.monotonic()
        event_id = f"{_name(self._source.attempt)}:{self._offset}"
        return _event("text", {"text": self._decoder.decode(data)}, event_id)

    async def _look(self) -> bool:
        """Read the attempt anew, with the access check; whether another one is followed now.

        Raises:
            PermissionDenied, Http404: the reader may no longer see it.
        """
        self._looked_at = time.monotonic()
        before = self._source.attempt
        wanted = Wanted(before.replica, None if self._follows_newer else before.number)
        if await sync_to_async(user_of_login)(self._login.session_key) != self._login.user:
            raise PermissionDenied
        self._source = await _source(self._login.user, self._workload_id, wanted)
        if self._source.attempt.pk == before.pk:
            return False
        self._offset = None
        self._decoder = new_decoder()
        return True

    def _about(self) -> dict[str, object]:
        attempt = self._source.attempt
        return {
            "replica": attempt.replica,
            "number": attempt.number,
            "is_over": self._source.is_over,
        }

    def _away(self) -> bytes:
        text = _("The agent is away; the log goes on as soon as it is back.")
        return _event("away", {"text": text, "lines": self._source.attempt.last_lines})
