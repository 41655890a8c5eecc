"""Whether a request could ever fit a node of the chosen types; if not.

Which number is too large and what is the most.

A question about the machines' sizes, not about what is free: what merely has to wait is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from scheduling.capacity import NodeCapacity, Supply
from scheduling.models import MAX_REPLICAS

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

# What a misfit's message calls the amounts, in the units of people and of programs.
UNITS: Mapping[tuple[str, bool], StrOrPromise] = {
    ("gpu_memory_mib", True): pgettext_lazy("unit", "GiB"),
    ("gpu_memory_mib", False): pgettext_lazy("unit", "MiB"),
    ("memory_mib", True): pgettext_lazy("unit", "GiB"),
    ("memory_mib", False): pgettext_lazy("unit", "MiB"),
    ("cpu_milli", True): _("CPU cores"),
    ("cpu_milli", False): _("thousandths of a core"),
}


@dataclass(frozen=True, slots=True)
class Request:
    """What one node must hold; 0 where nothing is asked."""

    num_devices: int
    gpu_memory_mib: int
    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Misfit:
    """The amount that no node has.

    Attributes:
        amount: Attribute of `Request` to be reduced.
        largest: The most that one node offers of it.
        node: The node that offers it.
        message: With places for `value`, `limit`, `unit`, `node` and `types`.
    """

    amount: str
    code: str
    largest: int
    node: str
    message: StrOrPromise


_AMOUNTS: tuple[tuple[str, str, StrOrPromise], ...] = (
    (
        "num_devices",
        "more_gpus_than_any_node",
        _("%(value)s GPUs are more than any node of %(types)s has: at most %(limit)s (%(node)s)."),
    ),
    (
        "gpu_memory_mib",
        "more_gpu_memory_than_any_device",
        _(
            "%(value)s %(unit)s are more than any GPU of %(types)s has: "
            "at most %(limit)s %(unit)s (%(node)s)."
        ),
    ),
    (
        "cpu_milli",
        "more_cores_than_any_node",
        _(
            "%(value)s %(unit)s are more than any node of %(types)s has: "
            "at most %(limit)s %(unit)s (%(node)s)."
        ),
    ),
    (
        "memory_mib",
        "more_memory_than_any_node",
        _(
            "%(value)s %(unit)s are more than any node of %(types)s has: "
            "at most %(limit)s %(unit)s (%(node)s)."
        ),
    ),
)
_TOGETHER = _(
    "No node of %(types)s has that many GPUs, cores and %(value)s %(unit)s together. With these "
    "GPUs and cores at most %(limit)s %(unit)s are to be had (%(node)s)."
)
_NO_CORES_TOGETHER = _(
    "No node of %(types)s has that many GPUs and %(value)s %(unit)s together. With these GPUs at "
    "most %(limit)s %(unit)s are to be had (%(node)s)."
)


def misfit(request: Request, supplies: Sequence[Supply]) -> Misfit | None:
    """The first amount that rules every node out.

    None when a node could hold all, or none is known yet.
    """
    nodes = [node for supply in supplies for node in supply.nodes]
    if not nodes:
        return None
    for amount, code, message in _AMOUNTS:
        largest = max(nodes, key=lambda node: int(getattr(node, amount)))
        if getattr(request, amount) > getattr(largest, amount):
            return Misfit(amount, code, getattr(largest, amount), largest.name, message)
    return _misfit_together(request, nodes)


def most_replicas(request: Request, milli: int | None, supply: Supply) -> int:
    """How many such requests all nodes of a type could hold, with nothing else on them.

    Args:
        request: What each asks of a node.
        milli: The part of a device, where it asks for one.
        supply: The node type.
    """
    return sum(_most_on(request, milli, node) for node in supply.nodes)


def _most_on(request: Request, milli: int | None, node: NodeCapacity) -> int:
    bounds = [node.memory_mib // request.memory_mib if request.memory_mib else MAX_REPLICAS]
    if request.cpu_milli:
        bounds.append(node.cpu_milli // request.cpu_milli)
    if request.gpu_memory_mib:
        bounds.append(node.num_devices * (node.gpu_memory_mib // request.gpu_memory_mib))
    elif milli:
        bounds.append(node.num_devices * (1000 // milli))
    elif request.num_devices:
        bounds.append(node.num_devices // request.num_devices)
    return min(bounds)


def _misfit_together(request: Request, nodes: Sequence[NodeCapacity]) -> Misfit | None:
    """Each amount fits some node; does one node have them all?"""
    with_gpus = [
        node
        for node in nodes
        if node.num_devices >= request.num_devices and node.gpu_memory_mib >= request.gpu_memory_mib
    ]
    if not with_gpus:
        enough = [node for node in nodes if node.num_devices >= request.num_devices]
        best = max(enough, key=lambda node: node.gpu_memory_mib)
        return Misfit(
            "gpu_memory_mib", "no_node_has_all", best.gpu_memory_mib, best.name, _AMOUNTS[1][2]
        )
    with_cores = [node for node in with_gpus if node.cpu_milli >= request.cpu_milli]
    if not with_cores:
        best = max(with_gpus, key=lambda node: node.cpu_milli)
        return Misfit("cpu_milli", "no_node_has_all", best.cpu_milli, best.name, _NO_CORES_TOGETHER)
    best = max(with_cores, key=lambda node: node.memory_mib)
    if best.memory_mib < request.memory_mib:
        return Misfit("memory_mib", "no_node_has_all", best.memory_mib, best.name, _TOGETHER)
    return None
