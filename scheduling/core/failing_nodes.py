"""Nodes on which different workloads fail to start: closed, so that the rest does not try in turn.

One workload that fails on a node may be to blame itself, and avoids that node for a while
(back-off). Several different ones, none of which started there in between, speak against the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from scheduling.core.decisions import Cordon, Reason
from scheduling.core.types import Node, NodeTypeName, Policy


def failing_nodes(nodes: Iterable[Node], policy: Policy, now_s: float) -> tuple[Cordon, ...]:
    """Ready nodes to be closed now, by name.

    The last ready node of a type stays open: closing it would help nobody, and back-off bounds the
    harm.
    """
    nodes = sorted(nodes, key=lambda node: node.name)
    num_ready: dict[NodeTypeName | None, int] = {}
    for node in nodes:
        num_ready[node.node_type] = num_ready.get(node.node_type, 0) + node.is_ready
    found: list[Cordon] = []
    for node in nodes:
        if not node.is_ready or not node.failed_starts or num_ready[node.node_type] < 2:
            continue
        latest = _recent(node, policy, now_s)
        if policy.cordon_failures and len(latest) >= policy.cordon_failures:
            num_ready[node.node_type] -= 1
            found.append(Cordon(node.name, _reason(node, latest, policy)))
    return tuple(found)


def without(nodes: Iterable[Node], closed: Iterable[Cordon]) -> tuple[Node, ...]:
    """The nodes, those that are closed no longer ready."""
    names = {cordon.node for cordon in closed}
    return tuple(replace(node, is_ready=False) if node.name in names else node for node in nodes)


def _recent(node: Node, policy: Policy, now_s: float) -> dict[str, float]:
    """When each workload last failed here, of those that did inside the window."""
    latest: dict[str, float] = {}
    for failed in node.failed_starts:
        if failed.at_s >= now_s - policy.cordon_window_s:
            latest[failed.workload] = max(failed.at_s, latest.get(failed.workload, failed.at_s))
    return latest


def _reason(node: Node, latest: dict[str, float], policy: Policy) -> Reason:
    names: Sequence[str] = sorted(latest, key=lambda name: (latest[name], name))
    return Reason(
        "failing_starts",
        f"{len(names)} different workloads failed to start on {node.name} within"
        f" {policy.cordon_window_s:.0f} s, and none started there in between.",
        {
            "node": node.name,
            "workloads": list(names),
            "failures": len(names),
            "allowed": policy.cordon_failures,
            "window_s": policy.cordon_window_s,
            "last_at_s": max(latest.values()),
        },
    )
