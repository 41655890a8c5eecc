"""Measures the agent's nodes and keeps the samples until the orchestrator has taken them.

In memory and bounded: while the orchestrator is away the oldest batches go first, and the next
batch of that node says how many samples were lost.
"""

from __future__ import annotations

import uuid
from collections import defaultdict, deque
from collections.abc import Sequence

from scheduling.agent.protocol import NodeReport, Sample, SampleBatch, encode
from telemetry.sampling import AttemptView, Sampler

# An hour of five nodes at a batch each per 5 s.
_MAX_BATCHES = 3600


class Spool:
    """Batches of samples that are yet to be delivered, oldest first."""

    def __init__(
        self, zone: str, nodes: Sequence[NodeReport], max_batches: int = _MAX_BATCHES
    ) -> None:
        self._zone = zone
        self._sampler = Sampler(nodes)
        self._node_of = {
            f"device:{device.uuid}": node.name for node in nodes for device in node.devices
        } | {f"node:{node.name}": node.name for node in nodes}
        self._max_batches = max_batches
        # One agent's batches never repeat another's numbers.
        self._run_id = uuid.uuid4().hex[:12]
        self._num_batches = 0
        self._num_dropped: dict[str, int] = defaultdict(int)
        self._batches: deque[SampleBatch] = deque()

    def sample(self, views: Sequence[AttemptView], now: float) -> None:
        """Measure once and keep a batch per node."""
        node_of = self._node_of | {f"workload:{view.workload_id}": view.node for view in views}
        by_node: dict[str, list[Sample]] = defaultdict(list)
        for sample in self._sampler.sample(views, now):
            if sample.subject in node_of:
                by_node[node_of[sample.subject]].append(
                    Sample(sample.subject, sample.at, sample.values)
                )
        for name, samples in by_node.items():
            self._keep(name, samples)

    def _keep(self, name: str, samples: list[Sample]) -> None:
        while len(self._batches) >= self._max_batches:
            lost = self._batches.popleft()
            self._num_dropped[lost.node] += len(lost.samples) + lost.num_dropped
        self._num_batches += 1
        batch = SampleBatch(
            zone=self._zone,
            node=name,
            batch_id=f"{self._run_id}-{self._num_batches}",
            samples=samples,
            num_dropped=self._num_dropped.pop(name, 0),
        )
        self._batches.append(batch)

    def first(self) -> bytes | None:
        """The oldest batch, encoded; None if there is none."""
        return encode(self._batches[0]) if self._batches else None

    def drop_first(self) -> None:
        """Forget the oldest batch: it was delivered."""
        self._batches.popleft()
