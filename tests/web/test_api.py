"""The API, for programs: who may call, and what it accepts when something is submitted."""

from __future__ import annotations

import json
import re
import uuid

import pytest
from django.db import connection
from django.test import Client

from projects import tokens
from scheduling.models import Workload
from tests.web.api_program import SESSION, TRAINING, Api
from tests.web.organisation import Organisation

pytestmark = pytest.mark.django_db


# ---------------------------------------------------------------- who calls


def test_a_stranger_is_told_how_to_come_in(organisation: Organisation) -> None:
    answer = Client().get("/api/v1/workloads")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "not_authenticated"


@pytest.mark.parametrize("secret", ["", "allot_pat_wrong", "two words", "\xe9"])
def test_a_wrong_token_is_refused(organisation: Organisation, secret: str) -> None:
    answer = Api(secret).get("workloads")
    assert answer.status_code == 401
    assert answer.json()["code"] == "invalid_token"


def test_a_browser_needs_its_csrf_token_to_change_something(organisation: Organisation) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(organisation.vera)
    assert client.get("/api/v1/workloads").status_code == 200
    answer = client.post("/api/v1/workloads", json.dumps(SESSION), "application/json")
    assert answer.status_code == 403
    assert not Workload.objects.exists()


# ---------------------------------------------------------------- submitting


def test_submitting_makes_the_workload_that_was_asked_for(
    api: Api, organisation: Organisation
) -> None:
    answer = api.post("workloads", TRAINING)
    assert answer.status_code == 201
    row = Workload.objects.get()
    assert answer["Location"] == f"/api/v1/workloads/{row.pk}"
    body = answer.json()
    assert body["id"] == str(row.pk)
    assert {name: body[name] for name in TRAINING} == TRAINING
    assert row.command == TRAINING["command"]
    assert row.owner == organisation.vera
    assert row.is_preemptible
    assert (row.grace_s, row.backoff_limit, row.checkpoint_mode) == (60, 3, "signal")


def test_what_is_read_can_be_submitted_again(api: Api) -> None:
    first = api.post(
        "workloads", {**TRAINING, "checkpoint_every_s": 100, "env": {"A": "b=c"}}
    ).json()
    again = {
        name: value
        for name, value in first.items()
        if name in {*SESSION, "command", "env", "priority", "is_preemptible", "working_dir"}
        or name.startswith(("checkpoint_", "grace", "backoff"))
    }
    second = api.post("workloads", {**again, "name": "run-2"})
    assert second.status_code == 201
    assert {**second.json(), "name": "run"}.items() >= again.items()


@pytest.mark.parametrize(
    ("gpu", "kept"),
    [
        ({}, (0, None, None)),
        ({"num_devices": 0}, (0, None, None)),
        ({"num_devices": 2}, (2, 1000, None)),
        ({"num_devices": 4, "gpu_milli": 1000}, (4, 1000, None)),
        ({"gpu_milli": 1000}, (1, 1000, None)),
        ({"gpu_milli": 333}, (1, 333, None)),
        ({"gpu_memory_mib": 4096}, (1, None, 4096)),
        ({"num_devices": 1, "gpu_milli": None, "gpu_memory_mib": 4096}, (1, None, 4096)),
    ],
)
def test_gpus_may_be_asked_for_in_each_way(
    api: Api, gpu: dict[str, object], kept: tuple[int, int | None, int | None]
) -> None:
    body = {**TRAINING, **dict.fromkeys(("num_devices", "gpu_milli")), **gpu}
    answer = api.post("workloads", body)
    assert answer.status_code == 201, answer.json()
    row = Workload.objects.get()
    assert (row.num_devices, row.gpu_milli, row.gpu_memory_mib) == kept


WRONG: list[tuple[dict[str, object], str, str, str]] = [
    ({"project": "nowhere"}, "project", "unknown_project", "vision"),
    ({"project": "language"}, "project", "not_a_member", "vision"),
    ({"node_types": ["h100"]}, "node_types", "unknown_node_type", "t4"),
    ({"node_types": "t4"}, "node_types", "wrong_type", "array"),
    ({"node_types": ["cpu"]}, "node_types", "node_type_without_gpu", "t4"),
    ({"gpu_milli": 0}, "gpu_milli", "too_small", "50"),
    ({"gpu_milli": 1500}, "gpu_milli", "too_large", "1000"),
    ({"gpu_milli": -1}, "gpu_milli", "too_small", "50"),
    ({"gpu_milli": 333.5}, "gpu_milli", "not_whole", "1000"),
    ({"gpu_milli": "abc"}, "gpu_milli", "not_a_number", "1000"),
    ({"gpu_milli": "0,3,3,3"}, "gpu_milli", "not_a_number", "1000"),
    ({"gpu_milli": True}, "gpu_milli", "wrong_type", "integer"),
    ({"gpu_milli": 1e9}, "gpu_milli", "too_large", "1000"),
    ({"num_devices": 2}, "num_devices", "part_of_one_gpu", "1"),
    ({"num_devices": 9, "gpu_milli": 1000}, "num_devices", "too_large", "8"),
    ({"num_devices": 5, "gpu_milli": 1000}, "num_devices", "more_gpus_than_any_node", "4"),
    ({"gpu_memory_mib": 4096}, "gpu_memory_mib", "conflict", "gpu_milli"),
    (
        {"gpu_milli": None, "gpu_memory_mib": 99999},
        "gpu_memory_mib",
        "more_gpu_memory_than_any_device",
        "14917",
    ),
    ({"cpu_milli": 0}, "cpu_milli", "too_small", "100"),
    ({"cpu_milli": 33000}, "cpu_milli", "more_cores_than_any_node", "32000"),
    ({"cpu_milli": None}, "cpu_milli", "required", "100"),
    ({"memory_mib": 131073}, "memory_mib", "more_memory_than_any_node", "131072"),
    ({"memory_mib": 10**30}, "memory_mib", "too_large", "16777216"),
    ({"name": "../up"}, "name", "invalid_name", "40"),
    ({"name": "имя"}, "name", "invalid_name", "40"),
    ({"name": "x" * 10_000}, "name", "too_long", "40"),
    ({"name": 5}, "name", "wrong_type", "string"),
    ({"name": None}, "name", "required", "40"),
    ({"working_dir": "../other"}, "working_dir", "outside", "home"),
    ({"env": {"ALLOT_TOKEN": "x"}}, "env", "reserved_variable", ""),
    ({"env": {"1A": "x"}}, "env", "invalid_variable", "8000"),
    ({"env": ["A=b"]}, "env", "wrong_type", "object"),
    ({"template_name": "none such"}, "template_name", "unknown_template", "—"),
    ({"gpu_fraction": 0.3}, "gpu_fraction", "unknown_field", "gpu_milli"),
    ({"kind": "inference"}, "kind", "invalid_choice", "interactive"),
]
WRONG_TRAININGS: list[tuple[dict[str, object], str, str, str]] = [
    ({"command": []}, "command", "required", "4000"),
    ({"command": "python train.py"}, "command", "wrong_type", "array"),
    ({"checkpoint_path": "/etc"}, "checkpoint_path", "outside", "checkpoints"),
    ({"checkpoint_path": "a/../../b"}, "checkpoint_path", "outside", "checkpoints"),
    ({"checkpoint_signal": "SIGKILL"}, "checkpoint_signal", "invalid_choice", "SIGUSR1"),
    ({"checkpoint_mode": "command"}, "checkpoint_command", "required", "1000"),
    ({"checkpoint_every_s": 59}, "checkpoint_every_s", "too_small", "60"),
    ({"grace_s": 301}, "grace_s", "too_large", "300"),
    ({"backoff_limit": -1}, "backoff_limit", "too_small", "0"),
    ({"min_replicas": 0}, "min_replicas", "too_small", "1"),
    ({"max_replicas": 513}, "max_replicas", "too_large", "512"),
    ({"min_replicas": 3, "max_replicas": 2}, "max_replicas", "below_minimum", "3"),
    ({"min_replicas": 9}, "min_replicas", "more_replicas_than_fit", "8"),
    ({"min_replicas": "two"}, "min_replicas", "not_a_number", "512"),
    ({"priority": "highest"}, "priority", "invalid_choice", "very-high"),
    ({"priority": "high"}, "priority", "priority_needs_manager", "medium"),
    ({"is_preemptible": "yes"}, "is_preemptible", "wrong_type", "true"),
]


@pytest.mark.parametrize(
    ("body", "field", "code", "limit"),
    [({**SESSION, **change}, *rest) for change, *rest in WRONG]
    + [({**TRAINING, **change}, *rest) for change, *rest in WRONG_TRAININGS],
    ids=lambda value: str(value)[-40:] if not isinstance(value, dict) else "",
)
def test_bad_input_is_answered_at_the_field(
    api: Api, body: dict[str, object], field: str, code: str, limit: str
) -> None:
    for language in ("en", "ru"):
        answer = api.post("workloads", body, **{"Accept-Language": language})

        assert answer.status_code == 422
        assert answer["Content-Type"] == "application/problem+json"
        problem = answer.json()
        assert problem["code"] == "invalid_fields"
        assert {error["field"]: error["code"] for error in problem["errors"]} == {field: code}
        (error,) = problem["errors"]
        assert limit in f"{error['message']} {error['limit']}" or language == "ru"
        assert bool(re.search("[а-я]", error["message"])) is (language == "ru") or field == "name"
    assert not Workload.objects.exists()


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ("", 422, "invalid_fields", "полях"),
        ("[]", 422, "invalid_fields", "полях"),
        ('"text"', 422, "invalid_fields", "полях"),
        ("{", 400, "parse_error", "строки 1, столбца 2"),
        ('{"kind":\n,}', 400, "parse_error", "строки 2, столбца 1"),
        ("nul\xff", 400, "parse_error", "не JSON"),
        (b'{"kind": "\xff"}', 400, "parse_error", "UTF-8"),
        ('{"kind": "\\ud800"}', 400, "parse_error", "UTF-8"),
        ('{"a": NaN}', 400, "parse_error", "число"),
        ('{"a": 1e400}', 400, "parse_error", "число"),
        ('{"a": 1' + 5000 * "0" + "}", 400, "parse_error", "число"),
        (100_000 * "[", 400, "parse_error", "вложенность"),
        ('"' + 17 * 1024 * 1024 * "x" + '"', 413, "body_too_large", "больше 16"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_object_is_refused(
    api: Api, body: str | bytes, status: int, code: str, words: str
) -> None:
    for language in ("en", "ru"):
        headers = {"Accept-Language": language}
        answer = api.client.post(
            "/api/v1/workloads", body, content_type="application/json", headers=headers
        )
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer["Content-Type"] == "application/problem+json"
        assert bool(re.search("[а-я]", answer.json()["detail"])) is (language == "ru")
    assert words in answer.json()["detail"]


@pytest.mark.parametrize(("value", "spelled"), [(None, "null"), (True, "true"), ([1], "[1]")])
def test_a_value_is_told_as_json_has_it(api: Api, value: object, spelled: str) -> None:
    (error,) = api.post("workloads", {**SESSION, "kind": value}).json()["errors"]
    assert error["message"] == f"“{spelled}” is none of: interactive, training."


def test_a_failure_of_allot_is_a_problem_too(api: Api) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE projects_template RENAME TO gone")
    api.client.raise_request_exception = False
    answer = api.get("templates")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer["Content-Type"] == "application/problem+json"
    assert answer["X-Request-Id"] == answer.json()["request_id"]


def test_all_wrong_fields_are_named_at_once(api: Api) -> None:
    body = {**SESSION, "gpu_milli": 1500, "name": "../up", "memory_mib": "much", "colour": "blue"}
    errors = api.post("workloads", body).json()["errors"]
    assert {error["field"] for error in errors} == {"gpu_milli", "name", "memory_mib", "colour"}


def test_messages_follow_the_language_and_codes_do_not(api: Api) -> None:
    body = {**SESSION, "gpu_milli": 1500}
    english = api.post("workloads", body, **{"Accept-Language": "en"}).json()
    russian = api.post("workloads", body, **{"Accept-Language": "ru"}).json()
    assert english["errors"][0]["code"] == russian["errors"][0]["code"] == "too_large"
    assert "1500" in english["errors"][0]["message"]
    assert "1500" in russian["errors"][0]["message"]


def test_the_services_refusal_is_answered_at_the_field(api: Api) -> None:
    assert api.post("workloads", SESSION).status_code == 201
    answer = api.post("workloads", SESSION)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["field"], error["code"]) == ("name", "name_taken")

    answer = api.post(
        "workloads", {**SESSION, "name": "large", "num_devices": 2, "gpu_milli": 1000}
    )
    (error,) = answer.json()["errors"]
    assert (error["field"], error["code"]) == ("gpu_milli", "larger_than_quota")
    assert Workload.objects.count() == 1


# ---------------------------------------------------------------- the same key twice


def test_the_same_key_and_body_give_the_same_workload(api: Api) -> None:
    key = {"Idempotency-Key": "night run 7"}
    first = api.post("workloads", SESSION, **key)
    again = api.post("workloads", dict(reversed(SESSION.items())), **key)
    assert first.status_code == again.status_code == 201
    assert first.json()["id"] == again.json()["id"]
    assert again["Idempotent-Replayed"] == "true"
    assert Workload.objects.count() == 1


def test_the_same_key_with_another_body_is_a_conflict(api: Api) -> None:
    key = {"Idempotency-Key": str(uuid.uuid4())}
    api.post("workloads", SESSION, **key)
    answer = api.post("workloads", {**SESSION, "cpu_milli": 1000}, **key)
    assert answer.status_code == 409
    assert answer.json()["code"] == "idempotency_key_reused"
    assert Workload.objects.count() == 1


def test_keys_of_two_people_do_not_meet(api: Api, organisation: Organisation) -> None:
    key = {"Idempotency-Key": "1"}
    api.post("workloads", SESSION, **key)
    other = Api(tokens.issue(organisation.max, name="tests").secret)
    assert other.post("workloads", {**SESSION, "name": "other"}, **key).status_code == 201
    assert Workload.objects.count() == 2


@pytest.mark.parametrize("key", [" ", "x" * 201])
def test_a_key_that_is_none_is_refused(api: Api, key: str) -> None:
    answer = api.post("workloads", SESSION, **{"Idempotency-Key": key})
    assert answer.status_code == 422
    assert "200" in answer.json()["errors"][0]["message"]
