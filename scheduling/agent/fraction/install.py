"""Puts a workload's share of its devices into its view of the machine.

Where workloads have mounts of their own, the proxies stand in the place of the driver's libraries,
on real and on simulated devices alike; elsewhere a library is preloaded. The files of one attempt:
`own/limits` (root's, read-only), `region` beside it (the workload writes it), and on a simulated
node the driver that only shows the granted devices.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scheduling.agent.cgroups import Cgroup
from scheduling.agent.folders import Folders, safe_name
from scheduling.agent.fraction import build, driver_limits, limits, loader_cache
from scheduling.agent.fraction.comparison import Contexts
from scheduling.agent.fraction.limits import GpuLimit, Limits, LimitsError
from scheduling.agent.fraction.mechanism import Facts, choose
from scheduling.agent.fraction.region import Region
from scheduling.agent.fraction.simulated import DRIVER, MIB, SimulatedDevice, SimulatedDriver, link
from scheduling.agent.isolation import Isolation
from scheduling.agent.namespaces import INSIDE, Bind
from scheduling.agent.node import Inventory
from scheduling.agent.protocol import AttemptSpec, NodeReport

log = logging.getLogger(__name__)

LIMITS, REGION = "limits", "region"
_CUDA, _NVML = "libcuda.so.1", "libnvidia-ml.so.1"
_GATE = "socket"
# Of turn.c: sessions on one device, and bytes of each one's account.
_MAX_SHARERS, _ACCOUNT = 64, struct.Struct("=4Q")
# Newer drivers' libraries that images bring along, first in their search path.
_COMPAT = "/usr/local/cuda*/compat/libcuda.so.1"


@dataclass(frozen=True, slots=True)
class Installed:
    """What one attempt gets beside its ordinary things.

    Attributes:
        environment: Variables that must hold (only where nothing can be mounted).
        driver_limits: What the driver itself is to enforce: `num_bytes` per device, through
            `library`; empty where it is not.
    """

    binds: tuple[Bind, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    driver_limits: Mapping[str, object] = field(default_factory=dict)


class Fractions:
    """All that this agent knows of fractions on its nodes.

    Attributes:
        lacking: Why the C parts are not there, in words; empty if they are.
        lacking_code: The same as a code, see `BuildError`.
        contexts: What a process was seen to take of a device before it asks for anything.
    """

    def __init__(
        self,
        folders: Folders,
        inventory: Inventory,
        isolation: Isolation,
        *,
        builds: Path | None = None,
    ) -> None:
        """Build what is lacking; some seconds at an agent's first start."""
        self.folders, self.inventory, self.isolation = folders, inventory, isolation
        self.lacking, self.lacking_code = "", ""
        self.contexts = Contexts(folders.root / "contexts.json")
        self.libraries: build.Libraries | None = None
        try:
            self.libraries = build.build(builds or folders.root / "fraction")
        except build.BuildError as error:
            self.lacking, self.lacking_code = str(error), error.code
            log.warning("fractions of devices are not enforced: %s", error)
        self._drivers = {
            node.name: SimulatedDriver(
                folders.root / "simulated" / safe_name(node.name, "node"),
                _declared(inventory, node),
                inventory.declared[node.name].driver or DRIVER,
            )
            for node in inventory.nodes
            if node.is_simulated
        }
        self.choices = {
            node.name: choose(self._facts(node)) for node in inventory.nodes if node.devices
        }
        self._mutex = threading.Lock()

    def prepare(self) -> None:
        """Make what attempts will be given; may be done again."""
        if self.libraries is not None:
            for driver in self._drivers.values():
                driver.make(self.libraries)
        self._turns.mkdir(parents=True, exist_ok=True)
        self._turns.chmod(0o755)
        self._gates.mkdir(parents=True, exist_ok=True)
        self._gates.chmod(0o711)

    @property
    def _turns(self) -> Path:
        return self.folders.root / "turns"

    @property
    def _gates(self) -> Path:
        return self.folders.run / "g"

    # ------------------------------------------------------------------ nodes

    def _facts(self, node: NodeReport) -> Facts:
        hierarchy = self.isolation.cgroups
        driver = self._drivers[node.name].version if node.is_simulated else node.driver
        return Facts(
            driver=int(driver.split(".")[0] or 0),
            capability=self.inventory.capabilities.get(node.name, (0, 0)),
            has_mig=any(device.uuid.startswith("MIG-") for device in node.devices),
            has_cgroup_v2=hierarchy is not None and hierarchy.version == 2,
            can_mount=self.isolation.has_namespaces,
            why_not_built=self.lacking_code,
            is_x86=platform.machine() == "x86_64",
        )

    def described(self, node: NodeReport) -> NodeReport:
        """The node's report with what it uses."""
        choice = self.choices.get(node.name)
        if choice is None:
            return node
        driver = node.driver
        if node.is_simulated and self.libraries:
            driver = f"{self._drivers[node.name].version} (simulated)"
        return replace(
            node,
            driver=driver,
            fraction_mechanism=choice.fraction,
            fraction_note=choice.fraction_note,
            shares_gpu_time=choice.shares_time,
            swap_mechanism=choice.swap if choice.swap != "none" else "",
            swap_note=choice.swap_note,
        )

    def kind_of(self, node: str, model: str) -> str:
        """Driver and device, which decide what a context takes."""
        found = next((each.driver for each in self.inventory.nodes if each.name == node), "")
        return f"{found}, {model}"

    def is_held_by_driver(self, node: str) -> bool:
        """Whether the driver itself holds sessions to their share there."""
        return node in self.choices and self.choices[node].fraction == "driver"

    def driver_of(self, node: str) -> SimulatedDriver | None:
        """The libraries of a simulated node, for the agent's own calls; None for a real one."""
        return self._drivers.get(node) if self.libraries is not None else None

    # ------------------------------------------------------------------ attempts

    def gate_folder(self, attempt_id: str) -> Path:
        """Where the agent listens for the datagrams of an attempt's held calls."""
        return self._gates / safe_name(attempt_id, "attempt")

    def gate(self, attempt_id: str) -> Path:
        """The socket itself; whoever listens makes it, writable for everybody."""
        return self.gate_folder(attempt_id) / _GATE

    def region(self, attempt: Path) -> Region:
        """The accounting of an attempt, by its folder."""
        return Region(attempt / REGION)

    def install(self, spec: AttemptSpec, attempt: Path) -> Installed:
        """Write an attempt's files.

        Raises:
            LimitsError: a device is not on this node, or its share is nothing.
        """
        choice = self.choices.get(spec.node)
        driver = self.driver_of(spec.node)
        if self.libraries is None or (driver is None and (choice is None or not spec.devices)):
            return Installed()
        if choice is not None and choice.fraction == "mig":
            return Installed()
        gate = self.gate_folder(spec.attempt_id)
        gate.mkdir(parents=True, exist_ok=True)
        gate.chmod(0o755)
        can_mount = self.isolation.has_namespaces
        with self._mutex:
            granted = self._granted(spec, attempt, can_mount=can_mount)
            where = INSIDE if can_mount else attempt
            self._write_limits(spec, attempt, where, granted)
        Region.create(attempt / REGION, granted)
        if can_mount:
            binds = tuple(self._binds(spec, attempt, granted, driver))
            environment = {} if driver is None else _found_by_variable(binds)
        else:
            binds, environment = (), self._preload(spec, attempt, driver)
        return Installed(
            binds=binds,
            environment=environment,
            driver_limits={
                "library": self._nvml_of(spec.node),
                "num_bytes": {gpu.device_uuid: gpu.num_bytes for gpu in granted},
            }
            if granted and self.is_held_by_driver(spec.node)
            else {},
        )

    def _nvml_of(self, node: str) -> str:
        driver = self.driver_of(node)
        return driver_limits.LIBRARY if driver is None else str(driver.nvml)

    def lift_driver_limits(self, spec: AttemptSpec, cgroup: Cgroup) -> None:
        """Have the driver forget an attempt's cgroup, which is about to go."""
        if not (spec.devices and self.is_held_by_driver(spec.node) and cgroup.exists()):
            return
        uuids = [device.uuid for device in spec.devices]
        try:
            driver_limits.lift(str(cgroup.folders[0]), uuids, self._nvml_of(spec.node))
        except OSError as error:
            log.warning("the driver keeps its limits of %s: %s", spec.attempt_id, error)

    def remove(self, attempt_id: str) -> None:
        """Remove what lies outside an ended attempt's folder."""
        shutil.rmtree(self.gate_folder(attempt_id), ignore_errors=True)

    def _granted(self, spec: AttemptSpec, attempt: Path, *, can_mount: bool) -> list[GpuLimit]:
        found = []
        for device in spec.devices:
            usable = self.inventory.usable_bytes.get(device.uuid)
            if usable is None:
                raise LimitsError(f"devices: {device.uuid} is not on {spec.node} any more")
            turns = self._turns / device.uuid
            found.append(
                GpuLimit(
                    device_uuid=device.uuid,
                    num_bytes=limits.share_bytes(usable, device.gpu_milli),
                    gpu_milli=device.gpu_milli,
                    context_bytes=self.contexts.of(self.kind_of(spec.node, device.model)),
                    share_file=str(INSIDE / f"turns-{device.uuid}" if can_mount else turns),
                    share_slot=self._slot(turns, device.uuid, attempt),
                )
            )
        return found

    def _slot(self, turns: Path, uuid: str, attempt: Path) -> int:
        """A place of the attempt's own in the device's turns, kept over a second try."""
        taken = set()
        for other in self.folders.attempts.glob(f"*/own/{LIMITS}"):
            slot = _slot_in(other, uuid)
            if slot is not None and other.parent.parent == attempt:
                return slot
            taken.add(slot)
        slot = next((slot for slot in range(_MAX_SHARERS) if slot not in taken), None)
        if slot is None:
            raise LimitsError(f"devices: {_MAX_SHARERS} workloads share {uuid} already")
        fd = os.open(turns, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            os.fchmod(fd, 0o666)
            os.pwrite(fd, bytes(_ACCOUNT.size), slot * _ACCOUNT.size)
        finally:
            os.close(fd)
        return slot

    def _write_limits(
        self, spec: AttemptSpec, attempt: Path, where: Path, granted: list[GpuLimit]
    ) -> None:
        gate = self.gate(spec.attempt_id)
        text = Limits(
            session=spec.attempt_id,
            region=str(where / REGION),
            gpus=tuple(granted),
            gate=str(INSIDE / "gate" / _GATE) if where == INSIDE else str(gate),
            is_strict=spec.shares_strictly,
        )
        limits.write(attempt / "own" / LIMITS, text)

    def _binds(
        self,
        spec: AttemptSpec,
        attempt: Path,
        granted: list[GpuLimit],
        driver: SimulatedDriver | None,
    ) -> list[Bind]:
        own = attempt / "own"
        binds = [
            Bind(str(own / LIMITS), str(INSIDE / LIMITS)),
            Bind(str(attempt / REGION), str(INSIDE / REGION), is_read_only=False),
            Bind(str(self.gate_folder(spec.attempt_id)), str(INSIDE / "gate")),
        ]
        for gpu in granted:
            turns = self._turns / gpu.device_uuid
            binds.append(Bind(str(turns), gpu.share_file, is_read_only=False))
        assert self.libraries is not None  # for the type checker: install() has looked
        if driver is None:
            return [*binds, *real_binds(self.libraries)]
        self._show_driver(spec, own, driver, INSIDE / "devices")
        for name, proxy in ((_CUDA, self.libraries.cuda), (_NVML, self.libraries.nvml)):
            link(proxy, own / "gpu" / name)
        return [
            *binds,
            Bind(str(driver.cuda), str(INSIDE / "libcuda.real")),
            Bind(str(driver.nvml), str(INSIDE / "libnvidia-ml.real")),
            Bind(str(own / "driver.conf"), str(INSIDE / "driver.conf")),
            Bind(str(driver.memory), str(INSIDE / "devices"), is_read_only=False),
            *_found_by_name(own),
        ]

    def _show_driver(
        self, spec: AttemptSpec, own: Path, driver: SimulatedDriver, memory: Path
    ) -> None:
        (own / "gpu").mkdir(exist_ok=True)
        (own / "gpu").chmod(0o755)
        text = driver.configuration([device.uuid for device in spec.devices], memory)
        (own / "driver.conf").write_text(text)
        (own / "driver.conf").chmod(0o644)

    def _preload(
        self, spec: AttemptSpec, attempt: Path, driver: SimulatedDriver | None
    ) -> dict[str, str]:
        """Where nothing can be mounted: the library with the limits beside it, by variables."""
        assert self.libraries is not None  # for the type checker: install() has looked
        own = attempt / "own"
        shutil.copyfile(self.libraries.preload, own / "preload.so")
        (own / "preload.so").chmod(0o755)
        variables = {"LD_PRELOAD": str(own / "preload.so")}
        if driver is not None:
            self._show_driver(spec, own, driver, driver.memory)
            for source in (driver.cuda, driver.nvml):
                link(source, own / "gpu" / source.name)
            link(own / "driver.conf", own / "gpu" / "driver.conf")
            variables["LD_LIBRARY_PATH"] = str(own / "gpu")
        return variables


def _declared(inventory: Inventory, node: NodeReport) -> tuple[SimulatedDevice, ...]:
    """The devices of a simulated node as its driver has them."""
    declared = inventory.declared[node.name]
    return tuple(
        SimulatedDevice(
            uuid=device.uuid,
            name=device.model,
            usable_bytes=inventory.usable_bytes[device.uuid],
            reserved_bytes=declared.reserved_mib * MIB,
            capability=declared.capability,
            bandwidth_mib_s=declared.bandwidth_mib_s,
        )
        for device in node.devices
    )


def _slot_in(path: Path, uuid: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if words[:2] == ["gpu", uuid] and len(words) == 7 and words[6].isdigit():
            return int(words[6])
    return None


def _found_by_name(own: Path) -> list[Bind]:
    """Have the dynamic linker find the proxies by their names, whatever the environment says."""
    inside = INSIDE / "own" / "gpu"
    try:
        cache = loader_cache.with_libraries({name: f"{inside}/{name}" for name in (_CUDA, _NVML)})
    except (OSError, loader_cache.CacheError) as error:
        log.warning("libraries of simulated devices are found by LD_LIBRARY_PATH only: %s", error)
        return []
    (own / "ld.so.cache").write_bytes(cache)
    (own / "ld.so.cache").chmod(0o644)
    return [Bind(str(own / "ld.so.cache"), str(loader_cache.CACHE))]


def _found_by_variable(binds: Sequence[Bind]) -> dict[str, str]:
    """What must help where the dynamic linker's cache could not be written anew."""
    if any(bind.target == str(loader_cache.CACHE) for bind in binds):
        return {}
    return {"LD_LIBRARY_PATH": str(INSIDE / "own" / "gpu")}


def real_binds(libraries: build.Libraries, root: Path = Path("/")) -> list[Bind]:
    """Proxies over the machine's own driver libraries, which go where the proxies look for them.

    Looked up at each start of a workload, so that an update of the driver is followed by the next
    one; what runs keeps the files that it has.
    """
    binds = []
    cache = root / "etc/ld.so.cache"
    for name, proxy, real in (
        (_CUDA, libraries.cuda, "libcuda.real"),
        (_NVML, libraries.nvml, "libnvidia-ml.real"),
    ):
        found = loader_cache.find(name, cache)
        if found is None:
            raise LimitsError(f"devices: {name} is not installed on this node any more")
        file = found.resolve()
        binds += [Bind(str(file), str(INSIDE / real)), Bind(str(proxy), str(file))]
    covered = {bind.target for bind in binds}
    for compat in sorted(root.glob(_COMPAT.lstrip("/"))):
        if str(compat.resolve()) not in covered:
            binds.append(Bind(str(libraries.cuda), str(compat.resolve())))
    return binds
