"""Where the agent keeps what must outlive it, and how files there change: whole or not at all.

Everything is a file in a folder per attempt, because agent and shim may each be killed between any
two steps. `attempts/` holds what is not settled, `ended/` the logs of what is.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A first letter or digit, so that no name can be hidden, `.` or `..`; `_` starts our stand-ins.
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")

SPEC, LAUNCH, STATE, REQUEST, EXIT = (
    "spec.json",
    "launch.json",
    "state.json",
    "request.json",
    "exit.json",
)
# In an attempt's folder: what is the workload's own; in that, where its client reports, and the
# file by which the client says that it is there.
WORK, PROGRESS, CLIENT_MARK = "work", ".progress", "client"
LOCK, LEASE, LOG, SHIM_LOG = "lock", "lease", "log", "shim.log"


def safe_name(name: str, stand_in: str) -> str:
    """The name as a folder's name, or `_stand_in` when it could be anything but a plain name."""
    return name if _SAFE_NAME.fullmatch(name) else f"_{stand_in}"


@dataclass(frozen=True, slots=True)
class Folders:
    """The agent's folders below Allot's data folder, and its sockets below the run folder."""

    var: Path
    run: Path

    @property
    def root(self) -> Path:
        """The agent's part of the data folder."""
        return self.var / "agent"

    @property
    def agent_number(self) -> str:
        """Tells this data folder's agent from all others; made at the first start."""
        path = self.root / "number"
        with suppress(FileNotFoundError):
            if number := path.read_text().strip():
                return number
        number = secrets.token_hex(16)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(number)
        os.replace(temporary, path)
        return number

    @property
    def attempts(self) -> Path:
        """One folder per attempt that is not settled."""
        return self.root / "attempts"

    @property
    def ended(self) -> Path:
        """Logs of settled attempts."""
        return self.root / "ended"

    @property
    def checkpoints(self) -> Path:
        """The checkpoint store."""
        return self.root / "checkpoints"

    @property
    def sockets(self) -> Path:
        """Sockets of sessions that answer; only the agent's own user may enter."""
        return self.run / "s"

    def attempt(self, attempt_id: str) -> Path:
        """The folder of an attempt."""
        return self.attempts / safe_name(attempt_id, "attempt")

    def home(self, project: str, owner: str) -> Path:
        """A person's lasting folder in a project; both names are safe."""
        return self.root / "homes" / project / owner

    def session(self, attempt_id: str) -> Path:
        """Where a session may create its socket. Short: a socket's path has 107 bytes at most."""
        return self.run / "j" / safe_name(attempt_id, "attempt")

    def socket(self, attempt_id: str) -> Path:
        """The socket of a session that answers, as the relay may open it."""
        return self.sockets / f"{safe_name(attempt_id, 'attempt')}.sock"

    def prepare(self, *, is_open: bool) -> None:
        """Make the folders.

        Args:
            is_open: Other users must pass through, since their processes see these very paths.
        """
        mode = 0o711 if is_open else 0o700
        for folder in (
            self.root,
            self.attempts,
            self.ended,
            self.checkpoints,
            self.root / "homes",
            self.run / "j",
        ):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)
        self.sockets.mkdir(parents=True, exist_ok=True)
        self.sockets.chmod(0o700)
        if is_open:
            for folder in (self.var, self.run):
                folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o111)


def write_json(name: str, value: Mapping[str, Any], *, dir_fd: int) -> None:
    """Replace a file of a folder at once; after a crash it holds the old or the new text.

    The values are JSON objects of many shapes, hence Any.
    """
    temporary = f".{name}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=dir_fd)
    try:
        os.write(fd, json.dumps(value).encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def read_json(path: Path | str, *, dir_fd: int | None = None) -> dict[str, Any] | None:
    """Read a JSON object; None if the file is absent or no JSON object."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=dir_fd)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        try:
            value = json.load(file)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of a folder, for as long as the block lasts."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def open_below(folder_fd: int, relative: str) -> int:
    """Open a folder below another without ever following a symbolic link.

    Users own these folders, and root reads them: a link could point anywhere.

    Raises:
        OSError: a part is absent, no folder, or a link.
    """
    current = os.dup(folder_fd)
    for part in Path(relative).parts:
        try:
            following = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current


def is_locked(folder: Path) -> bool:
    """Whether a shim lives in this attempt's folder."""
    try:
        fd = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def append_line(log: Path, line: str) -> None:
    """Write a line of Allot's own into an attempt's log."""
    with suppress(OSError):
        fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            # It may hold a name that is no text.
            os.write(fd, f"[allot] {line}\n".encode(errors="backslashreplace"))
        finally:
            os.close(fd)
