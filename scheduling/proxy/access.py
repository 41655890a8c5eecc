"""Who may pass to which session's Jupyter, asked of the database and remembered for a moment."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from channels.db import database_sync_to_async

from projects.access import may_connect
from projects.logins import user_of_login
from scheduling.agent.forward import Upstream
from scheduling.models import ENDED_PHASES, AttemptPhase, NodeState, Phase, Workload

CACHE_S: Final = 1.5
"""JupyterLab asks for hundreds of files at its start; a revocation must still work in seconds."""

MAX_CACHED: Final = 10_000


class Why(StrEnum):
    """Why somebody may not pass."""

    LOGIN = "not signed in"
    FORBIDDEN = "not your session"
    OTHER_SITE = "from another site"
    UNKNOWN = "no such session"
    BAD_ADDRESS = "an address that cannot be used"
    NOT_READY = "not ready"
    ENDED = "ended"
    NO_ANSWER = "no answer"
    NO_DATABASE = "no database"

    @property
    def status(self) -> int:
        """Of the page that says so."""
        return _STATUSES[self]

    @property
    def close_code(self) -> int:
        """What closes a WebSocket that was open; 4000 to 4999 are an application's own."""
        return 4000 + self.status


_STATUSES: Final = {
    Why.LOGIN: 401,
    Why.FORBIDDEN: 403,
    Why.OTHER_SITE: 403,
    Why.UNKNOWN: 404,
    Why.BAD_ADDRESS: 400,
    Why.NOT_READY: 503,
    Why.ENDED: 503,
    # As a hub answers: JupyterLab takes any other error for the death of its kernel.
    Why.NO_ANSWER: 503,
    Why.NO_DATABASE: 503,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Not this time. `name` and `phase` are the workload's, where the person may know them."""

    why: Why
    workload_id: uuid.UUID | None = None
    name: str = ""
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class SessionTarget:
    """Where a session's Jupyter is reached, and as what."""

    workload_id: uuid.UUID
    attempt_id: uuid.UUID
    relay: Upstream
    relay_secret: str


def find_session(session_key: str, workload_id: uuid.UUID) -> SessionTarget | Refusal:
    """Look up whether a login session's holder may enter a workload's Jupyter, and where it is."""
    user = user_of_login(session_key)
    if user is None:
        return Refusal(Why.LOGIN)
    workload = Workload.objects.select_related("current__node__zone").filter(pk=workload_id).first()
    if workload is None or not workload.is_session:
        return Refusal(Why.UNKNOWN)
    if not may_connect(user, workload):
        return Refusal(Why.FORBIDDEN)
    return _target_of(workload)


def _target_of(workload: Workload) -> SessionTarget | Refusal:
    phase = Phase(workload.phase)
    attempt = workload.current
    if phase in ENDED_PHASES:
        return Refusal(Why.ENDED, workload.pk, workload.name, phase)
    if attempt is None or attempt.phase == AttemptPhase.ENDED or not attempt.is_ready:
        return Refusal(Why.NOT_READY, workload.pk, workload.name, phase)
    if attempt.node.state == NodeState.LOST:
        return Refusal(Why.NO_ANSWER, workload.pk, workload.name, phase)
    zone = attempt.node.zone
    return SessionTarget(workload.pk, attempt.pk, Upstream.parse(zone.relay_url), zone.relay_secret)


@dataclass(frozen=True, slots=True)
class _Lookup:
    asked_at: float
    answer: asyncio.Task[SessionTarget | Refusal]


class SessionFinder:
    """`find_session` for an event loop: asks once where many ask at once, and remembers a yes."""

    def __init__(self) -> None:
        self._lookups: dict[tuple[str, uuid.UUID], _Lookup] = {}

    async def find(
        self, session_key: str | None, workload_id: uuid.UUID
    ) -> SessionTarget | Refusal:
        """Find a session, or why not.

        Raises:
            django.db.Error: the database does not answer.
        """
        if not session_key:
            return Refusal(Why.LOGIN)
        key, now = (session_key, workload_id), time.monotonic()
        lookup = self._lookups.get(key)
        if lookup is None or now - lookup.asked_at > CACHE_S:
            self._make_room(now)
            task = asyncio.ensure_future(database_sync_to_async(find_session)(*key))
            lookup = self._lookups[key] = _Lookup(now, task)
        try:
            found = await asyncio.shield(lookup.answer)
        except BaseException:
            self._forget(key, lookup)
            raise
        if isinstance(found, Refusal):
            self._forget(key, lookup)
        return found

    def forget(self, session_key: str | None, workload_id: uuid.UUID) -> None:
        """Ask anew next time: what was remembered turned out to be wrong."""
        self._lookups.pop((session_key or "", workload_id), None)

    def _forget(self, key: tuple[str, uuid.UUID], lookup: _Lookup) -> None:
        if self._lookups.get(key) is lookup:
            del self._lookups[key]

    def _make_room(self, now: float) -> None:
        if len(self._lookups) >= MAX_CACHED:
            self._lookups = {
                key: lookup
                for key, lookup in self._lookups.items()
                if now - lookup.asked_at <= CACHE_S
            }
