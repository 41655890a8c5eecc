"""The limits file: what root lets a session use of each device, read by the proxy libraries.

Text, a word and its values a line, owned by root and bound read-only into the workload's view:

    allot-limits/1
    session <attempt id>
    region /run/allot/region
    gate /run/allot/gate/socket              (left out: nobody listens)
    sharing fair | strict
    gpu <UUID> <bytes> <bytes of one context> <thousandths> <file of turns or -> <slot in it>
    end

A file that is cut off, writable by others or otherwise wrong makes `cuInit` and `nvmlInit` fail.

**The gate.** While the region's state is not RUNNING, a CUDA call sends one datagram to the `gate`
socket and waits until the state is RUNNING again (or FAILED, which it answers with error 401). The
datagram is text: `allot-gate/1 <session> <pid as the process sees itself>\\n`, and is sent again
every second as long as the call waits. The socket lies in a folder of its own that is bound as a
whole, so that an agent may make it anew.

Standard library only.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FORMAT = "allot-limits/1"
MAX_GPUS = 16


class LimitsError(ValueError):
    """A limit that no session can be given; says which and why."""


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """One device of a session.

    Attributes:
        num_bytes: What the session may use of it, > 0.
        context_bytes: What the context of one process takes; counted once per process.
        gpu_milli: Share of its time, 1 to 1000.
        share_file, share_slot: Where sessions on this device take turns; empty without.
    """

    device_uuid: str
    num_bytes: int
    gpu_milli: int
    context_bytes: int = 0
    share_file: str = ""
    share_slot: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one session may use. Paths are as the session sees them; `gate` may be empty."""

    session: str
    region: str
    gpus: tuple[GpuLimit, ...]
    gate: str = ""
    is_strict: bool = False

    def text(self) -> str:
        """The file's contents.

        Raises:
            LimitsError: a limit is 0 or negative, a UUID is none, or there are too many devices.
        """
        if len(self.gpus) > MAX_GPUS:
            raise LimitsError(f"{len(self.gpus)} devices: at most {MAX_GPUS} can be limited")
        lines = [FORMAT, f"session {self.session}", f"region {self.region}"]
        lines += [f"gate {self.gate}"] if self.gate else []
        lines += ["sharing strict" if self.is_strict else "sharing fair"]
        lines += [_gpu_line(gpu) for gpu in self.gpus]
        return "\n".join([*lines, "end", ""])


def _gpu_line(gpu: GpuLimit) -> str:
    uuid_bytes(gpu.device_uuid)
    if not 0 < gpu.num_bytes < 2**63:
        raise LimitsError(f"{gpu.device_uuid}: a limit of {gpu.num_bytes} bytes")
    if not 0 < gpu.gpu_milli <= 1000:
        raise LimitsError(f"{gpu.device_uuid}: a share of {gpu.gpu_milli} thousandths")
    return (
        f"gpu {gpu.device_uuid} {gpu.num_bytes} {gpu.context_bytes} {gpu.gpu_milli} "
        f"{gpu.share_file or '-'} {gpu.share_slot}"
    )


def uuid_bytes(device_uuid: str) -> bytes:
    """The 16 bytes of `GPU-…` or `MIG-…`.

    Raises:
        LimitsError: it is not one.
    """
    kind, _, digits = device_uuid.partition("-")
    try:
        if kind in ("GPU", "MIG"):
            return uuid.UUID(digits).bytes
    except ValueError:
        pass
    raise LimitsError(f"{device_uuid!r} is no UUID of a device")


def share_bytes(usable_bytes: int, gpu_milli: int) -> int:
    """Bytes of a share: the floor of usable memory x thousandths / 1000."""
    return usable_bytes * gpu_milli // 1000


def write(path: Path, limits: Limits) -> None:
    """Write or replace a session's limits file in place.

    In place, since the session's view binds the file itself; the format's last line tells a reader
    that came in between. Raise the region's generation afterwards.
    """
    data = limits.text().encode()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.fchmod(fd, 0o644)
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def uuids(limits: Iterable[GpuLimit]) -> list[bytes]:
    """Their UUIDs as bytes, in order."""
    return [uuid_bytes(limit.device_uuid) for limit in limits]
