"""Gangs and elastic trainings on the rows: started, reported on, ended."""

from __future__ import annotations

import time
from datetime import timedelta

from django.utils import timezone

from scheduling.agent import protocol
from scheduling.cycle import run_cycle
from scheduling.models import (
    Attempt,
    Device,
    Node,
    Workload,
)
from tests.factories import (
    submitted,
    training_spec,
)
from tests.scheduling.conftest import Organisation


def placed(row: Workload) -> list[int]:
    """Replicas that have a place."""
    return list(
        Attempt.objects.of(row).open().order_by("replica").values_list("replica", flat=True)
    )


def report(row: Workload, replica: int, phase: str, **values: object) -> protocol.AttemptReport:
    attempt = Attempt.objects.of(row).open().get(replica=replica)
    return protocol.AttemptReport(
        attempt_id=str(attempt.pk),
        phase=protocol.AttemptPhase(phase),
        **values,  # type: ignore[arg-type]  # names checked at run time
    )


def run(organisation: Organisation, row: Workload, *replicas: int) -> None:
    organisation.agent.report(
        *(report(row, replica, "running", started_at=time.time()) for replica in replicas)
    )
    row.refresh_from_db()


def end(
    organisation: Organisation, row: Workload, replica: int, cause: str = "own", exit_code: int = 0
) -> None:
    organisation.agent.report(
        report(
            row,
            replica,
            "exited",
            exit_cause=protocol.ExitCause(cause),
            exit_code=exit_code,
            ended_at=time.time(),
        )
    )
    row.refresh_from_db()


def started(organisation: Organisation, least: int, most: int, **changes: object) -> Workload:
    """A training of Lena's, which may borrow, whose replicas all run."""
    spec = training_spec(organisation.language, min_replicas=least, max_replicas=most, **changes)
    row = submitted(spec, organisation.lena)
    run_cycle()
    run(organisation, row, *placed(row))
    return row


def num_held() -> int:
    return sum(device.allocated_milli for device in Device.objects.all())


def silence(name: str, seconds: float) -> None:
    Node.objects.filter(name=name).update(
        last_report_at=timezone.now() - timedelta(seconds=seconds)
    )
