"""Jupyter behind Allot's address: who may pass, what passes, and that it ends when access does.

Both hops are real servers; behind the relay is a real JupyterLab, or an upstream that says what it
was sent.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from websockets.exceptions import ConnectionClosed, InvalidStatus

from config.asgi import application as web_process
from projects.models import Membership, Role, User, WorkloadKind
from scheduling.agent.forward import SERVER_OPTIONS
from scheduling.agent.relay import SessionEndpoint
from scheduling.models import Attempt, Phase, Workload
from scheduling.proxy import application as session_proxy
from tests.jupyter import (
    KERNEL_PROTOCOL,
    run_cell,
    running_jupyter,
)
from tests.serving import TalkingUpstream, served
from tests.web.proxy.world import MIB, NAVIGATION, World, header, log_in, make_workload

pytestmark = pytest.mark.django_db(transaction=True)

JUPYTER_WORKLOAD = uuid.UUID("6f0e3c1c-5a8d-4d55-9f3e-2b8f7c1d0a11")


# ---------------------------------------------------------------- who may pass


async def test_a_person_without_login_is_sent_to_it_and_back(world: World) -> None:
    async with world.browser(login=None) as browser:
        page = await browser.get(f"{world.path}/lab?reset", headers=NAVIGATION)
        script = await browser.get(f"{world.path}/api/status")
    assert page.status_code == 302
    assert page.headers["Location"] == f"/accounts/login/?next={world.path}/lab%3Freset"
    assert script.status_code == 401
    assert script.headers["Content-Type"].startswith("text/plain")
    with pytest.raises(InvalidStatus) as refused:
        await world.open_socket(login=None)
    assert refused.value.response.status_code == 401


async def test_a_made_up_login_is_none(world: World) -> None:
    for login in ("", "made-up", "x" * 32):
        async with world.browser(login=None) as browser:
            browser.cookies.set(settings.SESSION_COOKIE_NAME, login)
            assert (await browser.get(f"{world.path}/")).status_code == 401


@pytest.mark.parametrize("is_superuser", [False, True])
async def test_nobody_enters_anothers_session_admins_included(
    world: World, is_superuser: bool
) -> None:
    def stranger() -> str:
        user = User.objects.create_user("eve", is_superuser=is_superuser)
        Membership.objects.create(user=user, project=world.workload.project, role=Role.MANAGER)
        return log_in(user)

    login = await sync_to_async(stranger)()
    async with world.browser(login) as browser:
        page = await browser.get(f"{world.path}/lab", headers=NAVIGATION)
    assert page.status_code == 403
    assert "<h1>This session is somebody else&#x27;s</h1>" in page.text
    assert world.workload.name not in page.text
    with pytest.raises(InvalidStatus) as refused:
        await world.open_socket(login=login)
    assert refused.value.response.status_code == 403


async def test_what_is_no_session_is_not_found(world: World) -> None:
    def training() -> uuid.UUID:
        node = world.attempt.node
        kind = WorkloadKind.TRAINING
        return make_workload(world.owner, node, kind=kind, name="training").pk

    training_id = await sync_to_async(training)()
    async with world.browser() as browser:
        for path in (f"/s/{uuid.uuid4()}/", f"/s/{training_id}/", "/s/", "/s/1/", "/s/../s/"):
            assert (await browser.get(path)).status_code == 404, path


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.STARTING])
async def test_a_session_that_is_not_ready_says_its_state_and_tries_again(
    world: World, phase: Phase
) -> None:
    await Attempt.objects.filter(pk=world.attempt.pk).aupdate(is_ready=False)
    await Workload.objects.filter(pk=world.workload.pk).aupdate(phase=phase)
    async with world.browser() as browser:
        page = await browser.get(f"{world.path}/lab", headers=NAVIGATION)
        russian = await browser.get(
            f"{world.path}/lab", headers={**NAVIGATION, "Accept-Language": "ru"}
        )
    assert page.status_code == 503
    assert f"<h1>notebook: {phase.label}</h1>" in page.text
    assert page.headers["Refresh"] == "3"
    assert f'href="/workloads/{world.workload.pk}"' in page.text
    assert "<script" not in page.text
    assert '<html lang="ru"' in russian.text


async def test_a_session_that_has_ended_says_so_and_does_not_try_again(world: World) -> None:
    await Workload.objects.filter(pk=world.workload.pk).aupdate(phase=Phase.STOPPED)
    async with world.browser() as browser:
        page = await browser.get(f"{world.path}/lab", headers=NAVIGATION)
    assert (page.status_code, "Refresh" in page.headers) == (503, False)
    assert "<h1>notebook: Stopped</h1>" in page.text


async def test_a_path_that_climbs_is_refused(world: World) -> None:
    async with world.browser() as browser:
        for path in ("/../../wake", "/%2e%2e/x", "/a/./b", "/%2E%2e%2Fx"):
            target = f"{world.path}{path}".encode()
            request = browser.build_request("GET", "/", extensions={"target": target})
            assert (await browser.send(request)).status_code == 400, path


async def test_another_host_name_is_refused(world: World) -> None:
    async with world.browser(Host="evil.example") as browser:
        assert (await browser.get(f"{world.path}/")).status_code == 400


async def test_the_web_process_leads_to_it(world: World) -> None:
    async def tidy(scope: Any, receive: Any, send: Any) -> None:
        """The web process, which also closes its connections to the relay at its end."""
        app = session_proxy if scope["type"] == "lifespan" else web_process
        await app(scope, receive, send)

    with served(tidy, **SERVER_OPTIONS) as port:
        here = replace(world, port=port)
        async with here.browser() as browser, here.open_socket() as socket:
            assert (await browser.get(f"{world.path}/echo")).status_code == 200
            assert (await browser.get("/healthz")).status_code == 200
            await socket.send("hello")
            assert await socket.recv() == "hello"


# ---------------------------------------------------------------- from where


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_changes_are_taken_from_own_pages_only(world: World, method: str) -> None:
    path = f"{world.path}/echo"
    async with world.browser() as browser:
        own, evil = {"Origin": world.origin}, {"Origin": "http://evil.example"}
        assert (await browser.request(method, path, headers=own)).status_code == 200
        refused = await browser.request(method, path, headers=evil)
        assert refused.status_code == 403
        assert refused.text.startswith("This request came from another site.")
        assert (await browser.request(method, path)).status_code == 403
        assert (await browser.get(path, headers=evil)).status_code == 200


async def test_a_websocket_opens_from_own_pages_only(world: World) -> None:
    for origin in (None, "http://evil.example", "null", "http://127.0.0.1"):
        with pytest.raises(InvalidStatus) as refused:
            await world.open_socket(origin=origin)
        assert refused.value.response.status_code == 403
    async with world.open_socket() as socket:
        await socket.send("hello")
        assert await socket.recv() == "hello"


# ---------------------------------------------------------------- what passes


async def test_allots_cookies_and_credentials_stay_with_allot(world: World) -> None:
    secret = "another-copys-login"
    async with world.browser() as browser:
        for name in (settings.CSRF_COOKIE_NAME, settings.LANGUAGE_COOKIE_NAME, "messages"):
            browser.cookies.set(name, "ours")
        browser.cookies.set("allot_session_9999", secret)
        browser.cookies.set("_xsrf", "2|jupyters")
        response = await browser.get(
            f"{world.path}/a%2Fb?x=%20y",
            headers={
                "Authorization": "Basic abc",
                "X-Forwarded-For": "1.2.3.4",
                "X-Forwarded-Host": "evil.example",
                "Forwarded": "for=1.2.3.4",
            },
        )
    seen = response.json()
    assert seen["target"] == f"{world.path}/a%2Fb?x=%20y"
    assert header(seen["headers"], "cookie") == ["_xsrf=2|jupyters"]
    assert header(seen["headers"], "authorization") == ["token jupyters-token"]
    assert header(seen["headers"], "host") == [f"127.0.0.1:{world.port}"]
    assert header(seen["headers"], "x-forwarded-for") == ["127.0.0.1"]
    assert header(seen["headers"], "x-forwarded-host") == [f"127.0.0.1:{world.port}"]
    assert header(seen["headers"], "x-forwarded-proto") == ["http"]
    assert header(seen["headers"], "forwarded") == []
    for kept in (world.login, world.host.secret, secret):
        assert kept not in response.text


async def test_a_websockets_opening_carries_no_cookie_of_allots(world: World) -> None:
    async with world.open_socket() as socket:
        await socket.send("headers")
        seen = json.loads(await socket.recv())
    assert header(seen, "cookie") == []
    assert header(seen, "authorization") == ["token jupyters-token"]


async def test_an_answer_cannot_reach_beyond_its_session(
    world: World, upstream: TalkingUpstream
) -> None:
    upstream.extra_headers += [
        (b"set-cookie", b"_xsrf=2; expires=Tue, 01 Dec 2099 00:00:00 GMT; Path=/; HttpOnly"),
        (b"set-cookie", f"{settings.SESSION_COOKIE_NAME}=stolen; Path=/".encode()),
        (b"content-security-policy", b"frame-ancestors *; report-uri /x"),
        (b"clear-site-data", b'"cookies"'),
        (b"service-worker-allowed", b"/"),
        (b"strict-transport-security", b"max-age=1"),
        (b"x-own", b"kept"),
    ]
    async with world.browser() as browser:
        response = await browser.get(f"{world.path}/echo")
    assert response.headers.get_list("set-cookie") == [
        f"_xsrf=2; expires=Tue, 01 Dec 2099 00:00:00 GMT; HttpOnly; Path={world.path}/"
    ]
    assert response.headers.get_list("content-security-policy") == [
        "frame-ancestors *; report-uri /x",
        "frame-ancestors 'self'",
    ]
    assert response.headers["x-own"] == "kept"
    for name in ("clear-site-data", "service-worker-allowed", "strict-transport-security"):
        assert name not in response.headers


async def test_fifty_mebibytes_pass_each_way(world: World) -> None:
    async def body() -> AsyncIterator[bytes]:
        for number in range(50):
            yield bytes([number]) * MIB

    expected = hashlib.sha256(b"".join([bytes([number]) * MIB for number in range(50)]))
    async with world.browser(Origin=world.origin) as browser:
        seen = (await browser.put(f"{world.path}/echo", content=body())).json()
        assert (seen["size"], seen["sha256"]) == (50 * MIB, expected.hexdigest())
        size = 0
        async with browser.stream("GET", f"{world.path}/download?50") as response:
            async for chunk in response.aiter_raw():
                size += len(chunk)
    assert size == 50 * MIB


async def test_a_large_message_and_the_way_it_closes_pass_both_hops(
    world: World, upstream: TalkingUpstream
) -> None:
    async with world.open_socket(subprotocols=["a", KERNEL_PROTOCOL]) as socket:
        assert socket.subprotocol == KERNEL_PROTOCOL
        await socket.send(b"x" * (40 * MIB))
        assert await socket.recv() == b"x" * (40 * MIB)
        await socket.send("close 4321 ключ")
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert (socket.close_code, socket.close_reason) == (4321, "ключ")


# ---------------------------------------------------------------- a real JupyterLab


@pytest.fixture(scope="module")
def jupyter(folder: Path) -> Iterator[SessionEndpoint]:
    with running_jupyter(folder, f"/s/{JUPYTER_WORKLOAD}/", "a-random-token") as path:
        yield SessionEndpoint(path, "a-random-token")


async def test_jupyterlab_opens_and_runs_cells_under_both_subprotocols(
    make_world: Callable[..., World], jupyter: SessionEndpoint
) -> None:
    world = await sync_to_async(make_world)(JUPYTER_WORKLOAD, jupyter)
    async with world.browser(Origin=world.origin) as browser:
        page = await browser.get(f"{world.path}/lab", headers=NAVIGATION)
        assert page.status_code == 200
        assert "<title>JupyterLab</title>" in page.text
        assert jupyter.token not in str(page.url)
        started = await browser.post(f"{world.path}/api/kernels", json={"name": "python3"})
        assert started.status_code == 201, started.text
        kernel = f"/api/kernels/{started.json()['id']}"
        for offered in (None, [KERNEL_PROTOCOL]):
            channels = world.open_socket(f"{kernel}/channels", subprotocols=offered)
            async with channels as socket:
                assert socket.subprotocol == (offered[0] if offered else None)
                assert await run_cell(socket, "print(6 * 7)") == "42\n"
        content = {"type": "file", "format": "text", "content": "x" * (20 * MIB)}
        saved = await browser.put(f"{world.path}/api/contents/big.txt", json=content)
        assert saved.status_code == 201
        part = await browser.get(f"{world.path}/files/big.txt", headers={"Range": "bytes=0-9"})
        assert (part.status_code, part.content) == (206, b"x" * 10)
        assert (await browser.delete(f"{world.path}{kernel}")).status_code == 204
