"""What pages and API say of time limits, and what they refuse."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from projects.models import AuditEntry, Membership, Project, Role, User
from scheduling.agent.protocol import IdleReport
from scheduling.cycle import run_cycle
from scheduling.models import Attempt, Workload, Zone
from scheduling.services.ending import watch_ending
from tests.factories import attempt_report, make_member, session_spec, submitted, training_spec
from tests.scheduling.conftest import Organisation
from tests.scheduling.conftest import organisation as organisation
from tests.web.test_idle_rule import FORM, PAGE, patch
from tests.web.test_idleness_pages import offered, post
from tests.web.test_swap_pages import client_of, page_of

pytestmark = pytest.mark.django_db

HOUR = 3600


@pytest.fixture
def manager(organisation: Organisation) -> User:
    return make_member(organisation.vision, "mila", Role.MANAGER)


def running(organisation: Organisation, hours: float, *, is_session: bool = False) -> Workload:
    make = session_spec if is_session else training_spec
    row = submitted(make(organisation.vision), organisation.vera)
    run_cycle()
    organisation.agent.run(row)
    Attempt.objects.filter(workload=row).update(started_at=timezone.now() - timedelta(hours=hours))
    row.refresh_from_db()
    return row


@pytest.fixture
def _four_hours(organisation: Organisation) -> None:
    limits = {"max_run_interactive_s": 4 * HOUR, "max_run_training_s": 4 * HOUR}
    Project.objects.update(idle_stop_after_s=None, **limits)
    organisation.vision.refresh_from_db()


# ---------------------------------------------------------------- the rule


def test_the_rule_is_set_on_its_page_for_new_or_for_running_work(
    organisation: Organisation, manager: User
) -> None:
    row = running(organisation, 1)
    values = {**FORM, "max_run_interactive_s": "600", "max_run_training_s": "500.5"}
    response = client_of(manager).post(PAGE, values, follow=True)
    page = response.content.decode().replace("\xa0", " ")
    assert "Sessions run for: 10 h. Trainings, waits apart: 8 h 20 min." in page
    project = Project.objects.get(name="vision")
    assert (project.max_run_interactive_s, project.max_run_training_s) == (36_000, 30_030)
    row.refresh_from_db()
    assert row.kept_rule["max_run_training_s"] is None
    page = page_of(organisation.vera, f"/workloads/{row.pk}")
    assert "As it was in project Vision when this was submitted" in page
    assert 'id="time-limit"' not in page
    client_of(manager).post(PAGE, {**values, "rule_applies_to": "running"})
    row.refresh_from_db()
    assert row.kept_rule == {}
    assert 'id="time-limit"' in page_of(organisation.vera, f"/workloads/{row.pk}", "ru")
    after = AuditEntry.objects.filter(action="project.idle_rule").latest("pk").after
    assert after == {"rule_applies_to": "running", "num_workloads": 1}


def test_without_limits_the_project_says_so(organisation: Organisation) -> None:
    page = page_of(organisation.vera, "/projects/vision")
    assert "Sessions and trainings run without a time limit." in page
    page = page_of(organisation.vera, "/projects/vision", "ru")
    assert "нет предела времени" in page


def test_who_changes_it_by_the_api_and_what_it_answers(
    organisation: Organisation, manager: User
) -> None:
    row = running(organisation, 1)
    body = {"max_run_training_s": 36_000, "rule_applies_to": "running"}
    assert patch(organisation.vera, body).status_code == 403
    answer = patch(manager, body)
    assert answer.status_code == 200
    assert answer.json()["max_run_training_s"] == 36_000
    assert answer.json()["max_run_interactive_s"] is None
    assert "rule_applies_to" not in answer.json(), "it is said with each change"
    assert answer.json()["source"] == "project"
    row.refresh_from_db()
    assert row.kept_rule == {}
    patch(manager, {"idle_stop_after_s": 36_001})
    (error,) = patch(manager, {"idle_stop_after_s": 36_001}).json()["errors"]
    assert (error["field"], error["code"]) == ("max_run_training_s", "not_above_idle")


# ---------------------------------------------------------------- its own limit


@pytest.mark.usefixtures("_four_hours")
@pytest.mark.parametrize(
    ("minutes", "english", "russian"),
    [
        ("0", "0 is too small: the least is 1.", "не менее 1"),
        ("43201", "43201 is too large: the most is", "не более 43"),
        ("soon", "“soon” is not a number.", "не число"),
        ("240.5", "240.5 is too large: project Vision allows 240 at most.", "не более 240"),
    ],
)
@pytest.mark.parametrize("kind", ["session", "training"])
def test_the_forms_refuse_a_wrong_limit_at_the_field(
    organisation: Organisation, kind: str, minutes: str, english: str, russian: str
) -> None:
    values = {"project": "vision", "name": "a-run", "max_run_min": minutes, "action": "submit"}
    for language, words in (("en", english), ("ru", russian)):
        response = client_of(organisation.vera, language).post(
            {"session": "/sessions/new", "training": "/workloads/new"}[kind], values
        )
        assert response.status_code == 422
        page = response.content.decode()
        assert words in page
        assert 'href="#id_max_run_min"' in page
    assert not Workload.objects.exists()


BODY = {
    "kind": "training",
    "project": "vision",
    "name": "a-run",
    "cpu_milli": 1000,
    "memory_mib": 1024,
    "command": ["true"],
}


@pytest.mark.usefixtures("_four_hours")
def test_the_api_takes_a_tighter_limit_and_refuses_a_looser_one(
    organisation: Organisation,
) -> None:
    Zone.objects.update(relay_url="")  # nobody is there to look at the command
    vera = organisation.vera
    for value, code, limit in (
        (14_401, "above_project", "14400"),
        (59, "too_small", "60"),
        (2_592_001, "too_large", "2592000"),
        (True, "wrong_type", "an integer"),
    ):
        answer = post(vera, "/api/v1/workloads", {**BODY, "max_run_s": value})
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert (error["field"], error["code"]) == ("max_run_s", code)
        assert error["limit"].replace(",", "").replace("\u00a0", "") == limit
    answer = post(vera, "/api/v1/workloads", {**BODY, "max_run_s": 7200})
    assert answer.status_code == 201
    found = answer.json()
    assert found["max_run_s"] == 7200
    assert found["time_limit"] == {
        "limit_s": 7200,
        "is_own": True,
        "ran_s": 0.0,
        "left_s": 7200.0,
        "end_at": None,
        "warned_end_at": None,
        "extensions_left": 10,
    }
    clone = client_of(vera).get(f"/workloads/new?clone={found['id']}").content.decode()
    assert 'name="max_run_min" value="120"' in clone


@pytest.mark.usefixtures("_four_hours")
def test_the_pane_says_how_long_it_may_run(organisation: Organisation) -> None:
    values = {
        "kind": "training",
        "project": "vision",
        "gpu_mode": "none",
        "cpu_cores": "1",
        "memory_gib": "1",
        "priority": "medium",
    }
    response = client_of(organisation.vera).post("/workloads/preview", values)
    page = response.content.decode().replace("\xa0", " ")
    assert "Project Vision lets it run for 4 h at most; its owner is warned." in page


# ---------------------------------------------------------------- while it runs


@pytest.mark.usefixtures("_four_hours")
@pytest.mark.parametrize(
    ("language", "words", "button"),
    [
        ("en", "Its time limit of 4 h is over at", "Extend from now by"),
        ("ru", "Предел времени, 4 ч, истекает в", "Продлить с этой минуты на"),
    ],
)
def test_page_and_card_warn_and_offer_to_extend(
    organisation: Organisation, language: str, words: str, button: str
) -> None:
    row = running(organisation, 3.9, is_session=True)
    assert watch_ending(timezone.now()) == 1
    for address in (f"/workloads/{row.pk}", "/sessions"):
        page = page_of(organisation.vera, address, language).replace("\xa0", " ")
        assert words in page
        assert "data-limit-ending" in page
        assert page.count(button) == 1
    assert 'data-event="limit_warning"' in page_of(organisation.vera, f"/workloads/{row.pk}")


@pytest.mark.usefixtures("_four_hours")
def test_before_the_warning_the_page_says_when_and_extends(organisation: Organisation) -> None:
    row = running(organisation, 1)
    address = f"/workloads/{row.pk}"
    page = page_of(organisation.vera, address).replace("\xa0", " ")
    assert "data-limit-end>at" in page
    assert "by the rule of project Vision" in page
    assert 'name="extend_s" value="4"' in page
    assert 'name="extend_s" value="2"' not in page, "that would put nothing off"
    response = client_of(organisation.vera).post(
        f"{address}/extend", {"extend_s": "4"}, follow=True
    )
    page = response.content.decode().replace("\xa0", " ")
    assert "is kept longer" in page
    assert "extended by 1 h" in page
    assert "vera puts its time limit off" in page
    session = running(organisation, 1, is_session=True)
    assert "left</span>" in page_of(organisation.vera, "/sessions")
    colleague = make_member(organisation.vision, "max")
    page = page_of(colleague, f"/workloads/{session.pk}")
    assert "data-limit-end" in page
    assert "Extend from now by" not in page


@pytest.mark.usefixtures("_four_hours")
def test_a_waiting_one_says_what_it_has(organisation: Organisation) -> None:
    row = submitted(training_spec(organisation.vision), organisation.vera)
    page = page_of(organisation.vera, f"/workloads/{row.pk}").replace("\xa0", " ")
    assert "when it has run for 4 h more" in page


@pytest.mark.usefixtures("_four_hours")
def test_extended_often_the_owner_is_told_who_goes_on(
    organisation: Organisation, manager: User
) -> None:
    row = running(organisation, 3.9)
    Workload.objects.update(num_extensions=10)
    watch_ending(timezone.now())
    page = page_of(organisation.vera, f"/workloads/{row.pk}")
    assert "It was extended as often as its owner may" in page
    assert "Extend from now by" not in page
    answer = post(organisation.vera, f"/api/v1/workloads/{row.pk}/extend", {"extend_s": HOUR})
    assert (answer.status_code, answer.json()["code"]) == (409, "extended_often")
    assert "Extend from now by" in page_of(manager, f"/workloads/{row.pk}")
    answer = post(manager, f"/api/v1/workloads/{row.pk}/extend", {"extend_s": HOUR})
    assert answer.status_code == 200


@pytest.mark.usefixtures("_four_hours")
def test_extended_often_its_owner_is_still_offered_what_puts_off_idleness_alone(
    organisation: Organisation, manager: User
) -> None:
    row = running(organisation, 1)
    began_s = (timezone.now() - timedelta(hours=1)).timestamp()
    quiet = IdleReport(gpu_idle_since=began_s, cpu_idle_since=began_s, network_idle_since=began_s)
    organisation.agent.report(attempt_report(row, phase="running", started_at=began_s, idle=quiet))
    Project.objects.update(idle_stop_after_s=1.5 * HOUR)
    Workload.objects.update(num_extensions=10)
    address = f"/workloads/{row.pk}"
    assert offered(page_of(organisation.vera, address)) == ["1", "2"]
    assert offered(page_of(manager, address)) == ["1", "2", "4", "8"]
    client_of(organisation.vera).post(f"{address}/extend", {"extend_s": "2"})
    row.refresh_from_db()
    assert row.extended_s == 0
    assert offered(page_of(organisation.vera, address)) == []


@pytest.mark.usefixtures("_four_hours")
def test_the_api_tells_of_warning_extension_and_end(organisation: Organisation) -> None:
    row = running(organisation, 3.9)
    address = f"/api/v1/workloads/{row.pk}"
    watch_ending(timezone.now())
    limit = client_of(organisation.vera).get(address).json()["time_limit"]
    assert limit["warned_end_at"] is not None
    assert limit["left_s"] == pytest.approx(360, abs=120)
    answer = post(organisation.vera, f"{address}/extend", {"extend_s": 7200})
    limit = answer.json()["time_limit"]
    assert limit["warned_end_at"] is None
    assert limit["extensions_left"] == 9
    assert limit["left_s"] == pytest.approx(7200, abs=120)
    Attempt.objects.update(started_at=timezone.now() - timedelta(hours=9))
    for minute in (0, 10, 15):
        watch_ending(timezone.now() + timedelta(minutes=minute))
    organisation.agent.end(row, cause="stopped", exit_code=143)
    found = client_of(organisation.vera).get(address).json()
    assert (found["phase"], found["reason"]["code"]) == ("stopped", "time_limit")
    assert "Stopped by the time limit of project Vision" in found["reason"]["message"]
    page = page_of(organisation.vera, f"/workloads/{row.pk}", "ru").replace("\xa0", " ")
    assert "Остановлено по пределу времени проекта Vision" in page
    assert 'data-reason="time_limit"' in page


@pytest.mark.usefixtures("_four_hours")
def test_lists_cost_one_query_for_limits_however_long(organisation: Organisation) -> None:
    client = client_of(organisation.vera)

    def cost(address: str) -> int:
        client.get(address)
        with CaptureQueriesContext(connection) as queries:
            client.get(address)
        return len(queries)

    running(organisation, 1, is_session=True)
    addresses = ("/sessions", "/api/v1/workloads")
    few = [cost(address) for address in addresses]
    for _ in range(3):
        running(organisation, 1, is_session=True)
    assert [cost(address) for address in addresses] == few


def test_a_viewer_extends_nothing(organisation: Organisation) -> None:
    Project.objects.update(idle_stop_after_s=None, max_run_training_s=4 * HOUR)
    row = running(organisation, 3.9)
    viewer = make_member(organisation.vision, "walt", Role.VIEWER)
    assert Membership.objects.filter(user=viewer).exists()
    answer = post(viewer, f"/api/v1/workloads/{row.pk}/extend", {"extend_s": HOUR})
    assert answer.status_code == 403
