"""Which mechanism holds fractions on a node, and which one swaps: one pure table.

Driver, architecture, cgroups and MIG decide. The answers are codes; the server has their sentences
(`scheduling/texts/mechanisms.py`). What is not verified on hardware is said in docs/fractions.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# CUDA compute capability of the first GPU of an architecture.
TURING = (7, 5)
# Releases of the driver.
LIMITS_DRIVER = 615
"""Memory limits of cgroups; CUDA 13.4, hence also a checkpoint into memory of the controller."""
CHECKPOINT_DRIVER = 570
"""cuCheckpointProcess*, CUDA 12.8."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node is.

    Attributes:
        driver: Major version of NVIDIA's driver.
        capability: Compute capability of its devices, the smallest of them.
        has_mig: Whether MIG is on.
        has_cgroup_v2: Whether workloads are limited by cgroups of version 2.
        can_mount: Whether workloads get mounts of their own.
        why_not_built: Why the proxy libraries are not there, see `BuildError`; empty if they are.
        is_x86: Whether the machine is x86-64.
    """

    driver: int
    capability: tuple[int, int]
    has_mig: bool = False
    has_cgroup_v2: bool = True
    can_mount: bool = True
    why_not_built: str = ""
    is_x86: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """What a node uses.

    Attributes:
        fraction: `mig`, `driver`, `proxy`, `preload` or `none`.
        fraction_note: Why.
        shares_time: Whether sessions get time of the device in proportion to their fractions.
        swap: `storage` (checkpoint; into the agent's memory as well, which is not used yet),
            `checkpoint` or `none`.
        swap_note: Why.
    """

    fraction: str
    fraction_note: str
    shares_time: bool
    swap: str
    swap_note: str


MIG: Final = Choice("mig", "mig", False, "none", "mig")


def choose(facts: Facts) -> Choice:
    """What a node of these facts uses."""
    if facts.has_mig:
        return MIG
    fraction, fraction_note = _fraction(facts)
    swap, swap_note = _swap(facts)
    return Choice(fraction, fraction_note, _has_proxy(facts), swap, swap_note)


def _has_proxy(facts: Facts) -> bool:
    return not facts.why_not_built and facts.can_mount


def _fraction(facts: Facts) -> tuple[str, str]:
    if facts.driver >= LIMITS_DRIVER and facts.capability >= TURING and facts.has_cgroup_v2:
        return "driver", "driver_limits"
    why = _why_not_driver(facts)
    if facts.why_not_built:
        return "none", facts.why_not_built
    return ("proxy", why) if facts.can_mount else ("preload", "no_mounts")


def _why_not_driver(facts: Facts) -> str:
    if facts.capability < TURING:
        return "before_turing"
    return "old_driver" if facts.driver < LIMITS_DRIVER else "no_cgroup_v2"


def _swap(facts: Facts) -> tuple[str, str]:
    if facts.driver < CHECKPOINT_DRIVER:
        return "none", "old_driver"
    if not facts.is_x86 and facts.driver < LIMITS_DRIVER:
        # 801 on 580.142 (cuda-checkpoint #51).
        return "none", "not_x86"
    if facts.driver >= LIMITS_DRIVER:
        return "storage", "custom_storage"
    return "checkpoint", "unproven_before_turing" if facts.capability < TURING else "checkpoint"
