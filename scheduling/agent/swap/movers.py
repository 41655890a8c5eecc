"""Each node's way to its driver, and which one that is."""

from __future__ import annotations

from pathlib import Path

from scheduling.agent.fraction.install import Fractions
from scheduling.agent.node import Inventory
from scheduling.agent.swap.memory import DeviceMemory, Libraries, Mover

# As the dynamic linker finds them.
_OWN = Libraries(Path("libcuda.so.1"), Path("libnvidia-ml.so.1"))


class Movers:
    """The processes that move memory, one per node, each started when it is first needed."""

    def __init__(self, inventory: Inventory, run: Path, fractions: Fractions | None = None) -> None:
        """Set up.

        Args:
            inventory: The nodes, with how each swaps.
            run: Where short-lived files of the agent lie.
            fractions: Knows the drivers of simulated nodes.
        """
        self._libraries: dict[str, Libraries] = {}
        for node in inventory.nodes:
            driver = fractions.driver_of(node.name) if fractions is not None else None
            if not node.swap_mechanism:
                continue
            if driver is not None:
                self._libraries[node.name] = Libraries(driver.cuda, driver.nvml)
            elif not node.is_simulated:
                self._libraries[node.name] = _OWN
        self._run = run
        self._movers: dict[str, Mover] = {}

    def of(self, node: str) -> DeviceMemory | None:
        """The way to a node's driver; None where it cannot swap."""
        libraries = self._libraries.get(node)
        if libraries is None:
            return None
        if node not in self._movers:
            number = sorted(self._libraries).index(node)
            self._movers[node] = Mover(libraries, self._run / f"swap-{number}.lock")
        return self._movers[node]

    def close(self) -> None:
        """Let all of them end."""
        for mover in self._movers.values():
            mover.close()
