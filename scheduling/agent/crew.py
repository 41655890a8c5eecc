"""What a replica is told of the others: variables at its start, and a file that is kept current.

Processes that work together must find each other. The variables are those that PyTorch's launchers
and many other frameworks read (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`); Allot's own say
the range that the workload may be resized in. The file lists who is there *now*, for programs that
adapt when replicas come and go.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from scheduling.agent import folders
from scheduling.agent.protocol import AttemptSpec, Crew, Member

REPLICAS = "replicas.json"
ALONE = Crew(replica=0, num_replicas=1, min_replicas=1, max_replicas=1, address="", port=0)


def is_leader(spec: AttemptSpec) -> bool:
    """Whether it is the replica whose checkpoints and progress count."""
    return spec.crew is None or spec.crew.replica == 0


def fixed_environment(spec: AttemptSpec, control: Path) -> dict[str, str]:
    """Allot's own variables, which every workload has.

    Args:
        spec: The order.
        control: Where the workload sees the folder that Allot writes for it.
    """
    crew = spec.crew or ALONE
    return {
        "ALLOT_REPLICA": str(crew.replica),
        "ALLOT_NUM_REPLICAS": str(crew.num_replicas),
        "ALLOT_MIN_REPLICAS": str(crew.min_replicas),
        "ALLOT_MAX_REPLICAS": str(crew.max_replicas),
        "ALLOT_REPLICAS_FILE": str(control / REPLICAS),
    }


def default_environment(spec: AttemptSpec) -> dict[str, str]:
    """What frameworks read, where there are several replicas; a person's own values win."""
    crew = spec.crew
    if crew is None:
        return {}
    values = {
        "RANK": str(crew.replica),
        "WORLD_SIZE": str(crew.num_replicas),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    if crew.port:
        values |= {"MASTER_ADDR": crew.address, "MASTER_PORT": str(crew.port)}
    return values


def write_members(attempt: Path, spec: AttemptSpec, members: Sequence[Member]) -> bool:
    """Bring the file that says who is there up to date; False before its folder is made."""
    control = attempt / "control"
    if spec.crew is None or not control.is_dir():
        return False
    crew = spec.crew
    value = {
        "replica": crew.replica,
        "min_replicas": crew.min_replicas,
        "max_replicas": crew.max_replicas,
        "leader": {"address": crew.address, "port": crew.port} if crew.port else None,
        "members": msgspec.to_builtins(members),
    }
    with folders.opened(control) as fd:
        folders.write_json(REPLICAS, value, dir_fd=fd)
        os.chmod(REPLICAS, 0o644, dir_fd=fd)
    return True
