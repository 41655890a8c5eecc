"""Watches that what workloads take of their devices is what is counted; see `comparison`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from scheduling.agent.attempt import Attempt
from scheduling.agent.fraction.comparison import (
    Compared,
    Comparison,
    RealUse,
    SimulatedUse,
    UseReader,
)
from scheduling.agent.fraction.install import Fractions
from scheduling.agent.node import Inventory
from scheduling.agent.protocol import AttemptReport


class ShareWatch:
    """Of all nodes of one agent."""

    def __init__(self, inventory: Inventory, fractions: Fractions) -> None:
        """Know how each node's devices are read."""
        self._fractions = fractions
        self._comparison = Comparison(fractions.contexts)
        self._readers: dict[str, UseReader] = {}
        for node in inventory.nodes:
            driver = fractions.driver_of(node.name)
            if node.devices:
                self._readers[node.name] = (
                    RealUse() if driver is None else SimulatedUse(driver.memory)
                )

    def update(self, attempts: Iterable[Attempt]) -> None:
        """Compare once more; reads files of each attempt, so it may take some milliseconds."""
        by_node: dict[str, list[Compared]] = defaultdict(list)
        for attempt in attempts:
            if attempt.spec.devices and attempt.accounting.region.path.exists():
                by_node[attempt.spec.node].append(self._compared(attempt))
        self._comparison.keep({each.attempt_id for found in by_node.values() for each in found})
        for node, found in by_node.items():
            if node in self._readers:
                self._comparison.update(found, self._readers[node])

    def _compared(self, attempt: Attempt) -> Compared:
        spec = attempt.spec
        return Compared(
            attempt_id=spec.attempt_id,
            region=attempt.accounting.region,
            pids=attempt.usage().pids(),
            device_uuids=tuple(device.uuid for device in spec.devices),
            kinds=tuple(
                self._fractions.kind_of(spec.node, device.model) for device in spec.devices
            ),
            is_held_by_driver=self._fractions.is_held_by_driver(spec.node),
        )

    def of_attempts(self, reports: Iterable[AttemptReport]) -> list[AttemptReport]:
        """Reports with what was found."""
        return [
            replace(report, around_share=self._comparison.around(report.attempt_id))
            for report in reports
        ]
