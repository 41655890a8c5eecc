"""Cells wait in the relay while the GPU is away: real JupyterLab and kernels, both framings."""

from __future__ import annotations

import asyncio
import json
import struct
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, unix_connect

from scheduling.agent import kernel_messages
from scheduling.agent.relay import RELAY_SERVER_OPTIONS, SessionEndpoint, create_app
from tests.jupyter import KERNEL_PROTOCOL, execution, pack_v1, running_jupyter, unpack_v1
from tests.serving import Gpus, Host, served

BASE = "/s/5b0c"
PATH = f"/attempts/a1/session{BASE}"
FRAMINGS = ("", KERNEL_PROTOCOL)

# Messages of Jupyter, hence Any.
Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cells")


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[Host]:
    host = Host()
    with running_jupyter(folder, f"{BASE}/", "jupyters-token") as socket:
        host.sessions["a1"] = SessionEndpoint(socket, "jupyters-token")
        with served(create_app(host), folder / "r.sock", **RELAY_SERVER_OPTIONS):
            yield host


@pytest.fixture
def gpus(host: Host) -> Iterator[Gpus]:
    """All GPUs of the host; at the end they are there."""
    yield host.gpus
    host.gpus.away = host.gpus.is_lost = False
    host.gpus.num_wakes, host.gpus.expected_s, host.gpus.tongue = 0, None, ""


@pytest.fixture
async def web(host: Host, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(folder / "r.sock")),
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {host.secret}"},
        timeout=30,
    ) as client:
        yield client


class Kernel:
    """A client's connection to a kernel."""

    def __init__(self, socket: ClientConnection, kernel: str) -> None:
        self.socket, self.id = socket, kernel
        self.is_v1 = socket.subprotocol == KERNEL_PROTOCOL
        self.seen: Messages = []

    async def send(self, message: dict[str, Any]) -> str:
        await self.socket.send(pack_v1(message) if self.is_v1 else json.dumps(message))
        return str(message["header"]["msg_id"])

    async def run(self, code: str) -> str:
        return await self.send(execution(code))

    async def ask(self, kind: str, channel: str = "shell", **content: object) -> str:
        message = execution("")
        message["header"]["msg_type"] = kind
        return await self.send(message | {"content": content, "channel": channel})

    async def _next(self) -> None:
        raw = await self.socket.recv()
        self.seen.append(unpack_v1(raw) if isinstance(raw, bytes) else json.loads(raw))

    async def until(self, is_true: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not is_true():
                await self._next()

    async def listen(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._next()
        except TimeoutError:
            pass

    def of(self, request: str, kind: str) -> Messages:
        return [
            each
            for each in self.seen
            if each["parent_header"].get("msg_id") == request and each["header"]["msg_type"] == kind
        ]

    def printed(self, request: str, name: str = "stdout") -> str:
        texts = [each["content"] for each in self.of(request, "stream")]
        return "".join(each["text"] for each in texts if each["name"] == name)

    async def reply(self, request: str, kind: str = "execute_reply") -> dict[str, Any]:
        """The answer, once all that goes with it has come too."""
        await self.until(lambda: self.of(request, kind))
        await self.until(lambda: self.is_idle(request))
        content: dict[str, Any] = self.of(request, kind)[0]["content"]
        return content

    def is_idle(self, request: str) -> bool:
        states = [each["content"]["execution_state"] for each in self.of(request, "status")]
        return states[-1:] == ["idle"]

    def replies(self) -> list[str]:
        """Requests in the order in which they were answered."""
        return [
            each["parent_header"]["msg_id"]
            for each in self.seen
            if each["header"]["msg_type"].endswith("_reply")
        ]


Connect = Callable[[str], Awaitable[Kernel]]


@pytest.fixture
async def connect(host: Host, folder: Path, web: httpx.AsyncClient) -> AsyncIterator[Connect]:
    """Opens a connection to one kernel of the test's own, in a framing."""
    started = await web.post(f"{PATH}/api/kernels")
    assert started.status_code == 201, started.text
    kernel = started.json()["id"]
    opened: list[ClientConnection] = []

    async def open_one(framing: str) -> Kernel:
        socket = await unix_connect(
            str(folder / "r.sock"),
            f"ws://localhost{PATH}/api/kernels/{kernel}/channels",
            additional_headers={"Authorization": f"Bearer {host.secret}"},
            subprotocols=[framing] if framing else None,
            max_size=None,
        )
        opened.append(socket)
        connected = Kernel(socket, kernel)
        await connected.reply(await connected.run("x = 1"))
        return connected

    yield open_one
    for socket in opened:
        await socket.close()
    await web.delete(f"{PATH}/api/kernels/{kernel}")


# ---------------------------------------------------------------- held and let go


@pytest.mark.parametrize("framing", FRAMINGS, ids=["json", "v1"])
async def test_a_cell_waits_says_so_and_runs_once_the_gpu_is_back(
    connect: Connect, gpus: Gpus, host: Host, framing: str
) -> None:
    kernel = await connect(framing)
    gpus.away, gpus.expected_s = True, 2.4
    request = await kernel.run("print(x + 41)")
    await kernel.until(lambda: kernel.printed(request, "stderr"))
    busy = kernel.of(request, "status")[0]
    assert busy["content"]["execution_state"] == "busy"
    assert kernel.seen.index(busy) < kernel.seen.index(kernel.of(request, "stream")[0])
    assert "Bringing your GPU back… 0 s of about 2 s" in kernel.printed(request, "stderr")
    await kernel.listen(1.2)
    assert "… 1 s of about 2 s" in kernel.printed(request, "stderr")
    assert "\n" not in kernel.printed(request, "stderr")
    assert not kernel.printed(request)
    assert host.cells.num_held("a1") == 1
    assert gpus.num_wakes >= 1
    gpus.away = False
    assert (await kernel.reply(request))["status"] == "ok"
    assert kernel.printed(request) == "42\n"
    assert "Your GPU came back after 1." in kernel.printed(request, "stderr")
    marks = [each["header"].get("held_cell") for each in kernel.of(request, "stream")]
    assert marks[0] == request, "the web says so, should the agent die meanwhile"
    assert marks[-2:] == [None, None]
    assert host.cells.num_held("a1") == 0


async def test_the_line_is_in_the_owners_language(connect: Connect, gpus: Gpus) -> None:
    kernel = await connect("")
    gpus.away, gpus.tongue = True, "ru"
    request = await kernel.run("1")
    await kernel.until(lambda: kernel.printed(request, "stderr"))
    gpus.away = False
    await kernel.reply(request)
    line = kernel.printed(request, "stderr")
    assert "Возвращаем GPU… 0 с" in line
    assert "GPU снова с вами" in line


@pytest.mark.parametrize("framing", FRAMINGS, ids=["json", "v1"])
async def test_order_is_kept_across_all_kinds_of_messages(
    connect: Connect, gpus: Gpus, framing: str
) -> None:
    kernel = await connect(framing)
    await kernel.reply(
        await kernel.run(
            "seen = []\n"
            "def opened(comm, message):\n"
            "    comm.on_msg(lambda m: seen.append(m['content']['data']))\n"
            "get_ipython().kernel.comm_manager.register_target('t', opened)"
        )
    )
    comm = uuid.uuid4().hex
    gpus.away = True
    await kernel.ask("comm_open", comm_id=comm, target_name="t", data={})
    sent = [
        await kernel.run("seen.append('a')"),
        await kernel.ask("complete_request", code="see", cursor_pos=3),
        await kernel.run("seen.append('b')"),
        await kernel.ask("inspect_request", code="seen", cursor_pos=4, detail_level=0),
    ]
    await kernel.ask("comm_msg", comm_id=comm, data="from the page")
    sent.append(last := await kernel.run("print(seen)"))
    await kernel.until(lambda: kernel.printed(sent[0], "stderr"))
    await kernel.listen(0.3)
    num_answered = len(kernel.replies())
    gpus.away = False
    await kernel.reply(last)
    assert kernel.replies()[num_answered:] == sent
    assert kernel.printed(last) == "['a', 'b', 'from the page']\n"


async def test_what_runs_nothing_and_comes_before_a_cell_is_not_held(
    connect: Connect, gpus: Gpus
) -> None:
    kernel = await connect("")
    gpus.away = True
    request = await kernel.ask("complete_request", code="pri", cursor_pos=3)
    assert "print" in (await kernel.reply(request, "complete_reply"))["matches"]
    assert gpus.num_wakes == 0


async def test_control_passes_while_a_cell_waits(connect: Connect, gpus: Gpus) -> None:
    kernel = await connect(KERNEL_PROTOCOL)
    gpus.away = True
    request = await kernel.run("print(1)")
    await kernel.until(lambda: kernel.printed(request, "stderr"))
    asked = await kernel.ask("kernel_info_request", "control")
    assert (await kernel.reply(asked, "kernel_info_reply"))["status"] == "ok"
    assert not kernel.of(request, "execute_reply")
    gpus.away = False
    assert (await kernel.reply(request))["status"] == "ok"


async def test_an_answer_by_stdin_passes_while_another_cell_waits(
    connect: Connect, gpus: Gpus
) -> None:
    kernel = await connect("")
    asking = execution("print('hello', input('who? '))")
    asking["content"]["allow_stdin"] = True
    request = await kernel.send(asking)
    await kernel.until(lambda: kernel.of(request, "input_request"))
    gpus.away = True
    waiting = await kernel.run("print(2)")
    await kernel.until(lambda: kernel.printed(waiting, "stderr"))
    await kernel.ask("input_reply", "stdin", value="ann", status="ok")
    await kernel.until(lambda: "hello ann" in kernel.printed(request))
    gpus.away = False
    await kernel.reply(waiting)
    assert kernel.printed(waiting) == "2\n"


async def test_who_leaves_while_a_cell_waits_has_it_run_all_the_same(
    connect: Connect, gpus: Gpus, tmp_path: Path
) -> None:
    kernel = await connect("")
    gpus.away = True
    mark = tmp_path / "ran"
    request = await kernel.run(f"open({str(mark)!r}, 'w').close()")
    await kernel.until(lambda: kernel.printed(request, "stderr"))
    await kernel.socket.close()
    gpus.away = False
    async with asyncio.timeout(20):
        while not mark.exists():
            await asyncio.sleep(0.05)


# ---------------------------------------------------------------- dropped


async def by_rest(web: httpx.AsyncClient, kernel: Kernel, what: str) -> None:
    await web.post(f"{PATH}/api/kernels/{kernel.id}/{what}")


async def by_control(_web: httpx.AsyncClient, kernel: Kernel, what: str) -> None:
    kinds = {"interrupt": "interrupt_request", "restart": "shutdown_request"}
    await kernel.ask(kinds[what], "control", restart=True)


Way = Callable[[httpx.AsyncClient, Kernel, str], Awaitable[None]]


@pytest.mark.parametrize("way", [by_rest, by_control], ids=["rest", "control"])
@pytest.mark.parametrize("framing", FRAMINGS, ids=["json", "v1"])
async def test_interrupted_while_it_waits_a_cell_does_not_run(
    connect: Connect, gpus: Gpus, web: httpx.AsyncClient, framing: str, way: Way
) -> None:
    kernel = await connect(framing)
    gpus.away = True
    cells = [await kernel.run("x = 'ran'"), await kernel.run("x = 'ran too'")]
    asked = await kernel.ask("kernel_info_request")
    await kernel.until(lambda: kernel.printed(cells[0], "stderr"))
    await way(web, kernel, "interrupt")
    for cell in cells:
        answer = await kernel.reply(cell)
        assert (answer["status"], answer["ename"]) == ("error", "KeyboardInterrupt")
        assert "did not run" in kernel.of(cell, "error")[0]["content"]["evalue"]
    # What runs no code is still answered, though the GPU is away; it takes the kernel no time in
    # which the interrupt could meet it.
    await kernel.reply(asked, "kernel_info_reply")
    gpus.away = False
    last = await kernel.run("print(x)")
    await kernel.reply(last)
    assert kernel.printed(last) == "1\n"


@pytest.mark.parametrize("way", [by_rest, by_control], ids=["rest", "control"])
async def test_restarted_while_it_waits_nothing_of_it_reaches_the_new_kernel(
    connect: Connect, gpus: Gpus, web: httpx.AsyncClient, tmp_path: Path, way: Way
) -> None:
    kernel = await connect("")
    gpus.away = True
    mark = tmp_path / "ran"
    request = await kernel.run(f"open({str(mark)!r}, 'w').close()")
    asked = await kernel.ask("complete_request", code="pri", cursor_pos=3)
    await kernel.until(lambda: kernel.printed(request, "stderr"))
    await way(web, kernel, "restart")
    assert (await kernel.reply(request))["ename"] == "KernelRestarted"
    assert (await kernel.reply(asked, "complete_reply"))["status"] == "error"
    gpus.away = False
    await kernel.listen(1.0)
    assert not mark.exists()


async def test_an_interrupt_of_one_client_drops_what_others_wait_for(
    connect: Connect, gpus: Gpus, web: httpx.AsyncClient
) -> None:
    one, other = await connect(""), await connect(KERNEL_PROTOCOL)
    gpus.away = True
    requests = [await one.run("x = 2"), await other.run("x = 3")]
    await one.until(lambda: one.printed(requests[0], "stderr"))
    await other.until(lambda: other.printed(requests[1], "stderr"))
    await by_rest(web, one, "interrupt")
    assert (await one.reply(requests[0]))["status"] == "error"
    assert (await other.reply(requests[1]))["status"] == "error"


async def test_when_the_gpus_memory_is_lost_the_cell_says_so(connect: Connect, gpus: Gpus) -> None:
    kernel = await connect("")
    gpus.away = True
    request = await kernel.run("x = 2")
    await kernel.until(lambda: kernel.printed(request, "stderr"))
    gpus.is_lost, gpus.away = True, False
    assert (await kernel.reply(request))["ename"] == "GpuMemoryLost"


# ---------------------------------------------------------------- framings


def test_a_message_with_buffers_is_read_in_both_framings() -> None:
    message = execution("1") | {"channel": "shell"}
    text = json.dumps(message).encode()
    offsets = [12, 12 + len(text)]
    legacy = struct.pack(">3I", 2, *offsets) + text + b"\x00\xff" * 9
    for data, framing in ((legacy, None), (pack_v1(message), KERNEL_PROTOCOL)):
        read = kernel_messages.read(data, framing)
        assert read is not None
        assert (read.channel, read.kind) == ("shell", "execute_request")


@given(st.binary(max_size=200) | st.text(max_size=50), st.sampled_from([None, KERNEL_PROTOCOL]))
def test_garbage_is_no_message(data: bytes | str, framing: str | None) -> None:
    read = kernel_messages.read(data, framing)
    assert read is None or isinstance(read.header, dict)


@pytest.mark.parametrize("data", ["", "[]", "\ufffd", '{"header":{},"x":' + "[" * 500_000])
def test_what_is_no_message_is_none(data: str) -> None:
    assert kernel_messages.read(data, None) is None
    assert kernel_messages.read(data.encode(), None) is None
