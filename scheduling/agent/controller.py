"""The Resource Controller of a zone: desired state in, processes run, observed state out.

Level-triggered: every loop may be cut off at any moment and begins again from what is on disk and
what the orchestrator wants. SIGTERM leaves the workloads running for the next agent; SIGINT has
them save and stop. While the orchestrator is away everything that runs goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvicorn

from scheduling.agent import check, isolation, node
from scheduling.agent.cells import Cells
from scheduling.agent.folders import Folders
from scheduling.agent.fraction.install import Fractions
from scheduling.agent.fraction.utilisation import Utilisation
from scheduling.agent.orchestrator import Orchestrator
from scheduling.agent.protocol import CheckAnswer, CheckRequest, Report, WatchRequest
from scheduling.agent.relay import RELAY_SERVER_OPTIONS, SessionEndpoint, create_app
from scheduling.agent.runner import Runner
from scheduling.agent.shares import ShareWatch
from scheduling.agent.site import Site
from scheduling.agent.spool import Spool
from scheduling.agent.swap.swapping import Swapping
from scheduling.agent.watched import SAMPLE_EVERY_S, WATCHED_EVERY_S, Watched

log = logging.getLogger(__name__)

REPORT_EVERY_S = 3.0
DESIRED_EVERY_S = 2.0
_TICK_S, _TICK_WHILE_CHANGING_S = 0.25, 0.05
_LOOK_FOR_ANSWERS_EVERY_S = 0.3
# Beyond the grace period: for SIGKILL to work and for checkpoints to be stored.
_STOP_MARGIN_S = 15.0
_FINAL_REPORT_TIMEOUT_S = 5.0


class AgentError(Exception):
    """The agent cannot work as it was set up; says what to change."""


@dataclass(frozen=True, slots=True)
class Options:
    """How an agent is set up.

    Attributes:
        zone: The zone whose Resource Controller this is.
        server: Of the orchestrator: `http://host:port`, or `unix:/path`.
        token_file: Holds the bearer token that the orchestrator expects.
        var, run: Data folder; folder of sockets, short.
        workload_python: Python of the environment that workloads get.
        simulated: See `node.find`.
        relay: `host:port` where the relay listens; empty for a Unix socket in the run folder.
        labels: Of all its nodes, beside their type: where they stand, what is special about them.
    """

    zone: str
    server: str
    token_file: Path
    var: Path
    run: Path
    workload_python: Path
    simulated: str = "auto"
    relay: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: signals are the controller's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Controller:
    """One agent at work; also what the relay asks (`relay.RelayHost`)."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.secret = secrets.token_urlsafe(32)
        folders = Folders(options.var, options.run)
        found = isolation.probe(folders)
        inventory = node.find(options.zone, found, options.simulated)
        inventory = node.labelled(inventory, options.labels)
        fractions = Fractions(folders, inventory, found)
        self.inventory = replace(
            inventory, nodes=tuple(fractions.described(each) for each in inventory.nodes)
        )
        self.site = Site(
            folders=folders,
            isolation=found,
            workload_python=options.workload_python,
            device_files=self.inventory.device_files,
            is_simulated=self.inventory.is_simulated,
            fractions=fractions,
        )
        self.runner = Runner(self.site, (each.name for each in self.inventory.nodes))
        self.orchestrator = Orchestrator(options.server, options.token_file)
        self.spool = Spool(options.zone, self.inventory.nodes, options.var / "spool")
        self.utilisation = Utilisation()
        self.shares = ShareWatch(self.inventory, fractions)
        self.watched = Watched([each.name for each in self.inventory.nodes], time.monotonic)
        self._woken, self._changed = asyncio.Event(), asyncio.Event()
        self._sampled = asyncio.Event()
        self.swapping = Swapping(self.runner, self.inventory, fractions, self._changed.set)
        self._is_stopping = False
        self._leave = asyncio.Event()

    # ------------------------------------------------------------------ what the relay asks

    def wake(self) -> None:
        """Read the desired state soon."""
        self._woken.set()

    def watch(self, request: WatchRequest) -> None:
        """Measure these nodes every second for a while."""
        self.watched.watch(request.nodes, request.for_s)

    def log_path(self, attempt_id: str) -> Path | None:
        """The attempt's log."""
        return self.runner.log_path(attempt_id)

    def session(self, attempt_id: str) -> SessionEndpoint | None:
        """The attempt's Jupyter."""
        session = self.runner.session(attempt_id)
        return None if session is None else SessionEndpoint(session.socket, session.token)

    @property
    def cells(self) -> Cells:
        """The connections to kernels, which wait while a GPU is away."""
        return self.swapping.cells

    async def wake_session(self, attempt_id: str) -> bool:
        """Bring a session's GPU back."""
        return await self.swapping.wake(attempt_id)

    async def check(self, request: CheckRequest) -> CheckAnswer:
        """Whether a workload could run this command in this folder."""
        return await check.check(self.site, request)

    # ------------------------------------------------------------------ loops

    async def run(self) -> None:
        """Work until a signal ends it.

        Raises:
            AgentError: another agent works in this data folder, or the relay cannot listen.
        """
        self.site.folders.prepare(is_open=not self.site.isolation.has_namespaces)
        with _only_agent(self.site.folders.root):
            self.orchestrator.number = self.site.folders.agent_number
            self.runner.adopt()
            await self.swapping.loans.adopt()
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, self._leave.set)
            loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
            if note := self.site.isolation.note:
                log.warning("workloads are not isolated: %s", note)
            server, listener = self._relay(), self._relay_socket()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(each)
                    for each in (
                        server.serve(sockets=[listener]),
                        self._tick_forever(),
                        self._report_forever(),
                        self._desire_forever(),
                        self._look_for_answers_forever(),
                        self._sample_forever(),
                        self.swapping.look_forever(),
                        self.swapping.watch_lenders_forever(),
                        self._send_samples_forever(),
                    )
                ]
                await self._leave.wait()
                for task in tasks:
                    task.cancel()
            self.swapping.close()
            self.runner.close()
            await self.orchestrator.close()

    def _on_interrupt(self) -> None:
        """Stop everything first; asked a second time, leave at once."""
        if self._is_stopping:
            self._leave.set()
            return
        self._is_stopping = True
        self.swapping.shut_down()
        self.runner.stop_all()
        log.info("stopping %d workloads", self.runner.num_running)
        asyncio.get_running_loop().create_task(self._leave_when_stopped())

    async def _leave_when_stopped(self) -> None:
        graces = [attempt.spec.grace_s for attempt in self.runner.attempts.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(graces, default=0.0) + _STOP_MARGIN_S):
                while self.runner.num_running:
                    await asyncio.sleep(_TICK_WHILE_CHANGING_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINAL_REPORT_TIMEOUT_S):
                await self._report()
        self._leave.set()

    async def _tick_forever(self) -> None:
        while True:
            if self.runner.tick():
                self._changed.set()
            self.swapping.tick()
            pause = _TICK_WHILE_CHANGING_S if self.runner.is_changing else _TICK_S
            await asyncio.sleep(pause)

    async def _report_forever(self) -> None:
        while True:
            await self._report()
            await self._pause(self._changed, REPORT_EVERY_S)

    async def _report(self) -> None:
        self._changed.clear()
        report = Report(
            zone=self.options.zone,
            sent_at=time.time(),
            relay_url=self._relay_url,
            relay_secret=self.secret,
            nodes=list(self.inventory.nodes),
            attempts=self.shares.of_attempts(self.swapping.of_attempts(self.runner.reports())),
            is_stopping=self._is_stopping,
            loans=self.swapping.reports(),
        )
        acknowledged = await self.orchestrator.report(report)
        if acknowledged is not None:
            self.runner.settle(acknowledged.settled)
            self.swapping.settle(acknowledged)

    async def _desire_forever(self) -> None:
        while True:
            self._woken.clear()
            desired = await self.orchestrator.desired(self.options.zone)
            if desired is not None and desired.zone == self.options.zone:
                self.swapping.apply(desired)
                self.runner.apply(desired)
                self._changed_soon()
            await self._pause(self._woken, DESIRED_EVERY_S)

    async def _pause(self, event: asyncio.Event, at_most_s: float) -> None:
        """Wait for an event; while the orchestrator is away, until it is worth trying again."""
        if back_off_s := self.orchestrator.back_off_s:
            await asyncio.sleep(back_off_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await event.wait()

    def _changed_soon(self) -> None:
        if self.runner.tick():
            self._changed.set()

    async def _look_for_answers_forever(self) -> None:
        while True:
            await self.runner.look_for_answers()
            await asyncio.sleep(_LOOK_FOR_ANSWERS_EVERY_S)

    async def _sample_forever(self) -> None:
        """Measure at even distances, however long measuring and sending take: every node every
        five seconds, and every second those that somebody looks at.
        """
        clock = asyncio.get_running_loop().time
        due, all_due = clock(), clock() + SAMPLE_EVERY_S
        while True:
            due = max(due + WATCHED_EVERY_S, clock())
            await asyncio.sleep(due - clock())
            # Half a step early rather than late: both walk on the same seconds.
            is_everything = due > all_due - WATCHED_EVERY_S / 2
            only = None if is_everything else self.watched.now()
            if is_everything:
                all_due = max(all_due + SAMPLE_EVERY_S, due)
            if only is None or only:
                views, now = self.runner.views(), time.time()
                samples = await asyncio.to_thread(self.spool.sample, views, now, only)
                self._sampled.set()
                if is_everything:
                    self.swapping.sampled(samples, now)
                    regions = self.runner.regions()
                    await asyncio.to_thread(self.utilisation.update, regions, time.monotonic())
                    await asyncio.to_thread(self.shares.update, self.runner.holders())

    async def _send_samples_forever(self) -> None:
        while True:
            await self._sampled.wait()
            self._sampled.clear()
            while (batch := self.spool.first()) is not None:
                if not await self.orchestrator.send_samples(batch):
                    break
                self.spool.drop_first()

    # ------------------------------------------------------------------ relay

    @property
    def _relay_path(self) -> Path:
        return self.options.run / "relay.sock"

    @property
    def _relay_url(self) -> str:
        return f"http://{self.options.relay}" if self.options.relay else f"unix:{self._relay_path}"

    def _relay(self) -> uvicorn.Server:
        config = uvicorn.Config(
            create_app(self),
            log_config=None,
            log_level="warning",
            timeout_graceful_shutdown=1,
            **RELAY_SERVER_OPTIONS,
        )
        return _Server(config)

    def _relay_socket(self) -> socket.socket:
        """Listen where only our own user may connect, or at an address that the zone reaches."""
        if self.options.relay:
            host, _, port = self.options.relay.rpartition(":")
            try:
                return socket.create_server((host, int(port)))
            except (OSError, ValueError) as error:
                raise AgentError(
                    f"relay: cannot listen on {self.options.relay}: {error}"
                ) from error
        self._relay_path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        previous = os.umask(0o177)
        try:
            listener.bind(str(self._relay_path))
        finally:
            os.umask(previous)
        return listener


@contextlib.contextmanager
def _only_agent(root: Path) -> Iterator[None]:
    """Hold the data folder: two agents would both start what is wanted."""
    fd = os.open(root / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise AgentError(f"another agent works in {root}") from error
    else:
        yield
    finally:
        os.close(fd)


def main(options: Options) -> None:
    """Run an agent until it is told to end.

    Raises:
        AgentError: something that it was given cannot be used.
    """
    if not options.token_file.is_file():
        raise AgentError(f"token file: {options.token_file} is not there; `manage.py up` makes it")
    if not os.access(options.workload_python, os.X_OK):
        raise AgentError(
            f"workload environment: {options.workload_python} cannot be executed; "
            "`make setup` builds it"
        )

    # It would log each of our own requests.
    logging.getLogger("httpx").setLevel(logging.WARNING)

    async def run() -> None:
        await Controller(options).run()

    asyncio.run(run())
