"""Decide and record: real plans on real rows, with an agent that only reports."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.db import IntegrityError, ProgrammingError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from projects.models import WorkloadKind
from scheduling.agent import protocol
from scheduling.core.cycle import plan
from scheduling.core.scenario import load_scenario, run_scenario
from scheduling.cycle import run_cycle
from scheduling.models import (
    Allocation,
    Attempt,
    CycleRecord,
    Device,
    DeviceAllocation,
    DeviceHold,
    Phase,
    ProjectUsage,
    Workload,
)
from scheduling.services import stop
from scheduling.services.planning import StalePlanError, apply_plan
from scheduling.snapshot import take_snapshot
from scheduling.system import banners
from tests.factories import session_spec, submitted, training_spec
from tests.scheduling.conftest import Organisation

pytestmark = pytest.mark.django_db


def allocated() -> list[int]:
    return sorted(
        (device.allocated_milli for device in Device.objects.all() if device.allocated_milli),
        reverse=True,
    )


def borrow_a_node(organisation: Organisation) -> Workload:
    """A training of language on four GPUs of one node; its quota is one."""
    borrower = submitted(training_spec(organisation.language, num_devices=4), organisation.lena)
    run_cycle()
    organisation.agent.run(borrower)
    borrower.refresh_from_db()
    return borrower


def claim_quota(organisation: Organisation, count: int = 4) -> list[Workload]:
    """Speech submits trainings of one GPU each, up to its quota."""
    rows = [
        submitted(training_spec(organisation.speech), organisation.sergey) for _ in range(count)
    ]
    run_cycle()
    for row in rows:
        row.refresh_from_db()
    return rows


def test_three_thirds_share_a_device_and_the_fourth_goes_to_another(
    organisation: Organisation,
) -> None:
    sessions = [submitted(session_spec(organisation.vision), organisation.vera) for _ in range(4)]
    run_cycle()
    assert allocated() == [999, 333]
    parts = DeviceAllocation.objects.filter(allocation__workload__in=sessions)
    assert {part.memory_mib for part in parts} == {14917 * 333 // 1000}


def test_a_session_beyond_quota_waits_with_the_numbers(organisation: Organisation) -> None:
    for _ in range(4):
        submitted(session_spec(organisation.vision), organisation.vera)
    fifth = submitted(session_spec(organisation.vision), organisation.vera)
    run_cycle()
    fifth.refresh_from_db()
    assert fifth.phase == Phase.QUEUED
    assert fifth.reason["code"] == "interactive_over_quota"
    assert fifth.reason["details"]["quota_gpu_milli"] == 1500
    assert fifth.reason["details"]["requested_gpu_milli"] == 333
    assert fifth.reason["offers"]
    assert (fifth.queue_position, fifth.queue_length) == (1, 1)


def test_a_training_borrows_what_nobody_asks_for(organisation: Organisation) -> None:
    borrower = borrow_a_node(organisation)
    assert borrower.phase == Phase.RUNNING
    assert borrower.is_borrowing
    assert borrower.reason["code"] == "started_borrowing"
    usage = ProjectUsage.objects.get(project=organisation.language, resource="gpu:t4")
    assert (usage.allocated, usage.quota) == (4000, 1000)


def test_a_guarantee_takes_back_from_the_project_most_over_its_quota(
    organisation: Organisation,
) -> None:
    sessions = [submitted(session_spec(organisation.vision), organisation.vera) for _ in range(4)]
    borrower = borrow_a_node(organisation)
    place = borrower.submitted_at
    claimants = claim_quota(organisation)
    borrower.refresh_from_db()
    assert borrower.phase == Phase.CHECKPOINTING
    assert borrower.reason["code"] == "reclaimed"
    assert borrower.claimant in claimants
    waiting = [row for row in claimants if row.phase == Phase.QUEUED]
    assert waiting, "what victims still hold cannot be given away"
    assert {row.reason["code"] for row in waiting} == {"awaiting_release"}
    assert DeviceHold.objects.filter(workload__in=waiting).count() == len(waiting)

    organisation.agent.end(borrower, cause="evicted", exit_code=143)
    run_cycle()
    borrower.refresh_from_db()
    assert borrower.phase == Phase.PREEMPTED
    assert borrower.submitted_at == place
    for row in claimants:
        row.refresh_from_db()
        assert row.phase == Phase.STARTING
    for row in sessions:
        row.refresh_from_db()
        assert row.phase == Phase.STARTING
    assert not DeviceHold.objects.exists()

    first, second = borrower.waits.all()
    assert (first.cause, first.claimant) == ("submitted", None)
    assert first.ended_at is not None
    assert second.cause == "reclaimed"
    assert second.claimant in claimants
    assert second.ended_at is None
    assert second.details["claimant_project"] == "Speech"


def test_the_borrower_returns_by_itself_when_the_guarantee_is_no_longer_used(
    organisation: Organisation,
) -> None:
    submitted(session_spec(organisation.vision), organisation.vera)
    borrower = borrow_a_node(organisation)
    claimants = claim_quota(organisation)
    organisation.agent.end(borrower, cause="evicted", exit_code=143)
    run_cycle()
    for row in claimants:
        organisation.agent.run(row)
        organisation.agent.end(row)
    run_cycle()
    borrower.refresh_from_db()
    assert borrower.phase == Phase.STARTING
    assert borrower.claimant is None
    assert borrower.attempts.count() == 2
    assert all(wait.ended_at for wait in borrower.waits.all())


def test_one_project_fills_every_device_that_it_may_use(organisation: Organisation) -> None:
    rows = [submitted(training_spec(organisation.language), organisation.lena) for _ in range(9)]
    run_cycle()
    assert allocated() == [1000] * 8
    assert Workload.objects.filter(pk__in=[row.pk for row in rows], phase=Phase.QUEUED).count() == 1


def test_planning_again_changes_nothing(organisation: Organisation) -> None:
    for _ in range(6):
        submitted(session_spec(organisation.vision), organisation.vera)
    borrow_a_node(organisation)
    claim_quota(organisation)
    before = list(Workload.objects.order_by("pk").values_list("pk", "phase", "generation"))
    records = CycleRecord.objects.count()
    outcome = run_cycle()
    assert outcome is not None
    assert not outcome.has_effects
    after = list(Workload.objects.order_by("pk").values_list("pk", "phase", "generation"))
    assert after == before
    assert CycleRecord.objects.count() == records


def test_a_plan_made_before_a_change_is_refused_whole(organisation: Organisation) -> None:
    one = submitted(training_spec(organisation.language), organisation.lena)
    two = submitted(training_spec(organisation.speech), organisation.sergey)
    taken = take_snapshot()
    decided = plan(taken.snapshot, taken.policy, timezone.now().timestamp())
    stop(one, actor=organisation.lena)
    with pytest.raises(StalePlanError):
        apply_plan(taken, decided)
    two.refresh_from_db()
    assert two.phase == Phase.QUEUED
    assert not Allocation.objects.exists()
    run_cycle()
    two.refresh_from_db()
    assert two.phase == Phase.STARTING


def test_what_a_row_says_already_is_not_written_again(organisation: Organisation) -> None:
    spec = training_spec(organisation.speech, num_devices=8, gpu_milli=1000)
    row = submitted(spec, organisation.sergey)
    run_cycle()
    row.refresh_from_db()
    assert row.reason["per_node_type"]
    said_at = row.reason_at
    run_cycle()
    row.refresh_from_db()
    assert row.reason_at == said_at


def test_a_cycle_that_changed_something_is_kept_and_can_be_replayed(
    organisation: Organisation,
) -> None:
    borrow_a_node(organisation)
    record = CycleRecord.objects.first()
    assert record is not None
    assert record.scenario["format"] == "scenario/1"
    result = run_scenario(load_scenario(record.scenario))
    placed = [name for name, row in result.replicas.items() if row.outcome == "placed"]
    started = [item["workload"] for item in record.decisions if item["type"] == "start"]
    assert len(placed) == len(started) == 1


class TestTheSchemaRefuses:
    def test_a_device_given_out_beyond_its_whole(self, organisation: Organisation) -> None:
        device = Device.objects.all()[0]
        device.allocated_milli = 1001
        with pytest.raises(IntegrityError, match="device_not_over_allocated"), transaction.atomic():
            device.save()

    def test_a_whole_device_given_twice(self, organisation: Organisation) -> None:
        one = borrow_a_node(organisation)
        two = submitted(training_spec(organisation.speech), organisation.sergey)
        run_cycle()
        taken = DeviceAllocation.objects.filter(allocation__workload=one)[0]
        other = Allocation.objects.get(workload=two)
        with pytest.raises(IntegrityError, match="device_whole_given_once"), transaction.atomic():
            DeviceAllocation.objects.create(
                allocation=other, device=taken.device, gpu_milli=1000, memory_mib=1
            )

    def test_gpus_asked_for_without_saying_how_much_of_each(
        self, organisation: Organisation
    ) -> None:
        with (
            pytest.raises(IntegrityError, match="workload_gpu_request_agrees"),
            transaction.atomic(),
        ):
            submitted(training_spec(organisation.speech, gpu_milli=None), organisation.sergey)

    def test_two_open_attempts_of_one_replica(self, organisation: Organisation) -> None:
        row = borrow_a_node(organisation)
        with (
            pytest.raises(IntegrityError, match="attempt_one_open_per_replica"),
            transaction.atomic(),
        ):
            Attempt.objects.create(
                workload=row, number=2, node=row.attempts.get().node, placed_at=timezone.now()
            )

    def test_a_preempted_session(self, organisation: Organisation) -> None:
        row = submitted(session_spec(organisation.vision), organisation.vera)
        row.phase = Phase.PREEMPTED
        with (
            pytest.raises(IntegrityError, match="workload_session_never_preempted"),
            transaction.atomic(),
        ):
            row.save()

    def test_a_preemptible_session(self, organisation: Organisation) -> None:
        row = submitted(session_spec(organisation.vision), organisation.vera)
        assert row.kind == WorkloadKind.INTERACTIVE
        row.is_preemptible = True
        with (
            pytest.raises(IntegrityError, match="workload_session_never_preemptible"),
            transaction.atomic(),
        ):
            row.save()


def test_of_equal_trainings_the_one_that_saved_last_gives_way(organisation: Organisation) -> None:
    rows = [submitted(training_spec(organisation.language), organisation.lena) for _ in range(8)]
    run_cycle()
    for row in rows:
        organisation.agent.run(row)
    hour_ago = timezone.now() - timedelta(hours=1)
    Attempt.objects.update(placed_at=hour_ago, started_at=hour_ago, ready_at=hour_ago)
    saved = protocol.CheckpointReport(
        key="step-1", saved_at=time.time(), size_bytes=1, sha256="0" * 64, step=1
    )
    organisation.agent.run(rows[3], checkpoints=[saved])
    (claimant,) = claim_quota(organisation, count=1)
    assert claimant.reason["code"] == "awaiting_release"
    victims = Workload.objects.filter(phase=Phase.CHECKPOINTING)
    assert [row.pk for row in victims] == [rows[3].pk]


def test_nobody_moves_for_a_place_that_is_being_left(organisation: Organisation) -> None:
    for _ in range(4):
        submitted(session_spec(organisation.vision), organisation.vera)
    borrower = borrow_a_node(organisation)
    for _ in range(4):
        claimant = submitted(training_spec(organisation.speech), organisation.sergey)
        run_cycle()
        if Attempt.objects.filter(workload=claimant).exists():
            organisation.agent.run(claimant)
    leaving = Attempt.objects.filter(goal="evict")
    assert [attempt.workload_id for attempt in leaving] == [borrower.pk]


def test_a_cycle_in_which_nothing_changes_costs_the_same_with_a_long_queue(
    organisation: Organisation,
) -> None:
    def num_queries_of_a_quiet_cycle() -> int:
        run_cycle()
        with CaptureQueriesContext(connection) as queries:
            run_cycle()
        return len(queries)

    submitted(training_spec(organisation.language, num_devices=5), organisation.lena)
    few = num_queries_of_a_quiet_cycle()
    for _ in range(40):
        submitted(training_spec(organisation.language, num_devices=5), organisation.lena)
    assert num_queries_of_a_quiet_cycle() == few


def test_a_failing_planner_says_so_above_every_page(organisation: Organisation) -> None:
    def said() -> list[str]:
        return [banner.text for banner in banners(timezone.now()) if "planner" in banner.text]

    borrow_a_node(organisation)
    assert said() == []
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE scheduling_projectusage RENAME TO elsewhere")
        with pytest.raises(ProgrammingError):
            run_cycle()
        (text,) = said()
        assert "ProgrammingError" in text
        cursor.execute("ALTER TABLE elsewhere RENAME TO scheduling_projectusage")
    run_cycle()
    assert said() == []


def test_what_devices_hold_follows_the_allocations(organisation: Organisation) -> None:
    borrow_a_node(organisation)
    before = allocated()
    Device.objects.update(allocated_milli=1000)
    run_cycle()
    assert allocated() == before


def test_gpu_memory_asked_for_is_what_it_sees(organisation: Organisation) -> None:
    row = submitted(
        session_spec(organisation.vision, gpu_milli=None, gpu_memory_mib=4000), organisation.vera
    )
    run_cycle()
    (part,) = DeviceAllocation.objects.filter(allocation__workload=row)
    assert part.memory_mib == 4000
    assert part.gpu_milli == -(-1000 * 4000 // 14917)
