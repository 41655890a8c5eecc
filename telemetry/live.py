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
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer

from telemetry.metrics import split_subject

_PREFIX = "telemetry:"

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
        async_to_sync(_send)(messages)


# `Any`: what the channel layer takes.
async def _send(messages: Sequence[dict[str, Any]]) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    # Together: one after another each would wait for the broker.
    await asyncio.gather(
        *(layer.group_send(group_of(message["topic"]), message) for message in messages)
    )
