"""Reading a scenario file: every mistake is named with its JSON path, and nothing unknown is let
through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduling.core.errors import ScenarioError
from scheduling.core.ledger import Ask
from scheduling.core.types import (
    CPU,
    MEMORY,
    WHOLE_GPU_MILLI,
    EvictionCost,
    GpuRequest,
    Kind,
    Node,
    NodeName,
    NodeTypeName,
    Placement,
    Policy,
    Project,
    ProjectId,
    Replica,
    ReplicaId,
    ReplicaState,
    ResourceKey,
    Share,
    Snapshot,
    Workload,
    WorkloadId,
)

FORMAT = "scenario/1"
OUTCOMES = ("kept", "moved", "evicted", "placed", "waits")


@dataclass(frozen=True, slots=True)
class Expected:
    """What should become of one replica; `node` None where any will do."""

    outcome: str
    node: NodeName | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario as read.

    Attributes:
        expected: Per replica; None where the file has no `expect`.
    """

    id: str
    about: str
    snapshot: Snapshot
    policy: Policy = field(default_factory=Policy)
    now_s: float = 0.0
    cycles: int = 2
    stable_cycles: int = 5
    expected: Mapping[ReplicaId, Expected] | None = None


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


class _Object:
    """A JSON object being read: gives its fields by name and remembers which were asked for."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, dict):
            raise ScenarioError(path, f"an object is needed, not {_kind(value)}")
        self._fields: dict[str, object] = value
        self._known: set[str] = set()
        self.path = path

    def at(self, name: str) -> str:
        return f"{self.path}.{name}"

    def fail(self, name: str, problem: str) -> ScenarioError:
        return ScenarioError(self.at(name), problem)

    def has(self, name: str) -> bool:
        self._known.add(name)
        return name in self._fields

    def get(self, name: str) -> object:
        if not self.has(name):
            raise ScenarioError(self.path, f"the field {name!r} is missing")
        return self._fields[name]

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str) or not value:
            raise self.fail(name, f"a text that is not empty is needed, not {_shown(value)}")
        return value

    def integer(self, name: str, minimum: int | None = None) -> int:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(name, f"a whole number is needed, not {_shown(value)}")
        if minimum is not None and value < minimum:
            raise self.fail(name, f"{value} is less than {minimum}")
        return value

    def optional_integer(self, name: str, minimum: int | None = None) -> int | None:
        return None if self.get(name) is None else self.integer(name, minimum)

    def number(self, name: str, minimum: float | None = None) -> float:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(name, f"a number is needed, not {_shown(value)}")
        if minimum is not None and value < minimum:
            raise self.fail(name, f"{value} is less than {minimum}")
        return value

    def truth(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool):
            raise self.fail(name, f"true or false is needed, not {_shown(value)}")
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        value = self.get(name)
        if not isinstance(value, str) or value not in choices:
            raise self.fail(name, f"{_shown(value)} is none of {', '.join(choices)}")
        return value

    def items(self, name: str) -> Iterator[tuple[object, str]]:
        value = self.get(name)
        if not isinstance(value, list):
            raise self.fail(name, f"a list is needed, not {_kind(value)}")
        for i, entry in enumerate(value):
            yield entry, f"{self.at(name)}[{i}]"

    def texts(self, name: str) -> list[str]:
        result = []
        for value, path in self.items(name):
            if not isinstance(value, str) or not value:
                raise ScenarioError(path, f"a text is needed, not {_shown(value)}")
            result.append(value)
        return result

    def child(self, name: str) -> _Object:
        return _Object(self.get(name), self.at(name))

    def entries(self) -> Iterator[tuple[str, object]]:
        """All fields, where their names are free."""
        self._known.update(self._fields)
        return iter(self._fields.items())

    def close(self) -> None:
        """Refuse fields that nobody asked for."""
        for name in self._fields:
            if name not in self._known:
                raise self.fail(name, "this field is unknown")


class _Reader:
    """Reads one scenario."""

    def __init__(self, value: object, path: str) -> None:
        self._root = _Object(value, path)
        self._nodes: dict[str, Node] = {}
        self._replicas: set[str] = set()
        self._free: dict[str, _Free] = {}

    def scenario(self) -> Scenario:
        root = self._root
        root.choice("format", (FORMAT,))
        scenario_id = root.text("id")
        about = root.text("about") if root.has("about") else ""
        for value, path in root.items("nodes"):
            self._node(_Object(value, path))
        projects = self._projects()
        workloads = self._workloads({project.id for project in projects})
        now_s = root.number("now_s") if root.has("now_s") else 0.0
        policy = _policy(root.child("policy")) if root.has("policy") else Policy()
        cycles = root.integer("cycles", 1) if root.has("cycles") else 2
        stable_cycles = root.integer("stable_cycles", 0) if root.has("stable_cycles") else 5
        expected = self._expected() if root.has("expect") else None
        root.close()
        snapshot = Snapshot(tuple(self._nodes.values()), tuple(projects), tuple(workloads))
        return Scenario(
            scenario_id, about, snapshot, policy, now_s, cycles, stable_cycles, expected
        )

    def _node(self, entry: _Object) -> None:
        name = entry.text("name")
        if name in self._nodes:
            raise entry.fail("name", f"there is already a node {name!r}")
        node = Node(
            name=NodeName(name),
            num_devices=entry.integer("gpus", 0),
            gpu_memory_mib=entry.integer("gpu_memory_mib", 0),
            cpu_milli=entry.integer("cpu_milli", 0),
            memory_mib=entry.integer("memory_mib", 0),
            gpu_key=ResourceKey(entry.text("gpu_key") if entry.has("gpu_key") else "gpu"),
            node_type=_optional_type(entry),
            max_replicas=entry.optional_integer("max_replicas", 0)
            if entry.has("max_replicas")
            else None,
            labels=_labels(entry.child("labels")) if entry.has("labels") else {},
            is_ready=entry.truth("ready") if entry.has("ready") else True,
        )
        entry.close()
        self._nodes[name] = node
        self._free[name] = _Free(node)

    def _projects(self) -> list[Project]:
        entries = [_Object(value, path) for value, path in self._root.items("projects")]
        projects: dict[str, Project] = {}
        for entry in entries:
            project = _project(entry)
            if project.id in projects:
                raise entry.fail("name", f"there is already a project {project.id!r}")
            projects[project.id] = project
        for entry, project in zip(entries, projects.values(), strict=True):
            _check_ancestors(entry, project, projects)
        return list(projects.values())

    def _workloads(self, projects: set[ProjectId]) -> list[Workload]:
        """Devices that the file names are taken first; the others are packed around them."""
        entries = [_Object(value, path) for value, path in self._root.items("workloads")]
        names: set[str] = set()
        drafts = []
        for entry in entries:
            draft = self._workload(entry, projects)
            if draft.id in names:
                raise entry.fail("name", f"there is already a workload {draft.id!r}")
            names.add(draft.id)
            drafts.append(draft)
        replicas = [
            [_RawReplica(_Object(value, path)) for value, path in entry.items("replicas")]
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

    def _claim_names(self, raws: list[_RawReplica]) -> None:
        for raw in raws:
            if raw.name in self._replicas:
                raise raw.entry.fail("name", f"there is already a replica {raw.name!r}")
            self._replicas.add(raw.name)

    def _workload(self, entry: _Object, projects: set[ProjectId]) -> Workload:
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
            gpu=_gpu_request(entry),
            cpu_milli=entry.integer("cpu_milli", 0),
            memory_mib=entry.integer("memory_mib", 0),
            min_replicas=entry.integer("min_replicas", 1),
            replicas=(),
            node_types=_node_types(entry),
            not_before_s=_optional_number(entry, "not_before_s"),
            failures=entry.integer("failures", 0) if entry.has("failures") else 0,
            last_error=_optional_text(entry, "last_error"),
            avoided_nodes=frozenset(NodeName(name) for name in entry.texts("avoided_nodes"))
            if entry.has("avoided_nodes")
            else frozenset(),
            eviction_cost=_eviction_cost(entry.child("eviction_cost"))
            if entry.has("eviction_cost")
            else None,
        )

    def _place(self, raw: _RawReplica, workload: Workload) -> None:
        """Take what a placed replica occupies from its node, or say what is over-committed."""
        ask = Ask(workload.gpu, workload.cpu_milli, workload.memory_mib)
        for spot in (raw.placed, raw.held):
            if spot is None:
                continue
            free = self._free.get(spot.node)
            if free is None:
                raise spot.entry.fail("node", f"there is no node {spot.node!r}")
            spot.placement = free.take(spot, ask, is_held=spot is raw.held)

    def _expected(self) -> dict[ReplicaId, Expected]:
        expect = self._root.child("expect")
        replicas = expect.child("replicas")
        expect.close()
        result = {}
        for name, value in replicas.entries():
            if name not in self._replicas:
                raise replicas.fail(name, f"there is no replica {name!r}")
            entry = _Object(value, replicas.at(name))
            node = entry.text("node") if entry.has("node") and entry.get("node") else None
            if node is not None and node not in self._nodes:
                raise entry.fail("node", f"there is no node {node!r}")
            result[ReplicaId(name)] = Expected(
                entry.choice("outcome", OUTCOMES), None if node is None else NodeName(node)
            )
            entry.close()
        return result


class _RawSpot:
    """A place as the file tells it."""

    def __init__(self, entry: _Object) -> None:
        self.entry = entry
        self.node = entry.text("node")
        self.devices = _device_numbers(entry) if entry.has("devices") else None
        self.placement: Placement | None = None


class _RawReplica:
    """A replica as the file tells it."""

    def __init__(self, entry: _Object) -> None:
        self.entry = entry
        self.name = entry.text("name")
        self.state = ReplicaState(entry.choice("state", [state.value for state in ReplicaState]))
        self.started_s = entry.number("started_s") if entry.has("started_s") else 0.0
        is_placed = self.state in (ReplicaState.RUNNING, ReplicaState.RELEASING)
        self.placed = _RawSpot(entry) if is_placed else None
        self.held: _RawSpot | None = None
        if self.state is ReplicaState.PENDING and entry.has("held"):
            held = entry.child("held")
            self.held = _RawSpot(held)
            held.close()
        entry.close()

    @property
    def names_devices(self) -> bool:
        spot = self.placed or self.held
        return spot is None or spot.devices is not None

    def replica(self) -> Replica:
        return Replica(
            id=ReplicaId(self.name),
            state=self.state,
            placement=self.placed.placement if self.placed else None,
            held=self.held.placement if self.held else None,
            started_s=self.started_s,
        )


class _Free:
    """What a node still has while replicas are laid on it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._cpu_milli = node.cpu_milli
        self._memory_mib = node.memory_mib
        self._capacity = WHOLE_GPU_MILLI * max(1, node.gpu_memory_mib)
        self._devices = [self._capacity] * node.num_devices

    def take(self, spot: _RawSpot, ask: Ask, *, is_held: bool) -> Placement:
        """Lay one replica here; a held place may lie on what others still occupy."""
        node = self._node
        units = ask.units_per_device(node.gpu_memory_mib)
        devices = spot.devices
        if devices is None:
            devices = self._pack(spot, ask, units)
        else:
            _check_devices(spot, devices, ask, node)
        if not is_held:
            for device in devices:
                self._devices[device] -= units
                if self._devices[device] < 0:
                    raise spot.entry.fail(
                        "devices", f"device {device} of node {node.name!r} is over-committed"
                    )
            self._cpu_milli -= ask.cpu_milli
            self._memory_mib -= ask.memory_mib
            for name, left in (("CPU", self._cpu_milli), ("memory", self._memory_mib)):
                if left < 0:
                    raise spot.entry.fail(
                        "node", f"the {name} of node {node.name!r} is over-committed"
                    )
        milli = ask.milli_per_device(node.gpu_memory_mib) if devices else 0
        return Placement(node.name, tuple(devices), milli)

    def _pack(self, spot: _RawSpot, ask: Ask, units: int) -> list[int]:
        """The first devices that nobody uses, in the order of the file."""
        count = ask.gpu.num_devices
        unused = [i for i, free in enumerate(self._devices) if free == self._capacity]
        if len(unused) < count or units > self._capacity:
            raise spot.entry.fail(
                "node", f"node {self._node.name!r} has no {count} devices left for it"
            )
        return unused[:count]


def _check_devices(spot: _RawSpot, devices: list[int], ask: Ask, node: Node) -> None:
    count = ask.gpu.num_devices
    if len(devices) != count or len(set(devices)) != count:
        raise spot.entry.fail("devices", f"{count} different devices are needed, not {devices}")
    for device in devices:
        if device >= node.num_devices:
            raise spot.entry.fail(
                "devices", f"node {node.name!r} has {node.num_devices} devices, not {device + 1}"
            )


def _device_numbers(entry: _Object) -> list[int]:
    numbers = []
    for value, path in entry.items("devices"):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ScenarioError(path, f"a device number is needed, not {_shown(value)}")
        numbers.append(value)
    return numbers


def _project(entry: _Object) -> Project:
    parent = entry.get("parent")
    shares = {
        ResourceKey("gpu"): _share(entry.child("gpu_milli")),
        CPU: _share(entry.child("cpu_milli")),
        MEMORY: _share(entry.child("memory_mib")),
    }
    if entry.has("gpu_milli_by_key"):
        del shares[ResourceKey("gpu")]
        by_key = entry.child("gpu_milli_by_key")
        for key, value in by_key.entries():
            shares[ResourceKey(key)] = _share(_Object(value, by_key.at(key)))
    project = Project(
        id=ProjectId(entry.text("name")),
        parent=None if parent is None else ProjectId(entry.text("parent")),
        priority=entry.integer("priority"),
        created=entry.integer("created"),
        shares=shares,
    )
    entry.close()
    return project


def _share(entry: _Object) -> Share:
    share = Share(
        quota=entry.optional_integer("quota", 0),
        limit=entry.optional_integer("limit", 0),
        weight=entry.integer("weight", 0),
    )
    entry.close()
    return share


def _check_ancestors(entry: _Object, project: Project, projects: Mapping[str, Project]) -> None:
    seen = {project.id}
    parent = project.parent
    while parent is not None:
        if parent not in projects:
            raise entry.fail("parent", f"there is no project {parent!r}")
        if parent in seen:
            raise entry.fail("parent", f"{project.id!r} would be its own ancestor")
        seen.add(parent)
        parent = projects[parent].parent


def _gpu_request(entry: _Object) -> GpuRequest:
    milli = entry.optional_integer("gpu_milli", 0)
    memory = entry.optional_integer("gpu_memory_mib", 1) if entry.has("gpu_memory_mib") else None
    count = entry.integer("num_devices", 1) if entry.has("num_devices") else 1
    if (milli is None) == (memory is None):
        raise entry.fail(
            "gpu_milli", "either thousandths or memory of a GPU must be given, and not both"
        )
    if memory is not None:
        return GpuRequest(count, None, memory)
    assert milli is not None
    if milli == 0:
        return GpuRequest()
    if milli > WHOLE_GPU_MILLI:
        if milli % WHOLE_GPU_MILLI:
            raise entry.fail(
                "gpu_milli", f"{milli} is neither a part of a GPU nor a number of whole ones"
            )
        if count != 1:
            raise entry.fail("num_devices", "several whole GPUs are given by gpu_milli alone")
        return GpuRequest(milli // WHOLE_GPU_MILLI, WHOLE_GPU_MILLI, None)
    return GpuRequest(count, milli, None)


def _node_types(entry: _Object) -> tuple[NodeTypeName, ...] | None:
    if not entry.has("node_types") or entry.get("node_types") is None:
        return None
    names = entry.texts("node_types")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise entry.fail("node_types", f"{twice[0]!r} is there twice")
    return tuple(NodeTypeName(name) for name in names)


def _optional_type(entry: _Object) -> NodeTypeName | None:
    if not entry.has("node_type") or entry.get("node_type") is None:
        return None
    return NodeTypeName(entry.text("node_type"))


def _optional_number(entry: _Object, name: str) -> float | None:
    return entry.number(name) if entry.has(name) and entry.get(name) is not None else None


def _optional_text(entry: _Object, name: str) -> str:
    return entry.text(name) if entry.has(name) and entry.get(name) else ""


def _labels(entry: _Object) -> dict[str, str]:
    return {name: entry.text(name) for name, _ in entry.entries()}


def _eviction_cost(entry: _Object) -> EvictionCost:
    cost = EvictionCost(
        save_s=entry.number("save_s", 0),
        restore_s=entry.number("restore_s", 0),
        lost_progress_s=entry.number("lost_progress_s", 0),
    )
    entry.close()
    return cost


def _policy(entry: _Object) -> Policy:
    default = Policy()

    def whole(name: str, otherwise: int) -> int:
        return entry.integer(name, 0) if entry.has(name) else otherwise

    def amount(name: str, otherwise: float) -> float:
        return entry.number(name, 0) if entry.has(name) else otherwise

    min_runtime: dict[NodeTypeName, float] = {}
    if entry.has("min_runtime_s"):
        table = entry.child("min_runtime_s")
        min_runtime = {NodeTypeName(name): table.number(name, 0) for name, _ in table.entries()}
    placement: dict[NodeTypeName, str] = {}
    if entry.has("placement"):
        table = entry.child("placement")
        placement = {
            NodeTypeName(name): table.choice(name, ("bin_pack", "spread"))
            for name, _ in table.entries()
        }
    policy = Policy(
        min_runtime_s=min_runtime,
        placement=placement,
        max_victims=whole("max_victims", default.max_victims),
        consolidation_max_moves=whole("consolidation_max_moves", default.consolidation_max_moves),
        consolidation_wait_s=amount("consolidation_wait_s", default.consolidation_wait_s),
        consolidation_margin=amount("consolidation_margin", default.consolidation_margin),
        hold_deadline_s=amount("hold_deadline_s", default.hold_deadline_s),
    )
    entry.close()
    return policy


def _with_replicas(workload: Workload, replicas: list[Replica]) -> Workload:
    return replace(workload, replicas=tuple(replicas))


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return names.get(type(value), "null" if value is None else "a number")


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float) else _kind(value)
