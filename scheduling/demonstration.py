"""The demonstration organisation, as data: what `manage.py demo` creates on a first start.

Two departments, three teams and one person who is a project; quotas that leave something to borrow;
an admin and a researcher in each project.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class DemoNodeType:
    """A node type; `num_devices` is what the simulated nodes of this type offer."""

    name: str
    title: str
    gpu_model: str
    gpu_memory_mib: int
    num_devices: int
    gpu_price: Decimal
    rank: int


@dataclass(frozen=True, slots=True)
class DemoProject:
    """A project with its researcher; quotas in thousandths of a GPU by node type."""

    name: str
    title: str
    department: str
    person: str
    first_name: str
    quotas: tuple[tuple[str, int], ...]
    training_types: tuple[str, ...] = ()
    is_personal: bool = False


NODE_TYPES = (
    DemoNodeType("t4", "T4", "Tesla T4", 14917, 8, Decimal("45"), 10),
    DemoNodeType("v100", "V100", "Tesla V100-SXM2-16GB", 16144, 4, Decimal("110"), 20),
    DemoNodeType("a100", "A100", "NVIDIA A100-SXM4-40GB", 40326, 2, Decimal("220"), 30),
    DemoNodeType("cpu", "CPU only", "", 0, 0, Decimal("0"), 40),
)
CPU_PRICE = Decimal("1.5")
MEMORY_PRICE = Decimal("0.4")

DEPARTMENTS = (("research", "Research"), ("products", "Products"))

PROJECTS = (
    DemoProject(
        "vision",
        "Vision",
        "research",
        "vera",
        "Vera",
        (("t4", 1500), ("v100", 2000), ("a100", 1000)),
    ),
    DemoProject(
        "language", "Language", "research", "lena", "Lena", (("t4", 1000), ("v100", 1000)), ("t4",)
    ),
    DemoProject("speech", "Speech", "products", "sergey", "Sergey", (("t4", 4000),), ("t4",)),
    DemoProject("pavel", "Pavel", "products", "pavel", "Pavel", (("t4", 500),), is_personal=True),
)

TEMPLATES: tuple[tuple[str, str, str, dict[str, object]], ...] = (
    (
        "Jupyter",
        "interactive",
        "JupyterLab on part of a GPU",
        {
            "gpu_mode": "fraction",
            "gpu_fraction": "0.333",
            "node_types": ["t4"],
            "cpu_cores": "2",
            "memory_gib": "2",
        },
    ),
    (
        "Training that saves",
        "training",
        "The example of docs/examples: saves on request and resumes",
        {
            "command": "python train.py",
            "arguments": "--steps 2000 --step-delay 0.05",
            "working_dir": "examples",
            "gpu_mode": "whole",
            "gpu_count": "1",
            "node_types": ["t4"],
            "cpu_cores": "1",
            "memory_gib": "1",
            "is_preemptible": True,
            "checkpoint_mode": "signal",
            "checkpoint_signal": "SIGUSR1",
        },
    ),
)
