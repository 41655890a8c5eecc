"""Time limits for tests: what runs, how long, and the task that looks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from projects import idle_rules
from projects.models import Project, User
from scheduling import cycle
from scheduling.cycle import run_cycle
from scheduling.models import Attempt, Event, Workload
from scheduling.services.ending import watch_ending
from scheduling.services.rules import AppliesTo, change_rule
from tests.factories import submitted, training_spec
from tests.scheduling.conftest import Organisation

HOUR, MINUTE = 3600, 60
CODES = ("limit_warning", "limit_withdrawn", "limit_extended", "time_limit")


@pytest.fixture
def limits(organisation: Organisation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four hours for each, and nothing ends for idling; each cycle estimates."""
    monkeypatch.setattr(cycle, "ESTIMATES_EVERY_S", 0.0)
    limits = {"max_run_interactive_s": 4 * HOUR, "max_run_training_s": 4 * HOUR}
    Project.objects.update(idle_stop_after_s=None, **limits)
    User.objects.filter(pk=organisation.vera.pk).update(email="vera@example.org")
    for each in (organisation.vision, organisation.language, organisation.speech):
        each.refresh_from_db()


def started(organisation: Organisation, hours: float = 0.0, **changes: object) -> Workload:
    """A training that has run for so long."""
    row = submitted(training_spec(organisation.vision, **changes), organisation.vera)
    run_cycle()
    organisation.agent.run(row)
    run_on(row, hours)
    return row


def run_on(row: Workload, hours: float) -> None:
    """Its present start began so much earlier."""
    began = timezone.now() - timedelta(hours=hours)
    Attempt.objects.open().filter(workload=row).update(started_at=began)
    row.refresh_from_db()


def look(after_min: float = 0.0) -> int:
    return watch_ending(timezone.now() + timedelta(minutes=after_min))


def told(row: Workload) -> list[str]:
    events = Event.objects.filter(workload=row, code__in=CODES)
    return list(events.values_list("code", flat=True))


def rule(project: Project, applies_to: AppliesTo, actor: User, **values: object) -> list[str]:
    with transaction.atomic():
        row = idle_rules.lock(project)
        return change_rule(row, values, applies_to=applies_to, actor=actor, channel="ui")
