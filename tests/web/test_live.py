"""The live socket: who may hear what, and that a slow browser gets the newest state only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.auth import AuthMiddlewareStack
from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from django.conf import settings
from django.test import Client, override_settings
from django.urls import path

from config.asgi import live_updates
from projects.models import Membership, User
from scheduling.consumers import (
    CLOSE_BAD_MESSAGE,
    CLOSE_NOT_LOGGED_IN,
    MAX_MESSAGES,
    MAX_TOPICS,
    LiveConsumer,
    group_of,
)
from scheduling.live import NODES_TOPIC, QUEUE_TOPIC, project_topic, workload_topic
from scheduling.routing import websocket_urlpatterns
from tests.web.scene import Scene, make_scene

pytestmark = pytest.mark.django_db(transaction=True)

IN_MEMORY = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

scene_of = database_sync_to_async(make_scene)


@pytest.fixture(autouse=True)
def layer_in_memory() -> Iterator[None]:
    with override_settings(CHANNEL_LAYERS=IN_MEMORY):
        yield


class Socket:
    """A browser's end of the live socket (channels' own needs the server daphne)."""

    def __init__(
        self,
        headers: list[tuple[bytes, bytes]],
        path: str = "/ws/live",
        routes: list[Any] = websocket_urlpatterns,
    ) -> None:
        scope = {"type": "websocket", "path": path, "headers": headers, "subprotocols": []}
        application = AuthMiddlewareStack(URLRouter(routes))
        self._end: Any = ApplicationCommunicator(application, scope)  # type: ignore[no-untyped-call]

    async def send_opening(self) -> None:
        await self._end.send_input({"type": "websocket.connect"})

    async def connect(self) -> None:
        await self.send_opening()
        assert (await self.receive())["type"] == "websocket.accept"

    async def send_json(self, content: object) -> None:
        await self.send_text(json.dumps(content))

    async def send_text(self, text: str) -> None:
        await self._end.send_input({"type": "websocket.receive", "text": text})

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._end.receive_output(timeout=5)
        return message

    async def receive_json(self) -> Any:
        message = await self.receive()
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])

    async def hears_nothing(self) -> bool:
        return bool(await self._end.receive_nothing())

    async def disconnect(self) -> None:
        await self._end.send_input({"type": "websocket.disconnect", "code": 1000})
        await self._end.wait(timeout=5)


async def opened(user: User | None) -> Socket:
    socket = Socket([] if user is None else [await login_cookie(Client(), user)])
    await socket.connect()
    return socket


async def login_cookie(client: Client, user: User) -> tuple[bytes, bytes]:
    await client.aforce_login(user)
    name = settings.SESSION_COOKIE_NAME
    return b"cookie", f"{name}={client.cookies[name].value}".encode()


async def subscribed(socket: Socket, *topics: str) -> set[str]:
    await socket.send_json({"subscribe": list(topics)})
    answer = await socket.receive_json()
    assert answer["type"] == "subscribed"
    return set(answer["topics"])


async def changed(topic: str) -> None:
    layer = get_channel_layer()
    assert layer is not None
    await layer.group_send(group_of(topic), {"type": "live.changed", "topic": topic})


async def test_whoever_is_not_logged_in_is_told_so() -> None:
    socket = await opened(None)
    closed = await socket.receive()
    assert (closed["type"], closed["code"]) == ("websocket.close", CLOSE_NOT_LOGGED_IN)


class QuickConsumer(LiveConsumer):
    """Looks again so soon that a test need not wait."""

    check_again_s = 0.1


async def test_whoever_logs_out_hears_no_more() -> None:
    scene: Scene = await scene_of()
    client = Client()
    cookie = await login_cookie(client, scene.organisation.vera)
    route: Any = path("ws/live", QuickConsumer.as_asgi())  # type: ignore[arg-type]  # ASGI
    socket = Socket([cookie], routes=[route])
    await socket.connect()
    await subscribed(socket, QUEUE_TOPIC)
    await client.alogout()
    closed = await socket.receive()
    assert (closed["type"], closed["code"]) == ("websocket.close", CLOSE_NOT_LOGGED_IN)


@pytest.mark.parametrize("path_", ["/ws/live", "/ws/squares"])
async def test_another_origin_is_refused(path_: str) -> None:
    scene: Scene = await scene_of()
    cookie = await login_cookie(Client(), scene.organisation.vera)
    for origin, answer in (
        (b"https://elsewhere.example", "websocket.close"),
        (b"http://localhost", "websocket.accept"),
    ):
        headers = [cookie, (b"origin", origin)]
        scope = {"type": "websocket", "path": path_, "headers": headers, "subprotocols": []}
        end: Any = ApplicationCommunicator(live_updates, scope)  # type: ignore[no-untyped-call]
        await end.send_input({"type": "websocket.connect"})
        assert (await end.receive_output(timeout=5))["type"] == answer
        await end.send_input({"type": "websocket.disconnect", "code": 1000})
        await end.wait(timeout=5)


async def test_an_address_that_leads_nowhere_is_refused() -> None:
    socket = Socket([], path="/ws/nowhere")
    await socket.send_opening()
    assert (await socket.receive())["type"] == "websocket.close"


async def test_one_hears_of_ones_own_projects_and_of_what_is_open_to_all() -> None:
    scene: Scene = await scene_of()
    own = workload_topic(scene.session.pk)
    foreign = workload_topic(scene.borrower.pk)
    topics = (
        own,
        foreign,
        project_topic("vision"),
        project_topic("language"),
        NODES_TOPIC,
        QUEUE_TOPIC,
        f"telemetry:{own}",
        f"telemetry:{foreign}",
        "telemetry:node:sim-t4-1",
        "telemetry:device:GPU-sim-t4-1-0",
    )
    socket = await opened(scene.organisation.vera)
    assert await subscribed(socket, *topics) == set(topics) - {
        foreign,
        project_topic("language"),
        f"telemetry:{foreign}",
    }
    await socket.disconnect()
    socket = await opened(scene.admin)
    assert await subscribed(socket, *topics) == set(topics)
    await socket.disconnect()
    socket = await opened(scene.stranger)
    assert own not in await subscribed(socket, *topics)
    await socket.disconnect()


@pytest.mark.parametrize(
    "topic", ["", "workload:", "workload:../x", "telemetry:", "project:", "nodes ", "live.nodes"]
)
async def test_a_topic_that_is_none_is_ignored(topic: str) -> None:
    user = await database_sync_to_async(User.objects.create_superuser)("admin")
    socket = await opened(user)
    assert await subscribed(socket, topic) == set()
    await socket.disconnect()


async def test_the_number_of_topics_is_bounded() -> None:
    user = await database_sync_to_async(User.objects.create_superuser)("admin")
    socket = await opened(user)
    names = [f"telemetry:node:n{number}" for number in range(3 * MAX_TOPICS)]
    assert len(await subscribed(socket, *names)) == MAX_TOPICS
    await socket.disconnect()


@pytest.mark.parametrize("message", ["not json", "[]", '{"subscribe": 7}', '"x"'])
async def test_a_message_that_makes_no_sense_ends_the_socket(message: str) -> None:
    user = await database_sync_to_async(User.objects.create_user)("somebody")
    socket = await opened(user)
    await socket.send_text(message)
    assert (await socket.receive())["code"] == CLOSE_BAD_MESSAGE


async def test_a_flood_ends_the_socket() -> None:
    scene: Scene = await scene_of()
    socket = await opened(scene.organisation.vera)
    for _ in range(MAX_MESSAGES + 1):
        await socket.send_json({"subscribe": [QUEUE_TOPIC]})
    while (message := await socket.receive())["type"] != "websocket.close":
        pass
    assert message["code"] == CLOSE_BAD_MESSAGE


async def test_a_change_is_heard_and_many_at_once_are_one() -> None:
    user = await database_sync_to_async(User.objects.create_user)("somebody")
    socket = await opened(user)
    await subscribed(socket, NODES_TOPIC)
    await changed(NODES_TOPIC)
    assert await socket.receive_json() == {"type": "changed", "topic": NODES_TOPIC}
    await changed(QUEUE_TOPIC)
    assert await socket.hears_nothing()
    await socket.disconnect()


async def test_leaving_a_topic_ends_its_news() -> None:
    user = await database_sync_to_async(User.objects.create_user)("somebody")
    socket = await opened(user)
    await subscribed(socket, NODES_TOPIC, QUEUE_TOPIC)
    assert await subscribed(socket, QUEUE_TOPIC) == {QUEUE_TOPIC}
    await changed(NODES_TOPIC)
    assert await socket.hears_nothing()
    await changed(QUEUE_TOPIC)
    assert (await socket.receive_json())["topic"] == QUEUE_TOPIC
    await socket.disconnect()


async def test_an_ended_membership_ends_the_subscription() -> None:
    scene: Scene = await scene_of()
    topic = project_topic("vision")
    socket = await opened(scene.organisation.vera)
    assert await subscribed(socket, topic) == {topic}
    await Membership.objects.filter(user=scene.organisation.vera).adelete()
    assert await subscribed(socket, topic) == set()
    await socket.disconnect()
