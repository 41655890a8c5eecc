"""A changed rule on the rows: for which work it holds, and with which notice."""

from __future__ import annotations

import pytest
from django.utils import timezone

from projects.models import AuditEntry, Project
from scheduling.models import Attempt, Node, Phase
from scheduling.services.rules import AppliesTo
from tests.factories import submitted, training_spec
from tests.scheduling.conftest import Organisation
from tests.scheduling.limits import HOUR, MINUTE, limits, look, rule, started, told
from tests.scheduling.planned import seen

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("limits")]
__all__ = ["limits"]


# ---------------------------------------------------------------- for which work a rule holds


def test_a_new_rule_is_for_what_is_submitted_afterwards(organisation: Organisation) -> None:
    before = started(organisation, hours=3)
    rule(organisation.vision, AppliesTo.NEW, organisation.vera, max_run_training_s=HOUR)
    before.refresh_from_db()
    assert before.kept_rule == {"max_run_training_s": 4 * HOUR}
    assert look() == 0
    assert seen(before).expected_end_s == pytest.approx(timezone.now().timestamp() + HOUR, abs=120)
    organisation.vision.refresh_from_db()
    after = submitted(training_spec(organisation.vision), organisation.vera)
    assert seen(after).expected_run_s == HOUR
    rule(organisation.vision, AppliesTo.NEW, organisation.vera, max_run_training_s=None)
    before.refresh_from_db()
    after.refresh_from_db()
    assert before.kept_rule == {"max_run_training_s": 4 * HOUR}, "that of its submission"
    assert after.kept_rule == {"max_run_training_s": HOUR}


def test_a_first_limit_leaves_what_runs_without_one(organisation: Organisation) -> None:
    Project.objects.update(max_run_training_s=None)
    row = started(organisation, hours=50)
    rule(organisation.vision, AppliesTo.NEW, organisation.vera, max_run_training_s=HOUR)
    assert look() == 0
    assert seen(row).expected_end_s is None


def test_a_rule_for_running_work_gives_notice_first(organisation: Organisation) -> None:
    row = started(organisation, hours=3)
    waiting = submitted(training_spec(organisation.vision, num_devices=4), organisation.vera)
    rule(organisation.vision, AppliesTo.NEW, organisation.vera, max_run_training_s=2 * HOUR)
    rule(organisation.vision, AppliesTo.RUNNING, organisation.vera, max_run_training_s=MINUTE)
    row.refresh_from_db()
    assert row.kept_rule == {}
    now_s = timezone.now().timestamp()
    assert seen(row).expected_end_s == pytest.approx(now_s + 15 * MINUTE, abs=120)
    assert seen(waiting).expected_run_s == MINUTE
    steps = [bool(look(after_min=minute)) for minute in range(17)]
    assert [minute for minute, is_step in enumerate(steps) if is_step] == [0, 10, 15]
    row.refresh_from_db()
    assert row.phase == Phase.CHECKPOINTING
    entry = AuditEntry.objects.filter(action="project.idle_rule").latest("pk")
    assert entry.after is not None
    assert entry.after["rule_applies_to"] == "running"
    assert entry.after["num_workloads"] == 2


def test_a_looser_rule_for_running_work_takes_warnings_back(organisation: Organisation) -> None:
    row = started(organisation, hours=3.9)
    look()
    rule(organisation.vision, AppliesTo.RUNNING, organisation.vera, max_run_training_s=9 * HOUR)
    assert look() == 1
    assert told(row) == ["limit_warning", "limit_withdrawn"]
    attempt = Attempt.objects.get(workload=row)
    assert attempt.limit_notice_until is None, "nothing became tighter"


def test_running_work_comes_under_the_rule_though_no_field_changes(
    organisation: Organisation,
) -> None:
    row = started(organisation, hours=3)
    rule(organisation.vision, AppliesTo.NEW, organisation.vera, max_run_training_s=HOUR)
    assert rule(organisation.vision, AppliesTo.RUNNING, organisation.vera) == []
    row.refresh_from_db()
    assert row.kept_rule == {}
    assert AuditEntry.objects.filter(action="project.idle_rule").count() == 2
    rule(organisation.vision, AppliesTo.RUNNING, organisation.vera)
    assert AuditEntry.objects.filter(action="project.idle_rule").count() == 2, "nothing to do"


def test_an_idle_rule_is_kept_too_and_lending_changes_at_once(organisation: Organisation) -> None:
    Project.objects.update(max_run_training_s=None, max_run_interactive_s=None)
    row = started(organisation)
    values = {"idle_stop_after_s": HOUR, "idle_cpu_percent": 50.0, "lends_idle": True}
    rule(organisation.vision, AppliesTo.NEW, organisation.vera, **values)
    row.refresh_from_db()
    assert row.kept_rule == {"idle_stop_after_s": None, "idle_cpu_percent": 10.0}
    signals = dict.fromkeys(
        ("gpu_idle_since", "cpu_idle_since", "network_idle_since"),
        timezone.now().timestamp() - 9 * HOUR,
    )
    Attempt.objects.update(idle_signals={**signals, "held_cells": 0, "missing": []})
    Node.objects.update(last_report_at=timezone.now())
    assert look() == 0, "it was submitted under a rule that never stops"
    rule(organisation.vision, AppliesTo.RUNNING, organisation.vera)
    assert look() == 1
    row.refresh_from_db()
    assert row.phase == Phase.RUNNING, "warned, not stopped"


def test_each_gets_the_thresholds_of_its_own_rule(organisation: Organisation) -> None:
    from scheduling.agent_api import _spec

    row = started(organisation)
    rule(organisation.vision, AppliesTo.NEW, organisation.vera, idle_gpu_percent=33.0)
    attempt = Attempt.objects.select_related(
        "workload__project", "workload__owner", "node__node_type", "allocation"
    ).get(workload=row)
    spec = _spec(attempt, [attempt])
    assert spec.idle is not None
    assert spec.idle.gpu_percent == 2.0
