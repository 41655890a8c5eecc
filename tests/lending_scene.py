"""A session that may fall idle on a full node, a training that waits, and an agent of words."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pytest
from django.utils import timezone

from projects.models import NodeType, Project
from scheduling.agent.protocol import IdleReport, LoanReport, LoanState, SwapReport, SwapState
from scheduling.cycle import run_cycle
from scheduling.models import (
    Device,
    DeviceAllocation,
    Loan,
    Node,
    NodeState,
    Phase,
    ProjectUsage,
    Workload,
)
from scheduling.services.idleness import watch_idle
from tests.factories import (
    FakeAgent,
    attempt_report,
    session_spec,
    submitted,
    training_spec,
)
from tests.scheduling.conftest import Organisation

GIB = 1024**3


@dataclass(slots=True)
class Scene:
    """A session that may fall idle, on a node full of others, and a training that waits."""

    organisation: Organisation
    session: Workload
    training: Workload
    relay_url: str = ""

    @property
    def agent(self) -> FakeAgent:
        return self.organisation.agent

    def refresh(self) -> None:
        self.session.refresh_from_db()
        self.training.refresh_from_db()

    def rest(self, minutes: float = 10.0, **changes: object) -> None:
        """The session reports that it has been idle for so long."""
        since = time.time() - 60 * minutes
        idle = replace(
            IdleReport(
                gpu_idle_since=since,
                cpu_idle_since=since,
                network_idle_since=since,
                kernels_idle_since=since,
                terminals_idle_since=since,
            ),
            **changes,  # type: ignore[arg-type]  # names checked at run time
        )
        self._report_session(idle, SwapState.RUNNING)

    def _report_session(self, idle: IdleReport, state: SwapState) -> None:
        self.agent.report(
            attempt_report(
                self.session,
                phase="running",
                is_ready=True,
                started_at=time.time() - 3600,
                idle=idle,
                swap=SwapReport(state=state, bytes_on_device=3 * GIB),
            )
        )

    def use(self, state: SwapState = SwapState.RUNNING) -> None:
        """A cell runs, or waits."""
        self._report_session(IdleReport(held_cells=1), state)

    def swap_out_session(self) -> None:
        """The agent has moved its memory to the host."""
        since = time.time() - 600
        quiet = IdleReport(since, since, since, since, since)
        self._report_session(quiet, SwapState.SWAPPED_OUT)

    def run_training(self, state: SwapState = SwapState.RUNNING, bytes_on_host: int = 0) -> None:
        self.agent.run(self.training, swap=SwapReport(state=state, bytes_on_host=bytes_on_host))

    def lend(self) -> Loan:
        """Idle, seen by the watch, and decided."""
        self.rest()
        watch_idle(timezone.now())
        run_cycle()
        self.refresh()
        return Loan.objects.open().get()

    def say(self, loan: Loan, state: LoanState, **values: object) -> list[str]:
        report = LoanReport(loan_id=str(loan.pk), state=state, **values)  # type: ignore[arg-type]
        settled = self.agent.report_loans(report)
        loan.refresh_from_db()
        return settled


def make_scene(organisation: Organisation) -> Scene:
    """Swap is on everywhere; the session runs and is in use, the training waits."""
    nodes = [replace(node, swap_mechanism="simulated") for node in organisation.agent.nodes]
    organisation.agent.nodes = nodes
    organisation.agent.report()
    Node.objects.exclude(name="sim-t4-1").update(state=NodeState.CORDONED)
    NodeType.objects.update(swap_enabled=True)
    Project.objects.update(lends_idle=True)
    session = submitted(session_spec(organisation.vision, gpu_milli=1000), organisation.vera)
    for _ in range(3):
        submitted(session_spec(organisation.speech, gpu_milli=1000), organisation.sergey)
    run_cycle()
    organisation.agent.run(session)
    training = submitted(training_spec(organisation.language), organisation.lena)
    run_cycle()
    scene = Scene(organisation, session, training)
    scene.refresh()
    assert session.phase == Phase.RUNNING
    assert training.phase == Phase.QUEUED
    return scene


@pytest.fixture
def scene(organisation: Organisation) -> Scene:
    """For tests to import."""
    return make_scene(organisation)


def lent_device(scene: Scene) -> Device:
    """The device of the session."""
    part = DeviceAllocation.objects.get(allocation__workload=scene.session)
    return part.device


def allocated(project: Project) -> int:
    """Thousandths of T4 that the last plan counts for a project."""
    return ProjectUsage.objects.get(project=project, resource="gpu:t4").allocated
