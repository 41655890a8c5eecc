"""A project's idle rule: who changes it, what is refused, and what pages and API say of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from projects import tokens
from projects.models import AuditEntry, Project, User
from tests.web.organisation import Organisation

pytestmark = pytest.mark.django_db

PAGE = "/projects/vision/idle-rule"
API = "/api/v1/projects/vision/idle-rule"
FORM = {
    "idle_window_s": "45",
    "idle_gpu_percent": "3.5",
    "idle_cpu_percent": "10",
    "idle_network_kib_s": "50",
    "idle_may_lack_network": "on",
    "lends_idle": "on",
    "lending_window_s": "300",
    "idle_stop_after_s": "480",
    "idle_first_warning_s": "15",
    "idle_last_warning_s": "5",
    "idle_max_extension_s": "8",
}


def browser(user: User, language: str = "en") -> Client:
    client = Client(headers={"Accept-Language": language})
    client.force_login(user)
    return client


def patch(user: User, body: object, language: str = "en") -> Any:  # a test client's answer
    secret = tokens.issue(user, name="tests").secret
    client = Client(headers={"Authorization": f"Bearer {secret}", "Accept-Language": language})
    return client.patch(API, json.dumps(body), content_type="application/json")


def get(user: User) -> Any:  # as above
    secret = tokens.issue(user, name="tests").secret
    return Client(headers={"Authorization": f"Bearer {secret}"}).get(API)


# ---------------------------------------------------------------- who


def test_a_manager_and_an_admin_change_it_and_a_researcher_does_not(
    organisation: Organisation,
) -> None:
    admin = User.objects.create_superuser("admin")
    for user in (organisation.max, admin):
        assert browser(user).get(PAGE).status_code == 200
        assert PAGE in browser(user).get("/projects/vision").content.decode()
        assert patch(user, {"lending_window_s": 60 + user.pk}).status_code == 200
    vera = organisation.vera
    assert browser(vera).get(PAGE).status_code == 403
    assert browser(vera).post(PAGE, FORM).status_code == 403
    assert PAGE not in browser(vera).get("/projects/vision").content.decode()
    refused = patch(vera, {"lends_idle": True})
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
    assert get(vera).status_code == 200
    assert browser(organisation.lena).get(PAGE).status_code == 403
    assert patch(organisation.lena, {"lends_idle": True}).status_code == 404
    assert Client().get(PAGE).status_code == 302


# ---------------------------------------------------------------- what it does


def test_the_page_reads_what_people_write_and_audits_what_changed(
    organisation: Organisation,
) -> None:
    browser(organisation.max).post(PAGE, FORM)
    project = Project.objects.get(name="vision")
    assert (project.idle_window_s, project.idle_gpu_percent) == (2700, 3.5)
    assert (project.lends_idle, project.lending_window_s) == (True, 300)
    entry = AuditEntry.objects.get(action="project.idle_rule")
    assert (entry.actor, entry.entity_id, entry.channel) == (organisation.max, "vision", "ui")
    assert entry.before == {
        "idle_window_s": 1800,
        "idle_gpu_percent": 2.0,
        "lends_idle": False,
        "lending_window_s": 120,
    }
    assert entry.after is not None
    assert entry.after["idle_window_s"] == 2700
    browser(organisation.max).post(PAGE, FORM)
    assert AuditEntry.objects.filter(action="project.idle_rule").count() == 1, "nothing changed"


def test_a_program_changes_single_fields(organisation: Organisation) -> None:
    assert get(organisation.max).json()["source"] == "default"
    answer = patch(organisation.max, {"idle_gpu_percent": 2.5, "idle_may_lack_network": False})
    assert answer.status_code == 200
    rule = answer.json()
    assert (rule["idle_gpu_percent"], rule["idle_may_lack_network"]) == (2.5, False)
    assert (rule["idle_window_s"], rule["source"]) == (1800, "project")
    assert get(organisation.max).json() == rule
    assert AuditEntry.objects.get(action="project.idle_rule").channel == "api"


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("en", "The idle rule and the time limits of project Machine vision are saved."),
        ("ru", "Правило простоя и пределы времени проекта Machine vision сохранены."),
    ],
)
def test_what_is_saved_is_said_with_the_projects_title(
    organisation: Organisation, language: str, words: str
) -> None:
    Project.objects.filter(name="vision").update(title="Machine vision")
    response = browser(organisation.max, language).post(PAGE, FORM, follow=True)
    assert words in response.content.decode()


@pytest.mark.parametrize("seconds", [3601, 12_345, 604_799])
def test_the_page_saves_seconds_of_a_program_as_it_shows_them(
    organisation: Organisation, seconds: int
) -> None:
    assert patch(organisation.max, {"idle_max_extension_s": seconds}).status_code == 200
    page = browser(organisation.max).get(PAGE).content.decode()
    (shown,) = re.findall(r'name="idle_max_extension_s" value="([^"]*)"', page)
    browser(organisation.max).post(PAGE, {**FORM, "idle_max_extension_s": shown})
    assert get(organisation.max).json()["idle_max_extension_s"] == seconds


def test_the_ending_is_switched_off_by_an_empty_field_and_by_null(
    organisation: Organisation,
) -> None:
    browser(organisation.max).post(PAGE, {**FORM, "idle_stop_after_s": ""})
    assert Project.objects.get(name="vision").idle_stop_after_s is None
    page = browser(organisation.vera).get("/projects/vision").content.decode()
    assert "Idle work is never stopped." in page
    assert patch(organisation.max, {"idle_stop_after_s": 7200}).status_code == 200
    page = browser(organisation.vera).get("/projects/vision").content.decode()
    assert "After 2\u00a0h idle a session is stopped" in page
    assert patch(organisation.max, {"idle_stop_after_s": None}).json()["idle_stop_after_s"] is None


def test_the_page_says_what_is_in_force_and_where_it_comes_from(
    organisation: Organisation,
) -> None:
    vera = organisation.vera
    page = browser(vera).get("/projects/vision").content.decode()
    assert "For 30\u00a0min GPU use below 2 %, CPU below 10 % of the request" in page
    assert "Allot’s defaults, not changed in project Vision." in page
    assert "Idle GPUs are not lent." in page
    Project.objects.update(idle_gpu_percent=2.5, lends_idle=True, idle_may_lack_network=False)
    page = browser(vera, "ru").get("/projects/vision").content.decode()
    assert "загрузка GPU ниже 2,5 %" in page
    assert "Через 2\u00a0мин простоя" in page
    assert "Где сеть не измерить, ничто не считается простоем." in page
    assert "Задано в проекте Vision." in page


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("field", "value", "english", "russian"),
    [
        ("idle_window_s", "4", "4 is too small: the least is 5.", "не менее 5"),
        ("idle_window_s", "1441", "1441 is too large: the most is 1440.", "не более 1440"),
        ("idle_window_s", "", "Enter a number from 5 to 1440.", "от 5 до 1440"),
        ("idle_window_s", "soon", "“soon” is not a number.", "не число"),
        ("idle_gpu_percent", "101", "101 is too large: the most is 100.", "не более 100"),
        ("idle_cpu_percent", "-1", "-1 is too small: the least is 0.", "не менее 0"),
        ("idle_network_kib_s", "1e3", "“1e3” is not a number.", "не число"),
        ("lending_window_s", "29", "29 is too small: the least is 30.", "не менее 30"),
        ("lending_window_s", "30.5", "“30.5” is not a whole number.", "не целое"),
        ("idle_stop_after_s", "59", "59 is too small: it must be idle and", "не менее 60"),
        ("idle_stop_after_s", "43201", "43201 is too large: the most is", "слишком много"),
        ("idle_first_warning_s", "1", "1 is too small: the least is 2.", "не менее 2"),
        ("idle_last_warning_s", "15", "15 is too large: the first warning", "не более 14"),
        ("idle_last_warning_s", "0.5", "0.5 is too small: the least is 1.", "не менее 1"),
        ("idle_max_extension_s", "169", "169 is too large: the most is 168.", "не более 168"),
        ("idle_max_extension_s", "", "Enter a number from 1 to 168.", "от 1 до 168"),
        ("max_run_interactive_s", "0", "0 is too small: the least is 1.", "не менее 1"),
        ("max_run_training_s", "43201", "43201 is too large: the most is", "не более 43"),
        ("max_run_training_s", "soon", "“soon” is not a number.", "не число"),
        ("max_run_interactive_s", "480", "stopped after 480, and a time limit must", "через 480"),
        ("max_run_training_s", "479.5", "stopped after 480, and a time limit must", "через 480"),
        ("rule_applies_to", "all", "“all” is none of: new, running.", "не из списка"),
    ],
)
def test_the_page_names_field_value_and_limit(
    organisation: Organisation, field: str, value: str, english: str, russian: str
) -> None:
    for language, words in (("en", english), ("ru", russian)):
        response = browser(organisation.max, language).post(PAGE, {**FORM, field: value})
        assert response.status_code == 422
        page = response.content.decode()
        assert words in page
        assert f'href="#id_{field}"' in page
        assert f'id="id_{field}_error"' in page
    assert Project.objects.get(name="vision").idle_window_s == 1800
    assert not AuditEntry.objects.filter(action="project.idle_rule").exists()


@pytest.mark.parametrize(
    ("field", "value", "code", "limit"),
    [
        ("idle_window_s", 299, "too_small", "300"),
        ("idle_window_s", 86_401, "too_large", "86400"),
        ("idle_window_s", 300.5, "not_whole", "300–86400"),
        ("idle_window_s", None, "wrong_type", "an integer"),
        ("idle_window_s", True, "wrong_type", "an integer"),
        ("idle_gpu_percent", 100.5, "too_large", "100"),
        ("lends_idle", "yes", "wrong_type", "true or false"),
        ("lending_window_s", "soon", "not_a_number", "30–86400"),
        ("idle_windows_s", 300, "unknown_field", None),
        ("idle_stop_after_s", 2699, "too_early", "2700"),
        ("idle_window_s", 28_000, "too_early", "28900"),
        ("idle_stop_after_s", "never", "not_a_number", "360–2592000"),
        ("idle_last_warning_s", 900, "too_large", "840"),
        ("idle_first_warning_s", None, "wrong_type", "an integer"),
        ("idle_max_extension_s", 3599, "too_small", "3600"),
        ("max_run_interactive_s", 0, "too_small", "60"),
        ("max_run_training_s", 43_201 * 60, "too_large", "2592000"),
        ("max_run_training_s", "soon", "not_a_number", "60–2592000"),
        ("max_run_training_s", True, "wrong_type", "an integer or null"),
        ("max_run_training_s", 28_800, "not_above_idle", "28800"),
        ("rule_applies_to", "all", "invalid_choice", "new, running"),
        ("rule_applies_to", 1, "wrong_type", "a string"),
    ],
)
def test_the_api_names_field_value_and_limit(
    organisation: Organisation, field: str, value: object, code: str, limit: str | None
) -> None:
    answer = patch(organisation.max, {field: value, "idle_cpu_percent": 20})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    # What is too early is the stop, whichever of the fields has changed.
    expected = "idle_stop_after_s" if code == "too_early" else field
    assert (error["field"], error["code"]) == (expected, code)
    if limit is not None:
        assert re.sub("(?<=\\d)[,\u00a0]", "", error["limit"]) == limit
    assert Project.objects.get(name="vision").idle_cpu_percent == 10
    russian = patch(organisation.max, {field: value}, "ru").json()["errors"][0]["message"]
    assert russian != error["message"]


def test_a_body_that_is_no_object_is_refused(organisation: Organisation) -> None:
    assert patch(organisation.max, [1]).status_code == 422
    assert patch(organisation.max, {}).status_code == 200, "nothing asked, nothing changed"


@pytest.mark.parametrize(
    "values",
    [
        {"idle_window_s": 299},
        {"idle_window_s": 86_401},
        {"idle_gpu_percent": -0.5},
        {"idle_cpu_percent": 100.5},
        {"idle_network_kib_s": -1},
        {"idle_stop_after_s": 2699},
        {"idle_stop_after_s": 2_592_001},
        {"idle_first_warning_s": 300},
        {"idle_last_warning_s": 59},
        {"idle_max_extension_s": 3599},
    ],
    ids=str,
)
def test_the_schema_refuses_it_too(organisation: Organisation, values: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Project.objects.update(**values)
