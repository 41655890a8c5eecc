"""Live: what a page of squares shows, and what its socket sends to whom."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.conf import settings
from django.test import Client
from django.utils import timezone

from projects.models import User
from scheduling import consumers, squares, streams
from scheduling.consumers import CLOSE_BAD_MESSAGE, CLOSE_NOT_LOGGED_IN, MAX_MESSAGES
from scheduling.models import Device, DeviceAllocation, Node
from scheduling.routing import websocket_urlpatterns
from scheduling.squares import Part, PartState, Picture, Square, totals_of
from telemetry.ingestion import ingest
from telemetry.messages import Sample, SampleBatch
from tests.scheduling.history import held, workload
from tests.web.scene import Scene, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    return make_scene()


def opened(user: User, language: str = "en") -> Any:
    client = Client(headers={"Accept-Language": language})
    client.force_login(user)
    return client.get("/live")


def payload_of(response: Any) -> dict[str, Any]:
    text = response.content.decode()
    found = re.search(r'<script id="squares-data"[^>]*>(.*?)</script>', text, re.S)
    assert found is not None
    payload: dict[str, Any] = json.loads(found.group(1))
    return payload


def sample(scene: Scene, **values: float | None) -> None:
    """The first GPU of the first node was measured just now."""
    now = timezone.now().timestamp()
    samples = [
        Sample("device:GPU-sim-t4-1-0", now, {**values}),
        Sample("node:sim-t4-1", now, {"cpu_cores": 1.0}),
    ]
    ingest(SampleBatch("local", "sim-t4-1", f"b{now}", samples), nodes={"sim-t4-1"})


# ---------------------------------------------------------------- the page


@pytest.mark.parametrize("language", ["en", "ru"])
def test_every_gpu_is_a_square_and_every_node_a_row(scene: Scene, language: str) -> None:
    response = opened(scene.admin, language)
    assert response.status_code == 200
    assert len(payload_of(response)["use"]) == 12
    text = response.content.decode()
    with_gpus, without = text.count("data-row="), text.count("<tr data-host=")
    assert (with_gpus, without, text.count("data-health=")) == (3, 1, 4)


@pytest.fixture
def host(scene: Scene) -> Node:
    """The node without GPUs, on which a training holds 4 cores and 8 GiB."""
    node = Node.objects.get(name="sim-cpu-1")
    work = workload(scene.speech, scene.admin, phase="running")
    held(work, node, (timezone.now(), None))
    return node


def measure(node: Node, cores: float, mib: float, ago_s: float = 0.0) -> None:
    now = timezone.now().timestamp() - ago_s
    samples = [Sample(f"node:{node.name}", now, {"cpu_cores": cores, "memory_mib": mib})]
    ingest(SampleBatch("local", node.name, f"b{now}", samples), nodes={node.name})


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("en", "CPU held 4 / 32 · used 2.5 Memory held 8 / 128 GiB · used 12"),
        ("ru", "CPU занято 4 / 32 · используется 2,5 Память занято 8 / 128 ГиБ · используется 12"),
    ],
)
def test_a_node_without_gpus_shows_cores_and_memory_and_its_collector(
    scene: Scene, host: Node, language: str, words: str
) -> None:
    measure(host, 2.5, 12 * 1024)
    response = opened(scene.admin, language)
    payload, text = payload_of(response), response.content.decode()
    assert payload["hosts"] == {str(host.pk): [4000, 8192, 2500, 12_288]}
    assert payload["sizes"] == {str(host.pk): [[32_000, 1000], [131_072, 1024]]}
    card = text.partition(f'data-node="{host.pk}"')[2].partition("</a>")[0]
    seen = " ".join(re.sub("<[^>]*>", " ", card.partition(">")[2]).replace("&nbsp;", " ").split())
    assert seen == f"sim-cpu-1 {words}"
    assert "<rect" in card, "bars, and no squares"
    assert f'data-health="{host.pk}"' in text
    assert text.count("data-row=") == 3
    assert len(payload["use"]) == 12


def test_a_node_without_gpus_that_is_not_measured_shows_no_data(scene: Scene, host: Node) -> None:
    measure(host, 2.5, 12 * 1024, ago_s=60)
    response = opened(scene.admin)
    assert payload_of(response)["hosts"] == {str(host.pk): [4000, 8192, None, None]}
    assert str(host.pk) in payload_of(response)["heard"]
    assert response.content.decode().count('data-figure="used">no data<') == 4


def test_where_no_node_has_gpus_there_is_no_bar_of_them(host: Node, scene: Scene) -> None:
    DeviceAllocation.objects.all().delete()
    Device.objects.all().delete()
    text = opened(scene.admin).content.decode()
    assert "sim-cpu-1" in text
    assert 'id="cluster-bar"' not in text


def test_what_was_not_measured_is_no_data_and_not_zero(scene: Scene) -> None:
    sample(scene, gpu_util_percent=41.4, memory_used_mib=None)
    key = f"{Node.objects.get(name='sim-t4-1').pk}.0"
    use = payload_of(opened(scene.admin))["use"]
    assert use.pop(key) == [41, None, None, None]
    assert set(map(tuple, use.values())) == {(None, None, None, None)}


def test_an_old_sample_says_nothing_about_now(scene: Scene) -> None:
    sample(scene, gpu_util_percent=41)
    later = squares.picture(timezone.now() + timedelta(minutes=1), frozenset())
    assert {square.use[0] for square in later.squares} == {None}
    assert len(later.heard) == 1


def test_projects_of_others_have_no_name_and_no_number(scene: Scene) -> None:
    seen = payload_of(opened(scene.organisation.vera))
    assert [name for name, *_ in seen["projects"].values()] == ["Vision"]
    projects = {part[0] for parts in seen["parts"].values() for part in parts}
    assert projects == {0, scene.organisation.vision.pk}
    assert "Speech" not in opened(scene.organisation.vera).content.decode()
    whole = payload_of(opened(scene.admin))
    assert 0 not in {part[0] for parts in whole["parts"].values() for part in parts}


def test_totals_agree_with_what_is_held(scene: Scene) -> None:
    totals = squares.picture(timezone.now(), frozenset()).totals
    held = DeviceAllocation.objects.filter(is_open=True).values_list("gpu_milli", flat=True)
    assert (totals.total, totals.held, totals.used) == (12_000, sum(held), None)


def test_without_nodes_the_page_says_so(db: None) -> None:
    text = opened(User.objects.create_superuser("admin")).content.decode()
    assert "Nothing yet" in text
    # No script of this page waits for a first node.
    assert "Load this page again" in text


def test_many_gpus_cost_the_same_queries(scene: Scene, django_assert_max_num_queries: Any) -> None:
    with django_assert_max_num_queries(6):
        squares.picture(timezone.now(), squares.idle_allocations(timezone.now()))


# ---------------------------------------------------------------- differences


def picture(*uses: int | None, parts: tuple[Part, ...] = ()) -> Picture:
    """Two nodes of two GPUs."""
    found = tuple(
        Square(f"{1 + number // 2}.{number % 2}", 1 + number // 2, number % 2, 1000, True)
        for number in range(4)
    )
    found = tuple(
        replace(square, use=(use, None, None, None), parts=parts if not number else ())
        for number, (square, use) in enumerate(zip(found, uses, strict=True))
    )
    at = timezone.now()
    return Picture(at, found, {1: at.timestamp(), 2: 5.0}, totals_of(found))


def said(board: streams.Board, viewer: streams.Viewer) -> dict[str, Any]:
    message = board.message(viewer)
    assert message is not None
    content: dict[str, Any] = json.loads(message)
    return content


def viewer_of(*nodes: int, named: frozenset[int] = frozenset({7})) -> streams.Viewer:
    viewer = streams.Viewer(named)
    viewer.watch(nodes)
    return viewer


def test_only_what_changed_on_the_screen_is_sent() -> None:
    board, viewer = streams.Board(), viewer_of(1)
    board.take(picture(1, 2, 3, 4))
    assert set(said(board, viewer)["use"]) == {"1.0", "1.1"}
    board.take(picture(1, 9, 9, 9))
    message = said(board, viewer)
    assert message["use"] == {"1.1": [9, None, None, None]}
    assert message["parts"] == {}
    assert set(message["heard"]) == {"1"}


def test_a_slow_page_gets_the_newest_state_once() -> None:
    board, viewer = streams.Board(), viewer_of(1)
    board.take(picture(1, 1, 1, 1))
    said(board, viewer)
    for use in (2, 3, 4):
        board.take(picture(use, 1, 1, 1))
    assert said(board, viewer)["use"] == {"1.0": [4, None, None, None]}
    assert board.message(viewer) is None


def test_what_comes_onto_the_screen_is_sent_whole() -> None:
    board, viewer = streams.Board(), viewer_of(1)
    board.take(picture(1, 2, 3, 4))
    said(board, viewer)
    viewer.watch([1, 2])
    assert set(said(board, viewer)["use"]) == {"2.0", "2.1"}


def test_cores_and_memory_are_sent_of_nodes_on_the_screen_when_they_change() -> None:
    board, viewer = streams.Board(), viewer_of(1)
    host = {1: (0, 0, 100, 2000), 2: (0, 0, 1, 1)}
    board.take(replace(picture(1, 2, 3, 4), hosts=host))
    assert said(board, viewer)["hosts"] == {"1": [0, 0, 100, 2000]}
    board.take(replace(picture(1, 2, 3, 4), hosts=host))
    assert said(board, viewer)["hosts"] == {}
    board.take(replace(picture(1, 2, 3, 4), hosts={**host, 1: (500, 0, None, None)}))
    viewer.watch([1, 2])
    assert said(board, viewer)["hosts"] == {"1": [500, 0, None, None], "2": [0, 0, 1, 1]}


def test_a_gap_is_sent_as_no_data() -> None:
    board, viewer = streams.Board(), viewer_of(1)
    board.take(picture(50, 2, 3, 4))
    said(board, viewer)
    board.take(picture(None, 2, 3, 4))
    assert said(board, viewer)["use"] == {"1.0": [None, None, None, None]}


def test_others_parts_have_no_project() -> None:
    part = Part(project=7, workload=uuid.UUID(int=1), milli=500, state=PartState.IDLE)
    board = streams.Board()
    board.take(picture(1, 2, 3, 4, parts=(part,)))
    assert said(board, viewer_of(1))["parts"]["1.0"] == [[7, 500, 1]]
    assert said(board, viewer_of(1, named=frozenset()))["parts"]["1.0"] == [[0, 500, 1]]


# ---------------------------------------------------------------- the socket


class Socket:
    """A browser's end."""

    _end: Any  # channels gives no types

    def __init__(self, user: User | None) -> None:
        headers = []
        if user is not None:
            client = Client()
            client.force_login(user)
            name = settings.SESSION_COOKIE_NAME
            headers.append((b"cookie", f"{name}={client.cookies[name].value}".encode()))
        self._headers = headers

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Socket]:
        scope = {"type": "websocket", "path": "/ws/squares", "headers": self._headers}
        application = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))
        self._end = ApplicationCommunicator(application, scope)  # type: ignore[no-untyped-call]
        await self._end.send_input({"type": "websocket.connect"})
        assert (await self.receive())["type"] == "websocket.accept"
        yield self
        await self._end.send_input({"type": "websocket.disconnect", "code": 1000})
        await self._end.wait(timeout=5)

    async def say(self, content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        await self._end.send_input({"type": "websocket.receive", "text": text})

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._end.receive_output(timeout=5)
        return message

    async def receive_json(self) -> dict[str, Any]:
        message = await self.receive()
        assert message["type"] == "websocket.send", message
        content: dict[str, Any] = json.loads(message["text"])
        return content

    async def hears_nothing(self) -> bool:
        return bool(await self._end.receive_nothing(timeout=1.5))


@pytest.mark.django_db(transaction=True)
def test_a_page_gets_its_nodes_and_then_what_changes() -> None:
    scene = make_scene()
    socket = Socket(scene.organisation.vera)
    node = Node.objects.get(name="sim-t4-1").pk

    async def visit() -> None:
        async with socket.open():
            await socket.say({"watch": [node, -1, "x"]})
            first = await socket.receive_json()
            while not first["use"]:
                first = await socket.receive_json()
            assert set(first["use"]) == {f"{node}.{index}" for index in range(4)}
            await socket.say({"pause": True})
            while not await socket.hears_nothing():
                await socket.receive_json()
            await socket.say({"pause": False})
            assert (await socket.receive_json())["use"] == {}
        assert not streams.board().viewers

    asyncio.run(visit())


@pytest.mark.django_db(transaction=True)
def test_a_new_picture_goes_at_once_and_scrolling_waits_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumers, "MIN_GAP_S", 3600.0)
    monkeypatch.setattr(streams, "PERIOD_S", 3600.0)
    socket = Socket(make_scene().organisation.vera)
    node = Node.objects.get(name="sim-t4-1").pk

    async def visit() -> None:
        async with socket.open():
            await socket.say({"watch": []})
            while not await socket.hears_nothing():
                await socket.receive_json()
            board = streams.board()
            for _ in range(3):
                board.take(replace(picture(1, 1, 1, 1), heard={1: float(board.version)}))
                assert (await socket.receive_json())["heard"]
            await socket.say({"watch": [node]})
            assert await socket.hears_nothing()
            board.take(picture(2, 1, 1, 1))
            await socket.receive_json()

    asyncio.run(visit())


@pytest.mark.django_db(transaction=True)
def test_no_picture_waits_for_the_look_at_who_may_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "CHECK_AGAIN_S", 0.0)
    socket = Socket(make_scene().organisation.vera)

    async def visit() -> None:
        is_answered = asyncio.Event()

        async def slowly(user_id: int) -> frozenset[int] | None:
            await is_answered.wait()
            return None

        async with socket.open():
            await socket.receive_json()
            monkeypatch.setattr(consumers, "named_projects", slowly)
            streams.board().take(picture(1, 2, 3, 4))
            assert (await socket.receive_json())["totals"]
            is_answered.set()
            while (message := await socket.receive())["type"] != "websocket.close":
                pass
            assert message["code"] == CLOSE_NOT_LOGGED_IN

    asyncio.run(visit())


@pytest.mark.django_db(transaction=True)
def test_without_a_login_the_socket_closes() -> None:
    async def visit() -> None:
        socket = Socket(None)
        async with socket.open():
            closed = await socket.receive()
            assert (closed["type"], closed["code"]) == ("websocket.close", CLOSE_NOT_LOGGED_IN)

    asyncio.run(visit())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"watch": 1}', "[" * 10_000, "\x00"], ids="abcdef"
)
def test_nonsense_closes_the_socket(text: str) -> None:
    socket = Socket(User.objects.create_user("somebody"))

    async def visit() -> None:
        async with socket.open():
            await socket.say(text)
            while (message := await socket.receive())["type"] != "websocket.close":
                pass
            assert message["code"] == CLOSE_BAD_MESSAGE

    asyncio.run(visit())


@pytest.mark.django_db(transaction=True)
def test_a_flood_closes_the_socket() -> None:
    socket = Socket(User.objects.create_user("somebody"))

    async def visit() -> None:
        async with socket.open():
            for _ in range(MAX_MESSAGES + 1):
                await socket.say({"pause": True})
            while (message := await socket.receive())["type"] != "websocket.close":
                pass
            assert message["code"] == CLOSE_BAD_MESSAGE

    asyncio.run(visit())
