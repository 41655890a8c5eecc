"""Newest samples to open pages: topics, their Channels groups, about one message a second at most.

A message is `{"type": "samples", "topic": …, "at": …, "values": {…}}` with Unix seconds and null
for no data. The consumer that pages listen to checks who may hear a topic (`subject_of`), joins
`group_of(topic)` and passes the message on as it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import redis
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from channels_redis.pubsub import RedisPubSubChannelLayer
from django.conf import settings

from telemetry.metrics import split_subject

Message = dict[str, Any]  # what channel layers take

_PREFIX = "telemetry:"
_TIMEOUT_S = 2.0

MIN_INTERVAL_S = 0.9
"""Less than between two samples of what is watched, which do not come evenly."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The latest sample of a subject."""

    subject: str
    at: float
    values: dict[str, float | None]


def topic_for(subject: str) -> str:
    """The topic of a subject, such as `telemetry:workload:<id>`."""
    return _PREFIX + subject


def subject_of(topic: str) -> str | None:
    """The subject of a topic; None when it is not one of ours."""
    subject = topic.removeprefix(_PREFIX)
    if subject == topic:
        return None
    try:
        split_subject(subject)
    except ValueError:
        return None
    return subject


def group_of(topic: str) -> str:
    """The Channels group of a topic: hashed, since subjects may hold what group names may not."""
    return "telemetry." + hashlib.sha256(topic.encode()).hexdigest()[:32]


class Throttle:
    """Lets each topic pass at most once per interval; thread-safe."""

    def __init__(
        self, interval_s: float = MIN_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._passed_at: dict[str, float] = {}

    def passing(self, topics: Sequence[str]) -> set[str]:
        """Those that may pass now; they are counted as passed."""
        now = self._clock()
        with self._lock:
            # Whoever may pass again needs no memory.
            self._passed_at = {
                topic: at for topic, at in self._passed_at.items() if now - at < self._interval_s
            }
            passing = {topic for topic in topics if topic not in self._passed_at}
            self._passed_at.update(dict.fromkeys(passing, now))
        return passing


_throttle = Throttle()


def publish(samples: Sequence[Newest]) -> None:
    """Send the newest samples to whoever looks; what comes too soon after the last is skipped."""
    by_topic = {topic_for(sample.subject): sample for sample in samples}
    passing = _throttle.passing(list(by_topic))
    messages = [
        {"type": "samples", "topic": topic, "at": sample.at, "values": sample.values}
        for topic, sample in by_topic.items()
        if topic in passing
    ]
    if messages:
        _send(messages)


def _send(messages: Sequence[Message]) -> None:
    layer = get_channel_layer()
    if isinstance(layer, RedisPubSubChannelLayer):
        _send_to_listeners(layer, messages)
    elif layer is not None:
        async_to_sync(_send_to_groups)(layer, messages)


def _send_to_listeners(layer: RedisPubSubChannelLayer, messages: Sequence[Message]) -> None:
    """Ask which topics have listeners, then publish those, as the layer itself would.

    Most samples have none. The layer's own way is a round trip for each, in an event loop and a
    thread made for it, and costs more than storing them.
    """
    channels = [
        f"{_config()['prefix']}__group__{group_of(message['topic'])}".encode()
        for message in messages
    ]
    client = _client(str(_config()["hosts"][0]))
    counts = dict(client.pubsub_numsub(*channels))
    with client.pipeline(transaction=False) as pipeline:
        for channel, message in zip(channels, messages, strict=True):
            if counts.get(channel):
                pipeline.publish(channel, layer.serialize(message))
        pipeline.execute()


def _config() -> Message:
    layers: Message = settings.CHANNEL_LAYERS
    config: Message = layers["default"]["CONFIG"]
    return config


@lru_cache(maxsize=2)
def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)


async def _send_to_groups(layer: Any, messages: Sequence[Message]) -> None:
    # Together: one after another each would wait for the broker.
    await asyncio.gather(
        *(layer.group_send(group_of(message["topic"]), message) for message in messages)
    )
