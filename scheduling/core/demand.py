"""What workloads ask for, in the planner's own terms.

Thousands of workloads ask for the same few things, so a `Shape` is made once per distinct request,
with one `Option` per node type that could serve it, in the order in which they are tried. That two
workloads have the same shape is also how the planner knows that it need not try the second when the
first could not be placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduling.core.accounts import Account, Amounts, Resources
from scheduling.core.ledger import Ledger
from scheduling.core.rooms import Ask, Pool, Spot
from scheduling.core.types import (
    Kind,
    NodeName,
    NodeTypeName,
    Placement,
    Replica,
    ReplicaId,
    ReplicaState,
    ResourceKey,
    Workload,
)

if TYPE_CHECKING:
    from scheduling.core.ordering import Batch

Labels = tuple[tuple[str, str], ...]
"""Labels that a node must have, in order of their keys."""


class Option:
    """One node type that a shape may use.

    Attributes:
        pools: Ready nodes of that type; empty when none is ready.
        amounts: What one replica counts for there; by memory, on the largest device.
        is_possible: Whether one replica fits a node with nothing on it.
        is_first: Whether pending replicas count towards this type.
    """

    __slots__ = ("amounts", "is_first", "is_possible", "node_type", "number", "pools")

    def __init__(
        self, number: int, node_type: NodeTypeName | None, pools: tuple[Pool, ...]
    ) -> None:
        self.number = number
        self.node_type = node_type
        self.pools = pools
        self.amounts: Amounts = ()
        self.is_possible = False
        self.is_first = False


class Shape:
    """A distinct request.

    Attributes:
        avoided: Nodes that will not do: its start failed there, or they lack a label it requires.
        unlabelled: The latter of them.
        first: What a pending replica counts for: its first choice of node type.
        by_pool: What a replica counts for on nodes of each pool, as far as it was asked.
    """

    __slots__ = (
        "ask",
        "avoided",
        "by_pool",
        "first",
        "is_interactive",
        "number",
        "options",
        "unlabelled",
    )

    def __init__(
        self,
        number: int,
        ask: Ask,
        kind: Kind,
        *,
        failed: frozenset[NodeName],
        unlabelled: frozenset[NodeName],
    ) -> None:
        self.number = number
        self.ask = ask
        self.avoided = failed | unlabelled if unlabelled else failed
        self.unlabelled = unlabelled
        self.is_interactive = kind is Kind.INTERACTIVE
        self.options: tuple[Option, ...] = ()
        self.first: Amounts = ()
        self.by_pool: dict[Pool, Amounts] = {}


class Placed:
    """A replica that has its place: it runs, is being started, or has the place kept for it."""

    __slots__ = ("amounts", "is_new", "replica", "spot")

    def __init__(self, replica: Replica, spot: Spot, amounts: Amounts, *, is_new: bool) -> None:
        self.replica = replica
        self.spot = spot
        self.amounts = amounts
        self.is_new = is_new


class Body:
    """A replica that is on a node without having a place of its own: it runs on loan, or waits
    there in memory. It yields to everything.

    Attributes:
        lenders: Sessions that are swapped out for it, with their places.
    """

    __slots__ = ("is_parked", "item", "lenders", "replica", "spot")

    def __init__(self, item: Item, replica: Replica, spot: Spot) -> None:
        self.item = item
        self.replica = replica
        self.spot = spot
        self.is_parked = replica.state is ReplicaState.PARKED
        self.lenders: list[tuple[Item, Placed]] = []


class Item:
    """A workload under planning.

    Attributes:
        running: Placed replicas, those started in this cycle included, in starting order.
        pending: Replicas without a place, in order of name.
        held: Places kept while victims release them.
        rank: Its priority, raised by aging: for the order of starts only.
        batch: Those that wait and are alike, itself among them; None from when it changes.
        bodies: Where pending replicas run on loan or wait in memory.
        settled: Bodies whose place has become the workload's own in this cycle.
    """

    __slots__ = (
        "account",
        "batch",
        "bodies",
        "evicted",
        "held",
        "id",
        "is_preemptible",
        "minimum",
        "moved",
        "num_succeeded",
        "pending",
        "priority",
        "rank",
        "running",
        "settled",
        "shape",
        "submitted",
        "waits_for",
        "workload",
    )

    def __init__(self, workload: Workload, account: Account, shape: Shape) -> None:
        self.workload = workload
        self.id = workload.id
        self.account = account
        self.shape = shape
        self.minimum = workload.min_replicas
        self.priority = workload.priority
        self.rank = workload.priority
        self.submitted = workload.submitted
        self.is_preemptible = workload.is_preemptible and workload.kind is not Kind.INTERACTIVE
        self.running: list[Placed] = []
        self.pending: list[Replica] = []
        self.held: list[Placed] = []
        self.evicted: list[Placed] = []
        self.moved: dict[ReplicaId, Placement] = {}
        self.waits_for: list[Item] = []
        self.bodies: list[Body] = []
        self.settled: list[Body] = []
        self.num_succeeded = 0
        self.batch: Batch | None = None

    @property
    def home(self) -> tuple[NodeName, ...]:
        """Nodes on which its bodies are."""
        if not self.bodies:
            return ()
        return tuple([body.spot.room.node.name for body in self.bodies])

    @property
    def is_on_loan(self) -> bool:
        """Whether it runs on lent devices: then it asks for no others meanwhile."""
        return bool(self.bodies) and any(not body.is_parked for body in self.bodies)

    @property
    def num_missing(self) -> int:
        """Replicas still missing to the gang's minimum."""
        there = len(self.running) + len(self.held) + self.num_succeeded
        return max(0, self.minimum - there)

    @property
    def num_next(self) -> int:
        """Replicas to be placed in its next turn: the rest of the gang, then one at a time."""
        if self.minimum <= 1:
            return 1
        missing = self.minimum - len(self.running) - len(self.held) - self.num_succeeded
        return missing if missing > 1 else 1

    @property
    def gang_state(self) -> int:
        """0 below the minimum, 1 at it, 2 above."""
        there = len(self.running) + len(self.held) + self.num_succeeded
        minimum = self.minimum
        return 0 if there < minimum else 1 if there == minimum else 2

    @property
    def num_surplus(self) -> int:
        """Running replicas that the gang could do without."""
        return max(0, len(self.running) + self.num_succeeded - self.minimum)

    @property
    def leaving(self) -> list[Placed]:
        """What it would give up first: a surplus replica, else all that run."""
        running = self.running
        has_surplus = len(running) + self.num_succeeded > self.minimum
        return running[-1:] if has_surplus else running

    @property
    def chosen_type(self) -> tuple[bool, NodeTypeName | None]:
        """Whether replicas already tie the gang to a node type, and to which."""
        placed = self.running or self.held
        return (True, placed[0].spot.room.pool.node_type) if placed else (False, None)

    def options(self) -> Sequence[Option]:
        """The node types to try: a gang keeps to one."""
        if not self.running and not self.held:
            return self.shape.options
        _, node_type = self.chosen_type
        return [option for option in self.shape.options if option.node_type == node_type]


class Shapes:
    """All distinct requests of a snapshot."""

    def __init__(self, ledger: Ledger, resources: Resources) -> None:
        self._resources = resources
        self._shapes: dict[object, Shape] = {}
        self._by_type: dict[tuple[NodeTypeName | None, ResourceKey], list[Pool]] = {}
        self._nodes = [room.node for room in ledger.rooms.values()]
        self._unlabelled: dict[Labels, frozenset[NodeName]] = {}
        for pool in ledger.pools:
            self._by_type.setdefault((pool.node_type, pool.gpu_key), []).append(pool)

    def of(self, workload: Workload) -> Shape:
        """The shape of what a workload asks for; one and the same for all that ask alike."""
        gpu = workload.gpu
        labels = workload.required_labels
        required = tuple(sorted(labels.items())) if labels else ()
        key = (
            gpu.num_devices,
            gpu.milli_per_device,
            gpu.memory_mib_per_device,
            workload.cpu_milli,
            workload.memory_mib,
            workload.node_types,
            workload.avoided_nodes,
            required,
            workload.kind is Kind.INTERACTIVE,
        )
        shape = self._shapes.get(key)
        if shape is None:
            ask = Ask(gpu, workload.cpu_milli, workload.memory_mib)
            shape = Shape(
                len(self._shapes),
                ask,
                workload.kind,
                failed=workload.avoided_nodes,
                unlabelled=self._without(required),
            )
            self._fill(shape, workload.node_types)
            self._shapes[key] = shape
        return shape

    def _without(self, required: Labels) -> frozenset[NodeName]:
        """Nodes that lack one of these labels; looked up once per set of labels."""
        if not required:
            return frozenset()
        found = self._unlabelled.get(required)
        if found is None:
            found = self._unlabelled[required] = frozenset(
                node.name
                for node in self._nodes
                if any(node.labels.get(key) != value for key, value in required)
            )
        return found

    def amounts(self, shape: Shape, pool: Pool) -> Amounts:
        """What one replica counts for on a node of this pool."""
        amounts = shape.by_pool.get(pool)
        if amounts is None:
            ask = shape.ask
            milli = ask.gpu.num_devices * ask.milli_per_device(pool.gpu_memory_mib)
            amounts = shape.by_pool[pool] = self._amounts(ask, pool.gpu_key, milli)
        return amounts

    def _amounts(self, ask: Ask, gpu_key: ResourceKey, milli: int) -> Amounts:
        pairs = [(0, ask.cpu_milli), (1, ask.memory_mib)]
        if milli:
            pairs.append((self._resources.number[gpu_key], milli))
        return tuple((r, amount) for r, amount in pairs if amount)

    def _fill(self, shape: Shape, node_types: tuple[NodeTypeName, ...] | None) -> None:
        options: list[Option] = []
        for kind in self._kinds(shape, node_types):
            pools = self._by_type[kind]
            if shape.ask.gpu.num_devices:
                pools = [pool for pool in pools if pool.has_gpus]
            ready = tuple(pool for pool in pools if pool.nodes)
            option = Option(len(options), kind[0], ready)
            largest = max(pools, key=lambda pool: pool.gpu_memory_mib)
            option.amounts = self.amounts(shape, largest)
            option.is_possible = any(_could_fit(shape, pool) for pool in ready)
            options.append(option)
        shape.options = tuple(options)
        possible = next((option for option in options if option.is_possible), None)
        if possible is not None or options:
            first = possible or options[0]
            first.is_first = True
            shape.first = first.amounts
        else:
            milli = shape.ask.gpu.num_devices * (shape.ask.gpu.milli_per_device or 0)
            shape.first = self._amounts(shape.ask, self._guess_key(node_types), milli)

    def _kinds(
        self, shape: Shape, node_types: tuple[NodeTypeName, ...] | None
    ) -> list[tuple[NodeTypeName | None, ResourceKey]]:
        """Node types in the order of preference; without one, by name, those without GPUs first for
        work that needs none."""
        needs_gpu = shape.ask.gpu.num_devices > 0
        has_gpus = {
            kind: any(pool.has_gpus for pool in pools) for kind, pools in self._by_type.items()
        }
        kinds = [kind for kind in self._by_type if has_gpus[kind] or not needs_gpu]
        if node_types is not None:
            place = {node_type: i for i, node_type in enumerate(node_types)}
            kinds = [kind for kind in kinds if kind[0] in place]
            return sorted(kinds, key=lambda kind: (place[kind[0]], kind[1]) if kind[0] else (0, ""))
        return sorted(
            kinds, key=lambda kind: (has_gpus[kind] and not needs_gpu, kind[0] or "", kind[1])
        )

    def _guess_key(self, node_types: tuple[NodeTypeName, ...] | None) -> ResourceKey:
        """The GPU key of a type of which no node is known: its own where quota names one."""
        for node_type in node_types or ():
            key = ResourceKey(f"gpu:{node_type}")
            if key in self._resources.number:
                return key
        return self._resources.keys[2]


def _could_fit(shape: Shape, pool: Pool) -> bool:
    ask = shape.ask
    if not (
        ask.cpu_milli <= pool.max_cpu
        and ask.memory_mib <= pool.max_memory
        and ask.gpu.num_devices <= pool.max_devices
        and ask.units_per_device(pool.gpu_memory_mib) <= pool.unit_capacity
    ):
        return False
    return not shape.unlabelled or any(
        room.node.cpu_milli >= ask.cpu_milli
        and room.node.memory_mib >= ask.memory_mib
        and room.node.num_devices >= ask.gpu.num_devices
        for room in pool.nodes
        if room.node.name not in shape.unlabelled
    )
