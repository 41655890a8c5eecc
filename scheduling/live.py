"""What open pages listen to: topics, their Channels groups, and the announcement that something
changed.

A message only says *changed*; the browser asks for its partial again through the same view, with
the same access check, so that nothing is ever pushed to somebody who may not see it.
"""

from __future__ import annotations

import uuid

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

NODES_TOPIC = "nodes"
QUEUE_TOPIC = "queue"
CLUSTER_TOPIC = "cluster"
"""Once a second how many GPUs are held and used, for whoever listens (`scheduling.streams`)."""


def workload_topic(workload_id: uuid.UUID | str) -> str:
    return f"workload:{workload_id}"


def project_topic(name: str) -> str:
    return f"project:{name}"


def group_of(topic: str) -> str:
    """The Channels group of a topic (group names allow letters, digits, hyphens, dots)."""
    return "live." + topic.replace(":", ".")


def announce(*topics: str) -> None:
    """Tell open pages, once the transaction has committed; each topic once."""
    wanted = frozenset(topics)
    transaction.on_commit(lambda: _send(wanted), robust=True)


@async_to_sync
async def _send(topics: frozenset[str]) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    for topic in sorted(topics):
        await layer.group_send(group_of(topic), {"type": "live.changed", "topic": topic})
