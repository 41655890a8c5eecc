"""Time limits on the rows: the clock, warnings and the end."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core import mail
from django.db import IntegrityError, transaction
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from projects.models import Project
from scheduling import texts, time_limits
from scheduling.agent.protocol import SwapReport, SwapState
from scheduling.cycle import run_cycle
from scheduling.models import LEADER, Attempt, Node, Phase, Workload
from scheduling.services import (
    SubmissionRefusedError,
    extend,
    notices,
    retry,
    stop,
)
from scheduling.services.ending import watch_ending
from scheduling.services.grounds import IDLENESS, TIME_LIMIT
from scheduling.services.rules import AppliesTo
from tests.factories import session_spec, submitted, training_spec
from tests.scheduling.conftest import Organisation
from tests.scheduling.limits import HOUR, MINUTE, limits, look, rule, run_on, started, told
from tests.scheduling.planned import seen

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("limits")]
__all__ = ["limits"]


# ---------------------------------------------------------------- warnings and end


def test_a_training_is_warned_twice_saves_and_stops(organisation: Organisation) -> None:
    row = started(organisation, hours=3.7)
    assert look() == 0
    assert look(after_min=4) == 1
    assert look(after_min=5) == 0
    assert look(after_min=14) == 1
    assert look(after_min=18) == 0
    assert look(after_min=20) == 1
    row.refresh_from_db()
    assert row.phase == Phase.CHECKPOINTING, "it saves first"
    assert row.current is not None
    assert row.current.goal == "stop"
    assert told(row) == ["limit_warning", "limit_warning", "time_limit"]
    organisation.agent.end(row, cause="stopped", exit_code=143)
    row.refresh_from_db()
    assert (row.phase, row.reason["code"]) == (Phase.STOPPED, "time_limit")
    assert (row.num_failures, row.not_before) == (0, None), "it is no failure"
    run_cycle()
    row.refresh_from_db()
    assert row.phase == Phase.STOPPED, "and is not tried again"
    assert "4\xa0h" in texts.reason_sentence(row.reason)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_however_it_ends_meanwhile_it_is_not_tried_again(
    organisation: Organisation, exit_code: int
) -> None:
    row = started(organisation, hours=5)
    for minute in (0, 10, 15):
        assert look(after_min=minute) == 1
    organisation.agent.end(row, cause="own", exit_code=exit_code)
    row.refresh_from_db()
    assert row.phase == Phase.STOPPED


def test_a_session_is_ended_as_well(organisation: Organisation) -> None:
    row = submitted(session_spec(organisation.vision), organisation.vera)
    run_cycle()
    organisation.agent.run(row)
    run_on(row, 5)
    for minute in (0, 10, 15):
        assert look(after_min=minute) == 1
    row.refresh_from_db()
    assert row.phase == Phase.STOPPING


def test_whoever_was_away_for_hours_gives_both_warnings_first(organisation: Organisation) -> None:
    row = started(organisation, hours=30)
    steps = [bool(look(after_min=minute)) for minute in range(17)]
    assert [minute for minute, is_step in enumerate(steps) if is_step] == [0, 10, 15]
    assert told(row)[-1] == "time_limit"


def test_of_a_short_limit_the_warnings_come_at_half_and_three_quarters(
    organisation: Organisation,
) -> None:
    row = started(organisation, max_run_s=4 * MINUTE)
    steps = [bool(look(after_min=half / 2)) for half in range(10)]
    assert [half / 2 for half, is_step in enumerate(steps) if is_step] == [2.0, 3.0, 4.0]
    assert told(row)[-1] == "time_limit"


def test_a_silent_node_does_not_lengthen_it(organisation: Organisation) -> None:
    started(organisation, hours=3.9)
    Node.objects.update(last_report_at=timezone.now() - timedelta(seconds=30))
    assert look() == 1


def test_a_lost_one_is_not_ended_before_it_is_back(organisation: Organisation) -> None:
    row = started(organisation, hours=9)
    Workload.objects.filter(pk=row.pk).update(phase=Phase.LOST)
    assert look() == 0
    assert seen(row).expected_end_s is None


def test_warnings_and_end_reach_the_owner_by_mail(organisation: Organisation) -> None:
    row = started(organisation, hours=5)
    Workload.objects.update(language="ru")
    for minute in (0, 10, 15):
        look(after_min=minute)
    assert notices.send_due(timezone.now() + timedelta(minutes=16)) == 3
    first, _last, end = mail.outbox
    assert "Остановка через 15\xa0мин, в" in first.body
    assert f"/workloads/{row.pk}" in first.body
    assert "Остановлено по пределу времени проекта Vision, 4\xa0ч" in end.body


def test_what_has_no_limit_costs_the_watch_no_look(
    organisation: Organisation, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    started(organisation, hours=100)
    Project.objects.update(max_run_training_s=None)
    now = timezone.now()
    with django_assert_num_queries(2):  # for idleness and for limits
        assert watch_ending(now) == 0


def test_nothing_is_locked_while_nothing_is_due(
    organisation: Organisation, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(3):
        started(organisation, hours=1)
    now = timezone.now()
    with django_assert_num_queries(3):
        assert watch_ending(now) == 0


@pytest.mark.parametrize("ground", [IDLENESS, TIME_LIMIT], ids=lambda ground: ground.prefix)
def test_all_that_is_told_of_an_end_has_a_sentence(ground: object) -> None:
    assert ground in (IDLENESS, TIME_LIMIT)
    prefix, code = (getattr(ground, name) for name in ("prefix", "code"))
    known = texts.known_codes()
    assert {f"{prefix}_warning", f"{prefix}_withdrawn", code} <= set(known["events"])
    assert code in known["reasons"]


# ---------------------------------------------------------------- the clock


def test_the_clock_counts_all_starts_and_no_waits(organisation: Organisation) -> None:
    row = started(organisation, hours=3)
    organisation.agent.end(row, cause="node_shutdown", exit_code=143)
    Attempt.objects.filter(workload=row).update(
        placed_at=timezone.now() - timedelta(hours=9),
        started_at=timezone.now() - timedelta(hours=9),
        ended_at=timezone.now() - timedelta(hours=6),
    )
    Workload.objects.filter(pk=row.pk).update(submitted_at=timezone.now() - timedelta(hours=10))
    row.refresh_from_db()
    assert row.phase == Phase.QUEUED
    assert seen(row).expected_run_s == pytest.approx(HOUR, abs=120)
    run_cycle()
    organisation.agent.run(row)
    run_on(row, 0.5)
    assert seen(row).expected_end_s == pytest.approx(timezone.now().timestamp() + HOUR / 2, abs=120)
    assert look(after_min=14) == 0
    assert look(after_min=16) == 1


def test_put_back_by_a_person_it_has_all_of_its_time_again(organisation: Organisation) -> None:
    row = started(organisation, hours=5)
    extend(row, actor=organisation.vera, for_s=HOUR)
    stop(row, actor=organisation.vera)
    organisation.agent.end(row, cause="stopped", exit_code=143)
    rule(organisation.vision, AppliesTo.NEW, organisation.vera, max_run_training_s=2 * HOUR)
    row = retry(row, actor=organisation.vera)
    row.refresh_from_db()
    assert (row.extended_s, row.num_extensions, row.kept_rule) == (0, 0, {})
    assert seen(row).expected_run_s == 2 * HOUR, "by the rule in force"


def test_a_borrower_that_waits_in_memory_stops_its_clock_and_a_session_does_not(
    organisation: Organisation,
) -> None:
    now = timezone.now()
    away = {
        "swap_state": "swapped_out",
        "swap_since": now - timedelta(hours=1),
        "in_memory_s": 1800.0,
        "started_at": now - timedelta(hours=3),
    }
    training = started(organisation)
    session = submitted(session_spec(organisation.vision), organisation.vera)
    run_cycle()
    organisation.agent.run(session)
    Attempt.objects.update(**away)
    ran = {}
    for row in (training, session):
        attempt = Attempt.objects.get(workload=row)
        ran[row.pk] = time_limits.ran(row, attempt, now)
        course = time_limits.course_of(row, attempt, 0.0, now)
        assert course is not None
        assert (course.since_s is None) is (row.pk == training.pk)
    assert ran == {training.pk: 1.5 * HOUR, session.pk: 3 * HOUR}


def test_times_in_memory_add_up_as_they_are_reported(organisation: Organisation) -> None:
    row = started(organisation, hours=9)
    for state in (SwapState.SWAPPING_OUT, SwapState.SWAPPED_OUT, SwapState.SWAPPING_IN) * 2:
        organisation.agent.run(row, swap=SwapReport(state=state))
        Attempt.objects.update(swap_since=timezone.now() - timedelta(hours=1))
    organisation.agent.run(row, swap=SwapReport(state=SwapState.RUNNING))
    assert Attempt.objects.get(workload=row).in_memory_s == pytest.approx(6 * HOUR, abs=120)


def test_a_borrower_that_has_to_wait_in_memory_is_not_warned_any_more(
    organisation: Organisation,
) -> None:
    row = started(organisation, hours=3.9)
    look()
    Attempt.objects.update(swap_state="swapped_out", swap_since=timezone.now())
    assert look() == 1
    assert look(after_min=60) == 0
    assert told(row) == ["limit_warning", "limit_withdrawn"]


def test_of_several_replicas_the_leader_tells_the_time(organisation: Organisation) -> None:
    spec = training_spec(
        organisation.speech, num_devices=0, gpu_milli=None, min_replicas=2, max_replicas=2
    )
    gang = submitted(spec, organisation.sergey)
    run_cycle()
    rows = Attempt.objects.filter(workload=gang)
    rows.update(phase="running", is_ready=True, started_at=timezone.now() - timedelta(hours=5))
    rows.exclude(replica=LEADER).update(started_at=timezone.now() - timedelta(hours=1))
    Workload.objects.filter(pk=gang.pk).update(phase="running")
    for minute in (0, 10, 15):
        assert look(after_min=minute) == 1
    assert set(rows.values_list("goal", flat=True)) == {"stop"}


# ---------------------------------------------------------------- its own limit


def test_the_tighter_one_of_both_holds(organisation: Organisation) -> None:
    own = started(organisation, max_run_s=HOUR)
    assert time_limits.limit_of(own) == time_limits.Limit(HOUR, is_own=True)
    Project.objects.update(max_run_training_s=1800)
    own.project.refresh_from_db()
    assert time_limits.limit_of(own) == time_limits.Limit(1800, is_own=False)


def test_one_above_the_projects_is_refused_with_both(organisation: Organisation) -> None:
    spec = training_spec(organisation.vision, max_run_s=5 * HOUR)
    with pytest.raises(SubmissionRefusedError, match=r"5.h is too long: .* allows 4.h") as refusal:
        submitted(spec, organisation.vera)
    assert (refusal.value.field, refusal.value.code) == ("max_run_s", "above_project")


@pytest.mark.parametrize("seconds", [0, 59, 30 * 86_400 + 1])
def test_the_schema_refuses_what_is_no_limit(organisation: Organisation, seconds: int) -> None:
    row = started(organisation)
    with pytest.raises(IntegrityError), transaction.atomic():
        Workload.objects.filter(pk=row.pk).update(max_run_s=seconds)
    for kind in ("interactive", "training"):
        with pytest.raises(IntegrityError), transaction.atomic():
            Project.objects.update(**{f"max_run_{kind}_s": seconds})


def test_the_schema_wants_idle_work_to_end_before(organisation: Organisation) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Project.objects.update(idle_stop_after_s=4 * HOUR)
