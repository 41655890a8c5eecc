"""Reading a scenario file: every mistake is named with its JSON path, and nothing unknown is let
through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scheduling.core.errors import ScenarioError
from scheduling.core.rooms import Ask
from scheduling.core.scenario.activity import read_activity
from scheduling.core.scenario.fields import (
    check_ancestors,
    eviction_cost,
    failed_starts,
    gpu_request,
    idleness,
    labels,
    loan,
    node_types,
    optional_number,
    optional_text,
    optional_type,
    read_policy,
    read_project,
)
from scheduling.core.scenario.json_object import JsonObject
from scheduling.core.scenario.replicas import Free, RawReplica
from scheduling.core.scenario.swapping import Activity
from scheduling.core.types import (
    Kind,
    Loan,
    Node,
    NodeName,
    Policy,
    Project,
    ProjectId,
    Replica,
    ReplicaId,
    ReplicaState,
    ResourceKey,
    Snapshot,
    Workload,
    WorkloadId,
)

FORMAT = "scenario/1"
# Far beyond any machine and any patience; a file with a slip of the keyboard must not hang.
MAX_GPUS, MAX_CYCLES = 1024, 10_000
OUTCOMES = ("kept", "moved", "evicted", "placed", "waits", "lent", "recalled")


@dataclass(frozen=True, slots=True)
class Expected:
    """What should become of one replica; `node` None where any will do."""

    outcome: str
    node: NodeName | None = None


@dataclass(frozen=True, slots=True)
class ExpectedLoan:
    """A loan that should be made during the activity; `to_s` None: it goes on at the end."""

    lender: WorkloadId
    borrower: WorkloadId
    from_s: float
    to_s: float | None
    ended_by: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario as read.

    Attributes:
        expected: Per replica; None where the file has no `expect`.
        activity: Runs in virtual time instead of the cycles.
        expected_loans: None where the file expects nothing of them.
    """

    id: str
    about: str
    snapshot: Snapshot
    policy: Policy = field(default_factory=Policy)
    now_s: float = 0.0
    cycles: int = 2
    stable_cycles: int = 5
    expected: Mapping[ReplicaId, Expected] | None = None
    activity: Activity | None = None
    expected_loans: tuple[ExpectedLoan, ...] | None = None

    @property
    def expects_nothing(self) -> bool:
        return self.expected is None and self.expected_loans is None


def load_scenario(data: object) -> Scenario:
    """The one scenario of a file.

    Raises:
        ScenarioError: With the path of the first thing wrong.
    """
    return _Reader(data, "$").scenario()


def load_scenarios(data: object) -> list[Scenario]:
    """All scenarios of a file: one, or a list of them.

    Args:
        data: The parsed JSON.

    Raises:
        ScenarioError: With the path of the first thing wrong.
    """
    if not isinstance(data, list):
        return [load_scenario(data)]
    scenarios = [_Reader(entry, f"$[{i}]").scenario() for i, entry in enumerate(data)]
    seen: dict[str, int] = {}
    for i, scenario in enumerate(scenarios):
        if scenario.id in seen:
            raise ScenarioError(
                f"$[{i}].id", f"{scenario.id!r} is already the id of $[{seen[scenario.id]}]"
            )
        seen[scenario.id] = i
    return scenarios


class _Reader:
    """Reads one scenario."""

    def __init__(self, value: object, path: str) -> None:
        self._root = JsonObject(value, path)
        self._nodes: dict[str, Node] = {}
        self._replicas: set[str] = set()
        self._free: dict[str, Free] = {}

    def scenario(self) -> Scenario:
        root = self._root
        root.choice("format", (FORMAT,))
        scenario_id = root.text("id")
        about = optional_text(root, "about")
        for value, path in root.items("nodes"):
            self._node(JsonObject(value, path))
        projects = self._projects()
        workloads = self._workloads({project.id for project in projects})
        loans = self._loans(workloads)
        now_s = root.number("now_s") if root.has("now_s") else 0.0
        policy = read_policy(root.child("policy")) if root.has("policy") else Policy()
        cycles = root.integer("cycles", 1, MAX_CYCLES) if root.has("cycles") else 2
        stable_cycles = (
            root.integer("stable_cycles", 0, MAX_CYCLES) if root.has("stable_cycles") else 5
        )
        activity = None
        if root.has("activity"):
            activity = read_activity(root.child("activity"), [w.id for w in workloads], now_s)
        expected, expected_loans = self._expected() if root.has("expect") else (None, None)
        root.close()
        snapshot = Snapshot(tuple(self._nodes.values()), tuple(projects), tuple(workloads), loans)
        return Scenario(
            id=scenario_id,
            about=about,
            snapshot=snapshot,
            policy=policy,
            now_s=now_s,
            cycles=cycles,
            stable_cycles=stable_cycles,
            expected=expected,
            activity=activity,
            expected_loans=expected_loans,
        )

    def _node(self, entry: JsonObject) -> None:
        name = entry.text("name")
        if name in self._nodes:
            raise entry.fail("name", f"there is already a node {name!r}")
        node = Node(
            name=NodeName(name),
            num_devices=entry.integer("gpus", 0, MAX_GPUS),
            gpu_memory_mib=entry.integer("gpu_memory_mib", 0),
            cpu_milli=entry.integer("cpu_milli", 0),
            memory_mib=entry.integer("memory_mib", 0),
            gpu_key=ResourceKey(entry.text("gpu_key") if entry.has("gpu_key") else "gpu"),
            node_type=optional_type(entry),
            max_replicas=entry.optional_integer("max_replicas", 0)
            if entry.has("max_replicas")
            else None,
            labels=labels(entry.child("labels")) if entry.has("labels") else {},
            is_ready=entry.truth("ready") if entry.has("ready") else True,
            failed_starts=failed_starts(entry),
            swap_host_mib=entry.optional_integer("swap_host_mib", 0)
            if entry.has("swap_host_mib")
            else None,
        )
        entry.close()
        self._nodes[name] = node
        self._free[name] = Free(node)

    def _projects(self) -> list[Project]:
        entries = [JsonObject(value, path) for value, path in self._root.items("projects")]
        projects: dict[str, Project] = {}
        for entry in entries:
            project = read_project(entry)
            if project.id in projects:
                raise entry.fail("name", f"there is already a project {project.id!r}")
            projects[project.id] = project
        for entry, project in zip(entries, projects.values(), strict=True):
            check_ancestors(entry, project, projects)
        return list(projects.values())

    def _workloads(self, projects: set[ProjectId]) -> list[Workload]:
        """Devices that the file names are taken first; the others are packed around them."""
        entries = [JsonObject(value, path) for value, path in self._root.items("workloads")]
        names: set[str] = set()
        drafts = []
        for entry in entries:
            draft = self._workload(entry, projects)
            if draft.id in names:
                raise entry.fail("name", f"there is already a workload {draft.id!r}")
            names.add(draft.id)
            drafts.append(draft)
        replicas = [
            [RawReplica(JsonObject(value, path)) for value, path in entry.items("replicas")]
            for entry in entries
        ]
        for entry in entries:
            entry.close()
        for raws in replicas:
            self._claim_names(raws)
        for is_named in (True, False):
            for draft, raws in zip(drafts, replicas, strict=True):
                for raw in raws:
                    if raw.names_devices == is_named:
                        self._place(raw, draft)
        return [
            _with_replicas(draft, [raw.replica() for raw in raws])
            for draft, raws in zip(drafts, replicas, strict=True)
        ]

    def _claim_names(self, raws: list[RawReplica]) -> None:
        for raw in raws:
            if raw.name in self._replicas:
                raise raw.entry.fail("name", f"there is already a replica {raw.name!r}")
            self._replicas.add(raw.name)

    def _workload(self, entry: JsonObject, projects: set[ProjectId]) -> Workload:
        project = ProjectId(entry.text("project"))
        if project not in projects:
            raise entry.fail("project", f"there is no project {project!r}")
        kind = Kind(entry.choice("kind", [kind.value for kind in Kind]))
        is_preemptible = entry.truth("preemptible")
        if kind is Kind.INTERACTIVE and is_preemptible:
            raise entry.fail("preemptible", "interactive workloads are never preemptible")
        return Workload(
            id=WorkloadId(entry.text("name")),
            project=project,
            kind=kind,
            priority=entry.integer("priority"),
            is_preemptible=is_preemptible,
            submitted=entry.number("submitted"),
            gpu=gpu_request(entry),
            cpu_milli=entry.integer("cpu_milli", 0),
            memory_mib=entry.integer("memory_mib", 0),
            min_replicas=entry.integer("min_replicas", 1),
            replicas=(),
            node_types=node_types(entry),
            not_before_s=optional_number(entry, "not_before_s"),
            waiting_since_s=optional_number(entry, "waiting_since_s"),
            incomplete_since_s=optional_number(entry, "incomplete_since_s"),
            expected_end_s=optional_number(entry, "expected_end_s"),
            expected_run_s=optional_number(entry, "expected_run_s"),
            early_end_s=optional_number(entry, "early_end_s"),
            expected_basis=optional_text(entry, "expected_basis"),
            last_exit_code=entry.optional_integer("last_exit_code")
            if entry.has("last_exit_code")
            else None,
            failures=entry.integer("failures", 0) if entry.has("failures") else 0,
            last_error=optional_text(entry, "last_error"),
            avoided_nodes=frozenset(NodeName(name) for name in entry.texts("avoided_nodes"))
            if entry.has("avoided_nodes")
            else frozenset(),
            required_labels=labels(entry.child("required_labels"))
            if entry.has("required_labels")
            else {},
            eviction_cost=eviction_cost(entry.child("eviction_cost"))
            if entry.has("eviction_cost")
            else None,
            idle=idleness(entry.child("idle")) if entry.has("idle") else None,
        )

    def _place(self, raw: RawReplica, workload: Workload) -> None:
        """Take what a placed replica occupies from its node, or say what is over-committed."""
        ask = Ask(workload.gpu, workload.cpu_milli, workload.memory_mib)
        for spot in (raw.placed, raw.held):
            if spot is None:
                continue
            free = self._free.get(spot.node)
            if free is None:
                raise spot.entry.fail("node", f"there is no node {spot.node!r}")
            is_promised = raw.state not in (ReplicaState.LENT, ReplicaState.PARKED)
            spot.placement = free.take(spot, ask, is_held=spot is raw.held or not is_promised)

    def _loans(self, workloads: list[Workload]) -> tuple[Loan, ...]:
        """Each between a session that runs and a replica that is there on loan."""
        if not self._root.has("loans"):
            return ()
        states = {replica.id: replica.state for w in workloads for replica in w.replicas}
        sessions = {r.id for w in workloads if w.kind is Kind.INTERACTIVE for r in w.replicas}
        found: list[Loan] = []
        for value, path in self._root.items("loans"):
            entry = JsonObject(value, path)
            made = loan(entry)
            if made.lender not in sessions or states[made.lender] is not ReplicaState.RUNNING:
                raise entry.fail("lender", f"{made.lender!r} is no session that runs")
            if states.get(made.borrower) is not ReplicaState.LENT:
                raise entry.fail("borrower", f"{made.borrower!r} is no replica on loan")
            if any(other.lender == made.lender for other in found):
                raise entry.fail("lender", f"{made.lender!r} lends already")
            found.append(made)
        return tuple(found)

    def _expected(self) -> tuple[dict[ReplicaId, Expected], tuple[ExpectedLoan, ...] | None]:
        expect = self._root.child("expect")
        replicas = expect.child("replicas")
        loans = None
        if expect.has("loans"):
            entries = [JsonObject(value, path) for value, path in expect.items("loans")]
            loans = tuple(_expected_loan(entry) for entry in entries)
        expect.close()
        return self._expected_replicas(replicas), loans

    def _expected_replicas(self, replicas: JsonObject) -> dict[ReplicaId, Expected]:
        result = {}
        for name, value in replicas.entries():
            if name not in self._replicas:
                raise replicas.fail(name, f"there is no replica {name!r}")
            entry = JsonObject(value, replicas.at(name))
            node = entry.text("node") if entry.has("node") and entry.get("node") else None
            if node is not None and node not in self._nodes:
                raise entry.fail("node", f"there is no node {node!r}")
            result[ReplicaId(name)] = Expected(
                entry.choice("outcome", OUTCOMES), None if node is None else NodeName(node)
            )
            entry.close()
        return result


def _expected_loan(entry: JsonObject) -> ExpectedLoan:
    expected = ExpectedLoan(
        lender=WorkloadId(entry.text("lender")),
        borrower=WorkloadId(entry.text("borrower")),
        from_s=entry.number("from_s"),
        to_s=optional_number(entry, "to_s"),
        ended_by=optional_text(entry, "ended_by"),
    )
    entry.close()
    return expected


def _with_replicas(workload: Workload, replicas: list[Replica]) -> Workload:
    return replace(workload, replicas=tuple(replicas))
