"""A real JupyterLab on a Unix socket, and the least of its kernels' wire protocols."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection

from config.env import REPOSITORY
from tests.serving import wait_until

WORKLOAD_PYTHON = REPOSITORY / ".venv-workload" / "bin" / "python"
KERNEL_PROTOCOL = "v1.kernel.websocket.jupyter.org"


@contextmanager
def running_jupyter(folder: Path, base_url: str, token: str) -> Iterator[Path]:
    """Start JupyterLab at `base_url` in an empty folder; yields its socket."""
    path = folder / "jupyter.sock"
    home = folder / "home"
    home.mkdir()
    options = {
        "base_url": base_url,
        "sock": str(path),
        "sock_mode": "0600",
        "root_dir": str(home),
        "open_browser": "False",
        "allow_root": "True",
    }
    arguments = [f"--ServerApp.{name}={value}" for name, value in options.items()]
    environment = {
        "PATH": f"{WORKLOAD_PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "JUPYTER_TOKEN": token,
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_PREFER_ENV_PATH": "1",
    }
    with (folder / "jupyter.log").open("wb") as log:
        process = subprocess.Popen(
            [WORKLOAD_PYTHON, "-m", "jupyterlab", *arguments],
            env=environment,
            cwd=home,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: _answers(path) or process.poll() is not None)
        assert process.poll() is None, (folder / "jupyter.log").read_text()
        yield path
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        finally:
            # Kernels that outlived it share its session.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


async def run_cell(kernel: ClientConnection, code: str) -> str:
    """Run a cell over a kernel's WebSocket; what it prints."""
    is_v1 = kernel.subprotocol == KERNEL_PROTOCOL
    request = execution(code)
    await kernel.send(pack_v1(request) if is_v1 else json.dumps(request))
    printed, is_idle, is_answered = "", False, False
    while not (is_idle and is_answered):
        raw = await kernel.recv()
        message = unpack_v1(raw) if isinstance(raw, bytes) else json.loads(raw)
        if message["parent_header"].get("msg_id") != request["header"]["msg_id"]:
            continue
        kind, content = message["header"]["msg_type"], message["content"]
        printed += content["text"] if kind == "stream" else ""
        is_answered |= kind == "execute_reply"
        is_idle |= kind == "status" and content["execution_state"] == "idle"
    return printed


def execution(code: str) -> dict[str, Any]:
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "username": "",
        "session": "test",
        "date": "",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "store_history": False}
    return {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
        "buffers": [],
    }


_PARTS = ("header", "parent_header", "metadata", "content")


def pack_v1(message: dict[str, Any]) -> bytes:
    parts = [message["channel"].encode(), *(json.dumps(message[part]).encode() for part in _PARTS)]
    offsets = [8 * (len(parts) + 2)]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    numbers = [len(offsets), *offsets]
    return b"".join([*(number.to_bytes(8, "little") for number in numbers), *parts])


def unpack_v1(data: bytes) -> dict[str, Any]:
    count = int.from_bytes(data[:8], "little")
    offsets = [int.from_bytes(data[8 * i : 8 * (i + 1)], "little") for i in range(1, count + 1)]
    parts = [data[start:end] for start, end in itertools.pairwise(offsets[1:])]
    return {name: json.loads(part) for name, part in zip(_PARTS, parts, strict=False)}
