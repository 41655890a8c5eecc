"""Which nodes are on somebody's screen, and so when each is measured next.

Every node every five seconds, a watched one every second. Whoever watches says so for a few seconds
at a time (`protocol.WatchRequest`): when the web dies, its wish ends by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

SAMPLE_EVERY_S = 5.0
WATCHED_EVERY_S = 1.0
MAX_FOR_S = 60.0


class Watched:
    """Names of nodes, each until a time of a clock that never jumps."""

    def __init__(self, nodes: Collection[str], clock: Callable[[], float]) -> None:
        """Nobody watches; `nodes` are those there are."""
        self._nodes = frozenset(nodes)
        self._clock = clock
        self._until: dict[str, float] = {}

    def watch(self, nodes: Collection[str], for_s: float) -> None:
        """Somebody looks at these nodes, at most for so long; a shorter wish ends no longer one.

        Names that are none of ours, and times that make no sense, are nobody's wish.
        """
        if not math.isfinite(for_s) or for_s <= 0:
            return
        until = self._clock() + min(for_s, MAX_FOR_S)
        for name in self._nodes.intersection(nodes):
            self._until[name] = max(self._until.get(name, 0.0), until)

    def now(self) -> frozenset[str]:
        """Those that somebody looks at."""
        now = self._clock()
        self._until = {name: until for name, until in self._until.items() if until > now}
        return frozenset(self._until)
