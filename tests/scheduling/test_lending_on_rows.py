"""Idle sessions' devices on loan, on the rows: a full node, one idle session on it, a training that
waits.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import numpy as np
import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from projects.models import NodeType, PriceChange, Project
from scheduling.agent import protocol
from scheduling.agent.protocol import LoanReport, LoanState, SwapState
from scheduling.agent_api import desired_loans, desired_state
from scheduling.analytics.facts import read as read_facts
from scheduling.analytics.measures import Measure, Scope
from scheduling.analytics.usage import integrate, no_signals
from scheduling.costs import costs_so_far, spent
from scheduling.cycle import run_cycle
from scheduling.idle_signals import idle_since
from scheduling.models import (
    Allocation,
    Attempt,
    CapacityInterval,
    Device,
    DeviceAllocation,
    Event,
    IdleSpell,
    Loan,
    Node,
    Phase,
    ProjectUsage,
    Workload,
)
from scheduling.selectors import workload_counts
from scheduling.services import stop, swap_out
from scheduling.services.idleness import watch_idle
from scheduling.snapshot import IDLE_MARK_LASTS_S, take_snapshot
from scheduling.texts import event_sentence
from scheduling.views.charts import range_of
from scheduling.views.sum_charts import workload_cost_chart
from tests.factories import submitted, training_spec
from tests.lending_scene import GIB, Scene, make_scene
from tests.scheduling.conftest import Organisation

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene(organisation: Organisation) -> Scene:
    return make_scene(organisation)


def _device(scene: Scene) -> Device:
    """Of the session."""
    part = DeviceAllocation.objects.get(allocation__workload=scene.session)
    return part.device


def allocated(project: Project) -> int:
    return ProjectUsage.objects.get(project=project, resource="gpu:t4").allocated


def test_an_idle_device_is_lent_and_counts_for_its_owner_only(scene: Scene) -> None:
    loan = scene.lend()
    assert scene.training.phase == Phase.STARTING
    assert (loan.lender.workload, loan.borrower.workload) == (scene.session, scene.training)
    assert loan.gpu_milli == 1000
    assert loan.expected_left_s is not None
    assert scene.training.reason["code"] == "lent"
    allocation = Allocation.objects.get(workload=scene.training)
    assert allocation.is_lent
    assert _device(scene).allocated_milli == 1000
    assert allocated(scene.organisation.vision) == 1000
    assert allocated(scene.organisation.language) == 0
    assert scene.session.phase == Phase.RUNNING
    (desired,) = desired_loans(scene.agent.zone)
    assert desired == protocol.Loan(
        loan_id=str(loan.pk),
        lender_attempt_id=str(loan.lender_id),
        borrower_attempt_id=str(loan.borrower_id),
        device_uuids=[_device(scene).uuid],
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


def test_a_wake_parks_the_borrower_and_the_next_idle_time_takes_it_on(scene: Scene) -> None:
    first = scene.lend()
    now = time.time()
    scene.run_training()
    scene.say(first, LoanState.LENT, swapped_out_bytes=3 * GIB, out_s=0.5, lent_at=now)
    scene.refresh()
    assert scene.training.phase == Phase.RUNNING
    # A cell: the agent acts at once, and says so.
    scene.say(first, LoanState.WAKING, ended_by="cell")
    assert not first.is_wanted
    run_cycle()  # before the borrower's node has said anything of it
    scene.refresh()
    assert scene.training.phase == Phase.RUNNING
    scene.use(SwapState.SWAPPING_IN)
    scene.run_training(SwapState.SWAPPED_OUT)
    run_cycle()
    scene.refresh()
    assert scene.training.phase == Phase.RUNNING, "its process waits; nothing was stopped"
    settled = scene.say(
        first, LoanState.ENDED, ended_by="cell", wake_s=0.8, in_s=0.6, ended_at=now + 60
    )
    assert settled == [str(first.pk)]
    assert (first.wake_s, first.in_s, first.out_s) == (0.8, 0.6, 0.5)
    scene.use()
    run_cycle()
    assert Loan.objects.count() == 1
    assert not list(desired_loans(scene.agent.zone))
    # Idle again, later.
    Attempt.objects.update(woke_at=timezone.now() - timedelta(minutes=5))
    second = scene.lend()
    assert second.pk != first.pk
    assert second.borrower == first.borrower, "the same process goes on"
    codes = list(Event.objects.filter(workload=scene.session).values_list("code", flat=True))
    assert codes[-2:] == ["swapped_out", "swapped_in"]


def test_when_the_lender_ends_the_device_becomes_the_borrowers(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    stop(scene.session, actor=scene.organisation.vera)
    scene.agent.end(scene.session, cause="stopped")
    run_cycle()
    scene.refresh()
    loan.refresh_from_db()
    assert (loan.state, loan.ended_by) == ("ended", "lender_ended")
    allocation = Allocation.objects.get(workload=scene.training)
    assert not allocation.is_lent
    assert allocation.gpu_from is not None
    assert Attempt.objects.filter(workload=scene.training).count() == 1, "no restart"
    assert scene.training.phase == Phase.RUNNING
    assert list(scene.training.events.values_list("code", flat=True))[-1] == "settled"
    assert _device(scene).allocated_milli == 1000
    assert allocated(scene.organisation.language) == 1000
    scene.agent.end(scene.training)
    assert _device(scene).allocated_milli == 0


def test_when_the_borrower_ends_the_device_goes_back(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.agent.end(scene.training)
    scene.refresh()
    assert scene.training.phase == Phase.COMPLETED
    assert not scene.training.reason, "why it waited is over"
    assert not list(desired_loans(scene.agent.zone))
    assert _device(scene).allocated_milli == 1000
    assert not DeviceAllocation.objects.filter(is_lent=True, is_open=True).exists()
    scene.say(loan, LoanState.ENDED, ended_by="borrower_ended", ended_at=time.time())
    assert not Loan.objects.open().exists()


@pytest.mark.parametrize(
    ("error", "code"), [("not_idle", "lender_woke"), ("managed_memory", "lender_gone")]
)
def test_a_refused_loan_sends_the_borrower_back_to_the_queue(
    scene: Scene, error: str, code: str
) -> None:
    loan = scene.lend()
    scene.say(loan, LoanState.REFUSED, error=error)
    run_cycle()
    scene.refresh()
    assert scene.training.phase == Phase.CHECKPOINTING
    assert scene.training.reason["code"] == code
    if code == "lender_woke":
        assert scene.training.reason["details"]["lender"] == str(scene.session.pk)
    scene.agent.end(scene.training, cause="evicted")
    scene.refresh()
    assert scene.training.phase == Phase.PREEMPTED
    assert scene.training.num_preemptions == 0, "nobody took anything from it"


@pytest.mark.parametrize("state", [LoanState.WAKING, LoanState.ENDED])
def test_a_wake_before_the_borrower_began_sends_it_back_to_the_queue(
    scene: Scene, state: LoanState
) -> None:
    loan = scene.lend()
    assert scene.training.phase == Phase.STARTING
    over = {"ended_at": time.time()} if state == LoanState.ENDED else {}
    scene.say(loan, state, ended_by="cell", **over)
    scene.use()
    run_cycle()
    scene.refresh()
    assert scene.training.phase == Phase.CHECKPOINTING
    assert scene.training.reason["code"] == "lender_woke"
    assert scene.training.reason["details"]["lender"] == str(scene.session.pk)
    scene.agent.end(scene.training, cause="evicted")
    scene.refresh()
    assert scene.training.phase == Phase.PREEMPTED
    assert scene.training.num_preemptions == 0, "nobody took anything from it"
    assert not Allocation.objects.filter(workload=scene.training, ended_at=None).exists()


def test_what_was_asked_for_holds_for_its_loan_until_that_is_answered(scene: Scene) -> None:
    scene.rest(minutes=0.5)
    watch_idle(timezone.now())
    swap_out(scene.session, actor=scene.session.owner)
    run_cycle()
    loan = Loan.objects.get()
    (desired,) = desired_loans(scene.agent.zone)
    assert desired.idle_s == 0.0, "the agent does not ask for the window either"
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    assert Attempt.objects.get(pk=loan.lender_id).lend_asked_at is None


def test_a_refusal_answers_what_was_asked_for_and_begins_the_window_anew(scene: Scene) -> None:
    scene.rest(minutes=0.5)
    watch_idle(timezone.now())
    swap_out(scene.session, actor=scene.session.owner)
    run_cycle()
    loan = Loan.objects.get()
    scene.say(loan, LoanState.REFUSED, error="host_memory", ended_at=time.time())
    lender = Attempt.objects.get(pk=loan.lender_id)
    assert lender.lend_asked_at is None
    scene.agent.end(scene.training, cause="evicted")
    scene.rest()
    watch_idle(timezone.now())
    run_cycle()
    assert Loan.objects.count() == 1, "nor is it tried again and again"
    lender.refresh_from_db()
    assert lender.not_lent["code"] == "within_window"


def test_a_refused_loan_leaves_a_borrower_in_memory_where_it_is(scene: Scene) -> None:
    first = scene.lend()
    scene.run_training()
    scene.say(first, LoanState.LENT, lent_at=time.time())
    scene.say(first, LoanState.WAKING, ended_by="cell")
    scene.use(SwapState.SWAPPING_IN)
    scene.run_training(SwapState.SWAPPED_OUT)
    scene.say(first, LoanState.ENDED, ended_by="cell", ended_at=time.time())
    scene.use()
    Attempt.objects.update(woke_at=timezone.now() - timedelta(minutes=5))
    second = scene.lend()
    assert second.borrower == first.borrower
    scene.say(second, LoanState.REFUSED, error="not_idle", ended_at=time.time())
    scene.use()
    run_cycle()
    scene.refresh()
    assert scene.training.phase == Phase.RUNNING, "its progress is in memory"
    assert not scene.training.attempts.get().is_leaving
    Loan.objects.filter(pk=second.pk).update(
        started_at=timezone.now() - timedelta(minutes=6),
        ended_at=timezone.now() - timedelta(minutes=5),
    )
    third = scene.lend()
    assert third.borrower == first.borrower, "the next loan takes it on"


def test_switching_lending_off_ends_a_loan(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    Project.objects.update(lends_idle=False)
    run_cycle()
    scene.refresh()
    assert scene.training.phase == Phase.CHECKPOINTING
    assert scene.training.reason["code"] == "lending_off"
    assert list(desired_loans(scene.agent.zone)), "the device is its own until it has saved"
    scene.agent.end(scene.training, cause="evicted")
    assert not list(desired_loans(scene.agent.zone))


def test_a_parked_borrower_waits_with_a_reason_a_place_and_an_estimate(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    assert not scene.training.is_waiting
    scene.say(loan, LoanState.WAKING, ended_by="cell")
    scene.use(SwapState.SWAPPING_IN)
    scene.run_training(SwapState.SWAPPED_OUT)
    scene.say(loan, LoanState.ENDED, ended_by="cell", ended_at=time.time())
    scene.use()
    other = submitted(training_spec(scene.organisation.language), scene.organisation.lena)
    run_cycle()
    scene.refresh()
    other.refresh_from_db()
    assert scene.training.is_parked
    assert scene.training.reason["code"] == other.reason["code"] != "lent"
    assert (scene.training.queue_position, scene.training.queue_length) == (1, 2)
    assert other.queue_position == 2
    assert set(Workload.objects.waiting()) == {scene.training, other}
    counts = workload_counts(Workload.objects.filter(project=scene.organisation.language))
    assert (counts.num_running, counts.num_waiting) == (0, 2)
    # Lent to it again, it waits no more.
    stop(other, actor=scene.organisation.lena)
    Attempt.objects.update(woke_at=timezone.now() - timedelta(minutes=5))
    again = scene.lend()
    assert again.borrower == loan.borrower
    assert scene.training.reason["code"] == "lent"
    assert not scene.training.is_waiting
    assert not Workload.objects.waiting().exists()


def test_a_parked_borrower_that_is_stopped_waits_no_more(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.say(loan, LoanState.ENDED, ended_by="cell", ended_at=time.time())
    scene.use()
    run_cycle()
    scene.refresh()
    assert scene.training.is_parked
    stop(scene.training, actor=scene.organisation.lena)
    scene.refresh()
    assert scene.training.phase == Phase.CHECKPOINTING, "its program may save"
    assert scene.training.queue_position is None
    assert not Workload.objects.waiting().exists()


def test_what_was_stopped_on_loan_keeps_no_reason_of_it(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    stop(scene.training, actor=scene.organisation.lena)
    scene.agent.end(scene.training, cause="stopped")
    scene.refresh()
    assert scene.training.phase == Phase.STOPPED
    assert not scene.training.reason


@pytest.mark.parametrize("code", ["lending_off", "room_taken"])
@pytest.mark.parametrize("seen", ["borrower_ended", "orchestrator"])
def test_a_loan_whose_borrower_was_called_back_ended_by_what_it_was_called_back_for(
    scene: Scene, code: str, seen: str
) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    if code == "lending_off":
        Project.objects.update(lends_idle=False)
    else:  # its processor goes to somebody else, as of right
        Node.objects.filter(name="sim-t4-1").update(cpu_milli=1)
    run_cycle()
    scene.refresh()
    assert scene.training.reason["code"] == code
    scene.agent.end(scene.training, cause="evicted")
    scene.say(loan, LoanState.WAKING, ended_by=seen)
    scene.say(loan, LoanState.ENDED, ended_by=seen, ended_at=time.time(), wake_s=0.02)
    assert loan.ended_by == code
    event = scene.session.events.get(code="swapped_in")
    assert event.details["ended_by"] == code
    assert "0.02 s after" in event_sentence(event)


@pytest.mark.parametrize("seen", ["cell", "failed"])
def test_what_an_agent_knows_itself_is_kept(scene: Scene, seen: str) -> None:
    loan = scene.lend()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.say(loan, LoanState.ENDED, ended_by=seen, ended_at=time.time(), wake_s=1.04)
    assert loan.ended_by == seen
    assert " 1 s after" in event_sentence(scene.session.events.get(code="swapped_in"))


def test_a_loan_ends_by_the_other_lender_of_its_borrower(scene: Scene) -> None:
    first = scene.lend()
    second = Loan.objects.create(
        lender=Attempt.objects.filter(workload__project=scene.organisation.speech)[0],
        borrower=first.borrower,
        device=first.device,
        gpu_milli=500,
        started_at=first.started_at,
    )
    for loan in (first, second):
        scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.say(first, LoanState.WAKING, ended_by="button")
    second.refresh_from_db()
    assert not second.is_wanted
    scene.say(second, LoanState.ENDED, ended_by="orchestrator", ended_at=time.time(), wake_s=0.1)
    assert second.ended_by == "other_lender"
    assert first.ended_by == "button"


def test_a_loan_that_is_ordered_no_longer_after_its_borrowers_end_ended_by_that(
    scene: Scene,
) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.agent.end(scene.training)
    scene.say(loan, LoanState.ENDED, ended_by="orchestrator", ended_at=time.time())
    assert loan.ended_by == "borrower_ended"


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


def test_a_lent_gpu_is_charged_once_to_its_borrower(scene: Scene) -> None:
    """Half an hour on loan of an hour held: 45 an hour for the GPU, 1 for a GiB of host memory."""
    now = timezone.now()
    hour, half = now - timedelta(hours=1), now - timedelta(minutes=30)
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, swapped_out_bytes=4 * GIB, lent_at=half.timestamp())
    _only_its_gpu_costs(scene, now)
    costs = costs_so_far([scene.session.pk, scene.training.pk], now)
    assert float(costs[scene.training.pk]) == pytest.approx(22.5, abs=0.05)
    assert float(costs[scene.session.pk]) == pytest.approx(45 - 22.5 + 2, abs=0.05)
    facts = read_facts(hour, now, now)
    edges = np.array([hour.timestamp(), now.timestamp()])
    sums = integrate(facts, edges, no_signals(1))
    vision, language = scene.organisation.vision.pk, scene.organisation.language.pk

    def hours(measure: Measure, project: int) -> float:
        row = sums.get((Scope.PROJECT, measure, project, ""))
        return 0.0 if row is None else float(row[0])

    assert hours(Measure.GPU_ALLOCATED, vision) == pytest.approx(1.0, abs=1e-3)
    assert hours(Measure.GPU_ALLOCATED, language) == 0.0
    assert hours(Measure.GPU_LENT, vision) == pytest.approx(0.5, abs=1e-3)
    assert hours(Measure.COST, language) == pytest.approx(22.5, abs=0.05)
    assert hours(Measure.COST, vision) == pytest.approx(24.5, abs=0.05)
    assert hours(Measure.GPU_BORROWED, language) == 0.0


def test_room_beside_what_is_lent_is_charged_to_the_borrower(scene: Scene) -> None:
    """0.6 GPU of which a third is lent, for half an hour, at 45 an hour; the rate is what grows."""
    now = timezone.now()
    loan = scene.lend()
    scene.run_training()
    half = now - timedelta(minutes=30)
    scene.say(loan, LoanState.LENT, swapped_out_bytes=4 * GIB, lent_at=half.timestamp())
    _only_its_gpu_costs(scene, now)
    Loan.objects.update(gpu_milli=333)
    for workload, milli in ((scene.session, 333), (scene.training, 600)):
        DeviceAllocation.objects.filter(allocation__workload=workload).update(gpu_milli=milli)
    costs = spent([scene.session.pk, scene.training.pk], now)
    borrower, lender = costs[scene.training.pk], costs[scene.session.pk]
    assert float(borrower.amount) == pytest.approx(0.6 * 22.5, abs=0.05)
    assert float(borrower.per_hour) == pytest.approx(0.6 * 45)
    assert float(lender.amount) == pytest.approx(0.333 * 22.5 + 2, abs=0.05)
    assert float(lender.per_hour) == pytest.approx(4)
    for workload in (scene.session, scene.training):
        shown = workload_cost_chart(workload, "UTC", range_of({}))
        (line,) = shown.chart.payload["lines"]
        amount, rate = costs[workload.pk].amount, costs[workload.pk].per_hour
        assert line["amount"] == pytest.approx(float(amount), abs=0.05)
        assert line["per_hour"] == pytest.approx(float(rate))
    # Whatever it was called back for, what it used beside the loan ends with it.
    Loan.objects.update(state="ended", ended_at=now - timedelta(minutes=10), is_wanted=False)
    costs = spent([scene.session.pk, scene.training.pk], now)
    assert float(costs[scene.training.pk].amount) == pytest.approx(0.6 * 15, abs=0.05)
    assert costs[scene.training.pk].per_hour == 0
    assert float(costs[scene.session.pk].per_hour) == pytest.approx(0.333 * 45)


def _only_its_gpu_costs(scene: Scene, now: datetime) -> None:
    """The session has held it for an hour, the training runs for half of it."""
    hour, half = now - timedelta(hours=1), now - timedelta(minutes=30)
    Allocation.objects.filter(workload=scene.session).update(started_at=hour, cpu_milli=0)
    Allocation.objects.filter(workload=scene.training).update(started_at=half, cpu_milli=0)
    Allocation.objects.update(memory_mib=0)
    CapacityInterval.objects.update(started_at=now - timedelta(days=1))
    PriceChange.objects.update(valid_from=now - timedelta(days=1))
    Node.objects.update(last_report_at=now)


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
