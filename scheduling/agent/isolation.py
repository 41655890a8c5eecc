"""What this machine lets the agent do to keep workloads apart; found out once, by trying.

A node where something is lacking still works, and is marked *not isolated* with the reason.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from scheduling.agent import namespaces
from scheduling.agent.cgroups import Hierarchy, detect
from scheduling.agent.folders import Folders


@dataclass(frozen=True, slots=True)
class Isolation:
    """How workloads on this machine are kept apart.

    Attributes:
        has_identities: Each person gets a uid, each project a gid.
        has_namespaces: Each workload gets its own processes, mounts, /tmp and /dev.
        cgroups: Where limits are set; None leaves a watchdog over memory and whole CPUs.
    """

    has_identities: bool
    has_namespaces: bool
    cgroups: Hierarchy | None

    @property
    def is_complete(self) -> bool:
        """Whether neighbours can neither see nor starve each other."""
        return self.has_identities and self.has_namespaces and self.cgroups is not None

    @property
    def note(self) -> str:
        """What is lacking, in words; empty if nothing is."""
        lacking = []
        if not self.has_identities:
            lacking.append("the agent is not root, so all workloads run as its own user")
        if not self.has_namespaces:
            lacking.append("mount and PID namespaces are not allowed, so workloads see each other")
        if self.cgroups is None:
            lacking.append(
                "no cgroup can be written, so memory is watched twice a second instead of limited "
                "and cores are rounded up to whole CPUs"
            )
        return "; ".join(lacking)


def probe(folders: Folders) -> Isolation:
    """Try what this machine allows. The cgroups' parent is named after the data folder."""
    is_root = os.geteuid() == 0
    digest = hashlib.sha256(os.fsencode(folders.var.resolve())).hexdigest()[:8]
    return Isolation(
        has_identities=is_root,
        has_namespaces=is_root and _can_enter_namespaces(),
        cgroups=detect(f"allot-{digest}"),
    )


def _can_enter_namespaces() -> bool:
    """Whether a child of a child can have processes and mounts of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            namespaces.unshare(namespaces.CLONE_NEWPID)
            inner = os.fork()
            if inner == 0:
                namespaces.enter(namespaces.View())
                os._exit(0)
            _, status = os.waitpid(inner, 0)
            os._exit(os.waitstatus_to_exitcode(status))
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 0
