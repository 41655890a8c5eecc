"""The relay and the forwarder below it, over real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from scheduling.agent.protocol import CheckRequest, WatchRequest, encode
from scheduling.agent.relay import RELAY_SERVER_OPTIONS, SessionEndpoint, create_app
from tests.serving import Host, TalkingUpstream, served, wait_until

MIB = 2**20
KERNEL_PROTOCOL = "v1.kernel.websocket.jupyter.org"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("relay")


@pytest.fixture(scope="module")
def upstream(folder: Path) -> Iterator[TalkingUpstream]:
    app = TalkingUpstream()
    with served(app, folder / "u.sock", ws="websockets-sansio", ws_max_size=128 * MIB):
        yield app


@pytest.fixture(scope="module")
def host(folder: Path, upstream: TalkingUpstream) -> Iterator[Host]:
    host = Host()
    host.sessions["a1"] = SessionEndpoint(folder / "u.sock", "jupyters-token")
    host.sessions["gone"] = SessionEndpoint(folder / "nobody.sock", "x")
    with served(create_app(host), folder / "r.sock", **RELAY_SERVER_OPTIONS):
        yield host


@pytest.fixture
async def web(host: Host, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The web process as the relay sees it."""
    async with httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(folder / "r.sock")),
        base_url="http://allot.example",
        headers={"Authorization": f"Bearer {host.secret}"},
        timeout=30,
    ) as client:
        yield client


@pytest.fixture
def open_socket(host: Host, folder: Path) -> Any:
    def connect(path: str, **options: Any) -> Any:
        return unix_connect(
            str(folder / "r.sock"),
            f"ws://allot.example{path}",
            additional_headers={"Authorization": f"Bearer {host.secret}"},
            max_size=None,
            **options,
        )

    return connect


def header(seen: list[list[str]], name: str) -> list[str]:
    return [value for key, value in seen if key == name]


# ---------------------------------------------------------------- who may ask


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer", "the-relays-secret", "Bearer ÿ"])
@pytest.mark.parametrize("path", ["/attempts/a1/session/s/w/echo", "/attempts/a1/log", "/nothing"])
async def test_without_the_secret_nothing_is_answered(
    web: httpx.AsyncClient, given: str | None, path: str
) -> None:
    del web.headers["Authorization"]
    headers = [(b"Authorization", given.encode("latin-1"))] if given is not None else []
    response = await web.get(path, headers=headers)
    assert response.status_code == 401
    assert "secret" in response.text


async def test_without_the_secret_no_websocket_opens(web: httpx.AsyncClient, folder: Path) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await unix_connect(str(folder / "r.sock"), "ws://x/attempts/a1/session/s/w/ws")
    assert refused.value.response.status_code == 401


# ---------------------------------------------------------------- waking, checking, logs


async def test_says_which_nodes_are_on_a_screen(web: httpx.AsyncClient, host: Host) -> None:
    wish = WatchRequest(["sim-t4-1"], 12.0)
    assert (await web.post("/watch", content=encode(wish))).status_code == 204
    assert host.watched == [wish]
    for nonsense in (b"", b"{}", b'{"nodes": "all", "for_s": 1}', b'{"nodes": [], "for_s": "x"}'):
        assert (await web.post("/watch", content=nonsense)).status_code == 400
    assert host.watched == [wish]


async def test_wakes_the_agent(web: httpx.AsyncClient, host: Host) -> None:
    before = host.num_woken
    assert (await web.post("/wake")).status_code == 204
    assert host.num_woken == before + 1
    assert (await web.get("/wake")).status_code == 404


async def test_the_button_wakes_a_session(web: httpx.AsyncClient, host: Host) -> None:
    assert (await web.post("/attempts/a1/wake")).status_code == 204
    assert (await web.post("/attempts/nobody/wake")).status_code == 404
    assert (await web.get("/attempts/a1/wake")).status_code == 404
    assert host.buttons == ["a1", "nobody"]


async def test_passes_a_check_on(web: httpx.AsyncClient) -> None:
    request = CheckRequest("vision", 1, "ann", 1, command=["no-such-program"])
    response = await web.post("/check", content=encode(request))
    assert response.json() == {
        "problems": [{"field": "command", "code": "not_found", "value": "no-such-program"}]
    }


async def test_a_check_that_cannot_be_read_is_refused_with_the_field(
    web: httpx.AsyncClient,
) -> None:
    response = await web.post("/check", content=b'{"project": 3}')
    assert response.status_code == 400
    assert "project" in response.text
    assert (await web.post("/check", content=b"x" * (2 * MIB))).status_code == 413


@pytest.mark.parametrize(
    ("query", "expected", "offset"),
    [
        ("", b"0123456789", 0),
        ("offset=4&limit=3", b"456", 4),
        ("offset=-2", b"89", 8),
        ("offset=-99", b"0123456789", 0),
        ("offset=99", b"", 10),
        ("limit=0", b"", 0),
    ],
)
async def test_reads_part_of_a_log(
    web: httpx.AsyncClient, host: Host, tmp_path: Path, query: str, expected: bytes, offset: int
) -> None:
    host.logs["a1"] = tmp_path / "log"
    host.logs["a1"].write_bytes(b"0123456789")
    response = await web.get(f"/attempts/a1/log?{query}")
    assert response.content == expected
    assert response.headers["X-Log-Size"] == "10"
    assert response.headers["X-Log-Offset"] == str(offset)


@pytest.mark.parametrize("query", ["offset=abc", "limit=1.5", "limit=-1"])
async def test_a_wrong_part_of_a_log_is_refused_by_name(
    web: httpx.AsyncClient, host: Host, tmp_path: Path, query: str
) -> None:
    host.logs["a1"] = tmp_path / "log"
    response = await web.get(f"/attempts/a1/log?{query}")
    assert response.status_code == 400
    assert query.partition("=")[0] in response.text


async def test_a_log_that_the_workload_replaced_shows_nothing_of_others(
    web: httpx.AsyncClient, host: Host, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("somebody's")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "not-yet"):
        host.logs["a1"] = tmp_path / name
        response = await web.get("/attempts/a1/log")
        assert (response.status_code, response.content) == (200, b"")
    assert (await web.get("/attempts/unknown/log")).status_code == 404


# ---------------------------------------------------------------- HTTP of a session


async def test_a_request_reaches_the_session_as_it_is_with_its_token(
    web: httpx.AsyncClient,
) -> None:
    response = await web.put("/attempts/a1/session/s/w/a%2Fb%20%D1%8F?q=1&q=%2F", content=b"body")
    seen = response.json()
    assert seen["method"] == "PUT"
    assert seen["target"] == "/s/w/a%2Fb%20%D1%8F?q=1&q=%2F"
    assert seen["sha256"] == hashlib.sha256(b"body").hexdigest()
    assert header(seen["headers"], "authorization") == ["token jupyters-token"]
    assert header(seen["headers"], "host") == ["allot.example"]


async def test_headers_of_one_hop_stay_there(web: httpx.AsyncClient) -> None:
    response = await web.get(
        "/attempts/a1/session/s/w/echo",
        headers={"Connection": "keep-alive, X-Once", "X-Once": "1", "TE": "x", "X-Twice": "2"},
    )
    seen = response.json()["headers"]
    assert header(seen, "x-twice") == ["2"]
    for name in ("x-once", "te", "connection"):
        assert header(seen, name) == []
    assert len(response.headers.get_list("date")) == 1


@pytest.mark.parametrize(
    "path", ["../a2/session/x", "s/../../x", "s/%2e%2e/x", "s/./x", "s/%2E%2E%2Fx"]
)
async def test_a_path_that_climbs_is_refused(web: httpx.AsyncClient, path: str) -> None:
    request = web.build_request(
        "GET", "/", extensions={"target": f"/attempts/a1/session/{path}".encode()}
    )
    assert (await web.send(request)).status_code == 400


async def test_a_head_request_gets_the_length_and_no_body(web: httpx.AsyncClient) -> None:
    response = await web.head("/attempts/a1/session/s/w/echo")
    assert response.status_code == 200
    assert int(response.headers["Content-Length"]) > 0
    assert response.content == b""


async def test_fifty_mebibytes_pass_each_way(web: httpx.AsyncClient) -> None:
    digest = hashlib.sha256()

    async def body() -> AsyncIterator[bytes]:
        for number in range(50):
            chunk = bytes([number]) * MIB
            digest.update(chunk)
            yield chunk

    seen = (await web.post("/attempts/a1/session/s/w/echo", content=body())).json()
    assert (seen["size"], seen["sha256"]) == (50 * MIB, digest.hexdigest())

    size = 0
    async with web.stream("GET", "/attempts/a1/session/s/w/download?50") as response:
        async for chunk in response.aiter_raw():
            size += len(chunk)
    assert size == 50 * MIB


async def test_an_answer_flows_and_ends_upstream_when_the_client_leaves(
    web: httpx.AsyncClient, upstream: TalkingUpstream
) -> None:
    released = upstream.num_released
    async with web.stream("GET", "/attempts/a1/session/s/w/hang") as response:
        assert await anext(response.aiter_raw()) == b"first\n"
        assert upstream.num_released == released
    await asyncio.to_thread(wait_until, lambda: upstream.num_released == released + 1)


async def test_an_answer_that_breaks_off_does_not_look_complete(web: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await web.get("/attempts/a1/session/s/w/breakoff")


async def test_a_session_that_does_not_answer_is_said_in_words(web: httpx.AsyncClient) -> None:
    response = await web.get("/attempts/gone/session/s/w/")
    assert response.status_code == 502
    assert response.text.startswith("The session's server does not answer")
    response = await web.get("/attempts/never/session/s/w/")
    assert response.status_code == 404
    assert response.text.startswith("Attempt never has no session here")


# ---------------------------------------------------------------- WebSockets of a session


@pytest.mark.parametrize("offered", [None, ["other", KERNEL_PROTOCOL], [KERNEL_PROTOCOL]])
async def test_a_websocket_offers_all_subprotocols_and_gets_the_chosen_one(
    open_socket: Any, offered: list[str] | None
) -> None:
    async with open_socket("/attempts/a1/session/s/w/ws?id=1", subprotocols=offered) as socket:
        assert socket.subprotocol == (offered[-1] if offered else None)
        await socket.send("headers")
        seen = json.loads(await socket.recv())
    assert header(seen, "authorization") == ["token jupyters-token"]
    assert header(seen, "host") == ["allot.example"]


async def test_text_and_bytes_pass_as_they_are_large_ones_too(open_socket: Any) -> None:
    messages: list[str | bytes] = ["ключ", b"\x00\xff", "", b"", b"x" * (40 * MIB), "я" * MIB]
    async with open_socket("/attempts/a1/session/s/w/ws") as socket:
        for message in messages:
            await socket.send(message)
            assert await socket.recv() == message


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1011, "worse"), (4321, "ключ")])
async def test_how_the_session_closes_reaches_the_client(
    open_socket: Any, code: int, reason: str
) -> None:
    async with open_socket("/attempts/a1/session/s/w/ws") as socket:
        await socket.send(f"close {code} {reason}")
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert (socket.close_code, socket.close_reason) == (code, reason)


@pytest.mark.parametrize(("code", "reason"), [(1001, "leaving"), (4000, "mine")])
async def test_how_the_client_closes_reaches_the_session(
    open_socket: Any, upstream: TalkingUpstream, code: int, reason: str
) -> None:
    upstream.closes.clear()
    async with open_socket("/attempts/a1/session/s/w/ws") as socket:
        await socket.close(code, reason)
    await asyncio.to_thread(wait_until, lambda: upstream.closes == [(code, reason)])


async def test_a_client_that_vanishes_is_closed_at_the_session(
    open_socket: Any, upstream: TalkingUpstream
) -> None:
    upstream.closes.clear()
    socket = await open_socket("/attempts/a1/session/s/w/ws")
    socket.transport.abort()
    await asyncio.to_thread(wait_until, lambda: upstream.closes)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/attempts/a1/session/s/w/refuse", 418, b"no tea here"),
        ("/attempts/gone/session/s/w/ws", 502, b"does not answer"),
        ("/attempts/never/session/s/w/ws", 404, b"has no session"),
    ],
)
async def test_a_websocket_that_cannot_open_says_why(
    open_socket: Any, path: str, status: int, words: bytes
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await open_socket(path)
    assert refused.value.response.status_code == status
    assert words in (refused.value.response.body or b"")
