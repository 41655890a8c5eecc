"""Drives a real runner in tests as the controller's loops do: orders in, ticks, reports out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from scheduling.agent.isolation import Isolation
from scheduling.agent.node import simulated_inventory
from scheduling.agent.protocol import (
    AttemptPhase,
    AttemptReport,
    AttemptSpec,
    CheckpointSettings,
    Desired,
    Goal,
    GrantedDevice,
)
from scheduling.agent.runner import Runner
from scheduling.agent.site import Site

NODE = "sim-t4-1"
PYTHON = Path(__file__).resolve().parents[2] / ".venv-workload" / "bin" / "python"
PATIENCE_S = 60.0
# Of no isolation: only what the nodes are is asked of it.
INVENTORY = simulated_inventory("tests", Isolation(False, False, None))
FINAL = (AttemptPhase.EXITED, AttemptPhase.REFUSED)


def spec(*command: str, **changes: object) -> AttemptSpec:
    """A training of Ann's in the project *vision*, of one core and 512 MiB."""
    wanted = AttemptSpec(
        attempt_id=str(uuid.uuid4()),
        workload_id=str(uuid.uuid4()),
        number=1,
        name="trial",
        kind="training",
        project="vision",
        project_number=1,
        owner="ann",
        user_number=1,
        node=NODE,
        goal=Goal.RUN,
        cpu_milli=1000,
        memory_mib=512,
        command=list(command),
        grace_s=10.0,
    )
    return replace(wanted, **changes)  # type: ignore[arg-type]


def bob(wanted: AttemptSpec) -> AttemptSpec:
    """The same for another person in another project."""
    return replace(wanted, owner="bob", user_number=2, project="speech", project_number=2)


def following(wanted: AttemptSpec) -> AttemptSpec:
    """The next attempt of the same workload."""
    other = spec()
    return replace(wanted, attempt_id=other.attempt_id, number=wanted.number + 1, goal=Goal.RUN)


def a_third() -> GrantedDevice:
    """A third of a simulated T4."""
    return part(333)


def part(gpu_milli: int, index: int = 0) -> GrantedDevice:
    """Thousandths of one of the node's T4s."""
    device = INVENTORY.nodes[0].devices[index]
    memory_mib = device.memory_mib * gpu_milli // 1000
    return GrantedDevice(device.uuid, index, device.model, gpu_milli, memory_mib, is_simulated=True)


def example(*arguments: str, **changes: object) -> AttemptSpec:
    """The example training from the person's home."""
    return spec("python", "examples/train.py", *arguments, **changes)


def every(**changes: object) -> CheckpointSettings:
    """Checkpoint settings that differ from the default."""
    return replace(CheckpointSettings(), **changes)  # type: ignore[arg-type]


class Driver:
    """One agent's life: a runner, and what is wanted of it."""

    def __init__(self, site: Site, lease_s: float = 60.0, nodes: Sequence[str] = (NODE,)) -> None:
        self.site = site
        self.lease_s = lease_s
        self.nodes = nodes
        self.wanted: dict[str, AttemptSpec] = {}
        self.runner = Runner(site, nodes)
        self.runner.adopt()

    @property
    def isolation(self) -> Isolation:
        return self.site.isolation

    def want(self, *specs: AttemptSpec) -> None:
        """Add to the desired state, or change it."""
        self.wanted |= {each.attempt_id: each for each in specs}
        self.apply()

    def apply(self) -> None:
        """Let the runner read the desired state."""
        self.runner.apply(Desired("local", list(self.wanted.values()), lease_s=self.lease_s))

    def report(self, wanted: AttemptSpec) -> AttemptReport:
        """What is reported of an attempt now."""
        return self.runner.attempts[wanted.attempt_id].report()

    def until(self, is_true: Callable[[], object]) -> None:
        """Tick until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_true():
            self.runner.tick()
            time.sleep(0.02)
            if time.monotonic() > deadline:
                reports = "\n".join(map(str, self.runner.reports()))
                logs = "\n".join(map(self.log, self.wanted.values()))
                raise AssertionError(f"nothing came of it:\n{reports}\n{logs}")

    def until_phase(self, wanted: AttemptSpec, *phases: AttemptPhase) -> AttemptReport:
        """Tick until an attempt is in one of these phases."""
        self.until(lambda: self.report(wanted).phase in phases)
        return self.report(wanted)

    def until_logged(self, wanted: AttemptSpec, text: str) -> None:
        """Tick until an attempt's log holds a text."""
        self.until(lambda: text in self.log(wanted))

    def finish(self, wanted: AttemptSpec) -> AttemptReport:
        """Run an attempt to its end."""
        self.want(wanted)
        return self.until_phase(wanted, *FINAL)

    def output(self, wanted: AttemptSpec) -> str:
        """Run an attempt to its end; its log."""
        self.finish(wanted)
        return self.log(wanted)

    def settled(self, wanted: AttemptSpec) -> bool:
        """Acknowledge an attempt's end; whether the runner has let go of it."""
        self.runner.settle([wanted.attempt_id])
        return wanted.attempt_id not in self.runner.attempts

    def log(self, wanted: AttemptSpec) -> str:
        """An attempt's log."""
        path = self.runner.log_path(wanted.attempt_id)
        return "" if path is None else path.read_text()

    def shim_pid(self, wanted: AttemptSpec) -> int:
        """An attempt's shim; its log may be there before the agent knows that it has begun."""
        self.until(lambda: self.runner.attempts[wanted.attempt_id].is_begun)
        return int(self.runner.attempts[wanted.attempt_id].state["shim_pid"])

    def restarted(self) -> Driver:
        """The next agent after this one was killed: it knows only what is on disk."""
        following = Driver(self.site, self.lease_s, self.nodes)
        following.wanted = dict(self.wanted)
        return following
