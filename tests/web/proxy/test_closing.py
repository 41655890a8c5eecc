"""What is open closes when access ends, and what a browser is told when something is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.sessions.models import Session
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from projects.models import Membership, User
from scheduling.agent import kernel_messages
from scheduling.models import Attempt, Phase, Workload, Zone
from scheduling.proxy.access import Refusal, SessionTarget, Why, find_session
from tests.jupyter import (
    KERNEL_PROTOCOL,
    execution,
    pack_v1,
    unpack_v1,
)
from tests.serving import TalkingUpstream
from tests.web.proxy.world import NAVIGATION, World

pytestmark = pytest.mark.django_db(transaction=True)


def give_away(world: World) -> None:
    world.workload.owner = User.objects.create_user("eve")
    world.workload.save()


def log_out(world: World) -> None:
    Session.objects.filter(pk=world.login).delete()


def change_password(world: World) -> None:
    world.owner.set_password("other")
    world.owner.save()


def deactivate(world: World) -> None:
    User.objects.filter(pk=world.owner.pk).update(is_active=False)


def leave_project(world: World) -> None:
    Membership.objects.all().delete()


def end(world: World) -> None:
    Workload.objects.filter(pk=world.workload.pk).update(phase=Phase.COMPLETED)


@pytest.mark.parametrize(
    ("revoke", "code"),
    [
        (give_away, 4403),
        (log_out, 4401),
        (change_password, 4401),
        (deactivate, 4401),
        (leave_project, 4403),
        (end, 4503),
    ],
)
async def test_what_is_open_closes_when_access_ends(
    world: World, upstream: TalkingUpstream, revoke: Callable[[World], None], code: int
) -> None:
    async with (
        world.browser() as browser,
        browser.stream("GET", f"{world.path}/hang") as stream,
        world.open_socket() as socket,
    ):
        lines = stream.aiter_raw()
        assert await anext(lines) == b"first\n"
        await sync_to_async(revoke)(world)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 20)
        assert socket.close_code == code
        with pytest.raises(httpx.RemoteProtocolError):
            await asyncio.wait_for(anext(lines), 20)
    async with world.browser() as browser:
        assert (await browser.get(f"{world.path}/")).status_code in {401, 403, 503}


async def test_a_session_that_is_not_ready_for_a_moment_keeps_what_is_open(world: World) -> None:
    async with world.open_socket() as socket, world.browser() as browser:
        await Attempt.objects.filter(pk=world.attempt.pk).aupdate(is_ready=False)
        while (await browser.get(f"{world.path}/echo")).status_code != 503:
            await asyncio.sleep(0.1)
        await socket.send("still here")
        assert await socket.recv() == "still here"
        await sync_to_async(give_away)(world)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 20)
        assert (socket.close_code, socket.close_reason) == (4403, "not your session")


async def test_an_agent_that_is_away_is_said_in_words(world: World, folder: Path) -> None:
    await Zone.objects.aupdate(relay_url=f"unix:{folder / 'nobody.sock'}")
    async with world.browser() as browser:
        page = await browser.get(f"{world.path}/lab", headers=NAVIGATION)
        script = await browser.get(f"{world.path}/api")
    assert (page.status_code, script.status_code) == (503, 503)
    assert "<h1>The session does not answer</h1>" in page.text
    assert script.text.startswith("The session does not answer.")
    assert "Traceback" not in page.text + script.text
    with pytest.raises(InvalidStatus) as refused:
        await world.open_socket()
    assert refused.value.response.status_code == 503


@pytest.mark.parametrize("framing", ["", KERNEL_PROTOCOL], ids=["json", "v1"])
@pytest.mark.parametrize("is_back", [False, True], ids=["held", "back"])
async def test_a_cell_held_by_an_agent_that_dies_is_said_not_to_have_run(
    world: World, folder: Path, framing: str, is_back: bool
) -> None:
    """What ran before it, or passed on to the kernel already, is not spoken of."""

    async def relay(socket: ServerConnection) -> None:
        asked = []
        async for raw in socket:
            read = kernel_messages.read(raw, socket.subprotocol)
            assert read is not None
            asked.append(read.header)
            if len(asked) == 3:
                break
        for is_held in (True, False) if is_back else (True,):
            content = {"name": "stderr", "text": "…"}
            await socket.send(
                kernel_messages.answer(
                    asked[1], "stream", content, subprotocol=socket.subprotocol, is_held=is_held
                )
            )
        await socket.send("nothing of Jupyter's")
        socket.transport.abort()

    path = folder / "dying.sock"
    protocols = [Subprotocol(KERNEL_PROTOCOL)] if framing else None
    async with unix_serve(relay, str(path), subprotocols=protocols):
        await Zone.objects.aupdate(relay_url=f"unix:{path}")
        headers = {
            "Cookie": f"{settings.SESSION_COOKIE_NAME}={world.login}",
            "Accept-Language": "ru",
        }
        async with world.open_socket(
            "/api/kernels/k/channels",
            additional_headers=headers,
            subprotocols=[framing] if framing else None,
        ) as socket:
            cells = [execution(code) for code in ("a", "b", "c")]
            for cell in cells:
                await socket.send(pack_v1(cell) if framing else json.dumps(cell))
            seen = []
            with suppress(ConnectionClosed):
                while True:
                    raw = await socket.recv()
                    if raw != "nothing of Jupyter's":
                        seen.append(unpack_v1(raw) if isinstance(raw, bytes) else json.loads(raw))
            assert socket.close_code == 1014
    said = [
        (each["parent_header"]["msg_id"], each["header"]["msg_type"])
        for each in seen
        if each["header"]["msg_type"] != "stream"
    ]
    kinds = ("error", "execute_reply", "status")
    lost = [] if is_back else [cell["header"]["msg_id"] for cell in cells[1:]]
    assert said == [(name, kind) for name in lost for kind in kinds]
    for each in seen:
        if each["header"]["msg_type"] == "error":
            assert "Ячейка не выполнялась" in each["content"]["traceback"][0]


async def test_an_agent_with_a_new_secret_is_reached_as_soon_as_it_is_known(
    world: World,
) -> None:
    async with world.browser() as browser:
        assert (await browser.get(f"{world.path}/echo")).status_code == 200
        await Zone.objects.aupdate(relay_secret="old")
        before, world.host.secret = world.host.secret, "new"
        try:
            assert (await browser.get(f"{world.path}/echo")).status_code == 503
            await Zone.objects.aupdate(relay_secret="new")
            assert (await browser.get(f"{world.path}/echo")).status_code == 200
        finally:
            world.host.secret = before


def test_the_lookup_takes_a_fixed_number_of_queries(
    world: World, django_assert_num_queries: Any
) -> None:
    # The login session, the person, the workload with its node's zone, the membership.
    with django_assert_num_queries(4):
        assert isinstance(find_session(world.login, world.workload.pk), SessionTarget)
    assert find_session("none", world.workload.pk) == Refusal(Why.LOGIN)
