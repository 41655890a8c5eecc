"""A small organisation for tests of forms and the API: rows only, as an agent would report them."""

from __future__ import annotations

from dataclasses import dataclass

from projects.models import Project, Role, User, WorkloadKind
from scheduling.agent import protocol
from scheduling.models import Zone
from tests.factories import (
    FakeAgent,
    make_member,
    make_node_type,
    make_project,
    only_node_types,
    simulated_node,
)


@dataclass(frozen=True, slots=True)
class Organisation:
    """Vision has quota of T4 and V100; language may train on T4 only; Vera and Max are vision's."""

    agent: FakeAgent
    vision: Project
    language: Project
    vera: User
    max: User
    lena: User


def make_organisation() -> Organisation:
    """Two nodes of four T4s, one of four V100s, one of 32 cores without a GPU."""
    for name, gpus in (("t4", 8), ("v100", 4), ("cpu", 0)):
        make_node_type(name, gpus=gpus)
    agent = FakeAgent(nodes=[*_nodes()])
    agent.report()
    # Nobody listens there: forms then do without the node's opinion.
    Zone.objects.update(relay_url="")
    vision = make_project("vision", t4=1500, v100=2000)
    language = make_project("language", t4=1000)
    only_node_types(language, WorkloadKind.TRAINING, "t4")
    return Organisation(
        agent=agent,
        vision=vision,
        language=language,
        vera=make_member(vision, "vera"),
        max=make_member(vision, "max", Role.MANAGER),
        lena=make_member(language, "lena"),
    )


def _nodes() -> list[protocol.NodeReport]:
    return [
        simulated_node("sim-t4-1"),
        simulated_node("sim-t4-2"),
        simulated_node("sim-v100-1", kind="v100"),
        simulated_node("sim-cpu-1", kind="cpu", gpus=0),
    ]


def session_values(**changes: object) -> dict[str, object]:
    """The session form as a browser sends it."""
    return {
        "action": "submit",
        "kind": "interactive",
        "request_id": "11111111-1111-4111-8111-111111111111",
        "from_template": "",
        "project": "vision",
        "name": "notebook",
        "node_types": ["t4"],
        "gpu_mode": "fraction",
        "gpu_fraction": "0.333",
        "gpu_count": "1",
        "gpu_memory_gib": "",
        "cpu_cores": "2",
        "memory_gib": "2",
        "working_dir": "",
        "env": "",
        **changes,
    }


def training_values(**changes: object) -> dict[str, object]:
    """The training form as a browser sends it."""
    return {
        **session_values(),
        "kind": "training",
        "name": "run",
        "gpu_mode": "whole",
        "command": "python train.py",
        "arguments": "--epochs 20",
        "working_dir": "examples",
        "is_preemptible": "on",
        "priority": "medium",
        "checkpoint_mode": "signal",
        "checkpoint_signal": "SIGUSR1",
        "checkpoint_command": "",
        "checkpoint_path": "checkpoints",
        "checkpoint_every_min": "",
        "grace_s": "60",
        "backoff_limit": "3",
        **changes,
    }
