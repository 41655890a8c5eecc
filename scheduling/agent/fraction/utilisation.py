"""What a session's own NVML shows as the utilisation of its devices.

The proxy charges GPU time to processes at the end of each turn; the agent turns its growth into per
cent and writes that into the session's region, where the session's NVML finds it. A neighbour's
work is not in it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduling.agent.fraction.region import Reading, Region, RegionError

_TO_PERCENT = 100 / 1e9


class Utilisation:
    """Knows when how much had been charged; forgets sessions that are not asked about again."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, dict[int, int]]] = {}

    def update(self, regions: Mapping[str, Region], now_s: float) -> None:
        """Write each session's utilisation since the last time.

        Args:
            regions: By the attempt's id.
            now_s: A steady clock.
        """
        before, self._before = self._before, {}
        for attempt_id, region in regions.items():
            try:
                reading = region.read()
                charged = {process.slot: process.gpu_ns for process in reading.processes}
                self._before[attempt_id] = (now_s, charged)
                if attempt_id in before:
                    self._write(region, reading, charged, before[attempt_id], now_s)
            except RegionError:
                continue

    @staticmethod
    def _write(
        region: Region,
        reading: Reading,
        charged: dict[int, int],
        before: tuple[float, dict[int, int]],
        now_s: float,
    ) -> None:
        then_s, earlier = before
        num_devices = len(reading.device_uuids)
        if now_s <= then_s or not num_devices:
            return
        # Another process may have taken a slot meanwhile: its time began at 0.
        grown = sum(
            ns - earlier.get(slot, 0) if ns >= earlier.get(slot, 0) else ns
            for slot, ns in charged.items()
        )
        percent = min(100, round(grown * _TO_PERCENT / (now_s - then_s) / num_devices))
        for place in range(num_devices):
            region.set_utilisation(place, percent)
