"""What was taken in reaches whoever looks, through a real channel layer."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.db import connection

from telemetry import live
from telemetry.ingestion import ingest
from telemetry.messages import Sample, SampleBatch


@pytest.mark.django_db(transaction=True)
async def test_the_newest_sample_is_published_after_commit() -> None:
    layer = get_channel_layer()
    assert layer is not None
    # The second that may pass only one message is kept per process: a subject of our own.
    subject = f"workload:{uuid.uuid4()}"
    now = datetime.now(UTC)
    channel = await layer.new_channel()
    await layer.group_add(live.group_of(live.topic_for(subject)), channel)
    at = now.timestamp()
    batch = SampleBatch(
        "z",
        "n",
        "b",
        [
            Sample(subject, at, {"cpu_cores": 2.0, "memory_mib": float("nan")}),
            Sample(subject, at - 5, {"cpu_cores": 1.0}),
        ],
    )

    def take_in() -> None:
        ingest(batch, nodes={"n"}, now=now)
        connection.close()

    await sync_to_async(take_in)()
    async with asyncio.timeout(10):
        message = await layer.receive(channel)
    assert message["type"] == "samples"
    assert message["topic"] == f"telemetry:{subject}"
    assert message["at"] == at
    assert message["values"]["cpu_cores"] == 2.0
    assert message["values"]["memory_mib"] is None
    await layer.group_discard(live.group_of(live.topic_for(subject)), channel)
