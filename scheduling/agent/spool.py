"""Measures the agent's nodes and keeps the samples until the orchestrator has taken them.

On disk, a file per batch, so that neither an absence of the orchestrator nor a restart of the
agent loses any; samples keep their own times. Bounded: when it is full the oldest batches go
first, and the next batch of that node says how many samples were lost.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scheduling.agent.protocol import (
    NodeReport,
    ProtocolError,
    Sample,
    SampleBatch,
    decode,
    encode,
)
from telemetry.sampling import AttemptView, Sampler

log = logging.getLogger(__name__)

# Two days of a node with eight GPUs at a batch per 5 s: no older sample is taken in.
_MAX_BYTES = 256 * 2**20
_SUFFIX = ".batch"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A batch on disk."""

    path: Path
    num_bytes: int


class Spool:
    """Batches of samples that are yet to be delivered, oldest first. Thread-safe."""

    def __init__(
        self,
        zone: str,
        nodes: Sequence[NodeReport],
        folder: Path,
        *,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        """Take over what an earlier agent left in the folder.

        Args:
            zone: Of the agent.
            nodes: Those to measure.
            folder: Made if it is not there.
            max_bytes: Of all batches together.
        """
        self._zone = zone
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sampler = Sampler(nodes, disk=str(folder))
        self._node_of = {
            f"device:{device.uuid}": node.name for node in nodes for device in node.devices
        } | {f"node:{node.name}": node.name for node in nodes}
        self._max_bytes = max_bytes
        # One agent's batches never repeat another's numbers.
        self._run_id = uuid.uuid4().hex[:12]
        self._num_batches = 0
        self._num_dropped: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()
        # Names begin with the time, so their order is that of the batches.
        left = sorted(folder.glob(f"*{_SUFFIX}"))
        self._kept = deque(_Kept(path, path.stat().st_size) for path in left)
        self._num_bytes = sum(kept.num_bytes for kept in self._kept)
        self._being_sent: _Kept | None = None
        for unfinished in folder.glob("*.part"):
            unfinished.unlink(missing_ok=True)

    def sample(
        self, views: Sequence[AttemptView], now: float, only: Collection[str] | None = None
    ) -> list[Sample]:
        """Measure once, all nodes or some by name, and keep a batch per node; what was measured."""
        node_of = self._node_of | {f"workload:{view.workload_id}": view.node for view in views}
        by_node: dict[str, list[Sample]] = defaultdict(list)
        samples = self._sampler.sample(views, now, only)
        for sample in samples:
            if sample.subject in node_of:
                by_node[node_of[sample.subject]].append(
                    Sample(sample.subject, sample.at, sample.values)
                )
        for name, of_node in by_node.items():
            self._keep(name, of_node)
        return samples

    def _keep(self, name: str, samples: list[Sample]) -> None:
        with self._lock:
            self._num_batches += 1
            batch = SampleBatch(
                zone=self._zone,
                node=name,
                batch_id=f"{self._run_id}-{self._num_batches}",
                samples=samples,
                num_dropped=self._num_dropped.pop(name, 0),
            )
            data = encode(batch)
            self._make_room(len(data))
            path = self._folder / f"{time.time_ns():020d}-{self._num_batches}{_SUFFIX}"
            try:
                _write(path, data)
            except OSError as error:
                log.warning("samples cannot be kept in %s: %s", self._folder, error)
                self._num_dropped[name] += len(samples) + batch.num_dropped
                path.with_suffix(".part").unlink(missing_ok=True)
            else:
                self._kept.append(_Kept(path, len(data)))
                self._num_bytes += len(data)

    def _make_room(self, num_bytes: int) -> None:
        while self._kept and self._num_bytes + num_bytes > self._max_bytes:
            with suppress(OSError, ProtocolError):
                lost = decode(self._kept[0].path.read_bytes(), SampleBatch)
                self._num_dropped[lost.node] += len(lost.samples) + lost.num_dropped
            self._forget_first()

    def _forget_first(self) -> None:
        oldest = self._kept.popleft()
        self._num_bytes -= oldest.num_bytes
        oldest.path.unlink(missing_ok=True)

    def first(self) -> bytes | None:
        """The oldest batch, encoded; None if there is none."""
        with self._lock:
            while self._kept:
                self._being_sent = self._kept[0]
                try:
                    return self._kept[0].path.read_bytes()
                except OSError as error:
                    log.warning("a batch of samples is gone: %s", error)
                    self._forget_first()
            return None

    def drop_first(self) -> None:
        """Forget the batch that `first` gave: it was delivered."""
        with self._lock:
            # Meanwhile it may have had to make room.
            if self._kept and self._kept[0] is self._being_sent:
                self._forget_first()


def _write(path: Path, data: bytes) -> None:
    """A whole file or none."""
    part = path.with_suffix(".part")
    part.write_bytes(data)
    os.replace(part, path)
