"""Which nodes this agent offers: the machine's own hardware, or a declared simulated set.

Where NVML finds no GPU, the demonstration's nodes are offered instead, marked *simulated*: their
devices, cores and memory are declared and may exceed the machine's, all else about them is real.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pynvml

from scheduling.agent.isolation import Isolation
from scheduling.agent.protocol import DeviceReport, NodeReport

log = logging.getLogger(__name__)

NODE_TYPE_LABEL: Final = "allot/node-type"
_MIB = 2**20
# Any fixed value: the same node always gets the same device UUIDs.
_UUID_NAMESPACE = uuid.UUID("5b0b3f0c-3f0e-4c4a-8d0e-6f2a1c7d9e11")
# The driver's own device files that every GPU process needs.
_SHARED_DEVICE_FILES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A declared node. Sizes follow machines that clouds rent out.

    Attributes:
        usable_mib, reserved_mib: Of each device, as NVML's second version tells them.
        capability: CUDA compute capability of the devices.
        bandwidth_mib_s: Of a copy between a device and the host.
        driver: Its version; empty for that of the simulated driver itself.
    """

    name: str
    node_type: str
    cpu_milli: int
    memory_mib: int
    num_gpus: int = 0
    model: str = ""
    usable_mib: int = 0
    reserved_mib: int = 0
    capability: tuple[int, int] = (0, 0)
    bandwidth_mib_s: int = 0
    driver: str = ""


DEMO: Final = (
    SimulatedNode("sim-t4-1", "t4", 48_000, 192 * 1024, 4, "Tesla T4", 14_917, 443, (7, 5), 12_000),
    SimulatedNode("sim-t4-2", "t4", 48_000, 192 * 1024, 4, "Tesla T4", 14_917, 443, (7, 5), 12_000),
    SimulatedNode(
        "sim-v100-1", "v100", 32_000, 244 * 1024, 4, "Tesla V100-SXM2-16GB", 16_144, 240, (7, 0),
        12_000,
    ),
    SimulatedNode(
        "sim-a100-1", "a100", 24_000, 170 * 1024, 2, "NVIDIA A100-SXM4-40GB", 40_326, 634, (8, 0),
        24_000,
    ),
    SimulatedNode("sim-cpu-1", "cpu", 32_000, 128 * 1024),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Inventory:
    """The nodes of an agent.

    Attributes:
        device_files: Names below /dev of each real GPU, by UUID.
        usable_bytes: Memory that can be used of each device, by UUID.
        capabilities: The lowest CUDA compute capability of a node's devices, by the node's name.
        declared: What simulated nodes are, by name.
    """

    nodes: tuple[NodeReport, ...]
    device_files: Mapping[str, tuple[str, ...]]
    usable_bytes: Mapping[str, int] = field(default_factory=dict)
    capabilities: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    declared: Mapping[str, SimulatedNode] = field(default_factory=dict)

    def is_simulated(self, node_name: str) -> bool:
        """Whether a node of this name is simulated."""
        return any(node.is_simulated for node in self.nodes if node.name == node_name)


def find(zone: str, isolation: Isolation, simulated: str, nvml: Any = pynvml) -> Inventory:
    """Find what to offer.

    Args:
        zone: Of the agent; part of what makes simulated UUIDs unique.
        isolation: How workloads are kept apart here.
        simulated: `auto` offers the demonstration's nodes where there is no GPU, `demo` always
            does, `off` offers the machine itself even without one.
        nvml: NVIDIA's management library; its module has no types, hence Any.
    """
    if simulated != "demo":
        own = _own_node(isolation, nvml)
        if own.nodes[0].devices or simulated == "off":
            return own
    return simulated_inventory(zone, isolation)


def simulated_inventory(
    zone: str, isolation: Isolation, declared: Sequence[SimulatedNode] = DEMO
) -> Inventory:
    """Declared nodes; their devices have the same UUIDs each time."""
    nodes = tuple(_simulated(zone, each, isolation) for each in declared)
    return Inventory(
        nodes,
        {},
        {each.uuid: each.memory_mib * _MIB for node in nodes for each in node.devices},
        {each.name: each.capability for each in declared},
        {each.name: each for each in declared},
    )


def labelled(inventory: Inventory, labels: Mapping[str, str]) -> Inventory:
    """The same nodes with more labels; what a node is keeps its own."""
    nodes = tuple(replace(node, labels={**labels, **node.labels}) for node in inventory.nodes)
    return replace(inventory, nodes=nodes)


def _simulated(zone: str, declared: SimulatedNode, isolation: Isolation) -> NodeReport:
    devices = [
        DeviceReport(
            uuid=f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{zone}/{declared.name}/{index}')}",
            index=index,
            model=declared.model,
            memory_mib=declared.usable_mib,
        )
        for index in range(declared.num_gpus)
    ]
    return NodeReport(
        name=declared.name,
        cpu_milli=declared.cpu_milli,
        memory_mib=declared.memory_mib,
        labels={NODE_TYPE_LABEL: declared.node_type},
        devices=devices,
        is_simulated=True,
        is_isolated=isolation.is_complete,
        isolation_note=isolation.note,
    )


def node_type(model: str) -> str:
    """A node type's name from a product's: `NVIDIA A100-SXM4-40GB` is `a100`.

    The part with digits names the product; form factor and memory size do not make another kind.
    """
    words = re.split(r"[\s-]+", model.lower().replace("nvidia", "").replace("tesla", "").strip())
    named = [word for word in words if any(letter.isdigit() for letter in word)]
    return re.sub(r"[^a-z0-9]+", "-", (named or words or ["gpu"])[0]).strip("-") or "gpu"


def _own_node(isolation: Isolation, nvml: Any) -> Inventory:
    found, driver = _nvml_devices(nvml)
    devices = [each.report for each in found]
    name = platform.node() or "node"
    node = NodeReport(
        name=name,
        cpu_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_mib=_memory_mib(),
        labels={NODE_TYPE_LABEL: node_type(devices[0].model) if devices else "cpu"},
        devices=devices,
        is_simulated=False,
        is_isolated=isolation.is_complete,
        isolation_note=isolation.note,
        driver=driver,
    )
    return Inventory(
        (node,),
        {each.report.uuid: each.files for each in found},
        {each.report.uuid: each.usable_bytes for each in found},
        {name: min((each.capability for each in found), default=(0, 0))},
    )


def _memory_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    return 0


@dataclass(frozen=True, slots=True)
class _Found:
    """A device that NVML lists: a GPU, or a MIG instance, which is a device of its own."""

    report: DeviceReport
    usable_bytes: int
    files: tuple[str, ...]
    capability: tuple[int, int]


def _nvml_devices(nvml: Any) -> tuple[list[_Found], str]:
    """Devices and the driver's version, as NVML says; nothing without a driver."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.info("no NVIDIA devices: %s", error)
        return [], ""
    found: list[_Found] = []
    try:
        driver = str(nvml.nvmlSystemGetDriverVersion())
        for number in range(nvml.nvmlDeviceGetCount()):
            whole = nvml.nvmlDeviceGetHandleByIndex(number)
            instances = list(_instances(nvml, whole))
            for handle, files in instances or [(whole, _files(nvml, whole))]:
                found.append(_nvml_device(nvml, handle, len(found), files, whole))
    finally:
        nvml.nvmlShutdown()
    return found, driver


def _files(nvml: Any, whole: Any) -> tuple[str, ...]:
    """Names below /dev that a process on this GPU opens."""
    names = (f"nvidia{nvml.nvmlDeviceGetMinorNumber(whole)}", *_SHARED_DEVICE_FILES)
    return tuple(name for name in names if os.path.exists(f"/dev/{name}"))


def _instances(nvml: Any, whole: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """MIG instances of a GPU, each with its device files; none while MIG is off."""
    try:
        is_on = nvml.nvmlDeviceGetMigMode(whole)[0] == 1
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(whole) if is_on else 0
    except nvml.NVMLError:
        return
    minor = nvml.nvmlDeviceGetMinorNumber(whole)
    for number in range(count):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, number)
        except nvml.NVMLError:
            continue
        instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
        compute = nvml.nvmlDeviceGetComputeInstanceId(handle)
        places = (f"gi{instance}/access", f"gi{instance}/ci{compute}/access")
        caps = (_capability_file(minor, place) for place in places)
        yield handle, (*_files(nvml, whole), *filter(None, caps))


def _capability_file(minor: int, place: str) -> str:
    """The device file by which the driver grants a part of a MIG instance; empty if unknown."""
    path = Path(f"/proc/driver/nvidia/capabilities/gpu{minor}/mig/{place}")
    try:
        text = path.read_text()
    except OSError:
        return ""
    number = re.search(r"DeviceFileMinor:\s*(\d+)", text)
    return f"nvidia-caps/nvidia-cap{number[1]}" if number else ""


def _nvml_device(nvml: Any, handle: Any, index: int, files: tuple[str, ...], whole: Any) -> _Found:
    """One device, with the memory that can be used of it."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    usable = memory.total - memory.reserved
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(whole)
    report = DeviceReport(
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        model=str(nvml.nvmlDeviceGetName(handle)),
        memory_mib=usable // _MIB,
    )
    return _Found(report, usable, files, (major, minor))
