"""Holds cells while a session's GPU is away, and has it brought back.

Works on the WebSockets between clients and kernels, hence for any kernel's language. All that a
client sends to a kernel's shell passes one queue, so order is kept; control and stdin pass at
once. At a request to run code while the GPU is away the client is told that it is coming, and the
queue goes on once it is there. An interrupt or restart meanwhile answers what waits with an error:
it does not run.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from scheduling.agent import kernel_messages
from scheduling.agent.forward import Client, ClientGoneError
from scheduling.agent.forward.connection import Message
from scheduling.agent.kernel_messages import CONTROL, SHELL, Header, KernelMessage

CHANNELS: Final = re.compile(rb".*/api/kernels/([^/?]+)/channels", re.DOTALL)
_ORDERS: Final = re.compile(rb".*/api/kernels/([^/?]+)/(interrupt|restart)", re.DOTALL)
_EXECUTE = "execute_request"
_INTERRUPTS, _RESTARTS = ("interrupt_request",), ("shutdown_request",)
_TELL_EVERY_S = 1.0
# Held per connection; then nothing more is read from it until the GPU is back.
_MAX_HELD_BYTES = 64 * 2**20

_TEXTS: Final = {
    "en": {
        "coming": "Bringing your GPU back… {s} s",
        "coming_about": "Bringing your GPU back… {s} s of about {about} s",
        "back": "Your GPU came back after {s:.1f} s.",
        "interrupt": "The cell did not run: it was interrupted while its GPU was coming back.",
        "restart": "The cell did not run: the kernel was restarted while its GPU was coming back.",
        "lost": "The cell did not run: the session's GPU memory could not be brought back. "
        "What lies in the computer's memory is still there; restart the kernel to use the GPU.",
    },
    "ru": {
        "coming": "Возвращаем GPU… {s} с",
        "coming_about": "Возвращаем GPU… {s} с, обычно около {about} с",
        "back": "GPU снова с вами, ожидание заняло {s:.1f} с.",
        "interrupt": "Ячейка не выполнялась: её прервали, пока возвращался GPU.",
        "restart": "Ячейка не выполнялась: ядро перезапустили, пока возвращался GPU.",
        "lost": "Ячейка не выполнялась: память GPU этой сессии вернуть не удалось. "
        "То, что лежит в оперативной памяти, цело; чтобы снова работать с GPU, перезапустите ядро.",
    },
}
_ERRORS: Final = {
    "interrupt": "KeyboardInterrupt",
    "restart": "KernelRestarted",
    "lost": "GpuMemoryLost",
}


class SessionGpus(Protocol):
    """What is known of the GPUs of sessions."""

    def is_away(self, attempt_id: str) -> bool:
        """Whether the session's cells have to wait."""
        ...

    def wake_for_cell(self, attempt_id: str) -> None:
        """Have it brought back; may be said again."""
        ...

    async def until_back(self, attempt_id: str) -> bool:
        """Wait until it is there; False if it never will be."""
        ...

    def expected_wake_s(self, attempt_id: str) -> float | None:
        """How long that takes about; None where nothing is known."""
        ...

    def language(self, attempt_id: str) -> str:
        """Of the session's owner; empty if not known."""
        ...


class Cells:
    """All connections to kernels that pass this relay."""

    def __init__(self, gpus: SessionGpus) -> None:
        self.gpus = gpus
        self._connections: dict[str, set[Connection]] = defaultdict(set)

    def num_held(self, attempt_id: str) -> int:
        """Requests to run code that wait now."""
        return sum(each.num_held for each in self._connections.get(attempt_id, ()))

    def connection(self, attempt_id: str, kernel: str, client: Client) -> Connection:
        """Stand between a client and a kernel; a context manager."""
        return Connection(self, attempt_id, kernel, client)

    def ordered(self, attempt_id: str, method: str, path: bytes) -> None:
        """Take notice of an interrupt or restart that comes by HTTP."""
        match = _ORDERS.fullmatch(path)
        if match and method == "POST":
            self.drop(attempt_id, match[1].decode("latin-1"), match[2].decode())

    def drop(self, attempt_id: str, kernel: str, why: str) -> None:
        """Answer what waits for a kernel with an error, on all its connections."""
        for each in self._connections.get(attempt_id, ()):
            if each.kernel == kernel:
                each.drop(why)

    def _add(self, connection: Connection) -> None:
        self._connections[connection.attempt_id].add(connection)

    def _remove(self, connection: Connection) -> None:
        left = self._connections[connection.attempt_id]
        left.discard(connection)
        if not left:
            del self._connections[connection.attempt_id]


@dataclass(slots=True, eq=False)
class _Waiting:
    """One message for the shell, or the client's leaving.

    Attributes:
        dropped: Why it is not passed on.
    """

    message: Message
    num_bytes: int = 0
    read: KernelMessage | None = None
    dropped: str = ""

    @property
    def is_cell(self) -> bool:
        """Whether it asks to run code."""
        return self.read is not None and self.read.kind == _EXECUTE


class Connection:
    """One client's connection to one kernel; as a context, its tasks run."""

    def __init__(self, cells: Cells, attempt_id: str, kernel: str, client: Client) -> None:
        self.attempt_id = attempt_id
        self.kernel = kernel
        self._cells = cells
        self._client = client
        self._subprotocol: str | None = None
        self._shell: deque[_Waiting] = deque()
        self._changed = asyncio.Condition()
        self._onward: asyncio.Queue[Message] = asyncio.Queue(1)
        self._dropped = asyncio.Event()
        self._sending = asyncio.Lock()
        self._is_holding = False
        self._has_left = False
        self._tasks: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------------ as the forwarder sees it

    @property
    def client(self) -> Client:
        """The client, as it is to be forwarded."""
        return Client(self._client.scope, self._onward.get, self._send)

    async def __aenter__(self) -> Connection:
        self._cells._add(self)
        self._tasks = [asyncio.create_task(each) for each in (self._read(), self._pump())]
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._cells._remove(self)

    async def _send(self, message: Message) -> None:
        if message["type"] == "websocket.accept":
            self._subprotocol = message.get("subprotocol")
        if self._has_left:
            # Somebody who closed the page still wants the cells that were asked for.
            return
        async with self._sending:
            await self._client.send(message)

    # ------------------------------------------------------------------ from the client

    async def _read(self) -> None:
        """Take the client's messages apart by channel."""
        while not self._has_left:
            message = await self._client.receive()
            data = message.get("text")
            if data is None:
                data = message.get("bytes")
            read = None
            if message["type"] == "websocket.receive" and data is not None:
                read = kernel_messages.read(data, self._subprotocol)
            self._has_left = message["type"] == "websocket.disconnect"
            if read is not None and read.channel != SHELL:
                self._notice(read)
                await self._onward.put(message)
            elif read is not None or self._has_left:
                await self._queue(_Waiting(message, len(data or ""), read))
            else:
                await self._onward.put(message)

    def _notice(self, message: KernelMessage) -> None:
        if message.channel != CONTROL:
            return
        if message.kind in _INTERRUPTS:
            self._cells.drop(self.attempt_id, self.kernel, "interrupt")
        elif message.kind in _RESTARTS:
            self._cells.drop(self.attempt_id, self.kernel, "restart")

    async def _queue(self, waiting: _Waiting) -> None:
        async with self._changed:
            await self._changed.wait_for(self._has_room)
            self._shell.append(waiting)
            self._changed.notify_all()

    def _has_room(self) -> bool:
        """While nothing is held, one message at a time, so that a slow kernel slows the client."""
        if not self._is_holding:
            return len(self._shell) < 2
        return sum(each.num_bytes for each in self._shell) < _MAX_HELD_BYTES

    # ------------------------------------------------------------------ to the kernel

    async def _pump(self) -> None:
        """Pass the shell's messages on, in order."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._shell)
                waiting = self._shell[0]
            if waiting.is_cell and not waiting.dropped and self._gpus.is_away(self.attempt_id):
                await self._hold(waiting)
            if waiting.dropped:
                await self._answer_dropped(waiting)
            else:
                await self._onward.put(waiting.message)
            async with self._changed:
                self._shell.popleft()
                self._changed.notify_all()

    @property
    def _gpus(self) -> SessionGpus:
        return self._cells.gpus

    @property
    def num_held(self) -> int:
        """Requests to run code that wait here."""
        return sum(each.is_cell for each in self._shell) if self._is_holding else 0

    def drop(self, why: str) -> None:
        """Let nothing run that waits now. A restart also drops what does not run code."""
        if not self._is_holding:
            return
        for each in self._shell:
            if each.is_cell or (why == "restart" and each.read is not None):
                each.dropped = each.dropped or why
        self._dropped.set()

    async def _hold(self, waiting: _Waiting) -> None:
        """Wait for the GPU; `dropped` says if it was in vain."""
        assert waiting.read is not None
        request, began_s = waiting.read.header, time.monotonic()
        self._dropped.clear()
        self._is_holding = True
        async with self._changed:
            self._changed.notify_all()
        await self._say(request, "status", {"execution_state": "busy"})
        back = asyncio.ensure_future(self._until_back())
        dropped = asyncio.ensure_future(self._dropped.wait())
        try:
            while not back.done() and not dropped.done():
                self._gpus.wake_for_cell(self.attempt_id)
                waited_s = round(time.monotonic() - began_s)
                await self._write_line(request, self._coming(waited_s), is_held=True)
                await asyncio.wait(
                    {back, dropped},
                    timeout=_TELL_EVERY_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            if not waiting.dropped and not back.result():
                waiting.dropped = "lost"
            if not waiting.dropped:
                text = self._text("back").format(s=time.monotonic() - began_s)
                await self._write_line(request, f"{text}\n")
        finally:
            self._is_holding = False
            for future in (back, dropped):
                future.cancel()
            await asyncio.gather(back, dropped, return_exceptions=True)

    async def _until_back(self) -> bool:
        return await self._gpus.until_back(self.attempt_id)

    # ------------------------------------------------------------------ to the client

    def _text(self, name: str) -> str:
        return _TEXTS.get(self._gpus.language(self.attempt_id), _TEXTS["en"])[name]

    def _coming(self, waited_s: int) -> str:
        about_s = self._gpus.expected_wake_s(self.attempt_id)
        if about_s is None:
            return self._text("coming").format(s=waited_s)
        return self._text("coming_about").format(s=waited_s, about=max(1, round(about_s)))

    async def _write_line(self, request: Header, text: str, *, is_held: bool = False) -> None:
        """One line, written over itself: clients honour the carriage return."""
        erased = "\r" + " " * 60 + "\r"
        await self._say(
            request, "stream", {"name": "stderr", "text": f"{erased}{text}"}, is_held=is_held
        )

    async def _answer_dropped(self, waiting: _Waiting) -> None:
        """As the kernel answers a request that fails; what wants no answer gets none."""
        assert waiting.read is not None
        kind, request = waiting.read.kind, waiting.read.header
        if not kind.endswith("_request"):
            return
        text = self._text(waiting.dropped)
        name = _ERRORS[waiting.dropped]
        error = {"ename": name, "evalue": text, "traceback": [f"{name}: {text}"]}
        if waiting.is_cell:
            await self._say(request, "error", error)
        reply = {"status": "error", "execution_count": None, **error}
        await self._say(request, f"{kind.removesuffix('_request')}_reply", reply)
        await self._say(request, "status", {"execution_state": "idle"})

    async def _say(
        self, request: Header, kind: str, content: dict[str, Any], *, is_held: bool = False
    ) -> None:
        data = kernel_messages.answer(
            request, kind, content, subprotocol=self._subprotocol, is_held=is_held
        )
        name = "text" if isinstance(data, str) else "bytes"
        with suppress(ClientGoneError, OSError):
            await self._send({"type": "websocket.send", name: data})
