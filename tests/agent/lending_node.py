"""A node of a real agent that lends: JupyterLab sessions and trainings over the fake driver."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
from websockets.sync.client import ClientConnection, unix_connect

from scheduling.agent import isolation
from scheduling.agent.folders import Folders
from scheduling.agent.protocol import (
    AttemptPhase,
    AttemptReport,
    AttemptSpec,
    ExitCause,
    Goal,
    GrantedDevice,
    Loan,
    LoanReport,
    LoanState,
    SwapState,
)
from scheduling.agent.site import Site
from tests.agent.conftest import end
from tests.agent.driver import FINAL, PYTHON, Driver, spec
from tests.agent.orchestrator import TOKEN, Orchestrator
from tests.jupyter import execution

REPOSITORY = Path(__file__).resolve().parents[2]
NODES = ("sim-t4-1", "sim-t4-2")
GIB = 2**30
USABLE_MIB = 14_917
NUM_SESSIONS = 8
# Sessions come back for at least 30 s otherwise; the rule has its own test.
PROGRAM = """
import json, logging, sys
from pathlib import Path
from scheduling.agent.controller import Options, main
from scheduling.agent.swap import machine
machine.MIN_RESIDENCE_S = 0.0
logging.basicConfig(level="INFO")
given = json.loads(sys.argv[1])
paths = {name: Path(given.pop(name)) for name in ("token_file", "var", "run", "workload_python")}
main(Options(**given, **paths))
"""
CUDA = """
import ctypes as c, threading, time
l = c.CDLL("libcuda.so.1")
def start():
    x = c.c_void_p()
    return l.cuInit(0) or l.cuDevicePrimaryCtxRetain(c.byref(x), 0) or l.cuCtxSetCurrent(x)
def alloc(n):
    p = c.c_uint64()
    return l.cuMemAlloc_v2(c.byref(p), c.c_size_t(n))
"""
# Counts steps until a file tells it to end, and says at each how many; only the first call CUDA.
TRAINING = (
    CUDA
    + """
import pathlib, signal, sys, os
folder = pathlib.Path(os.environ["ALLOT_CHECKPOINT_DIR"])
def save(*_):
    hidden = folder / f".{count}"
    hidden.write_text(str(count)); hidden.rename(folder / str(count))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("started", start(), alloc(int(sys.argv[1]) << 20), flush=True)
count = 0
while not pathlib.Path(sys.argv[2] + ".end").exists():
    assert count >= int(sys.argv[3]) or alloc(4096) == 0
    count += 1
    pathlib.Path(sys.argv[2]).write_text(str(count))
    time.sleep(0.02)
print("ended right after", count, flush=True)
"""
)


@dataclass
class Session:
    """A session with a kernel, whose connection stays open."""

    world: World
    spec: AttemptSpec
    kernel: str = ""
    channels: ClientConnection | None = None
    opened: ExitStack = field(default_factory=ExitStack)

    def connect(self) -> None:
        """Open the kernel's WebSocket through the relay."""
        path = f"/attempts/{self.spec.attempt_id}/session{self.spec.base_url}"
        if not self.kernel:
            self.kernel = self.world.ask(f"{path}api/kernels", "POST").json()["id"]
        connection = unix_connect(
            str(self.world.folders.run / "relay.sock"),
            f"ws://localhost{path}api/kernels/{self.kernel}/channels",
            additional_headers={"Authorization": f"Bearer {self.world.secret}"},
            open_timeout=30,
        )
        self.opened.close()
        self.channels = self.opened.enter_context(connection)

    def send(self, code: str) -> str:
        assert self.channels is not None
        message = execution(code)
        self.channels.send(json.dumps(message))
        return str(message["header"]["msg_id"])

    def answer(self, request: str) -> str:
        """What a cell printed, once it is done."""
        assert self.channels is not None
        printed = ""
        done: set[str] = set()
        while len(done) < 2:
            message = json.loads(self.channels.recv(timeout=60))
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "stream" and content["name"] == "stdout":
                printed += content["text"]
            if kind == "execute_reply":
                assert content["status"] == "ok", content
                done.add(kind)
            if kind == "status" and content["execution_state"] == "idle":
                done.add(kind)
        return printed

    def run(self, code: str) -> str:
        return self.answer(self.send(code))

    @property
    def device(self) -> GrantedDevice:
        return self.spec.devices[0]

    @property
    def report(self) -> AttemptReport:
        found = self.world.orchestrator.seen(self.spec)
        assert found is not None
        return found

    @property
    def swap(self) -> SwapState:
        assert self.report.swap is not None
        return self.report.swap.state


class World:
    """An agent's process with its orchestrator, and sessions on T4s that are idle."""

    def __init__(self) -> None:
        root = Path(tempfile.mkdtemp(prefix="allot-loans-"))
        (root / "var").mkdir()
        (root / "run").mkdir()
        self.folders = Folders(root / "var", root / "run")
        self.site = Site(self.folders, isolation.probe(self.folders), PYTHON)
        self.orchestrator = Orchestrator()
        self.agent = self.start_agent()
        self.until(lambda: self.orchestrator.reports)
        nodes = [each for each in self.orchestrator.reports[0].nodes if each.name in NODES]
        self.devices = [
            (node.name, GrantedDevice(d.uuid, d.index, d.model, 1000, d.memory_mib, True))
            for node in nodes
            for d in node.devices
        ]
        self.free: list[Session] = []

    def start_agent(self) -> subprocess.Popen[bytes]:
        token_file = self.folders.var / "agent-token"
        token_file.write_text(TOKEN)
        token_file.chmod(0o600)
        options = {
            "zone": "local",
            "server": self.orchestrator.url,
            "token_file": str(token_file),
            "var": str(self.folders.var),
            "run": str(self.folders.run),
            "workload_python": str(PYTHON),
            "simulated": "demo",
        }
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(options)], cwd=REPOSITORY
        )

    def kill_agent(self, signum: signal.Signals = signal.SIGKILL) -> None:
        self.agent.send_signal(signum)
        self.agent.wait()

    def next_agent(self) -> None:
        """Another agent takes over."""
        before = self.secret
        self.agent = self.start_agent()
        self.until(lambda: self.secret != before)

    @property
    def secret(self) -> str:
        return self.orchestrator.reports[-1].relay_secret

    def until(self, is_true: Callable[[], object]) -> None:
        self.orchestrator.until(is_true)

    def ask(self, path: str, method: str = "GET") -> httpx.Response:
        transport = httpx.HTTPTransport(uds=str(self.folders.run / "relay.sock"))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as client:
            headers = {"Authorization": f"Bearer {self.secret}"}
            return client.request(method, path, headers=headers)

    def session_on(self, node: str, device: GrantedDevice) -> Session:
        name = uuid.uuid4().hex[:8]
        return Session(
            self,
            spec(
                kind="interactive", tool="jupyter", node=node, devices=[device],
                base_url=f"/s/{name}/", session_secret=f"secret-{name}", memory_mib=2048,
                cpu_milli=2000, grace_s=2.0,
            ),
        )  # fmt: skip

    def start_sessions(self, sessions: list[Session]) -> None:
        """Start them, each with a kernel that holds 2 GiB and a variable, and wait for idleness."""
        self.orchestrator.want(*(each.spec for each in sessions))
        self.until(
            lambda: all(
                (seen := self.orchestrator.seen(each.spec)) and seen.is_ready for each in sessions
            )
        )
        for each in sessions:
            each.connect()
            printed = each.run(f"{CUDA}\nx = 41\nprint(start(), alloc({2 * GIB}))")
            assert printed == "0 0\n"
        self.until(lambda: all(self.is_idle(each) for each in sessions))
        self.free += sessions

    def is_idle(self, session: Session) -> bool:
        report = session.report.idle
        return (
            report is not None
            and report.missing == ["network"]
            and None
            not in (
                report.gpu_idle_since,
                report.cpu_idle_since,
                report.kernels_idle_since,
                report.terminals_idle_since,
            )
        )

    def take(self) -> Session:
        """A session that no other test uses; what the last one left on the device ends first."""
        if not self.free:
            self.clear()
            places = self.devices[:NUM_SESSIONS]
            self.start_sessions([self.session_on(node, device) for node, device in places])
        session = self.free.pop()
        # An agent may have come and gone.
        session.connect()
        return session

    def clear(self) -> None:
        """End everything, so that all devices are free."""
        self.orchestrator.loans.clear()
        stopped = [
            replace(each, goal=Goal.STOP, grace_s=0.0) for each in self.orchestrator.wanted.values()
        ]
        self.orchestrator.want(*stopped)
        self.until(
            lambda: all(
                (seen := self.orchestrator.seen(each)) is None or seen.phase in FINAL
                for each in stopped
            )
        )
        self.orchestrator.settled += [each.attempt_id for each in stopped]
        self.orchestrator.settled_loans += [
            each.loan_id for each in self.orchestrator.reports[-1].loans
        ]
        self.orchestrator.wanted.clear()

    def training(
        self, session: Session, mib: int = 13_000, num_calls: int = sys.maxsize, **changes: object
    ) -> AttemptSpec:
        """A training on a session's device."""
        counter = f"counter-{uuid.uuid4().hex[:8]}"
        wanted = spec(
            "python", "-c", textwrap.dedent(TRAINING), str(mib), counter, str(num_calls),
            node=session.spec.node, devices=[session.device], owner="bob", user_number=2,
            project="speech", project_number=2, env={"COUNTER": counter},
        )  # fmt: skip
        return replace(wanted, **changes)  # type: ignore[arg-type]

    def count(self, training: AttemptSpec) -> int:
        """How far a training is."""
        path = self.folders.home("speech", "bob") / training.env["COUNTER"]
        try:
            return int(path.read_text() or 0)
        except OSError:
            return 0

    def tell_to_end(self, training: AttemptSpec) -> None:
        """Have a training end by itself."""
        (self.folders.home("speech", "bob") / f"{training.env['COUNTER']}.end").touch()

    def until_further(self, training: AttemptSpec) -> None:
        """Wait until a training gets on, whatever the agent does meanwhile."""
        before, deadline = self.count(training), time.monotonic() + 60
        while self.count(training) <= before + 3:
            seen = self.orchestrator.seen(training)
            assert time.monotonic() < deadline, (seen, self.log(training))
            time.sleep(0.02)

    def take_back(self, training: AttemptSpec) -> ExitCause | None:
        """End a training as the orchestrator does whose loan came to nothing."""
        self.orchestrator.want(replace(training, goal=Goal.EVICT))
        self.until(
            lambda: (seen := self.orchestrator.seen(training)) and seen.phase == AttemptPhase.EXITED
        )
        seen = self.orchestrator.seen(training)
        assert seen is not None
        return seen.exit_cause

    def lend(self, session: Session, training: AttemptSpec, idle_s: float = 0.0) -> Loan:
        loan = Loan(
            str(uuid.uuid4()), session.spec.attempt_id, training.attempt_id,
            [session.device.uuid], idle_s,
        )  # fmt: skip
        self.orchestrator.want(training)
        self.orchestrator.lend(loan)
        self.ask("/wake", "POST")
        return loan

    def lent(self, session: Session, **changes: object) -> tuple[Loan, AttemptSpec]:
        """A session's device, lent to a training that runs on it, as the agent has told."""
        self.until(lambda: self.is_idle(session))
        training = self.training(session, **changes)  # type: ignore[arg-type]
        loan = self.lend(session, training)
        self.until_loan(loan, LoanState.LENT)
        self.until_further(training)
        self.until(lambda: (seen := self.orchestrator.seen(training)) and seen.pid)
        self.until(lambda: session.swap == SwapState.SWAPPED_OUT)
        return loan, training

    def until_loan(self, loan: Loan, state: LoanState) -> LoanReport:
        self.until(
            lambda: (
                (seen := self.orchestrator.seen_loan(loan))
                and seen.state in (state, LoanState.ENDED, LoanState.REFUSED)
            )
        )
        found = self.orchestrator.seen_loan(loan)
        assert found is not None
        assert found.state == state, found
        return found

    def state_of(self, training: AttemptSpec) -> SwapState | None:
        seen = self.orchestrator.seen(training)
        return None if seen is None or seen.swap is None else seen.swap.state

    def log(self, wanted: AttemptSpec) -> str:
        name = self.folders.attempt(wanted.attempt_id).name
        for parent in (self.folders.attempts, self.folders.ended):
            if (parent / name / "log").exists():
                return (parent / name / "log").read_text()
        return ""

    def close(self) -> None:
        for each in self.free:
            each.opened.close()
        self.kill_agent()
        end(Driver(self.site))
        self.orchestrator.close()
        if self.site.isolation.cgroups is not None:
            self.site.isolation.cgroups.leave()
        shutil.rmtree(self.folders.var.parent, ignore_errors=True)
