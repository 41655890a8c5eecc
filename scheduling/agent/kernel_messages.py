"""Jupyter's messages as they pass through a kernel's WebSocket, in each of its framings.

* JSON text, the default; in it a message with buffers is binary: a count, offsets (big-endian, 32
  bits), the JSON, the buffers;
* `v1.kernel.websocket.jupyter.org`: binary: a count, offsets (little-endian, 64 bits), channel,
  header, parent header, metadata, content, buffers.

Only channel and header are read: what passes on stays byte for byte as it came.
"""

from __future__ import annotations

import itertools
import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

V1: Final = "v1.kernel.websocket.jupyter.org"
SHELL, CONTROL, IOPUB = "shell", "control", "iopub"
OWN: Final = "allot"
"""Session of what the relay says itself."""
OWN_MARK: Final = f'"session":"{OWN}"'
"""So it is written; within a text the quotes would be escaped."""
HELD: Final = "held_cell"
"""In the header of what is said of a request that waits in the relay: its id."""
_MAX_PARTS = 4096

# JSON objects of Jupyter's many message types, hence Any.
Header = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """One message from a client."""

    channel: str
    header: Header

    @property
    def kind(self) -> str:
        """Its type, e.g. `execute_request`."""
        return str(self.header.get("msg_type", ""))


class _Whole(msgspec.Struct):
    header: Header
    channel: str = SHELL


def read(data: str | bytes, subprotocol: str | None) -> KernelMessage | None:
    """Read channel and header; None for what is no message of Jupyter's."""
    try:
        if subprotocol == V1:
            return _read_v1(data.encode() if isinstance(data, str) else data)
        return _read_json(data if isinstance(data, str) else _first_buffer(data))
    except (msgspec.MsgspecError, ValueError, struct.error, IndexError, RecursionError):
        return None


def _read_json(text: str | bytes) -> KernelMessage:
    whole = msgspec.json.decode(text, type=_Whole)
    return KernelMessage(whole.channel or SHELL, whole.header)


def _first_buffer(data: bytes) -> bytes:
    (count,) = struct.unpack_from(">I", data)
    if not 0 < count <= _MAX_PARTS:
        raise ValueError(f"{count} buffers")
    offsets = [*struct.unpack_from(f">{count}I", data, 4), len(data)]
    return data[offsets[0] : offsets[1]]


def _read_v1(data: bytes) -> KernelMessage:
    (count,) = struct.unpack_from("<Q", data)
    if not 3 <= count <= _MAX_PARTS:
        raise ValueError(f"{count} parts")
    offsets = struct.unpack_from(f"<{count}Q", data, 8)
    channel, header = (data[start:end] for start, end in itertools.pairwise(offsets[:3]))
    return KernelMessage(channel.decode(), msgspec.json.decode(header, type=Header))


def answer(
    request: Header,
    kind: str,
    content: dict[str, Any],
    *,
    subprotocol: str | None,
    is_held: bool = False,
) -> str | bytes:
    """A message as the kernel would send it in answer to a request, one that is held perhaps."""
    channel = SHELL if kind.endswith("_reply") else IOPUB
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": kind,
        "session": OWN,
        "username": OWN,
        "date": datetime.now(UTC).isoformat(),
        "version": "5.3",
    }
    if is_held:
        header[HELD] = str(request.get("msg_id", ""))
    parts = [header, request, {}, content]
    if subprotocol == V1:
        return _write_v1(channel, [msgspec.json.encode(part) for part in parts])
    names = ("header", "parent_header", "metadata", "content")
    message = dict(zip(names, parts, strict=True)) | {
        "channel": channel,
        "msg_id": header["msg_id"],
        "msg_type": kind,
        "buffers": [],
    }
    return msgspec.json.encode(message).decode()


def failed(
    request: Header, name: str, text: str, *, subprotocol: str | None
) -> Iterable[str | bytes]:
    """What a kernel answers to a cell that fails, from its output to the end."""
    error = {"ename": name, "evalue": text, "traceback": [f"{name}: {text}"]}
    reply = {"status": "error", "execution_count": None, **error}
    idle = {"execution_state": "idle"}
    for kind, content in (("error", error), ("execute_reply", reply), ("status", idle)):
        yield answer(request, kind, content, subprotocol=subprotocol)


def _write_v1(channel: str, parts: list[bytes]) -> bytes:
    pieces = [channel.encode(), *parts]
    offsets = [8 * (len(pieces) + 2)]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(pieces)
