"""Time limits on the rows: the clock, warnings, extensions, the end, and for whom a rule holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core import mail
from django.db import IntegrityError, transaction
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from projects import idle_rules
from projects.models import AuditEntry, Project, Role, User
from scheduling import cycle, past, texts, time_limits
from scheduling.agent.protocol import SwapReport, SwapState
from scheduling.cycle import run_cycle
from scheduling.models import LEADER, Attempt, Event, Node, Phase, Workload
from scheduling.services import (
    ActionRefusedError,
    SubmissionRefusedError,
    extend,
    notices,
    preview,
    retry,
    stop,
)
from scheduling.services.ending import watch_ending
from scheduling.services.grounds import IDLENESS, TIME_LIMIT
from scheduling.services.rules import AppliesTo, change_rule
from scheduling.snapshot import read_arrivals
from tests.factories import make_member, session_spec, submitted, training_spec
from tests.scheduling.conftest import Organisation
from tests.scheduling.test_rules_on_rows import seen

pytestmark = pytest.mark.django_db

HOUR, MINUTE = 3600, 60
CODES = ("limit_warning", "limit_withdrawn", "limit_extended", "time_limit")


@pytest.fixture(autouse=True)
def _limits(organisation: Organisation, monkeypatch: pytest.MonkeyPatch) -> None:
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


# ---------------------------------------------------------------- extending


def test_extend_lengthens_it_and_is_warned_anew(organisation: Organisation) -> None:
    row = started(organisation, hours=3.9)
    look()
    extend(row, actor=organisation.vera, for_s=2 * HOUR)
    row.refresh_from_db()
    now_s = timezone.now().timestamp()
    assert row.current is not None
    assert row.current.limit_end_at is row.current.limit_warned_at is None
    assert row.extended_s == pytest.approx(1.9 * HOUR, abs=120)
    assert seen(row).expected_end_s == pytest.approx(now_s + 2 * HOUR, abs=120)
    assert look(after_min=104) == 0
    assert look(after_min=106) == 1
    assert told(row) == ["limit_warning", "limit_extended", "limit_warning"]
    (entry,) = AuditEntry.objects.filter(action="workload.extended")
    assert entry.before is not None
    assert entry.after is not None
    assert entry.before["extended_s"] == 0
    assert entry.after["extended_s"] == row.extended_s


def test_an_extension_that_ends_before_the_limit_is_refused_and_costs_nothing(
    organisation: Organisation,
) -> None:
    row = started(organisation)
    with pytest.raises(ActionRefusedError, match=r"4.h at the earliest, so extending it by 2.h"):
        extend(row, actor=organisation.vera, for_s=2 * HOUR)
    row.refresh_from_db()
    assert (row.extended_s, row.num_extensions) == (0, 0)


def test_pressed_twice_it_costs_one_of_the_ten(organisation: Organisation) -> None:
    row = started(organisation, hours=3.9)
    extend(row, actor=organisation.vera, for_s=2 * HOUR)
    with pytest.raises(ActionRefusedError, match="puts nothing off"):
        extend(row, actor=organisation.vera, for_s=2 * HOUR)
    row.refresh_from_db()
    assert row.num_extensions == 1


def test_idleness_is_put_off_up_to_the_limit_without_costing_any_of_the_ten(
    organisation: Organisation,
) -> None:
    Project.objects.update(idle_stop_after_s=HOUR)
    row = started(organisation)
    Workload.objects.update(num_extensions=time_limits.MAX_EXTENSIONS)
    extend(row, actor=organisation.vera, for_s=2 * HOUR)
    row.refresh_from_db()
    assert (row.extended_s, row.num_extensions) == (0, time_limits.MAX_EXTENSIONS)
    with pytest.raises(ActionRefusedError, match="only managers of project Vision"):
        extend(row, actor=organisation.vera, for_s=5 * HOUR)


def test_its_owner_extends_ten_times_and_a_manager_goes_on(organisation: Organisation) -> None:
    row = started(organisation, hours=3.9)
    manager = make_member(organisation.vision, "mila", Role.MANAGER)
    for n in range(time_limits.MAX_EXTENSIONS):
        run_on(row, 3.9 + n)
        extend(row, actor=organisation.vera, for_s=HOUR)
    run_on(row, 13.9)
    with pytest.raises(ActionRefusedError, match="only managers of project Vision"):
        extend(row, actor=organisation.vera, for_s=HOUR)
    extend(row, actor=manager, for_s=HOUR)
    row.refresh_from_db()
    assert row.num_extensions == time_limits.MAX_EXTENSIONS + 1


def test_one_press_puts_off_both_ends(organisation: Organisation) -> None:
    Project.objects.update(idle_stop_after_s=3 * HOUR)
    row = started(organisation, hours=3.9)
    extend(row, actor=organisation.vera, for_s=2 * HOUR)
    attempt = Attempt.objects.get(workload=row)
    row.refresh_from_db()
    assert attempt.idle_kept_until is not None
    assert row.extended_s > 0


def test_what_nothing_ends_is_not_extended(organisation: Organisation) -> None:
    row = started(organisation)
    Project.objects.update(max_run_training_s=None)
    with pytest.raises(ActionRefusedError, match="never stops idle work, and it has no time"):
        extend(row, actor=organisation.vera, for_s=HOUR)


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


# ---------------------------------------------------------------- what the planner knows


def test_without_history_the_limit_is_the_range_and_its_basis(organisation: Organisation) -> None:
    past.forget()
    rows = [started(organisation, hours=1, max_run_s=2 * HOUR) for _ in range(8)]
    now_s = timezone.now().timestamp()
    for row in rows:
        known = seen(row)
        assert known.expected_end_s == pytest.approx(now_s + HOUR, abs=120)
        assert (known.early_end_s, known.expected_basis) == (None, "time_limits")
    waiting = submitted(training_spec(organisation.vision), organisation.vera)
    assert seen(waiting).expected_run_s == 4 * HOUR
    assert read_arrivals([waiting.pk])[0][1].expected_run_s == 4 * HOUR
    run_cycle()
    waiting.refresh_from_db()
    assert waiting.eta["basis"] == "time_limits"
    assert waiting.eta["max_at_s"] == pytest.approx(now_s + HOUR, abs=120)
    asked = preview(training_spec(organisation.vision), owner=organisation.vera)
    assert asked.eta["basis"] == "time_limits"


def finished(organisation: Organisation, minutes: float) -> None:
    row = started(organisation)
    organisation.agent.end(row)
    ended = timezone.now()
    Attempt.objects.filter(workload=row).update(
        started_at=ended - timedelta(minutes=minutes), ended_at=ended
    )


@pytest.mark.parametrize(
    ("hours", "basis", "end_h", "early_h"),
    [(0.0, "history", 0.5, 10 / 60), (1.0, "time_limits", 3.0, None)],
    ids=["earlier", "used up"],
)
def test_history_stays_the_range_where_it_is_earlier(
    organisation: Organisation, hours: float, basis: str, end_h: float, early_h: float | None
) -> None:
    for minutes in (10, 20, 30):
        finished(organisation, minutes)
    past.forget()
    now_s = timezone.now().timestamp()
    known = seen(started(organisation, hours=hours))
    assert known.expected_basis == basis
    assert known.expected_end_s == pytest.approx(now_s + end_h * HOUR, abs=120)
    early = None if early_h is None else pytest.approx(now_s + early_h * HOUR, abs=120)
    assert known.early_end_s == early
    past.forget()


def test_a_limit_before_what_history_says_cuts_the_range(organisation: Organisation) -> None:
    for minutes in (10, 20, 30):
        finished(organisation, minutes)
    past.forget()
    now_s = timezone.now().timestamp()
    known = seen(started(organisation, max_run_s=15 * MINUTE))
    assert known.expected_end_s == pytest.approx(now_s + 15 * MINUTE, abs=120)
    assert known.early_end_s == pytest.approx(now_s + 10 * MINUTE, abs=120)
    assert known.expected_basis == "time_limits"
    past.forget()


SECONDS = st.floats(1, 40 * 86_400)


@given(
    st.integers(60, 30 * 86_400),
    st.integers(0, 86_400),
    st.floats(0, 40 * 86_400),
    st.floats(0, 40 * 86_400),
    st.tuples(SECONDS, SECONDS).map(sorted) | st.none(),
)
def test_whatever_is_known_nothing_is_predicted_beyond_its_limit(
    limit_s: int, extended_s: int, ran_s: float, before_s: float, history: list[float] | None
) -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    row = Workload(project=Project(), kind="training", phase=Phase.RUNNING)
    row.max_run_s, row.extended_s = limit_s, extended_s
    leader = Attempt(workload=row, started_at=now - timedelta(seconds=ran_s))
    early, late = history or (None, None)
    basis = "history" if history else ""
    waiting = past.Expected(run_s=late, basis=basis)
    run = time_limits.bounded(waiting, row, None, before_s, now)
    assert run.run_s is not None
    assert 0 < run.run_s <= limit_s + extended_s
    assert (run == waiting) is (run.basis == "history")
    late_at, early_at = (None if each is None else now.timestamp() + each for each in (late, early))
    known = past.Expected(late_at, early_at, basis=basis)
    end = time_limits.bounded(known, row, leader, before_s, now)
    notice_s = time_limits.ending_rule(row, leader).first_warning_s
    left_s = max(limit_s + extended_s - ran_s - before_s, notice_s)
    assert end.end_s is not None
    assert end.end_s <= now.timestamp() + left_s + 0.001
    assert end.early_end_s is None or end.early_end_s <= end.end_s
    if late is None or abs(late - left_s) > 0.001:
        is_earlier = late is not None and late < left_s
        assert end.basis == ("history" if is_earlier else "time_limits")
