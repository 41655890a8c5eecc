"""What nodes send about their hardware: the messages that sampling writes and ingestion reads.

Apart from both, so that the agent needs no Django and the web process no NVML. The agent's
protocol (`scheduling.agent.protocol`) passes these messages on as its own; its version is named
here because imports between the apps only run this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from telemetry.metrics import METRICS

PROTOCOL = "allot-agent/1"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one subject.

    Attributes:
        subject: `device:<uuid>`, `node:<name>` or `workload:<id>`.
        at: Unix seconds, by the clock of the node.
        values: By metric name with unit suffix (`telemetry.metrics` lists them). None means no
            data, and is never turned into 0.
    """

    subject: str
    at: float
    values: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Samples of one node, numbered so that a repeated batch is recognised.

    Attributes:
        batch_id: Unique per node.
        num_dropped: Samples that the node could not keep for sending.
    """

    zone: str
    node: str
    batch_id: str
    samples: list[Sample]
    num_dropped: int = 0
    protocol: str = PROTOCOL


# ---------------------------------------------------------------- as they are received

if TYPE_CHECKING:

    class Values(msgspec.Struct):
        """A value per metric of any kind; None is no data, or no metric of the subject's kind."""

else:
    _names = dict.fromkeys(metric.name for metrics in METRICS.values() for metric in metrics)
    Values = msgspec.defstruct("Values", [(name, float | None, None) for name in _names], gc=False)


class ReceivedSample(msgspec.Struct, gc=False):
    """A `Sample` with a place for each metric, which is read and taken apart in half the time."""

    subject: str
    at: float
    values: Values


class ReceivedBatch(msgspec.Struct):
    """A `SampleBatch`, byte for byte the same message."""

    zone: str
    node: str
    batch_id: str
    samples: list[ReceivedSample]
    num_dropped: int = 0
    protocol: str = PROTOCOL
