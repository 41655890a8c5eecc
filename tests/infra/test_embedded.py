"""The embedded servers, really started, killed and started again."""

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from config import env
from scheduling.management import embedded, processes
from scheduling.management.processes import Program
from tests import needs


class Started:
    """Starts programs and leaves none of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[tuple[Program, subprocess.Popen[bytes]]] = []

    def __call__(self, program: Program) -> subprocess.Popen[bytes]:
        log = self.folder / f"{program.name}.log"
        process = processes.start(program, log)
        self.running.append((program, process))
        processes.wait_until_ready(program, process, log)
        return process


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    yield started
    for program, process in started.running:
        processes.stop(program, process)


def test_rows_outlive_a_kill_of_postgres(tmp_path: Path, start: Started) -> None:
    program = embedded.Postgres(tmp_path / "data", tmp_path / "pg").program()
    url = env.database_socket_url(tmp_path)
    process = start(program)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept SELECT generate_series(1, 1000)")

    process.kill()
    process.wait()
    start(program)

    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (1000,)


def test_postgres_passes_by_a_stale_pid_file(tmp_path: Path, start: Started) -> None:
    program = embedded.Postgres(tmp_path / "data", tmp_path / "pg").program()
    process = start(program)
    processes.stop(program, process)
    # Process 1 exists and is not a PostgreSQL: what a number taken over looks like.
    (tmp_path / "data" / "postmaster.pid").write_text(f"1\n{tmp_path / 'data'}\n")
    (tmp_path / "pg" / embedded.SOCKET_NAME).write_text("stale")

    start(program)

    with psycopg.connect(env.database_socket_url(tmp_path)) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_database_folds_cyrillic_and_keeps_utc(tmp_path: Path, start: Started) -> None:
    start(embedded.Postgres(tmp_path / "data", tmp_path / "pg").program())
    with psycopg.connect(env.database_socket_url(tmp_path)) as connection:
        row = connection.execute("SELECT upper('ёж'), current_setting('timezone')").fetchone()
    assert row == ("ЁЖ", "UTC")


def test_an_interrupted_creation_is_made_anew(tmp_path: Path, start: Started) -> None:
    unfinished = tmp_path / "data.unfinished"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")

    start(embedded.Postgres(tmp_path / "data", tmp_path / "pg").program())

    assert not unfinished.exists()


def test_keys_outlive_a_kill_of_valkey(tmp_path: Path, start: Started) -> None:
    program = embedded.Valkey(tmp_path / "data", tmp_path / "valkey.sock").program()
    url = env.redis_socket_url(tmp_path)
    process = start(program)
    with redis.Redis.from_url(url) as client:
        client.set("kept", "yes")
    # The file is written each second.
    with redis.Redis.from_url(url) as client:
        client.execute_command("WAITAOF", 1, 0, 5000)

    process.kill()
    process.wait()
    start(program)

    with redis.Redis.from_url(url) as client:
        assert client.get("kept") == b"yes"


@pytest.mark.parametrize("kind", ["postgres", "valkey"])
def test_servers_stop_by_their_own_signal(tmp_path: Path, start: Started, kind: str) -> None:
    servers: dict[str, embedded.Postgres | embedded.Valkey] = {
        "postgres": embedded.Postgres(tmp_path / "data", tmp_path / "pg"),
        "valkey": embedded.Valkey(tmp_path / "data", tmp_path / "valkey.sock"),
    }
    program = servers[kind].program()
    process = start(program)
    assert processes.stop(program, process)
    assert process.returncode != -signal.SIGKILL


def test_postgres_runs_as_nobody_where_namespaces_are_forbidden(
    start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs.root()
    with tempfile.TemporaryDirectory(prefix="allot-nobody-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        programs = folder / "bin"
        programs.mkdir()
        # A machine whose root may change users but make no namespace.
        (programs / "setpriv").symlink_to(shutil.which("setpriv") or "")
        monkeypatch.setenv("PATH", str(programs))
        try:
            program = embedded.Postgres(folder / "data", folder / "pg").program()
        except embedded.EmbeddedServerError:
            pytest.skip("other users cannot reach this environment's programs")
        process = start(program)
        assert psutil.Process(process.pid).username() == "nobody"
        with psycopg.connect(env.database_socket_url(folder)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        processes.stop(program, process)
