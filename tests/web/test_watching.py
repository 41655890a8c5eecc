"""What open pages show is measured every second: they say it, the agents' relays are asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from django.test import Client, override_settings

from scheduling import watching
from scheduling.agent.relay import RELAY_SERVER_OPTIONS, create_app
from scheduling.models import Node, Zone
from tests.serving import Host, served
from tests.web.scene import Scene, make_scene
from tests.web.test_live import IN_MEMORY, login_cookie
from tests.web.test_live import Socket as LiveSocket
from tests.web.test_live_pages import Socket as SquaresSocket

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def layer_in_memory() -> Iterator[None]:
    with override_settings(CHANNEL_LAYERS=IN_MEMORY):
        yield


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "RENEW_EVERY_S", 0.4)
    monkeypatch.setattr(watching, "MIN_GAP_S", 0.1)


@pytest.fixture
def scene() -> Scene:
    return make_scene()


@pytest.fixture
def relay(scene: Scene, tmp_path: Path) -> Iterator[Host]:
    """The relay of the scene's agent, really served."""
    host = Host()
    path = tmp_path / "r.sock"
    with serving(host, path):
        Zone.objects.update(relay_url=f"unix:{path}", relay_secret=host.secret)
        yield host


def serving(host: Host, path: Path) -> AbstractContextManager[int]:
    return served(create_app(host), path, **RELAY_SERVER_OPTIONS)


def asked(host: Host) -> list[list[str]]:
    """Nodes of each wish so far."""
    return [wish.nodes for wish in host.watched]


async def until(host: Host, nodes: list[str], times: int = 1) -> None:
    """Wait until these nodes were asked for so often, from now on."""
    before = len(host.watched)
    async with asyncio.timeout(PATIENCE_S):
        while asked(host)[before:].count(nodes) < times:
            await asyncio.sleep(0.02)


async def is_quiet(host: Host) -> bool:
    """Whether nobody asks any more."""
    await asyncio.sleep(0.3)
    before = len(host.watched)
    await asyncio.sleep(1.2)
    return len(host.watched) == before


def test_squares_on_the_screen_are_watched_until_the_page_pauses_or_goes(
    scene: Scene, relay: Host
) -> None:
    socket = SquaresSocket(scene.organisation.vera)
    first, second = (Node.objects.get(name=name).pk for name in ("sim-t4-1", "sim-t4-2"))

    async def visit() -> None:
        async with socket.open():
            await socket.say({"watch": [first]})
            await until(relay, ["sim-t4-1"], times=2)
            await socket.say({"watch": [first, second]})
            await until(relay, ["sim-t4-1", "sim-t4-2"])
            await socket.say({"pause": True})
            assert await is_quiet(relay)
            await socket.say({"pause": False})
            await until(relay, ["sim-t4-1", "sim-t4-2"])
        assert await is_quiet(relay)

    asyncio.run(visit())
    assert {wish.for_s for wish in relay.watched} == {watching.FOR_S}


def test_a_workload_a_device_and_a_node_are_watched_where_they_are(
    scene: Scene, relay: Host
) -> None:
    workload = scene.session
    assert workload.current is not None
    node = workload.current.node
    device = node.devices.get(index=0)
    other = Node.objects.exclude(pk=node.pk).filter(devices__isnull=False).first()
    assert other is not None

    async def visit() -> None:
        socket = LiveSocket([await login_cookie_of(scene)])
        await socket.connect()
        for topic in (f"workload:{workload.pk}", f"device:{device.uuid}", f"node:{node.name}"):
            await subscribe(socket, f"telemetry:{topic}")
            await until(relay, [node.name])
        await subscribe(socket, f"telemetry:workload:{workload.pk}", f"telemetry:node:{other.name}")
        await until(relay, sorted([node.name, other.name]))
        await subscribe(socket, f"telemetry:node:{node.name}", hidden=True)
        assert await is_quiet(relay)
        await subscribe(socket, "queue")
        assert await is_quiet(relay)
        await socket.disconnect()

    asyncio.run(visit())


async def login_cookie_of(scene: Scene) -> tuple[bytes, bytes]:
    return await login_cookie(Client(), scene.organisation.vera)


async def subscribe(socket: LiveSocket, *topics: str, hidden: bool = False) -> None:
    await socket.send_json({"subscribe": list(topics), "hidden": hidden})
    while json.loads((await socket.receive())["text"])["type"] != "subscribed":
        pass


def test_an_agent_that_is_away_is_asked_again_when_it_is_back(scene: Scene, tmp_path: Path) -> None:
    host, path = Host(), tmp_path / "r.sock"
    Zone.objects.update(relay_url=f"unix:{path}", relay_secret=host.secret)
    socket = SquaresSocket(scene.organisation.vera)
    node = Node.objects.get(name="sim-t4-1").pk

    async def visit() -> None:
        async with socket.open():
            await socket.say({"watch": [node]})
            await asyncio.sleep(0.6)
            with serving(host, path):
                await until(host, ["sim-t4-1"], times=2)

    asyncio.run(visit())


def test_two_pages_ask_for_what_both_show_and_the_rest_goes_on(scene: Scene, relay: Host) -> None:
    one, other = (SquaresSocket(scene.organisation.vera) for _ in range(2))
    first, second = (Node.objects.get(name=name).pk for name in ("sim-t4-1", "sim-t4-2"))

    async def visit() -> None:
        async with one.open():
            await one.say({"watch": [first]})
            async with other.open():
                await other.say({"watch": [second]})
                await until(relay, ["sim-t4-1", "sim-t4-2"])
            await until(relay, ["sim-t4-1"])
        assert await is_quiet(relay)

    asyncio.run(visit())
