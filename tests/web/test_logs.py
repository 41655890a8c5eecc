"""Logs through the page: tail, download, the stream that follows, an agent that is away.

The relay is the agent's real one over a Unix socket; the web process runs under uvicorn.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections
from django.test import Client

from config.asgi import application
from projects.models import User
from scheduling.agent.forward import SERVER_OPTIONS
from scheduling.agent.relay import RELAY_SERVER_OPTIONS, create_app
from scheduling.models import Attempt, Workload, Zone
from tests.serving import Host, served
from tests.web.scene import Scene, make_scene

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[Host]:
    agent = Host()
    with served(create_app(agent), folder / "r.sock", **RELAY_SERVER_OPTIONS):
        yield agent


@pytest.fixture(scope="module")
def web(folder: Path) -> Iterator[Path]:
    with served(application, folder / "w.sock", **SERVER_OPTIONS):
        yield folder / "w.sock"


@pytest.fixture(autouse=True)
async def thread_closes_its_connection() -> AsyncIterator[None]:
    """What tests ask of the database runs in a thread that outlives them."""
    yield
    await sync_to_async(connections.close_all)()


@pytest.fixture
def scene(host: Host, folder: Path) -> Scene:
    found = make_scene()
    Zone.objects.update(relay_url=f"unix:{folder / 'r.sock'}", relay_secret=host.secret)
    return found


def write_log(host: Host, folder: Path, workload: Workload, text: str) -> Path:
    path = folder / f"{uuid.uuid4()}.log"
    path.write_text(text)
    attempt = workload.attempts.order_by("-number").first()
    assert attempt is not None
    host.logs[str(attempt.pk)] = path
    return path


@asynccontextmanager
async def browser(web: Path, user: User | None) -> AsyncIterator[httpx.AsyncClient]:
    cookies = {}
    if user is not None:
        client = Client()
        await client.aforce_login(user)
        name = settings.SESSION_COOKIE_NAME
        cookies[name] = client.cookies[name].value
    transport = httpx.AsyncHTTPTransport(uds=str(web))
    async with httpx.AsyncClient(
        base_url="http://localhost", transport=transport, cookies=cookies, timeout=20
    ) as client_:
        yield client_


async def test_the_tail_begins_at_a_line_and_bytes_can_be_had_from_an_offset(
    scene: Scene, host: Host, web: Path, folder: Path
) -> None:
    lines = [f"line {number} \N{SNOWMAN}" for number in range(20_000)]
    path = await sync_to_async(write_log)(host, folder, scene.session, "\n".join(lines) + "\n")
    async with browser(web, scene.organisation.vera) as client:
        answer = await client.get(f"/workloads/{scene.session.pk}/log")
        assert answer.text.splitlines() == lines[-500:]
        assert int(answer.headers["X-Log-Size"]) == path.stat().st_size
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        part = await client.get(f"/workloads/{scene.session.pk}/log?offset=5&limit=4")
        assert part.content == path.read_bytes()[5:9]
        whole = await client.get(f"/workloads/{scene.session.pk}/log?download=1")
        assert whole.content == path.read_bytes()
        assert "explore-1.log" in whole.headers["Content-Disposition"]


async def test_who_may_not_see_the_workload_does_not_see_its_log(
    scene: Scene, host: Host, web: Path, folder: Path
) -> None:
    await sync_to_async(write_log)(host, folder, scene.session, "secret\n")
    for user in (scene.stranger, scene.organisation.lena):
        async with browser(web, user) as client:
            for path in ("log", "log/stream"):
                answer = await client.get(f"/workloads/{scene.session.pk}/{path}")
                assert answer.status_code == 403
                assert "secret" not in answer.text
    async with browser(web, None) as client:
        assert (await client.get(f"/workloads/{scene.session.pk}/log")).status_code == 302


async def test_an_agent_that_is_away_leaves_the_stored_lines(scene: Scene, web: Path) -> None:
    await Zone.objects.aupdate(relay_url="unix:/nowhere/r.sock")
    async with browser(web, scene.organisation.lena) as client:
        answer = await client.get(f"/workloads/{scene.failed.pk}/log")
        assert answer.status_code == 503
        assert "no such file" in answer.text
        async with client.stream("GET", f"/workloads/{scene.failed.pk}/log/stream") as stream:
            events = events_of(stream)
            assert (await anext(events))[0] == "attempt"
            name, data = await anext(events)
            assert name == "away"
            assert data["lines"] == ["Traceback", "no such file"]


async def test_the_stream_follows_and_goes_on_where_it_stopped(
    scene: Scene, host: Host, web: Path, folder: Path
) -> None:
    path = await sync_to_async(write_log)(host, folder, scene.session, "one\n")
    address = f"/workloads/{scene.session.pk}/log/stream"
    async with browser(web, scene.organisation.vera) as client:
        async with client.stream("GET", address) as stream:
            assert stream.headers["Content-Type"].startswith("text/event-stream")
            events = events_of(stream)
            assert await anext(events) == ("attempt", {"replica": 0, "number": 1, "is_over": False})
            assert await anext(events) == ("text", {"text": "one\n"})
            with path.open("a") as log:
                log.write("two\n")
            assert await anext(events) == ("text", {"text": "two\n"})
        resumed = {"Last-Event-ID": "1:4"}
        async with client.stream("GET", address, headers=resumed) as stream:
            events = events_of(stream)
            assert (await anext(events))[0] == "attempt"
            assert await anext(events) == ("text", {"text": "two\n"})


async def test_the_stream_of_an_ended_attempt_ends(
    scene: Scene, host: Host, web: Path, folder: Path
) -> None:
    await sync_to_async(write_log)(host, folder, scene.failed, "Traceback\n")
    address = f"/workloads/{scene.failed.pk}/log/stream?attempt=1"
    async with (
        browser(web, scene.organisation.lena) as client,
        client.stream("GET", address) as stream,
    ):
        names = [name async for name, _data in events_of(stream)]
    assert names == ["attempt", "text", "end"]


async def test_no_attempt_has_no_log(scene: Scene, web: Path) -> None:
    async with browser(web, scene.organisation.vera) as client:
        assert (await client.get(f"/workloads/{scene.refused.pk}/log")).status_code == 404
        for named in ("attempt=7", "attempt=last", "attempt=-1", "replica=one", "replica=3"):
            for log in ("log", "log/stream"):
                bad = await client.get(f"/workloads/{scene.session.pk}/{log}?{named}")
                assert bad.status_code == 404, named
        assert await Attempt.objects.acount() > 0


async def events_of(stream: httpx.Response) -> AsyncIterator[tuple[str, dict[str, object]]]:
    """Events of a stream, heartbeats left out; gives up when nothing comes."""
    name = ""
    lines = stream.aiter_lines()
    while True:
        try:
            line = await asyncio.wait_for(anext(lines), timeout=15)
        except StopAsyncIteration:
            return
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
