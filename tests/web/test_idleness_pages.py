"""What a workload's page says of its idleness: by which rule, and what each signal says; warnings,
extensions and the end."""

from __future__ import annotations

import json
import re
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from projects import tokens
from projects.models import AuditEntry, Project, User
from scheduling.agent.protocol import IdleReport
from scheduling.cycle import run_cycle
from scheduling.models import Event, Node, Phase
from scheduling.services.ending import watch_ending
from scheduling.services.idleness import watch_idle
from scheduling.states import state_of
from tests.factories import make_member
from tests.lending_scene import Scene
from tests.lending_scene import scene as scene
from tests.scheduling.conftest import organisation as organisation
from tests.web.test_swap_pages import client_of, page_of

pytestmark = pytest.mark.django_db


def says(page: str) -> dict[str, str]:
    """What each signal says, by name."""
    rows = page.split('data-signal="')[1:]
    return {row.partition('"')[0]: row.split('data-says="')[1].partition('"')[0] for row in rows}


def test_a_session_says_by_which_rule_and_what_each_signal_says(
    scene: Scene,
) -> None:
    address = f"/workloads/{scene.session.pk}"
    scene.rest(minutes=12, missing=["network"], network_idle_since=None, cpu_idle_since=None)
    page = page_of(scene.organisation.vera, address)
    assert says(page) == {
        "gpu": "quiet",
        "cpu": "busy",
        "network": "left_out",
        "kernels": "quiet",
        "terminals": "quiet",
    }
    assert "below 10 % of 2 cores" in page
    assert "signal missing: the others are enough" in page
    assert "Allot’s defaults, not changed in project Vision." in page
    Project.objects.update(idle_may_lack_network=False)
    assert says(page_of(scene.organisation.vera, address))["network"] == "missing"
    scene.use()
    assert "1 cell waits" in page_of(scene.organisation.vera, address)
    assert "ждёт 1 ячейка" in page_of(scene.organisation.vera, address, "ru")


def test_without_network_figures_it_is_idle_only_where_the_project_says_so(
    scene: Scene,
) -> None:
    Project.objects.update(idle_may_lack_network=False)
    scene.rest(missing=["network"], network_idle_since=None)
    assert watch_idle(timezone.now()) == 0
    Project.objects.update(idle_may_lack_network=True)
    assert watch_idle(timezone.now()) == 1
    Project.objects.update(idle_may_lack_network=False)
    assert watch_idle(timezone.now()) == 0
    scene.refresh()
    assert state_of(scene.session) == "running"


def test_a_training_has_its_signals_on_its_page(scene: Scene) -> None:
    Node.objects.update(state="ready")
    run_cycle()
    scene.refresh()
    since = time.time() - 60
    idle = IdleReport(gpu_idle_since=since, cpu_idle_since=None, network_idle_since=since)
    scene.agent.run(scene.training, idle=idle)
    found = says(page_of(scene.organisation.lena, f"/workloads/{scene.training.pk}"))
    assert found == {"gpu": "quiet", "cpu": "busy", "network": "quiet"}


# ---------------------------------------------------------------- warned, extended, ended


def warn(scene: Scene) -> None:
    scene.rest(minutes=9 * 60)
    assert watch_ending(timezone.now()) == 1
    scene.refresh()


@pytest.mark.parametrize(
    ("language", "words", "button"),
    [
        ("en", "By the idle rule of project Vision it is stopped at", "Extend from now by"),
        (
            "ru",
            "По правилу простоя проекта Vision она остановится в",
            "Продлить с этой минуты на",
        ),
    ],
)
def test_page_and_card_warn_and_offer_to_extend(
    scene: Scene, language: str, words: str, button: str
) -> None:
    warn(scene)
    vera = scene.organisation.vera
    for address in (f"/workloads/{scene.session.pk}", "/sessions"):
        page = page_of(vera, address, language)
        assert words in page
        assert page.count(button) == 1
        assert 'name="extend_s" value="8"' in page
    page = page_of(vera, f"/workloads/{scene.session.pk}", language)
    assert 'data-event="idle_warning"' in page


def test_a_colleague_sees_the_warning_and_cannot_extend(scene: Scene) -> None:
    warn(scene)
    colleague = make_member(scene.organisation.vision, "max")
    address = f"/workloads/{scene.session.pk}"
    page = page_of(colleague, address)
    assert "data-idle-ending" in page
    assert "Extend from now by" not in page
    response = client_of(colleague).post(f"{address}/extend", {"extend_s": "1"}, follow=True)
    assert "You may not change this workload." in response.content.decode()
    assert client_of(scene.organisation.lena).post(f"{address}/extend").status_code == 403


def test_before_the_warning_the_page_says_when_it_would_end(scene: Scene) -> None:
    scene.rest(minutes=60)
    address = f"/workloads/{scene.session.pk}"
    page = page_of(scene.organisation.vera, address)
    assert "If it stays idle it is stopped at" in page
    assert "data-idle-ending" not in page
    assert 'name="extend_s" value="8"' in page
    assert 'name="extend_s" value="4"' not in page, "that would put nothing off"
    scene.use()
    assert "If it stays idle" not in page_of(scene.organisation.vera, address)
    Project.objects.update(idle_stop_after_s=None)
    scene.rest(minutes=60)
    assert "If it stays idle" not in page_of(scene.organisation.vera, address)


def test_extending_on_the_page_takes_the_warning_away(scene: Scene) -> None:
    warn(scene)
    vera = scene.organisation.vera
    address = f"/workloads/{scene.session.pk}"
    response = client_of(vera).post(
        f"{address}/extend", {"extend_s": "2", "next": "/sessions"}, follow=True
    )
    page = response.content.decode()
    assert f"“{scene.session.name}” is kept longer." in page
    assert "data-idle-ending" not in page
    page = page_of(vera, address)
    assert "data-kept-until" in page
    assert "vera keeps it until" in page


def offered(page: str) -> list[str]:
    """By how many hours a page extends."""
    return re.findall(r'name="extend_s" value="([^"]*)"', page)


def test_kept_as_long_as_may_be_nothing_more_is_offered_and_the_api_says_why(
    scene: Scene,
) -> None:
    vera = scene.organisation.vera
    scene.rest(minutes=60)
    address = f"/workloads/{scene.session.pk}"
    assert offered(page_of(vera, address)) == ["8"]
    client_of(vera).post(f"{address}/extend", {"extend_s": "8"})
    page = page_of(vera, address)
    assert "data-kept-until" in page
    assert offered(page) == []
    response = client_of(vera, "ru").post(f"{address}/extend", {"extend_s": "8"}, follow=True)
    assert "ничего не отложит" in response.content.decode()
    answer = post(vera, f"/api/v1{address}/extend", {"extend_s": 8 * 3600})
    assert (answer.status_code, answer.json()["code"]) == (409, "ends_later")
    assert AuditEntry.objects.filter(action="workload.extended").count() == 1


@pytest.mark.parametrize(
    ("longest_h", "expected"), [(1, []), (4, ["4"]), (8, ["4", "8"]), (40.5, ["4", "8", "40.5"])]
)
@pytest.mark.parametrize(
    ("language", "why_not"),
    [("en", "the 1 h by which project Vision lets"), ("ru", "Проект Vision позволяет")],
)
def test_a_warning_long_before_offers_what_puts_the_end_off_or_says_why_not(
    scene: Scene, longest_h: float, expected: list[str], language: str, why_not: str
) -> None:
    longest_s = int(longest_h * 3600)
    Project.objects.update(idle_first_warning_s=3 * 3600, idle_max_extension_s=longest_s)
    warn(scene)
    for address in (f"/workloads/{scene.session.pk}", "/sessions"):
        page = page_of(scene.organisation.vera, address, language).replace("\xa0", " ")
        assert offered(page) == expected
        assert (why_not in page) is (not expected)
    for hours in expected:
        address = f"/workloads/{scene.session.pk}/extend"
        client_of(scene.organisation.vera).post(address, {"extend_s": hours})
    assert Event.objects.filter(code="idle_extended").count() == len(expected)


@pytest.mark.parametrize(
    ("sent", "english", "russian"),
    [
        ("9", "9 is too large: the most is 8.", "не более 8"),
        ("0.2", "0.2 is too small: the least is 0.25.", "не менее 0,25"),
        ("", "Enter a number from 0.25 to 8.", "от 0,25 до 8"),
        ("soon", "“soon” is not a number.", "не число"),
    ],
)
def test_a_wrong_extension_is_refused_in_words(
    scene: Scene, sent: str, english: str, russian: str
) -> None:
    address = f"/workloads/{scene.session.pk}/extend"
    for language, words in (("en", english), ("ru", russian)):
        client = client_of(scene.organisation.vera, language)
        response = client.post(address, {"extend_s": sent}, follow=True)
        assert words in response.content.decode()
    assert not Event.objects.filter(code="idle_extended").exists()


def post(user: User, address: str, body: object) -> Any:  # a test client's answer
    client = Client(headers={"Authorization": f"Bearer {tokens.issue(user, name='t').secret}"})
    return client.post(address, json.dumps(body), content_type="application/json")


def test_the_api_tells_of_the_end_and_extends(scene: Scene) -> None:
    warn(scene)
    vera = scene.organisation.vera
    address = f"/api/v1/workloads/{scene.session.pk}"
    idleness = client_of(vera).get(address).json()["idleness"]
    assert idleness["end_at"] is not None
    assert idleness["signals"][0]["name"] == "gpu"
    assert idleness["signals"][0]["says"] == "quiet"
    answer = post(vera, f"{address}/extend", {"extend_s": 7200})
    assert answer.status_code == 200
    assert answer.json()["idleness"]["end_at"] is None
    assert answer.json()["idleness"]["kept_until"] is not None
    assert AuditEntry.objects.get(action="workload.extended").channel == "api"


@pytest.mark.parametrize(
    ("body", "field", "code", "limit"),
    [
        ({"extend_s": 28_801}, "extend_s", "too_large", "28800"),
        ({"extend_s": 899}, "extend_s", "too_small", "900"),
        ({"extend_s": "soon"}, "extend_s", "not_a_number", "900–28800"),
        ({"extend_s": True}, "extend_s", "wrong_type", "an integer"),
        ({}, "extend_s", "required", "900–28800"),
        ({"extend_h": 1}, "extend_h", "unknown_field", "extend_s"),
        ([], "", "wrong_type", "object"),
    ],
    ids=str,
)
def test_the_api_names_what_is_wrong(
    scene: Scene, body: object, field: str, code: str, limit: str
) -> None:
    answer = post(scene.organisation.vera, f"/api/v1/workloads/{scene.session.pk}/extend", body)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["field"], error["code"], error["limit"]) == (field, code, limit)


def test_who_may_not_extends_nothing_by_the_api(scene: Scene) -> None:
    address = f"/api/v1/workloads/{scene.session.pk}/extend"
    colleague = make_member(scene.organisation.vision, "max")
    assert post(colleague, address, {"extend_s": 3600}).status_code == 403
    assert post(scene.organisation.lena, address, {"extend_s": 3600}).status_code == 404
    Project.objects.update(idle_stop_after_s=None)
    answer = post(scene.organisation.vera, address, {"extend_s": 3600})
    assert (answer.status_code, answer.json()["code"]) == (409, "never_ended")


@pytest.mark.parametrize("language", ["en", "ru"])
def test_an_ended_session_says_why_and_starts_again_by_a_dialog(
    scene: Scene, language: str
) -> None:
    vera = scene.organisation.vera
    warn(scene)
    for minute in (10, 15):
        now = timezone.now() + timedelta(minutes=minute)
        Node.objects.update(last_report_at=now)
        watch_ending(now)
    scene.agent.end(scene.session, cause="stopped", exit_code=0)
    why = {
        "en": "Stopped by the idle rule of project Vision: idle for 9",
        "ru": "Остановлено по правилу простоя проекта Vision: простой 9",
    }[language]
    lost = {"en": "files outside your home folder", "ru": "файлы вне домашней папки"}[language]
    address = f"/workloads/{scene.session.pk}"
    for page in (page_of(vera, address, language), page_of(vera, "/sessions", language)):
        assert why in page
        assert f'hx-get="{address}/retry' in page
    dialog = page_of(vera, f"{address}/retry?next=/sessions", language)
    assert "<dialog open" in dialog
    assert lost in dialog
    assert 'name="next" value="/sessions"' in dialog
    client_of(vera).post(f"{address}/retry")
    scene.refresh()
    assert scene.session.phase == Phase.QUEUED
    colleague = make_member(scene.organisation.vision, "max")
    assert client_of(colleague).get(f"{address}/retry").status_code == 403


def test_the_cards_cost_no_query_for_endings(scene: Scene) -> None:
    """A warned session asks who may extend it; all others ask nothing."""
    client = client_of(scene.organisation.vera)
    client.get("/sessions")
    with CaptureQueriesContext(connection) as before:
        client.get("/sessions")
    scene.rest(minutes=60)
    with CaptureQueriesContext(connection) as after:
        client.get("/sessions")
    assert len(after) == len(before)
