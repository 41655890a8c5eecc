"""What agents report and people ask becomes states and waits, once, however often it is said."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.agent import protocol
from scheduling.cycle import run_cycle
from scheduling.models import (
    Allocation,
    Attempt,
    Checkpoint,
    Command,
    Device,
    Event,
    Node,
    Phase,
    Wait,
    Workload,
)
from scheduling.services import ActionRefusedError, checkpoint_now, retry, stop
from scheduling.services.claims import GIVEN_UP_AFTER_S, LOST_AFTER_S
from scheduling.services.silence import watch_nodes
from tests.factories import attempt_report, session_spec, submitted, training_spec
from tests.scheduling.conftest import Organisation

pytestmark = pytest.mark.django_db


def running_training(organisation: Organisation, **changes: object) -> Workload:
    row = submitted(training_spec(organisation.language, **changes), organisation.lena)
    run_cycle()
    organisation.agent.run(row)
    row.refresh_from_db()
    return row


def running_session(organisation: Organisation) -> Workload:
    row = submitted(session_spec(organisation.vision), organisation.vera)
    run_cycle()
    organisation.agent.run(row)
    row.refresh_from_db()
    return row


def silence(seconds: float) -> None:
    Node.objects.update(last_report_at=timezone.now() - timedelta(seconds=seconds))


def num_held() -> int:
    return sum(device.allocated_milli for device in Device.objects.all())


def test_what_goes_around_the_share_is_told_once_until_it_ends(organisation: Organisation) -> None:
    row = running_training(organisation)

    def report(around: protocol.AroundShare | None) -> None:
        found = attempt_report(row, "running", started_at=1.0, around_share=around)
        organisation.agent.report(found)

    first = protocol.AroundShare("GPU-1", used_mib=6444, share_mib=4967, uncounted_mib=6444)
    for around in (first, replace(first, used_mib=7000), None, first):
        report(around)
    events = Event.objects.filter(workload=row, code="around_share")
    assert [each.details["used_mib"] for each in events] == [6444, 6444]
    attempt = Attempt.objects.get(workload=row)
    assert attempt.around_share["share_mib"] == 4967
    report(None)
    attempt.refresh_from_db()
    assert attempt.around_share == {}


def test_a_session_runs_once_its_page_answers(organisation: Organisation) -> None:
    row = submitted(session_spec(organisation.vision), organisation.vera)
    run_cycle()
    organisation.agent.report(attempt_report(row, phase="running", started_at=time.time()))
    row.refresh_from_db()
    assert row.phase == Phase.STARTING
    organisation.agent.run(row)
    row.refresh_from_db()
    assert row.phase == Phase.RUNNING


def test_a_report_said_twice_changes_nothing(organisation: Organisation) -> None:
    row = running_training(organisation)
    report = attempt_report(row, phase="exited", exit_cause=protocol.ExitCause.OWN, exit_code=0)
    assert organisation.agent.report(report) == [report.attempt_id]
    events = Event.objects.count()
    assert organisation.agent.report(report) == [report.attempt_id]
    row.refresh_from_db()
    assert row.phase == Phase.COMPLETED
    assert Event.objects.count() == events
    assert num_held() == 0


def test_an_end_nobody_knows_of_is_settled(organisation: Organisation) -> None:
    stranger = protocol.AttemptReport(
        attempt_id="11111111-1111-1111-1111-111111111111", phase=protocol.AttemptPhase.EXITED
    )
    nonsense = protocol.AttemptReport(attempt_id="what?", phase=protocol.AttemptPhase.REFUSED)
    assert organisation.agent.report(stranger, nonsense) == [
        stranger.attempt_id,
        nonsense.attempt_id,
    ]


def test_a_training_that_exits_1_is_retried_with_growing_pauses_and_not_for_ever(
    organisation: Organisation,
) -> None:
    row = submitted(training_spec(organisation.language, backoff_limit=2), organisation.lena)
    pauses = []
    for _ in range(3):
        Workload.objects.filter(pk=row.pk).update(not_before=None)
        run_cycle()
        organisation.agent.run(row)
        organisation.agent.end(row, exit_code=1, last_lines=["Traceback", "ValueError: no"])
        row.refresh_from_db()
        if row.not_before:
            pauses.append(round((row.not_before - row.phase_changed_at).total_seconds()))
    assert pauses == [10, 20]
    assert row.phase == Phase.FAILED
    assert row.reason["code"] == "exited"
    assert row.reason["details"]["exit_code"] == 1
    assert row.attempts.get(number=3).last_lines == ["Traceback", "ValueError: no"]
    assert [wait.cause for wait in row.waits.all()] == ["submitted", "failed", "failed"]
    assert not Wait.objects.filter(ended_at__isnull=True).exists()


def test_a_training_in_back_off_says_until_when(organisation: Organisation) -> None:
    row = running_training(organisation)
    organisation.agent.end(row, exit_code=1)
    run_cycle()
    row.refresh_from_db()
    assert row.phase == Phase.QUEUED
    assert row.reason["code"] == "backing_off"
    assert row.reason["details"]["attempts"] == 1


def test_a_kill_at_the_memory_limit_fails_with_limit_and_peak(organisation: Organisation) -> None:
    row = running_training(organisation)
    organisation.agent.end(
        row, cause="out_of_memory", exit_code=137, memory_limit_mib=1024, peak_memory_mib=1024
    )
    row.refresh_from_db()
    assert row.phase == Phase.FAILED
    assert row.reason["code"] == "out_of_memory"
    assert row.reason["details"]["limit_mib"] == 1024
    assert row.reason["details"]["peak_mib"] == 1024


def test_checkpoints_are_recorded_once_and_marked_when_they_expire(
    organisation: Organisation,
) -> None:
    row = running_training(organisation)
    one, two = (
        protocol.CheckpointReport(
            key=f"step-{step}",
            saved_at=time.time() + step,
            size_bytes=10,
            sha256="0" * 64,
            step=step,
        )
        for step in (1, 2)
    )
    organisation.agent.run(row, checkpoints=[one])
    organisation.agent.run(row, checkpoints=[one, two])
    organisation.agent.run(row, checkpoints=[two])
    assert [(item.step, item.is_kept) for item in Checkpoint.objects.order_by("step")] == [
        (1, False),
        (2, True),
    ]
    assert Event.objects.filter(code="checkpointed").count() == 2


def test_a_checkpoint_asked_for_by_a_person_is_asked_once(organisation: Organisation) -> None:
    row = running_training(organisation)
    checkpoint_now(row, actor=organisation.lena)
    assert Attempt.objects.get(workload=row).goal == "checkpoint"
    saved = protocol.CheckpointReport(
        key="step-5", saved_at=time.time(), size_bytes=10, sha256="0" * 64, step=5
    )
    organisation.agent.run(row, checkpoints=[saved])
    assert Attempt.objects.get(workload=row).goal == "run"


def test_a_session_cannot_be_asked_to_save(organisation: Organisation) -> None:
    row = running_session(organisation)
    with pytest.raises(ActionRefusedError) as refusal:
        checkpoint_now(row, actor=organisation.vera)
    assert refusal.value.code == "cannot_save"


def test_a_node_that_is_silent_is_lost_and_comes_back_with_its_work(
    organisation: Organisation,
) -> None:
    session, training = running_session(organisation), running_training(organisation)
    silence(LOST_AFTER_S + 1)
    assert watch_nodes() == 2
    for row in (session, training):
        row.refresh_from_db()
        assert row.phase == Phase.LOST
        assert row.reason["code"] == "node_lost"
    organisation.agent.run(session)
    organisation.agent.run(training)
    for row in (session, training):
        row.refresh_from_db()
        assert row.phase == Phase.RUNNING
        assert row.attempts.count() == 1
        assert row.reason["code"].startswith("started_")


def test_beyond_the_lease_a_lost_training_returns_to_the_queue_and_a_session_is_left_alone(
    organisation: Organisation,
) -> None:
    session, training = running_session(organisation), running_training(organisation)
    silence(GIVEN_UP_AFTER_S + 1)
    watch_nodes()
    watch_nodes()
    session.refresh_from_db()
    training.refresh_from_db()
    assert session.phase == Phase.LOST
    assert training.phase == Phase.QUEUED
    assert [wait.cause for wait in training.waits.all()] == ["submitted", "node_lost"]
    assert num_held() == 333


def test_a_lost_session_that_its_owner_stops_gives_its_place_back(
    organisation: Organisation,
) -> None:
    row = running_session(organisation)
    silence(GIVEN_UP_AFTER_S + 1)
    watch_nodes()
    row.refresh_from_db()
    stop(row, actor=organisation.vera)
    watch_nodes()
    watch_nodes()
    row.refresh_from_db()
    assert row.phase == Phase.STOPPED
    assert num_held() == 0


def test_a_clean_shutdown_returns_everything_to_the_queue(organisation: Organisation) -> None:
    session, training = running_session(organisation), running_training(organisation)
    organisation.agent.report(is_stopping=True)
    organisation.agent.end(session, cause="node_shutdown", exit_code=143)
    organisation.agent.end(training, cause="node_shutdown", exit_code=143)
    run_cycle()
    for row in (session, training):
        row.refresh_from_db()
        assert row.phase == Phase.STARTING, "the last report said that the agent is there again"


def test_nothing_starts_on_a_node_that_is_shutting_down(organisation: Organisation) -> None:
    organisation.agent.report(is_stopping=True)
    row = submitted(training_spec(organisation.language), organisation.lena)
    run_cycle()
    row.refresh_from_db()
    assert row.phase == Phase.QUEUED


class TestStop:
    def test_what_waits_stops_at_once(self, organisation: Organisation) -> None:
        row = submitted(training_spec(organisation.language), organisation.lena)
        stop(row, actor=organisation.lena)
        row.refresh_from_db()
        assert row.phase == Phase.STOPPED
        assert all(wait.ended_at for wait in row.waits.all())

    def test_what_runs_saves_first_and_the_agent_is_woken(self, organisation: Organisation) -> None:
        row = running_training(organisation)
        Command.objects.all().delete()
        stop(row, actor=organisation.lena)
        row.refresh_from_db()
        assert row.phase == Phase.CHECKPOINTING
        assert row.attempts.get().goal == "stop"
        assert Command.objects.count() == 1
        organisation.agent.end(row, cause="stopped", exit_code=143)
        row.refresh_from_db()
        assert row.phase == Phase.STOPPED
        assert num_held() == 0

    def test_twice_is_once(self, organisation: Organisation) -> None:
        row = running_training(organisation)
        stop(row, actor=organisation.lena)
        events = Event.objects.count()
        stop(row, actor=organisation.lena)
        assert Event.objects.count() == events

    def test_only_by_those_who_may(self, organisation: Organisation) -> None:
        row = running_training(organisation)
        with pytest.raises(ActionRefusedError) as refusal:
            stop(row, actor=organisation.vera)
        assert refusal.value.code == "not_allowed"


class TestRetry:
    def test_an_ended_workload_starts_again_as_its_next_attempt(
        self, organisation: Organisation
    ) -> None:
        row = running_session(organisation)
        organisation.agent.end(row)
        retry(row, actor=organisation.vera)
        run_cycle()
        row.refresh_from_db()
        assert row.phase == Phase.STARTING
        assert [attempt.number for attempt in row.attempts.all()] == [1, 2]
        assert Allocation.objects.filter(workload=row, ended_at__isnull=True).count() == 1

    def test_one_that_runs_is_left_alone(self, organisation: Organisation) -> None:
        row = running_session(organisation)
        with pytest.raises(ActionRefusedError) as refusal:
            retry(row, actor=organisation.vera)
        assert refusal.value.code == "not_ended"

    def test_a_name_taken_meanwhile_is_said(self, organisation: Organisation) -> None:
        row = running_session(organisation)
        organisation.agent.end(row)
        submitted(session_spec(organisation.vision, name=row.name), organisation.vera)
        with pytest.raises(ActionRefusedError) as refusal:
            retry(row, actor=organisation.vera)
        assert refusal.value.code == "name_taken"
        row.refresh_from_db()
        assert row.phase == Phase.COMPLETED
