"""What must exist before any process of ours starts: folders, keys, the lock, the schema."""

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StartRefusedError(Exception):
    """Allot cannot start here now; says why and what to do."""


@contextmanager
def holding_lock(var: Path) -> Iterator[None]:
    """Let one ``up`` at a time use a data folder; the kernel frees the lock when we die.

    Raises:
        StartRefusedError: another one uses it.
    """
    with (var / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read().strip() or "unknown"
            raise StartRefusedError(
                f"Allot already runs on {var} (process {pid}). Stop it first, or start a second "
                f"copy beside it: ALLOT_VAR=… ALLOT_PORT=… make run"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def make_folder(folder: Path, mode: int) -> None:
    """Make a folder of ours with exactly these rights.

    Raises:
        StartRefusedError: it cannot be made, or belongs to somebody else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise StartRefusedError(f"{folder} belongs to another user: name a folder of your own")
        folder.chmod(mode)
    except OSError as error:
        raise StartRefusedError(f"{folder} cannot be used: {error.strerror}") from error


def keep_secret(file: Path, value: str) -> None:
    """Write a secret where only we can read it, unless there is one already."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as secret:
        secret.write(value + "\n")


def make_agent_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(32)


def require_free_port(host: str, port: int) -> None:
    """Make sure that web can listen.

    Raises:
        StartRefusedError: it cannot.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        # As web itself does: connections of an earlier run that are closing do not count.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            raise StartRefusedError(
                f"web cannot listen on {host}, port {port}: {error.strerror}. Stop what uses the "
                f"port, or choose another: ALLOT_PORT={port % 65535 + 1} make run"
            ) from error
