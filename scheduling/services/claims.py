"""Which agent a zone and a node belong to: a second one that claims them is refused.

Two agents with one zone's token, or two zones with a node of one name, would overwrite each other's
reports and start everything twice. The first holds the claim until it has been silent for longer
than a training's lease, so that nothing of its still runs when another takes over; after a clean
stop until its nodes count as lost. What is refused is noted for the node's page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from scheduling.models import Node, Zone

LOST_AFTER_S = 15
"""No report for so long: the node is lost (agents report every three seconds)."""
GIVEN_UP_AFTER_S = 90
"""Longer than a training's lease (60 s), so that its shim has stopped it before it starts anew."""
SHOWN_FOR = timedelta(seconds=60)
"""So long after the last refusal the node's page tells of it; a rival tries every few seconds."""


class RivalError(Exception):
    """Another agent holds the zone; says which, and until when."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An agent: a number that its data folder keeps, and the machine's name. Empty: not told."""

    number: str = ""
    host: str = ""


UNTOLD = Identity()


def check_zone(zone: Zone, agent: Identity) -> None:
    """Let nobody but the zone's agent in.

    Raises:
        RivalError: another agent holds the zone.
    """
    if agent.number and Identity(zone.agent_id, zone.agent_host) not in (agent, UNTOLD):
        raise RivalError(
            f"zone {zone.name} belongs to the agent on {zone.agent_host}; the one on {agent.host} "
            f"may take over once that has been silent for {GIVEN_UP_AFTER_S} s. Give each agent "
            "a zone and node names of its own, and keep its data folder"
        )


def claim_zone(zone: Zone, agent: Identity, now: datetime) -> None:
    """The agent reports: it holds the zone from now on, where no other does.

    Raises:
        RivalError: another agent holds the zone.
    """
    if not agent.number or (zone.agent_id, zone.agent_host) == (agent.number, agent.host):
        return
    is_free = (
        Q(agent_id="")
        | Q(last_report_at=None)
        | Q(last_report_at__lt=now - timedelta(seconds=GIVEN_UP_AFTER_S))
        | Q(is_stopping=True, last_report_at__lt=now - timedelta(seconds=LOST_AFTER_S))
    )
    # In one statement: of two that come at once the second finds a fresh report.
    taken = Zone.objects.filter(is_free, pk=zone.pk).update(
        agent_id=agent.number, agent_host=agent.host, last_report_at=now
    )
    if not taken:
        Zone.objects.filter(pk=zone.pk).update(rival=agent.host, rival_at=now)
        check_zone(zone, agent)
    zone.agent_id, zone.agent_host = agent.number, agent.host


def claimed_elsewhere(zone: Zone, nodes: Iterable[Node], host: str, now: datetime) -> set[str]:
    """Names among these nodes that the agent of another zone holds; noted on each."""
    fresh = now - timedelta(seconds=GIVEN_UP_AFTER_S)
    taken = [
        node.pk
        for node in nodes
        if node.zone_id != zone.pk and node.last_report_at and node.last_report_at > fresh
    ]
    if not taken:
        return set()
    rival = f"{zone.name}, {host}" if host else zone.name
    Node.objects.filter(pk__in=taken).update(rival=rival[:300], rival_at=now)
    return {node.name for node in nodes if node.pk in set(taken)}


def rival_of(node: Node, now: datetime) -> str:
    """Who else claims the node or its zone now; empty: nobody."""
    for at, rival in ((node.rival_at, node.rival), (node.zone.rival_at, node.zone.rival)):
        if at is not None and now - at < SHOWN_FOR:
            return rival
    return ""
