"""The live socket of open pages: they say which topics they show, we say which of them changed.

A message says only *changed* (the page asks for its part again through the view that made it) or
carries the newest sample. Of each topic only the newest message waits to be sent, so a slow browser
gets the newest state and never a growing queue. Access is checked when a topic is subscribed to and
again every so often while the socket is open, since memberships end and people log out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
import uuid
from collections import deque
from collections.abc import Iterable
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer, AsyncWebsocketConsumer

from projects import access
from projects.logins import user_of_login
from projects.models import Project, User
from scheduling import live, streams, watching
from scheduling.models import Workload
from telemetry import live as samples

CLOSE_NOT_LOGGED_IN = 4401
CLOSE_BAD_MESSAGE = 4400
MAX_TOPICS = 120
MAX_TOPIC_CHARS = 200
CHECK_AGAIN_S = 10.0
MAX_NODES = 4000
MIN_GAP_S = 0.9
"""Between two messages of one picture of squares, so that scrolling makes no more of them."""
MAX_MESSAGES = 40
PER_S = 10.0
OPEN_TOPICS = frozenset({live.NODES_TOPIC, live.QUEUE_TOPIC, live.CLUSTER_TOPIC})
OPEN_SUBJECTS = ("node:", "device:")

Message = dict[str, Any]  # JSON of several shapes


class Flood:
    """Counts what one page says: none that we serve says so much."""

    def __init__(self) -> None:
        self._heard_at: deque[float] = deque(maxlen=MAX_MESSAGES)

    def has_come(self) -> bool:
        """Note a message; whether there were too many."""
        now = time.monotonic()
        is_full = len(self._heard_at) == MAX_MESSAGES and now - self._heard_at[0] < PER_S
        self._heard_at.append(now)
        return is_full


class LiveConsumer(AsyncJsonWebsocketConsumer):
    """One open page.

    Attributes:
        check_again_s: So often it is asked anew whether the person may still listen.
    """

    check_again_s = CHECK_AGAIN_S

    async def connect(self) -> None:
        self.topics: set[str] = set()
        self.waiting: dict[str, Message] = {}
        self.has_news = asyncio.Event()
        self.sender: asyncio.Task[None] | None = None
        self.flood = Flood()
        self.is_hidden = False
        self.screens = watching.screens()
        self.teller: asyncio.Task[None] | None = None
        self.user = self.scope.get("user")
        if not isinstance(self.user, User) or not self.user.is_active:
            # Accepted first: of a refused handshake a browser learns no code.
            await self.accept()
            await self.close(code=CLOSE_NOT_LOGGED_IN)
            return
        await self.accept()
        self.sender = asyncio.create_task(self._send_news())

    async def disconnect(self, code: int) -> None:
        if self.sender is not None:
            self.sender.cancel()
        for topic in self.topics:
            await self.channel_layer.group_discard(group_of(topic), self.channel_name)
        await self.screens.leave(self)
        await self._tell_sums(False)

    async def receive_json(self, content: Any, **_kwargs: Any) -> None:  # whatever a browser sends
        if self.flood.has_come():
            await self.close(code=CLOSE_BAD_MESSAGE)
            return
        wanted = content.get("subscribe") if isinstance(content, dict) else None
        if not isinstance(wanted, list) or not isinstance(self.user, User):
            await self.close(code=CLOSE_BAD_MESSAGE)
            return
        self.is_hidden = content.get("hidden") is True
        topics = {item for item in wanted if isinstance(item, str) and len(item) <= MAX_TOPIC_CHARS}
        allowed = await visible_topics(self.user.pk, sorted(topics)[:MAX_TOPICS])
        await self._listen_to(allowed)
        await self.send_json({"type": "subscribed", "topics": sorted(allowed)})

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        try:
            return await super().decode_json(text_data)
        except ValueError:
            return None

    async def _listen_to(self, wanted: set[str]) -> None:
        """Make the groups those of exactly these topics."""
        for topic in self.topics - wanted:
            await self.channel_layer.group_discard(group_of(topic), self.channel_name)
        for topic in wanted - self.topics:
            await self.channel_layer.group_add(group_of(topic), self.channel_name)
        self.topics = wanted
        subjects = frozenset(filter(None, map(samples.subject_of, wanted)))
        shown = watching.NOTHING if self.is_hidden else watching.Shown(subjects=subjects)
        self.screens.show(self, shown)
        await self._tell_sums(live.CLUSTER_TOPIC in wanted and not self.is_hidden)

    async def _tell_sums(self, is_wanted: bool) -> None:
        """Begin or end to tell once a second how much of the cluster is held and used."""
        if is_wanted and self.teller is None:
            viewer = streams.Viewer(frozenset())
            streams.board().join(viewer)
            self.teller = asyncio.create_task(self._tell_forever(viewer))
        elif not is_wanted and self.teller is not None:
            teller, self.teller = self.teller, None
            teller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await teller

    async def _tell_forever(self, viewer: streams.Viewer) -> None:
        board = streams.board()
        try:
            while True:
                await viewer.fresh.wait()
                viewer.fresh.clear()
                if (sums := board.sums()) is not None:
                    message = {"type": "samples", "topic": live.CLUSTER_TOPIC, **sums}
                    self._news(live.CLUSTER_TOPIC, message)
        finally:
            await board.leave(viewer)

    async def live_changed(self, event: Message) -> None:
        self._news(event["topic"], {"type": "changed", "topic": event["topic"]})

    async def samples(self, event: Message) -> None:
        self._news(event["topic"], event)

    def _news(self, topic: str, message: Message) -> None:
        if topic in self.topics:
            self.waiting[topic] = message
            self.has_news.set()

    async def _send_news(self) -> None:
        """Send what waits, one message per topic, at the browser's own pace."""
        check_at = next_check(self.check_again_s)
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.has_news.wait(), self.check_again_s)
            self.has_news.clear()
            while self.waiting:
                topic = next(iter(self.waiting))
                await self.send_json(self.waiting.pop(topic))
            if time.monotonic() > check_at:
                check_at = next_check(self.check_again_s)
                if not await self._is_still_welcome():
                    return

    async def _is_still_welcome(self) -> bool:
        """Drop topics that the person may no longer see; close when they may see nothing."""
        assert isinstance(self.user, User)  # the sender runs for people only
        allowed = await visible_topics(self.user.pk, sorted(self.topics))
        if (not allowed and self.topics) or not await is_logged_in(self.scope):
            await self.close(code=CLOSE_NOT_LOGGED_IN)
            return False
        await self._listen_to(allowed)
        return True


class NowhereConsumer(AsyncWebsocketConsumer):
    """An address that leads nowhere: refused, where Channels itself would fail."""

    async def connect(self) -> None:
        await self.close()


class SquaresConsumer(AsyncWebsocketConsumer):
    """One open *Live* page: which nodes it shows, and what changes there (`scheduling.streams`).

    The page says `{"watch": [node, …]}` and `{"pause": true}`.
    """

    async def connect(self) -> None:
        self.sender: asyncio.Task[None] | None = None
        self.viewer: streams.Viewer | None = None
        self.sent_at, self.sent_version = 0.0, streams.UNSEEN
        self.flood = Flood()
        self.is_closing = False
        self.board: streams.Board = streams.board()
        self.screens = watching.screens()
        await self.accept()
        user = self.scope.get("user")
        if not isinstance(user, User) or not user.is_active:
            await self.close(code=CLOSE_NOT_LOGGED_IN)
            return
        self.viewer = streams.Viewer(await named_projects(user.pk) or frozenset())
        self.board.join(self.viewer)
        self.sender = asyncio.create_task(self._send_news(user.pk, self.viewer))

    async def disconnect(self, code: int) -> None:
        if self.sender is not None:
            self.sender.cancel()
        if self.viewer is not None:
            await self.board.leave(self.viewer)
        await self.screens.leave(self)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.is_closing:
            return  # What had been sent before still arrives.
        is_flood = self.flood.has_come()
        if self.viewer is None or is_flood or not self._obey(self.viewer, _json(text_data)):
            self.is_closing = True
            await self.close(code=CLOSE_BAD_MESSAGE)

    def _obey(self, viewer: streams.Viewer, wish: object) -> bool:
        """Do what the page says; False when it says nothing that is known."""
        if not isinstance(wish, dict):
            return False
        nodes, is_paused = wish.get("watch"), wish.get("pause")
        if isinstance(nodes, list):
            viewer.watch([node for node in nodes[:MAX_NODES] if type(node) is int])
        if isinstance(is_paused, bool):
            viewer.is_paused = is_paused
            viewer.fresh.set()
        nodes_shown = frozenset() if viewer.is_paused else frozenset(viewer.seen)
        self.screens.show(self, watching.Shown(nodes=nodes_shown))
        return isinstance(nodes, list) or isinstance(is_paused, bool)

    async def _send_news(self, user_id: int, viewer: streams.Viewer) -> None:
        """Send what the page lacks, once per picture and at the browser's own pace."""
        check_at = next_check(CHECK_AGAIN_S)
        while True:
            await viewer.fresh.wait()
            viewer.fresh.clear()
            await self._let_gap_pass(viewer)
            message = None if viewer.is_paused else self.board.message(viewer)
            if message is not None:
                await self.send(text_data=message)
                self.sent_at, self.sent_version = time.monotonic(), self.board.version
            if time.monotonic() > check_at:
                check_at = next_check(CHECK_AGAIN_S)
                if not await self._is_still_welcome(user_id, viewer):
                    return

    async def _let_gap_pass(self, viewer: streams.Viewer) -> None:
        """Wait before more of the same picture is sent, as scrolling asks for; a new one goes at
        once: held back, it would be late by what the one before it was late.
        """
        while (
            self.board.version == self.sent_version
            and (left_s := self.sent_at + MIN_GAP_S - time.monotonic()) > 0
        ):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(viewer.fresh.wait(), left_s)
            viewer.fresh.clear()

    async def _is_still_welcome(self, user_id: int, viewer: streams.Viewer) -> bool:
        """Look again at what the person may see; close when they may not log in any more."""
        named = await named_projects(user_id)
        if named is None or not await is_logged_in(self.scope):
            await self.close(code=CLOSE_NOT_LOGGED_IN)
            return False
        if viewer.named != named:
            viewer.named = named
            viewer.forget()
        return True


def next_check(every_s: float) -> float:
    """When it is looked again at who may listen, by the monotonic clock. Spread: of pages that came
    together, as after a restart of web, each would wait for the look at all others.
    """
    return time.monotonic() + every_s * random.uniform(0.5, 1.0)


def _json(text: str | None) -> object:
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        return None


@database_sync_to_async
def is_logged_in(scope: Any) -> bool:
    """Whether the login session in which a socket was opened is still one."""
    key = scope["session"].session_key
    user = user_of_login(key) if key else None
    return user is not None and user == scope["user"]


@database_sync_to_async
def named_projects(user_id: int) -> frozenset[int] | None:
    """Projects that the person sees by name; None when they may not be here."""
    user = User.objects.filter(pk=user_id, is_active=True).first()
    if user is None:
        return None
    return frozenset(access.visible_projects(user).values_list("pk", flat=True))


def group_of(topic: str) -> str:
    """The Channels group of any topic, ours or of telemetry."""
    return live.group_of(topic) if samples.subject_of(topic) is None else samples.group_of(topic)


@database_sync_to_async
def visible_topics(user_id: int, topics: Iterable[str]) -> set[str]:
    """Those that this person may hear now; at most three queries."""
    user = User.objects.filter(pk=user_id, is_active=True).first()
    if user is None:
        return set()
    asked = {topic: _asked(topic) for topic in topics}
    projects = set(
        access.visible_projects(user)
        .filter(name__in=[name for kind, name in asked.values() if kind == "project"])
        .values_list("name", flat=True)
    )
    workloads = {
        str(pk)
        for pk in Workload.objects.filter(
            pk__in=[name for kind, name in asked.values() if kind == "workload"],
            project__in=Project.objects.all()
            if user.is_superuser
            else access.visible_projects(user),
        ).values_list("pk", flat=True)
    }
    return {
        topic
        for topic, (kind, name) in asked.items()
        if kind == "open"
        or (kind == "project" and name in projects)
        or (kind == "workload" and name in workloads)
    }


def _asked(topic: str) -> tuple[str, str]:
    """What a topic is about: `open`, `project` or `workload` with its name; `` for none of ours."""
    if topic in OPEN_TOPICS:
        return "open", ""
    subject = samples.subject_of(topic)
    if subject is not None and subject.startswith(OPEN_SUBJECTS):
        return "open", ""
    kind, _colon, name = (subject or topic).partition(":")
    if kind == "project" and subject is None:
        return "project", name
    if kind == "workload" and _is_uuid(name):
        return "workload", name
    return "", ""


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
