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
from collections.abc import Mapping
from dataclasses import dataclass
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
    """A declared node. Sizes follow machines that clouds rent out."""

    name: str
    node_type: str
    cpu_milli: int
    memory_mib: int
    num_gpus: int = 0
    model: str = ""
    usable_mib: int = 0


DEMO: Final = (
    SimulatedNode("sim-t4-1", "t4", 48_000, 192 * 1024, 4, "Tesla T4", 14_917),
    SimulatedNode("sim-t4-2", "t4", 48_000, 192 * 1024, 4, "Tesla T4", 14_917),
    SimulatedNode("sim-v100-1", "v100", 32_000, 244 * 1024, 4, "Tesla V100-SXM2-16GB", 16_144),
    SimulatedNode("sim-a100-1", "a100", 24_000, 170 * 1024, 2, "NVIDIA A100-SXM4-40GB", 40_326),
    SimulatedNode("sim-cpu-1", "cpu", 32_000, 128 * 1024),
)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The nodes of an agent.

    Attributes:
        device_files: Names below /dev of each real GPU, by UUID.
    """

    nodes: tuple[NodeReport, ...]
    device_files: Mapping[str, tuple[str, ...]]

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
    nodes = tuple(_simulated(zone, declared, isolation) for declared in DEMO)
    return Inventory(nodes, {})


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
        fraction_mechanism="simulated" if devices else "",
    )


def node_type(model: str) -> str:
    """A node type's name from a product's: `NVIDIA A100-SXM4-40GB` is `a100`.

    The part with digits names the product; form factor and memory size do not make another kind.
    """
    words = re.split(r"[\s-]+", model.lower().replace("nvidia", "").replace("tesla", "").strip())
    named = [word for word in words if any(letter.isdigit() for letter in word)]
    return re.sub(r"[^a-z0-9]+", "-", (named or words or ["gpu"])[0]).strip("-") or "gpu"


def _own_node(isolation: Isolation, nvml: Any) -> Inventory:
    devices, files, driver = _nvml_devices(nvml)
    kind = node_type(devices[0].model) if devices else "cpu"
    node = NodeReport(
        name=platform.node() or "node",
        cpu_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_mib=_memory_mib(),
        labels={NODE_TYPE_LABEL: kind},
        devices=devices,
        is_simulated=False,
        is_isolated=isolation.is_complete,
        isolation_note=isolation.note,
        fraction_mechanism="none" if devices else "",
        driver=driver,
    )
    return Inventory((node,), files)


def _memory_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    return 0


def _nvml_devices(
    nvml: Any,
) -> tuple[list[DeviceReport], dict[str, tuple[str, ...]], str]:
    """Devices, their files and the driver's version, as NVML says; nothing without a driver."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.info("no NVIDIA devices: %s", error)
        return [], {}, ""
    devices, files = [], {}
    try:
        driver = str(nvml.nvmlSystemGetDriverVersion())
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            device = _nvml_device(nvml, handle, index)
            devices.append(device)
            minor = nvml.nvmlDeviceGetMinorNumber(handle)
            names = (f"nvidia{minor}", *_SHARED_DEVICE_FILES)
            files[device.uuid] = tuple(name for name in names if os.path.exists(f"/dev/{name}"))
    finally:
        nvml.nvmlShutdown()
    return devices, files, driver


def _nvml_device(nvml: Any, handle: Any, index: int) -> DeviceReport:
    """One device, with the memory that can be used of it."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return DeviceReport(
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        model=str(nvml.nvmlDeviceGetName(handle)),
        memory_mib=(memory.total - memory.reserved) // _MIB,
    )
