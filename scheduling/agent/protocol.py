"""Messages between the orchestrator and a zone's Resource Controller: `allot-agent/1`.

State is level-triggered. An agent reports everything it observes (`Report`), asks for everything
that should be (`Desired`), and acts on the difference; either side may restart at any moment and
any message may be repeated. Messages are JSON. A reader ignores fields that it does not know; a new
meaning needs a new `PROTOCOL`.

HTTP, with `Authorization: Bearer <agent token>` and `Allot-Agent: <number> <host>` (a number that
the agent's data folder keeps): of two agents that claim one zone the second is answered 409.

    POST /agent/v1/report    Report  -> Acknowledged
    GET  /agent/v1/desired   ?zone=  -> Desired
    POST /agent/v1/samples   SampleBatch -> 204

The agent's relay (its URL and secret come in each report), with `Authorization: Bearer <relay
secret>`:

    POST /wake                                    read the desired state now
    POST /attempts/<id>/wake                      bring a swapped-out session's GPU back
    GET  /attempts/<id>/log?offset=N&limit=M      raw bytes; `X-Log-Size`: size of the whole log
    POST /check                                   CheckRequest -> CheckAnswer, before accepting it
    POST /watch                                   WatchRequest -> 204, while somebody looks
    ANY  /attempts/<id>/session/<path>            HTTP and WebSocket, to the session's own Unix
    socket
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

import msgspec

from scheduling.agent.swap_messages import IdleReport as IdleReport
from scheduling.agent.swap_messages import IdleThresholds as IdleThresholds
from scheduling.agent.swap_messages import Loan as Loan
from scheduling.agent.swap_messages import LoanEnd as LoanEnd
from scheduling.agent.swap_messages import LoanReport as LoanReport
from scheduling.agent.swap_messages import LoanState as LoanState
from scheduling.agent.swap_messages import Signal as Signal
from scheduling.agent.swap_messages import SwapObstacle as SwapObstacle
from scheduling.agent.swap_messages import SwapReport as SwapReport
from scheduling.agent.swap_messages import SwapState as SwapState
from telemetry.messages import PROTOCOL as PROTOCOL
from telemetry.messages import ReceivedBatch as ReceivedBatch
from telemetry.messages import Sample as Sample
from telemetry.messages import SampleBatch as SampleBatch

Message = TypeVar("Message")

AGENT_HEADER = "Allot-Agent"


class ProtocolError(Exception):
    """A message is not what this version expects; says which field."""


class Goal(StrEnum):
    """What should become of an attempt."""

    RUN = "run"
    CHECKPOINT = "checkpoint"
    """Go on running, but save now."""
    EVICT = "evict"
    """Save within the grace period, then stop: the workload returns to the queue."""
    STOP = "stop"
    """Save within the grace period, then stop for good."""


class AttemptPhase(StrEnum):
    """What the agent sees. `EXITED` and `REFUSED` are final."""

    STARTING = "starting"
    RUNNING = "running"
    SAVING = "saving"
    STOPPING = "stopping"
    EXITED = "exited"
    REFUSED = "refused"
    """Could not be started; `error` says why."""


class ExitCause(StrEnum):
    OWN = "own"
    """Ended by itself."""
    STOPPED = "stopped"
    EVICTED = "evicted"
    OUT_OF_MEMORY = "out_of_memory"
    """Killed at its memory limit."""
    NODE_SHUTDOWN = "node_shutdown"
    """The agent was told to stop everything; the work is still wanted."""
    LEASE_EXPIRED = "lease_expired"
    """The agent was away for too long, so the shim stopped a training."""
    VANISHED = "vanished"
    """Neither shim nor exit record is left: the machine restarted, or somebody killed both."""


@dataclass(frozen=True, slots=True)
class GrantedDevice:
    """One device of an attempt.

    Attributes:
        memory_mib: What the attempt may use of it (floor of usable x thousandths).
    """

    uuid: str
    index: int
    model: str
    gpu_milli: int
    memory_mib: int
    is_simulated: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """How a training saves.

    Attributes:
        mode: `none`, `signal` or `command`.
        signal: Name of the signal that asks for a checkpoint (sent only if the process catches it).
        command: Shell command that saves, for mode `command`; runs as the owner in the workload's
            namespace.
        every_s: Ask for a checkpoint this often; None leaves it to the program.
        subfolder: Where inside the workload's folder the program saves (`$ALLOT_CHECKPOINT_DIR`).
        keep: So many complete checkpoints are kept.
    """

    mode: str = "signal"
    signal: str = "SIGUSR1"
    command: str = ""
    every_s: float | None = None
    subfolder: str = "checkpoints"
    keep: int = 3


@dataclass(frozen=True, slots=True)
class Member:
    """A replica that has a place now.

    Attributes:
        address: Where the others reach its machine.
    """

    replica: int
    node: str
    address: str


@dataclass(frozen=True, slots=True)
class Crew:
    """What one of several replicas is told of all of them.

    Attributes:
        replica: Which one this is; 0 is the leader, whose checkpoints count.
        num_replicas: How many had a place when this one was placed.
        min_replicas, max_replicas: Fewer never run; it grows up to so many.
        address, port: Where the leader may listen for the others; port 0 while it has no place.
        is_awaiting_leader: Told to end, it goes on until the leader, which was told too, has saved.
    """

    replica: int
    num_replicas: int
    min_replicas: int
    max_replicas: int
    address: str
    port: int
    is_awaiting_leader: bool = False


@dataclass(frozen=True, slots=True)
class AttemptSpec:
    """Everything the agent needs to start one attempt of a workload on one of its nodes.

    Attributes:
        attempt_id, workload_id: UUIDs as text.
        number: 1 for the first attempt of the workload, or of this replica of it.
        user_number, project_number: Small positive integers, stable per user and project: the agent
            maps them to uid and gid.
        command: argv; empty for a session whose tool is Jupyter.
        tool: `jupyter` or `` (none: a training).
        working_dir: Relative to the workload's home, or absolute.
        env: Extra environment; never overrides the agent's own `ALLOT_*`.
        cpu_milli, memory_mib: Enforced limits.
        base_url: For a session: the path at which the browser sees it.
        session_secret: For a session: the token that Jupyter expects; given in its environment
            only.
        grace_s: Between the request to save and SIGKILL.
        shares_strictly: Alone on a device it keeps to its share of the time as well.
        goal_detail: Why (shown in the attempt's log).
        is_swappable: Whether its device memory may be moved to the host; settings may forbid it.
        idle: Below which use counts as none.
        language: Of its owner (`en`, `ru`), for what Allot writes below a held cell.
        crew: Of a workload that has several replicas; None for one alone.
    """

    attempt_id: str
    workload_id: str
    number: int
    name: str
    kind: str
    project: str
    project_number: int
    owner: str
    user_number: int
    node: str
    goal: Goal
    cpu_milli: int
    memory_mib: int
    command: list[str] = field(default_factory=list)
    tool: str = ""
    working_dir: str = ""
    env: dict[str, str] = field(default_factory=dict)
    devices: list[GrantedDevice] = field(default_factory=list)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    grace_s: float = 60.0
    base_url: str = ""
    session_secret: str = ""
    goal_detail: str = ""
    shares_strictly: bool = False
    is_swappable: bool = True
    idle: IdleThresholds = field(default_factory=IdleThresholds)
    language: str = ""
    crew: Crew | None = None


@dataclass(frozen=True, slots=True)
class Desired:
    """All attempts of the zone that are not finished, with what should become of each.

    An attempt that the agent has and this list lacks is no longer wanted and is stopped; a loan
    likewise: its lender gets the devices back.

    Attributes:
        members: The replicas that have a place now, by workload, of those that may have several.
        swap_host_mib: Host memory that Swap may use, by node; a node that is not named may use
            what is free.
    """

    zone: str
    attempts: list[AttemptSpec]
    protocol: str = PROTOCOL
    lease_s: float = 60.0
    loans: list[Loan] = field(default_factory=list)
    members: dict[str, list[Member]] = field(default_factory=dict)
    swap_host_mib: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """A GPU of a node. `memory_mib` is the usable memory (NVML v2: total - reserved)."""

    uuid: str
    index: int
    model: str
    memory_mib: int
    is_healthy: bool = True


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node and what it offers.

    Attributes:
        is_isolated: Whether workloads get uid, namespaces and cgroup of their own; `isolation_note`
            says what is lacking.
        labels: Matched against the node types' selectors, e.g. `{"allot/node-type": "t4"}`.
        fraction_mechanism, swap_mechanism: How fractions are held and sessions swapped here; empty
            without a GPU. The notes are codes that say why this one (`fraction.mechanism`).
        shares_gpu_time: Whether sessions get time of a device in proportion to their fractions.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    labels: dict[str, str]
    devices: list[DeviceReport]
    is_simulated: bool
    is_isolated: bool
    isolation_note: str = ""
    fraction_mechanism: str = ""
    driver: str = ""
    fraction_note: str = ""
    shares_gpu_time: bool = False
    swap_mechanism: str = ""
    swap_note: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A complete, verified checkpoint in the store.

    `step` is None where the program does not name one.
    """

    key: str
    saved_at: float
    size_bytes: int
    sha256: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class AroundShare:
    """Device memory that an attempt takes around the library that holds it to its share.

    Attributes:
        used_mib: Of all its processes on the device, by the driver.
        uncounted_mib: Of those that do not use the library at all.
    """

    device_uuid: str
    used_mib: int
    share_mib: int
    uncounted_mib: int


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """What the agent sees of one attempt. Times are Unix seconds.

    Attributes:
        is_ready: For a session: its socket answers.
        resumed_from: Key of the checkpoint that this attempt was given at its start.
        exit_code: As a shell gives it (128 + signal when killed); None while running.
        peak_memory_mib: Highest use seen by the cgroup.
        memory_limit_mib: The limit in force, for a kill at the limit.
        last_lines: The end of the log, at most 20 lines, once final.
        error: Why it could not start, or another fault, in words.
        is_retryable: For `refused`: whether trying again may help.
        swap: Its device memory; None where it has no device.
        idle: Its idle signals, a training's without kernels and terminals; None before the first
            look, and until a session answers.
        around_share: None while all that it takes is counted.
    """

    attempt_id: str
    phase: AttemptPhase
    is_ready: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    pid: int | None = None
    exit_code: int | None = None
    exit_cause: ExitCause | None = None
    peak_memory_mib: int | None = None
    memory_limit_mib: int | None = None
    cpu_limit_milli: int | None = None
    last_lines: list[str] = field(default_factory=list)
    error: str = ""
    is_retryable: bool = True
    resumed_from: str | None = None
    checkpoints: list[CheckpointReport] = field(default_factory=list)
    swap: SwapReport | None = None
    idle: IdleReport | None = None
    around_share: AroundShare | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a zone's agent observes.

    Attributes:
        sent_at: Unix seconds by the agent's clock, to detect skew.
        relay_url: `unix:/path` or `http://host:port`.
    """

    zone: str
    sent_at: float
    relay_url: str
    relay_secret: str
    nodes: list[NodeReport]
    attempts: list[AttemptReport]
    protocol: str = PROTOCOL
    is_stopping: bool = False
    loans: list[LoanReport] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The answer to a report.

    Attributes:
        settled: Attempts recorded as ended: the agent may drop its record of them, but not their
            logs or checkpoints.
        settled_loans: Loans recorded as ended or refused: the agent may forget them.
        refused_nodes: Names that the agent of another zone holds: nothing was recorded of them.
    """

    settled: list[str] = field(default_factory=list)
    settled_loans: list[str] = field(default_factory=list)
    refused_nodes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """These nodes are on somebody's screen: measure them every second, for so long.

    Asked again while somebody looks, so that nothing goes on when the web is gone.
    """

    nodes: list[str]
    for_s: float


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """Could this person's workload run this command in this folder?"""

    project: str
    project_number: int
    owner: str
    user_number: int
    command: list[str]
    working_dir: str = ""
    checkpoint_subfolder: str = "checkpoints"


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """`code` is `not_found`, `not_executable`, `not_readable` or `outside`."""

    field: str
    code: str
    value: str


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    problems: list[FieldProblem] = field(default_factory=list)


def encode(message: object) -> bytes:
    """A message as JSON bytes."""
    return msgspec.json.encode(message)


def decode(data: bytes, expected: type[Message]) -> Message:
    """Read a message.

    Raises:
        ProtocolError: not JSON, a field is missing or has the wrong type, or another protocol
            version.
    """
    try:
        message = msgspec.json.decode(data, type=expected)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{expected.__name__}: {error}") from error
    version = getattr(message, "protocol", PROTOCOL)
    if version != PROTOCOL:
        raise ProtocolError(
            f"{expected.__name__}: protocol is {version!r}, this side speaks {PROTOCOL!r}"
        )
    return message
