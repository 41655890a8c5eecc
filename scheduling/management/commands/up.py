"""Runs all of Allot on this machine: servers, web, worker, beat and an agent.

The order is the table of contents: folders and keys, PostgreSQL and Valkey, the schema and on
first start the demonstration, then web, then the rest. Ctrl-C stops in reverse, and the agent
first has trainings save.
"""

import http.client
import multiprocessing
import os
import signal
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from scheduling.agent.forward import SERVER_OPTIONS
from scheduling.management import embedded, first_start
from scheduling.management.processes import Program, die_with_parent
from scheduling.management.supervisor import StartError, StopRequestedError, Supervisor
from scheduling.management.translations import compile_translations
from scheduling.services.zones import ensure_zone

# Name of the zone whose agent runs on this machine.
LOCAL_ZONE = "local"
# The agent's workloads may need this long to save before they are stopped.
AGENT_STOP_LIMIT_S = 90.0
# Threads of the worker: one cycle at a time, some for dispatch and telemetry beside it.
NUM_WORKER_THREADS = 6
READY_TIMEOUT_S = 2.0


class Command(BaseCommand):
    """Starts everything, prints the address, and watches until Ctrl-C."""

    help = "Run all of Allot on this machine until Ctrl-C."
    # The database that checks would ask is not there yet.
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be left out."""
        parser.add_argument(
            "--no-agent", action="store_true", help="start no agent for this machine"
        )
        parser.add_argument(
            "--no-demo", action="store_true", help="create no demonstration on first start"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run until a stop is asked for (`Any`: Django's signature)."""
        env = settings.ALLOT
        try:
            self._prepare_folders()
            with first_start.holding_lock(env.var):
                first_start.require_free_port(env.host, env.port)
                self._run(with_agent=not options["no_agent"], with_demo=not options["no_demo"])
        except (first_start.StartRefusedError, embedded.EmbeddedServerError, StartError) as error:
            raise CommandError(str(error)) from error

    def _prepare_folders(self) -> None:
        env = settings.ALLOT
        # Others may pass to workloads' folders below, but list nothing.
        first_start.make_folder(env.var, 0o711)
        first_start.make_folder(env.run, 0o711)
        first_start.make_folder(env.log_dir, 0o700)
        first_start.keep_secret(env.secret_key_file, env.secret_key)
        first_start.keep_secret(env.agent_token_file, first_start.make_agent_token())

    def _run(self, *, with_agent: bool, with_demo: bool) -> None:
        supervisor = Supervisor(settings.ALLOT.log_dir, self._say)
        with supervisor.handling_signals():
            try:
                supervisor.start(*servers())
                is_prepared = _in_child(lambda: prepare_database(with_demo=with_demo))
                supervisor.check_stop()
                if not is_prepared:
                    raise StartError("the database could not be prepared; the reason is above")
                supervisor.start(web())
                supervisor.start(worker(), beat(), *([agent()] if with_agent else []))
                self._greet()
                supervisor.watch()
            except StopRequestedError:
                self._say("up", "stopped while starting")
            finally:
                self._say("up", "stopping; Ctrl-C again hurries")
                supervisor.stop()

    def _greet(self) -> None:
        env = settings.ALLOT
        logins = env.var / "logins.txt"
        self._print(
            f"\nAllot is ready: {env.public_url}\n"
            + (logins.read_text() if logins.exists() else "")
            + f"Logs: {env.log_dir}   Stop: Ctrl-C (trainings save first)\n"
        )

    def _say(self, name: str, line: str) -> None:
        self._print(f"{name:<9} {line}")

    def _print(self, text: str) -> None:
        # A terminal that is gone must not keep us from working, nor from stopping in order.
        with suppress(OSError):
            self.stdout.write(text)
            self.stdout.flush()


def servers() -> list[Program]:
    """Return the servers that the environment leaves to us."""
    env = settings.ALLOT
    programs = []
    if env.has_embedded_database:
        programs.append(embedded.Postgres(env.postgres_dir, env.run / "pg").program())
    if env.has_embedded_redis:
        programs.append(embedded.Valkey(env.valkey_dir, env.run / "valkey.sock").program())
    return programs


def prepare_database(*, with_demo: bool) -> None:
    """Bring translations and schema up to date; on first start make the demonstration."""
    for folder in settings.LOCALE_PATHS:
        compile_translations(Path(folder))
    call_command("migrate", verbosity=0, interactive=False)
    ensure_zone(LOCAL_ZONE, settings.ALLOT.agent_token_file.read_text().strip())
    if with_demo and not _has_users():
        call_command("demo")


def _has_users() -> bool:
    from django.contrib.auth import get_user_model

    return get_user_model().objects.exists()


def _in_child(work: Callable[[], None]) -> bool:
    """Do something with the database in a process that has our modules but keeps no connection.

    Returns:
        Whether it succeeded; if not, it has printed why.
    """
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_work_as_child, args=(work, os.getpid()))
    child.start()
    child.join()
    return child.exitcode == 0


def _work_as_child(work: Callable[[], None], parent: int) -> None:
    die_with_parent(signal.SIGKILL, parent)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    work()


def web() -> Program:
    """Return the ASGI server."""
    env = settings.ALLOT
    options = {
        "--host": env.host,
        "--port": str(env.port),
        "--lifespan": "off",
        "--timeout-graceful-shutdown": "3",
        "--log-level": env.log_level.lower(),
        # For notebooks: uvicorn's own limit of a message is 16 MiB, and the next hop would have to
        # unpack what this one packs.
        "--ws-max-size": str(SERVER_OPTIONS["ws_max_size"]),
        "--ws-per-message-deflate": "false",
        "--ws-ping-timeout": "60",
    }
    return _python(
        "web",
        *("-m", "uvicorn", "config.asgi:application", "--no-access-log", "--no-server-header"),
        *_flat(options),
        is_ready=_web_answers,
        stop_limit_s=8.0,
    )


def _web_answers() -> bool:
    env = settings.ALLOT
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(env.host, env.host)
    connection = http.client.HTTPConnection(host, env.port, timeout=READY_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz", headers={"Host": "localhost"})
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def worker() -> Program:
    """Return the Celery worker: threads in one process, which keeps the planner warm."""
    env = settings.ALLOT
    options = {
        "--pool": "threads",
        "--concurrency": str(NUM_WORKER_THREADS),
        "--queues": "cycle,dispatch,idle,telemetry",
        "--loglevel": env.log_level,
        "--hostname": f"worker-{env.port}@%h",
    }
    return _celery(
        "worker",
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        *_flat(options),
        stop_limit_s=10.0,
    )


def beat() -> Program:
    """Return Celery's clock."""
    # Without a file of its number, which a SIGKILL would leave behind.
    options = {"--pidfile": "", "--loglevel": settings.ALLOT.log_level}
    return _celery("beat", *_flat(options), stop_limit_s=5.0)


def agent() -> Program:
    """Return the Resource Controller of this machine's zone."""
    return _python(
        "agent",
        *("manage.py", "agent"),
        is_ready=lambda: _accepts(settings.ALLOT.run / "relay.sock"),
        # SIGTERM would leave workloads running; Ctrl-C means that they save and stop.
        stop_signal=signal.SIGINT,
        stop_limit_s=AGENT_STOP_LIMIT_S,
    )


def _accepts(path: Path) -> bool:
    """Say whether somebody listens on a Unix socket; a file may be left by one who was killed."""
    with socket.socket(socket.AF_UNIX) as tried:
        try:
            tried.connect(str(path))
        except OSError:
            return False
        return True


def _celery(name: str, *arguments: str, stop_limit_s: float) -> Program:
    mark = settings.ALLOT.run / f"{name}.ready"
    return _python(
        name,
        *("-m", "celery", "--app", "config.celery", "--quiet", "--skip-checks", name, *arguments),
        is_ready=mark.exists,
        prepare=lambda: mark.unlink(missing_ok=True),
        stop_limit_s=stop_limit_s,
    )


def _python(
    name: str,
    *arguments: str,
    is_ready: Callable[[], bool],
    stop_limit_s: float,
    stop_signal: signal.Signals = signal.SIGTERM,
    prepare: Callable[[], None] = lambda: None,
) -> Program:
    """Return a program of ours, which finds our data wherever it was started."""
    env = settings.ALLOT
    return Program(
        name=name,
        command=(sys.executable, *arguments),
        environment={
            "ALLOT_VAR": str(env.var),
            "ALLOT_RUN": str(env.run),
            "PYTHONUNBUFFERED": "1",
        },
        folder=settings.BASE_DIR,
        is_ready=is_ready,
        prepare=prepare,
        stop_signal=stop_signal,
        stop_limit_s=stop_limit_s,
    )


def _flat(options: dict[str, str]) -> tuple[str, ...]:
    return tuple(part for item in options.items() for part in item)
