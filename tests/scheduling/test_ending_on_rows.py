"""The ending of what idles, on the rows: warnings, extensions, the end, and what puts it off."""

from __future__ import annotations

import smtplib
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.db import IntegrityError, transaction
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from projects.models import Project, User
from scheduling.agent.protocol import IdleReport, SwapState
from scheduling.cycle import run_cycle
from scheduling.models import Attempt, Event, Node, Notice, Phase, Workload
from scheduling.services import notices, retry, stop, wake
from scheduling.services.ending import watch_ending
from tests.factories import attempt_report, submitted, training_spec
from tests.lending_scene import Scene, make_scene
from tests.scheduling.conftest import Organisation

pytestmark = pytest.mark.django_db

ENDING_CODES = ("idle_warning", "idle_withdrawn", "idle_extended", "idle_stopped")
QUIET = ("gpu_idle_since", "cpu_idle_since", "network_idle_since")


@pytest.fixture
def scene(organisation: Organisation) -> Scene:
    User.objects.filter(pk=organisation.vera.pk).update(email="vera@example.org")
    organisation.vera.refresh_from_db()
    return make_scene(organisation)


def look(after_min: float = 0.0) -> int:
    """The periodic task, so long from now, while agents report."""
    now = timezone.now() + timedelta(minutes=after_min)
    Node.objects.update(last_report_at=now)
    return watch_ending(now)


def told(work: Workload) -> list[str]:
    """What happened to it for idling, in order."""
    return list(
        Event.objects.filter(workload=work, code__in=ENDING_CODES).values_list("code", flat=True)
    )


def goal(work: Workload) -> str:
    return Attempt.objects.get(workload=work, ended_at__isnull=True).goal


def rest_training(scene: Scene, work: Workload, minutes: float, **changes: object) -> None:
    since = time.time() - 60 * minutes
    idle = IdleReport(**dict.fromkeys(QUIET, since))  # type: ignore[arg-type]  # by name
    scene.agent.report(
        attempt_report(
            work,
            phase="running",
            started_at=time.time() - 86_400,
            idle=replace(idle, **changes),  # type: ignore[arg-type]  # names checked at run time
        )
    )


def test_a_session_is_warned_twice_and_then_stopped(scene: Scene) -> None:
    scene.rest(minutes=7 * 60 + 44)
    assert look() == 0
    assert look(after_min=1.5) == 1
    attempt = Attempt.objects.get(workload=scene.session)
    assert attempt.idle_end_at is not None
    assert attempt.idle_end_at - timezone.now() > timedelta(minutes=15.5)
    assert look(after_min=2) == 0
    assert look(after_min=12) == 1
    assert look(after_min=15) == 0
    scene.refresh()
    assert scene.session.phase == Phase.RUNNING
    assert look(after_min=17) == 1
    scene.refresh()
    assert scene.session.phase == Phase.STOPPING
    assert told(scene.session) == ["idle_warning", "idle_warning", "idle_stopped"]
    assert goal(scene.session) == "stop"
    assert scene.session.reason["code"] == "idle_stopped"
    assert look(after_min=18) == 0
    run_cycle()
    scene.agent.end(scene.session, cause="stopped", exit_code=0)
    scene.refresh()
    assert scene.session.phase == Phase.STOPPED
    assert scene.session.reason["details"]["stop_after_s"] == 8 * 3600
    assert retry(scene.session, actor=scene.organisation.vera).phase == Phase.QUEUED


def test_a_task_that_was_away_for_hours_gives_both_warnings_first(scene: Scene) -> None:
    scene.rest(minutes=30 * 60)
    steps = [bool(look(after_min=minute)) for minute in range(17)]
    assert [minute for minute, is_step in enumerate(steps) if is_step] == [0, 10, 15]
    assert told(scene.session) == ["idle_warning", "idle_warning", "idle_stopped"]


def test_a_task_that_died_between_the_warnings_gives_the_last_one_anew(scene: Scene) -> None:
    scene.rest(minutes=7 * 60 + 45)
    look()
    look(after_min=300)
    scene.refresh()
    assert scene.session.phase == Phase.RUNNING
    look(after_min=304)
    assert told(scene.session) == ["idle_warning", "idle_warning"]
    look(after_min=305)
    assert told(scene.session)[-1] == "idle_stopped"


@pytest.mark.parametrize(
    "signals",
    [
        {"held_cells": 1},
        {"kernels_idle_since": None},
        {"terminals_idle_since": None},
        {"gpu_idle_since": None},
        {"cpu_idle_since": None},
        {"network_idle_since": None},
        {"gpu_idle_since": None, "missing": ["gpu"]},
        {"cpu_idle_since": None, "missing": ["cpu"]},
        {"kernels_idle_since": None, "missing": ["kernels"]},
        {"terminals_idle_since": None, "missing": ["terminals"]},
    ],
    ids=str,
)
def test_one_busy_or_missing_signal_withdraws_everything(
    scene: Scene, signals: dict[str, object]
) -> None:
    scene.rest(minutes=8 * 60)
    look()
    scene.rest(minutes=8 * 60, **signals)
    look(after_min=20)
    assert told(scene.session) == ["idle_warning", "idle_withdrawn"]
    attempt = Attempt.objects.get(workload=scene.session)
    assert attempt.idle_warned_at is attempt.idle_end_at is None
    look(after_min=600)
    assert len(told(scene.session)) == 2


def test_used_for_a_moment_it_has_all_the_time_again(scene: Scene) -> None:
    scene.rest(minutes=8 * 60)
    look()
    look(after_min=10)
    scene.rest(minutes=1)  # between two looks
    look(after_min=16)
    assert told(scene.session)[-1] == "idle_withdrawn"


def test_an_agent_that_does_not_report_ends_nothing(scene: Scene) -> None:
    scene.rest(minutes=9 * 60)
    look()
    look(after_min=10)
    Node.objects.update(last_report_at=timezone.now() - timedelta(minutes=1))
    assert watch_ending(timezone.now() + timedelta(minutes=20)) == 0
    scene.refresh()
    assert scene.session.phase == Phase.RUNNING


def test_waking_by_the_button_begins_the_idleness_anew(scene: Scene) -> None:
    scene.rest(minutes=9 * 60)
    look()
    wake(scene.session, actor=scene.organisation.vera)
    look()
    assert told(scene.session) == ["idle_warning", "idle_withdrawn"]


def test_a_swapped_out_session_is_ended_as_well(scene: Scene) -> None:
    Project.objects.update(
        idle_window_s=300,
        idle_stop_after_s=600,
        idle_first_warning_s=120,
        idle_last_warning_s=60,
    )
    scene.swap_out_session()
    for minute in (0, 1, 2):
        look(after_min=minute)
    assert told(scene.session) == ["idle_warning", "idle_warning", "idle_stopped"]


def test_nothing_ends_where_the_project_says_so(scene: Scene) -> None:
    scene.rest(minutes=9 * 60)
    look()
    Project.objects.update(idle_stop_after_s=None)
    look(after_min=20)
    assert told(scene.session) == ["idle_warning", "idle_withdrawn"]
    look(after_min=600)
    scene.refresh()
    assert scene.session.phase == Phase.RUNNING


def test_the_network_may_lack_only_where_the_project_says_so(scene: Scene) -> None:
    Project.objects.update(idle_may_lack_network=False)
    scene.rest(minutes=9 * 60, network_idle_since=None, missing=["network"])
    assert look() == 0
    Project.objects.update(idle_may_lack_network=True)
    assert look() == 1


# ---------------------------------------------------------------- trainings


@pytest.fixture
def training(scene: Scene) -> Workload:
    """One that runs, with a way to save."""
    Node.objects.update(state="ready")
    run_cycle()
    scene.training.refresh_from_db()
    assert scene.training.phase == Phase.STARTING
    return scene.training


def test_an_idle_training_is_warned_saves_and_stops(scene: Scene, training: Workload) -> None:
    rest_training(scene, training, minutes=8 * 60)
    for minute in (0, 10, 15):
        assert look(after_min=minute) == 1
    training.refresh_from_db()
    assert training.phase == Phase.CHECKPOINTING, "it saves first"
    assert goal(training) == "stop"
    scene.agent.end(training, cause="stopped", exit_code=0)
    training.refresh_from_db()
    assert training.phase == Phase.STOPPED
    assert training.reason["code"] == "idle_stopped"


@pytest.mark.parametrize("name", QUIET)
def test_a_training_that_uses_something_is_not_idle(
    scene: Scene, training: Workload, name: str
) -> None:
    rest_training(scene, training, minutes=9 * 60, **{name: None})
    assert look() == 0


def test_a_training_that_needs_hardly_any_cpu_costs_the_watch_no_look_of_its_own(
    scene: Scene, training: Workload, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    rest_training(scene, training, minutes=30 * 60, gpu_idle_since=None)
    now = timezone.now()
    with django_assert_num_queries(2):  # of what is quiet, and of what has a time limit
        assert watch_ending(now) == 0


def test_a_borrower_that_waits_in_memory_is_not_idle(scene: Scene, training: Workload) -> None:
    rest_training(scene, training, minutes=9 * 60)
    Attempt.objects.filter(workload=training).update(swap_state=SwapState.SWAPPED_OUT.value)
    assert look() == 0
    Attempt.objects.filter(workload=training).update(
        swap_state=SwapState.RUNNING.value, woke_at=timezone.now()
    )
    assert look() == 0, "its idleness begins when it has its device back"
    assert look(after_min=8 * 60 - 14) == 1


def test_of_several_replicas_all_must_idle(scene: Scene) -> None:
    Node.objects.update(state="ready")
    spec = training_spec(
        scene.organisation.speech, num_devices=0, gpu_milli=None, min_replicas=2, max_replicas=2
    )
    gang = submitted(spec, scene.organisation.sergey)
    run_cycle()
    first, second = Attempt.objects.filter(workload=gang).order_by("replica")
    since = time.time() - 9 * 3600
    quiet = dict.fromkeys(QUIET, since)
    signals: dict[str, Any] = {**quiet, "held_cells": 0, "missing": []}
    busy = {**signals, "cpu_idle_since": None}
    rows = Attempt.objects.filter(workload=gang)
    rows.update(phase="running", is_ready=True, idle_signals=signals)
    Workload.objects.filter(pk=gang.pk).update(phase="running")
    rows.filter(pk=second.pk).update(idle_signals=busy)
    assert look() == 0
    rows.filter(pk=second.pk).update(idle_signals={})
    assert look() == 0, "of a replica that has not reported nothing is known"
    rows.filter(pk=second.pk).update(idle_signals=signals)
    for minute in (0, 10, 15):
        assert look(after_min=minute) == 1
    assert set(rows.values_list("goal", flat=True)) == {"stop"}
    first.refresh_from_db()
    assert first.idle_warned_at is not None


# ---------------------------------------------------------------- a new start


def test_a_new_start_knows_nothing_of_old_warnings(scene: Scene) -> None:
    vera = scene.organisation.vera
    scene.rest(minutes=9 * 60)
    look()
    stop(scene.session, actor=vera)
    scene.agent.end(scene.session, cause="stopped", exit_code=0)
    scene.refresh()
    retry(scene.session, actor=vera)
    run_cycle()
    scene.refresh()
    assert scene.session.current is not None
    assert scene.session.current.idle_warned_at is None


def test_the_schema_knows_no_end_without_a_warning(scene: Scene) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Attempt.objects.filter(workload=scene.session).update(idle_end_at=timezone.now())


# ---------------------------------------------------------------- mail


def test_each_warning_and_the_end_reach_the_owner_by_mail(scene: Scene) -> None:
    Workload.objects.update(language="ru")
    scene.rest(minutes=9 * 60)
    for minute in (0, 10, 15):
        look(after_min=minute)
    assert mail.outbox == [], "sent by a task of its own"
    assert notices.send_due(timezone.now() + timedelta(minutes=16)) == 3
    assert notices.send_due(timezone.now() + timedelta(minutes=17)) == 0
    first, _last, end = mail.outbox
    assert first.to == ["vera@example.org"]
    assert "По правилу простоя проекта Vision остановка в" in first.body
    assert f"/workloads/{scene.session.pk}" in first.body
    assert "Остановлено по правилу простоя" in end.body
    assert "\n" not in first.subject


def test_who_has_no_address_gets_no_mail(scene: Scene) -> None:
    User.objects.update(email="")
    scene.rest(minutes=9 * 60)
    look()
    assert told(scene.session) == ["idle_warning"]
    assert not Notice.objects.exists()


class Refusing:
    """A mail server at which every mail fails."""

    def __init__(self, *args: object, **options: object) -> None:
        raise smtplib.SMTPConnectError(421, "closed")


def test_a_mail_that_fails_is_tried_again_and_given_up_in_the_end(
    scene: Scene, settings: Any
) -> None:
    settings.EMAIL_BACKEND = f"{__name__}.Refusing"
    scene.rest(minutes=9 * 60)
    look()
    now = timezone.now()
    assert notices.send_due(now + timedelta(seconds=1)) == 0
    notice = Notice.objects.get()
    assert (notice.num_tries, notice.is_dead) == (1, False)
    assert "closed" in notice.last_error
    assert notices.send_due(now + timedelta(seconds=5)) == 0
    assert Notice.objects.get().num_tries == 1, "not before its time"
    for hour in range(1, 12):
        notices.send_due(now + timedelta(hours=hour))
    notice.refresh_from_db()
    assert (notice.num_tries, notice.is_dead) == (notices.MAX_TRIES, True)
