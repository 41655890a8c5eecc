"""Idle sessions' devices on loan, on the rows: a full node, one idle session on it, a training that
waits.
"""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from projects.models import NodeType, Project
from scheduling.agent import protocol
from scheduling.agent.protocol import LoanReport, LoanState
from scheduling.agent_api import desired_loans, desired_state
from scheduling.cycle import run_cycle
from scheduling.idle_sessions import IDLE_MARK_LASTS_S
from scheduling.idle_signals import idle_since
from scheduling.models import (
    Allocation,
    Attempt,
    DeviceAllocation,
    IdleSpell,
    Loan,
    Phase,
)
from scheduling.services.idleness import watch_idle
from scheduling.snapshot import take_snapshot
from tests.lending_scene import GIB, Scene, allocated, lent_device
from tests.lending_scene import scene as scene

pytestmark = pytest.mark.django_db


def test_an_idle_device_is_lent_and_counts_for_its_owner_only(scene: Scene) -> None:
    loan = scene.lend()
    assert scene.training.phase == Phase.STARTING
    assert (loan.lender.workload, loan.borrower.workload) == (scene.session, scene.training)
    assert loan.gpu_milli == 1000
    assert loan.expected_left_s is not None
    assert scene.training.reason["code"] == "lent"
    allocation = Allocation.objects.get(workload=scene.training)
    assert allocation.is_lent
    assert lent_device(scene).allocated_milli == 1000
    assert allocated(scene.organisation.vision) == 1000
    assert allocated(scene.organisation.language) == 0
    assert scene.session.phase == Phase.RUNNING
    (desired,) = desired_loans(scene.agent.zone)
    assert desired == protocol.Loan(
        loan_id=str(loan.pk),
        lender_attempt_id=str(loan.lender_id),
        borrower_attempt_id=str(loan.borrower_id),
        device_uuids=[lent_device(scene).uuid],
        idle_s=120.0,
    )
    run_cycle()  # and stays so
    assert Loan.objects.count() == 1
    assert Attempt.objects.filter(workload=scene.training).count() == 1


def test_the_agent_is_told_what_may_be_swapped_and_what_counts_as_idle(scene: Scene) -> None:
    Project.objects.update(idle_gpu_percent=5, idle_cpu_percent=20, idle_network_kib_s=10)
    spec = desired_state(scene.agent.zone).attempts[0]
    assert spec.is_swappable
    assert spec.idle == protocol.IdleThresholds(5.0, 0.2, 10.0)
    NodeType.objects.update(swap_enabled=False)
    assert not desired_state(scene.agent.zone).attempts[0].is_swappable


@pytest.mark.parametrize(
    ("signals", "is_idle"),
    [
        ({}, True),
        ({"held_cells": 1}, False),
        ({"gpu_idle_since": None}, False),
        ({"cpu_idle_since": None}, False),
        ({"kernels_idle_since": None}, False),
        ({"terminals_idle_since": None}, False),
        ({"network_idle_since": None}, False),
        ({"gpu_idle_since": None, "missing": ["gpu"]}, False),
        ({"cpu_idle_since": None, "missing": ["cpu"]}, False),
        ({"kernels_idle_since": None, "missing": ["kernels"]}, False),
        ({"network_idle_since": None, "missing": ["network"]}, True),
    ],
    ids=str,
)
def test_only_the_network_may_be_missing(signals: dict[str, object], is_idle: bool) -> None:
    names = ("gpu", "cpu", "network", "kernels", "terminals")
    quiet: dict[str, object] = {f"{name}_idle_since": 1000.0 + i for i, name in enumerate(names)}
    report = {**quiet, "held_cells": 0, "missing": [], **signals}
    since = idle_since(report, may_lack_network=True)
    assert (since is not None) is is_idle
    lacks_something = bool(report["missing"])
    assert (idle_since(report, may_lack_network=False) is None) is (lacks_something or not is_idle)
    if since is not None:
        assert since.timestamp() == 1004.0, "idle since the last signal fell quiet"


def test_without_the_watch_no_loan_begins(scene: Scene) -> None:
    """Worker or beat dead: nobody marks, and old marks count for nothing."""
    scene.rest()
    run_cycle()
    assert not Loan.objects.exists()
    watch_idle(timezone.now() - timedelta(seconds=IDLE_MARK_LASTS_S + 5))
    run_cycle()
    assert not Loan.objects.exists()
    watch_idle(timezone.now())
    run_cycle()
    assert Loan.objects.exists()


def test_a_busy_signal_counts_before_the_watch_looks_again(scene: Scene) -> None:
    scene.rest()
    watch_idle(timezone.now())
    scene.use()
    run_cycle()
    assert not Loan.objects.exists()
    spell = IdleSpell.objects.get()
    assert spell.owner == scene.session.owner
    assert not spell.is_cut_off
    assert abs((spell.ended_at - spell.started_at).total_seconds() - 600) < 5


def test_a_session_says_why_it_lends_nothing(scene: Scene) -> None:
    scene.rest(minutes=1)
    watch_idle(timezone.now())
    run_cycle()
    attempt = Attempt.objects.get(workload=scene.session)
    assert attempt.not_lent["code"] == "within_window"
    Project.objects.update(lends_idle=False)
    scene.rest()
    watch_idle(timezone.now())
    run_cycle()
    attempt.refresh_from_db()
    assert attempt.not_lent["code"] == "lending_off"
    assert not Loan.objects.exists()


def test_history_decides_whether_a_loan_is_made(scene: Scene) -> None:
    now = timezone.now()
    IdleSpell.objects.bulk_create(
        IdleSpell(
            owner=scene.session.owner,
            workload=scene.session,
            started_at=now - timedelta(hours=number, seconds=630),
            ended_at=now - timedelta(hours=number),
        )
        for number in range(1, 61)
    )
    scene.rest()
    watch_idle(now)
    run_cycle()
    assert not Loan.objects.exists()
    attempt = Attempt.objects.get(workload=scene.session)
    assert attempt.not_lent["code"] == "short_idleness"


def test_measured_speed_is_what_the_planner_reckons_with(scene: Scene) -> None:
    loan = scene.lend()
    scene.say(loan, LoanState.LENT, swapped_out_bytes=8 * GIB, out_s=2.0, lent_at=time.time())
    assert take_snapshot().policy.swap_mib_per_s == {"t4": 4096.0}


def test_the_schema_refuses_two_loans_of_one_session(scene: Scene) -> None:
    loan = scene.lend()
    with pytest.raises(IntegrityError, match="loan_one_of_a_lender"), transaction.atomic():
        Loan.objects.create(
            lender=loan.lender,
            borrower=loan.borrower,
            device=loan.device,
            gpu_milli=1000,
            started_at=timezone.now(),
        )
    with pytest.raises(IntegrityError, match="loan_end_agrees"), transaction.atomic():
        Loan.objects.filter(pk=loan.pk).update(state="ended")
    part = DeviceAllocation.objects.get(is_lent=True)
    held = DeviceAllocation.objects.filter(device=part.device, is_lent=False)
    with pytest.raises(IntegrityError, match="device_whole_lent_once"), transaction.atomic():
        held.update(is_lent=True)


def test_a_loan_nobody_knows_of_is_settled(scene: Scene) -> None:
    strange = LoanReport("11111111-1111-1111-1111-111111111111", LoanState.ENDED)
    assert scene.agent.report_loans(strange) == [strange.loan_id]
    assert scene.agent.report_loans(LoanReport("what?", LoanState.LENT)) == []


def test_who_presses_the_button_keeps_the_gpu_for_a_window(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.say(loan, LoanState.ENDED, ended_by="button", ended_at=time.time(), wake_s=0.1)
    scene.rest()
    Attempt.objects.update(woke_at=None)
    watch_idle(timezone.now())
    run_cycle()
    assert Loan.objects.count() == 1
    Loan.objects.update(ended_at=timezone.now() - timedelta(minutes=3), lent_at=None)
    run_cycle()
    assert Loan.objects.count() == 2
