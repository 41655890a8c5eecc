"""What is the same for all attempts of an agent."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scheduling.agent.folders import Folders
from scheduling.agent.fraction.install import Fractions
from scheduling.agent.isolation import Isolation

_AGENT_CODE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Site:
    """What is the same for all attempts of this agent.

    Attributes:
        workload_python: Python of the environment that workloads get.
        device_files: Names below /dev of a real GPU, by its UUID.
        is_simulated: Whether a node of this name is simulated.
        fractions: What holds workloads to their share of a device; None leaves them free.
    """

    folders: Folders
    isolation: Isolation
    workload_python: Path
    device_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_simulated: Callable[[str], bool] = lambda _: True
    fractions: Fractions | None = None

    @property
    def environment(self) -> Path:
        """Folder of the workloads' virtual environment."""
        return self.workload_python.parent.parent

    @property
    def tools(self) -> Path:
        """Copies of what workloads execute and import of ours, readable by everybody."""
        return self.folders.root / "tools"

    def install_tools(self) -> None:
        """Put client, tools and simulated drivers to where workloads may have them."""
        self.tools.mkdir(exist_ok=True)
        self.tools.chmod(0o755)
        for source in (
            _AGENT_CODE / "client" / "allot.py",
            _AGENT_CODE / "tools" / "nvidia_smi.py",
        ):
            target = self.tools / source.name
            temporary = target.with_suffix(".tmp")
            shutil.copyfile(source, temporary)
            temporary.chmod(0o644)
            temporary.replace(target)
        if self.fractions is not None:
            self.fractions.prepare()
