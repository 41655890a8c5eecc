"""How a session's JupyterLab is started, and how one sees that it answers.

It listens on a Unix socket in a folder that only its owner and the agent can enter; its token is
given in the environment alone, because command lines can be read by others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from scheduling.agent.folders import opened

log = logging.getLogger(__name__)

TOOL = "jupyter"
# Short: without namespaces the socket's whole path has to fit into 107 bytes.
SOCKET = "s"
_ANSWER_WITHIN_S = 5.0
_ANSWER_MAX_BYTES = 2**20

# What nobody asked for: looking for news and updates on the internet, installing front-end code.
_SETTINGS = (
    "--no-browser",
    "--ServerApp.allow_remote_access=True",
    "--ServerApp.open_browser=False",
    "--ServerApp.quit_button=False",
    "--ServerApp.shutdown_no_activity_timeout=0",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
    # Language servers are looked for on the whole PATH at each start, and none is installed.
    "--LanguageServerManager.autodetect=False",
)


def argv(
    *, python: Path, socket: Path, home: Path, base_url: str, has_private_paths: bool
) -> list[str]:
    """The command of a session.

    Args:
        python: Of the workloads' environment.
        socket: Where it listens.
        home: What its file browser shows.
        base_url: The path at which the browser sees it.
        has_private_paths: Kernels can talk over Unix sockets too, whose paths are short inside.
            Over TCP anybody on the machine could listen to what cells print.
    """
    command = [
        str(python),
        "-m",
        "jupyterlab",
        *_SETTINGS,
        f"--ServerApp.sock={socket}",
        "--ServerApp.sock_mode=0600",
        f"--ServerApp.base_url={base_url}",
        f"--ServerApp.root_dir={home}",
    ]
    if has_private_paths:
        command.append("--KernelManager.transport=ipc")
    return command


def environment(token: str, session: Path) -> dict[str, str]:
    """What only a session's environment has."""
    return {"JUPYTER_TOKEN": token, "JUPYTER_RUNTIME_DIR": str(session)}


def pin(socket: Path, pinned: Path, uid: int | None) -> bool:
    """Give a session's socket a second name, in the agent's own folder.

    The session's owner may put anything at the first one, so what the relay opens as root is this
    very socket, seen to be one and to be the owner's.

    Args:
        socket: Where the session listens.
        pinned: The second name.
        uid: Whose socket it must be; None where all runs as one user.

    Returns:
        Whether the socket is there.
    """
    try:
        fd = os.open(socket, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        if not stat.S_ISSOCK(status.st_mode) or uid not in (None, status.st_uid):
            return False
        if pinned.exists() and pinned.stat().st_ino == status.st_ino:
            return True
        pinned.unlink(missing_ok=True)
        # Python follows the link that names our descriptor only when it is given a folder.
        with opened(pinned.parent) as folder_fd:
            os.link(f"/proc/self/fd/{fd}", pinned, src_dir_fd=folder_fd, follow_symlinks=True)
    except OSError as error:
        log.warning("%s: %s", socket, error)
        return False
    finally:
        os.close(fd)
    return True


async def answers(socket: Path, base_url: str) -> bool:
    """Whether Jupyter speaks HTTP at this socket."""
    try:
        await ask(socket, f"{base_url.rstrip('/')}/api")
    except NoAnswerError:
        return False
    return True


class NoAnswerError(Exception):
    """The session's server gave no answer that can be used; says what was wrong with it."""


async def ask(socket: Path, target: str, token: str = "") -> bytes:
    """The body of a GET. The server is the session owner's: it may send anything, or never end.

    Raises:
        NoAnswerError: see there.
    """
    authorization = f"Authorization: token {token}\r\n" if token else ""
    request = f"GET {target} HTTP/1.0\r\nHost: localhost\r\n{authorization}\r\n"
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(request.encode())
                answer = await _at_most(reader, _ANSWER_MAX_BYTES)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError) as error:
        raise NoAnswerError(str(error) or type(error).__name__) from error
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(None, 2)[1:2]
    if status != [b"200"]:
        raise NoAnswerError(f"status {b''.join(status)[:10]!r}")
    return body


async def _at_most(reader: asyncio.StreamReader, num_bytes: int) -> bytes:
    answer = b""
    while piece := await reader.read(65536):
        answer += piece
        if len(answer) > num_bytes:
            raise OSError(f"an answer of more than {num_bytes} bytes")
    return answer
