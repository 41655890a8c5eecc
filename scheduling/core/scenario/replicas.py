"""Replicas of a scenario file, laid on its nodes: what does not fit there is named."""

from __future__ import annotations

from scheduling.core.errors import ScenarioError
from scheduling.core.rooms import Ask
from scheduling.core.scenario.json_object import JsonObject, shown
from scheduling.core.types import WHOLE_GPU_MILLI, Node, Placement, Replica, ReplicaId, ReplicaState


class RawSpot:
    """A place as the file tells it."""

    def __init__(self, entry: JsonObject) -> None:
        self.entry = entry
        self.node = entry.text("node")
        self.devices = _device_numbers(entry) if entry.has("devices") else None
        self.milli = entry.integer("milli_per_device", 1) if entry.has("milli_per_device") else None
        self.placement: Placement | None = None


class RawReplica:
    """A replica as the file tells it."""

    def __init__(self, entry: JsonObject) -> None:
        self.entry = entry
        self.name = entry.text("name")
        self.state = ReplicaState(entry.choice("state", [state.value for state in ReplicaState]))
        self.started_s = entry.number("started_s") if entry.has("started_s") else 0.0
        # One that has left before the rest of its gang has no place any more.
        has_left = self.state is ReplicaState.RELEASING and not entry.has("node")
        is_placed = self.state not in (ReplicaState.PENDING, ReplicaState.SUCCEEDED)
        is_placed = is_placed and not has_left
        self.placed = RawSpot(entry) if is_placed else None
        self.held: RawSpot | None = None
        may_be_held = self.state in (ReplicaState.PENDING, ReplicaState.RELEASING)
        if may_be_held and entry.has("held"):
            held = entry.child("held")
            self.held = RawSpot(held)
            held.close()
        entry.close()

    @property
    def names_devices(self) -> bool:
        """Whether the file says on which devices it is."""
        spot = self.placed or self.held
        return spot is None or spot.devices is not None

    def replica(self) -> Replica:
        """As the core has it, once its places are taken."""
        return Replica(
            id=ReplicaId(self.name),
            state=self.state,
            placement=self.placed.placement if self.placed else None,
            held=self.held.placement if self.held else None,
            started_s=self.started_s,
        )


class Free:
    """What a node still has while replicas are laid on it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._cpu_milli = node.cpu_milli
        self._memory_mib = node.memory_mib
        self._capacity = WHOLE_GPU_MILLI * max(1, node.gpu_memory_mib)
        self._devices = [self._capacity] * node.num_devices

    def take(self, spot: RawSpot, ask: Ask, *, is_held: bool) -> Placement:
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
        if spot.milli is not None:
            milli = min(milli, spot.milli)
        return Placement(node.name, tuple(devices), milli)

    def _pack(self, spot: RawSpot, ask: Ask, units: int) -> list[int]:
        """The first devices that nobody uses, in the order of the file."""
        count = ask.gpu.num_devices
        unused = [i for i, free in enumerate(self._devices) if free == self._capacity]
        if len(unused) < count or units > self._capacity:
            raise spot.entry.fail(
                "node", f"node {self._node.name!r} has no {count} devices left for it"
            )
        return unused[:count]


def _check_devices(spot: RawSpot, devices: list[int], ask: Ask, node: Node) -> None:
    count = ask.gpu.num_devices
    if len(devices) != count or len(set(devices)) != count:
        raise spot.entry.fail("devices", f"{count} different devices are needed, not {devices}")
    for device in devices:
        if device >= node.num_devices:
            raise spot.entry.fail(
                "devices", f"node {node.name!r} has {node.num_devices} devices, not {device + 1}"
            )


def _device_numbers(entry: JsonObject) -> list[int]:
    numbers = []
    for value, path in entry.items("devices"):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ScenarioError(path, f"a device number is needed, not {shown(value)}")
        numbers.append(value)
    return numbers
