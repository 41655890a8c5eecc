"""Idle work that a person keeps: by how much, by whom, and over its next start too."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from projects.models import AuditEntry, Project, Role
from scheduling.cycle import run_cycle
from scheduling.models import Attempt, Node, Phase
from scheduling.services import ActionRefusedError, extend, retry, stop
from tests.factories import make_member
from tests.lending_scene import Scene
from tests.scheduling.test_ending_on_rows import look, scene

pytestmark = pytest.mark.django_db
__all__ = ["scene"]


def pressed_earlier(minutes: float) -> None:
    """What was extended lasts for so much less from now."""
    by = timedelta(minutes=minutes)
    Attempt.objects.exclude(idle_kept_until=None).update(idle_kept_until=F("idle_kept_until") - by)


def test_extend_puts_the_end_off_as_often_as_one_likes(scene: Scene) -> None:
    vera = scene.organisation.vera
    scene.rest(minutes=9 * 60)
    look()
    for _ in range(12):
        extend(scene.session, actor=vera, for_s=3600)
        pressed_earlier(minutes=20)
    extend(scene.session, actor=vera, for_s=3600)
    assert look() == 0
    assert look(after_min=44) == 0
    assert look(after_min=46) == 1, "warned anew"
    look(after_min=56)
    scene.refresh()
    assert scene.session.phase == Phase.RUNNING
    look(after_min=61)
    scene.refresh()
    assert scene.session.phase == Phase.STOPPING
    entries = AuditEntry.objects.filter(action="workload.extended")
    assert entries.count() == 13
    assert {entry.actor for entry in entries} == {vera}


def test_an_extension_that_would_put_nothing_off_is_refused(scene: Scene) -> None:
    vera = scene.organisation.vera
    with pytest.raises(
        ActionRefusedError, match=r"ended in 8.h at the earliest, so extending it by 1.h from"
    ):
        extend(scene.session, actor=vera, for_s=3600)
    scene.rest(minutes=9 * 60)
    extend(scene.session, actor=vera, for_s=8 * 3600)
    kept = Attempt.objects.get(workload=scene.session).idle_kept_until
    for hours in (1, 8):
        with pytest.raises(
            ActionRefusedError, match=rf"8.h at the earliest, so extending it by {hours}.h"
        ):
            extend(scene.session, actor=vera, for_s=hours * 3600)
    assert Attempt.objects.get(workload=scene.session).idle_kept_until == kept
    assert AuditEntry.objects.filter(action="workload.extended").count() == 1
    pressed_earlier(minutes=2)
    extend(scene.session, actor=vera, for_s=8 * 3600)


def test_a_warning_that_an_extension_does_not_reach_stays(scene: Scene) -> None:
    Project.objects.update(idle_first_warning_s=4 * 3600)
    scene.rest(minutes=5 * 60)
    assert look() == 1
    with pytest.raises(ActionRefusedError, match=r"4.h at the earliest"):
        extend(scene.session, actor=scene.organisation.vera, for_s=3600)
    assert look() == 0, "what was warned of holds"


def test_on_a_silent_node_what_was_told_says_whether_an_extension_helps(scene: Scene) -> None:
    vera = scene.organisation.vera
    scene.rest(minutes=9 * 60)
    look()
    Node.objects.update(last_report_at=timezone.now() - timedelta(hours=1))
    extend(scene.session, actor=vera, for_s=3600)
    with pytest.raises(ActionRefusedError, match=r"1.h at the earliest"):
        extend(scene.session, actor=vera, for_s=3600)


def test_extending_is_for_those_who_may_change_it_and_as_long_as_the_project_allows(
    scene: Scene,
) -> None:
    vision = scene.organisation.vision
    manager = make_member(vision, "mila", Role.MANAGER)
    colleague = make_member(vision, "max")
    scene.rest(minutes=9 * 60)
    extend(scene.session, actor=manager, for_s=3600)
    with pytest.raises(ActionRefusedError, match="may not change"):
        extend(scene.session, actor=colleague, for_s=3600)
    Project.objects.update(idle_max_extension_s=2 * 3600)
    with pytest.raises(ActionRefusedError, match=r"3.h is too long: project Vision allows 2.h"):
        extend(scene.session, actor=manager, for_s=3 * 3600)
    Project.objects.update(idle_stop_after_s=None)
    with pytest.raises(ActionRefusedError, match="never stops idle work"):
        extend(scene.session, actor=manager, for_s=3600)
    stop(scene.session, actor=manager)
    with pytest.raises(ActionRefusedError, match="Only what runs"):
        extend(scene.session, actor=manager, for_s=3600)


def start_again(scene: Scene, cause: str) -> Attempt:
    """What ran ends by itself or by a person, and starts anew."""
    if cause == "stopped":
        stop(scene.session, actor=scene.organisation.vera)
    scene.agent.end(scene.session, cause=cause, exit_code=0)
    scene.refresh()
    if cause == "stopped":
        retry(scene.session, actor=scene.organisation.vera)
    run_cycle()
    scene.refresh()
    assert scene.session.current is not None
    assert scene.session.current.number == 2
    return scene.session.current


def test_what_was_kept_stays_so_over_a_new_start(scene: Scene) -> None:
    scene.rest(minutes=9 * 60)
    extend(scene.session, actor=scene.organisation.vera, for_s=8 * 3600)
    kept_until = Attempt.objects.get(workload=scene.session).idle_kept_until
    assert start_again(scene, "node_shutdown").idle_kept_until == kept_until
    scene.agent.run(scene.session)
    Project.objects.update(idle_window_s=300, idle_stop_after_s=1200)
    scene.rest(minutes=30)
    assert look() == 0
    assert look(after_min=7.5 * 60) == 0
    assert look(after_min=7.8 * 60) == 1


def test_put_back_by_a_person_it_is_not_kept_any_more(scene: Scene) -> None:
    scene.rest(minutes=9 * 60)
    extend(scene.session, actor=scene.organisation.vera, for_s=8 * 3600)
    assert start_again(scene, "stopped").idle_kept_until is None
