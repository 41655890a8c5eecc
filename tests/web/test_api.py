"""The API: the same checks, states and words as the pages, for programs."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from projects import tokens
from projects.models import Template, TemplateScope, User, WorkloadKind
from scheduling import texts
from scheduling.models import Phase, Workload
from scheduling.selectors import waited
from tests.factories import session_spec, submitted, training_spec
from tests.web.organisation import Organisation, make_organisation

# The same in every process: pytest-xdist compares the names of tests.
NOBODYS = uuid.UUID(int=1)

pytestmark = pytest.mark.django_db

SESSION = {
    "kind": "interactive",
    "project": "vision",
    "name": "notebook",
    "node_types": ["t4"],
    "num_devices": 1,
    "gpu_milli": 333,
    "cpu_milli": 2000,
    "memory_mib": 2048,
}
TRAINING = {
    **SESSION,
    "kind": "training",
    "name": "run",
    "gpu_milli": 1000,
    "command": ["python", "train.py", "--text", "two words"],
}


@pytest.fixture
def organisation(db: None) -> Organisation:
    return make_organisation()


class Api:
    """A program with a token."""

    def __init__(self, secret: str) -> None:
        self.client = Client(headers={"Authorization": f"Bearer {secret}"})

    def get(self, path: str, **headers: str) -> Any:  # a test client's answer
        return self.client.get(f"/api/v1/{path}", headers=headers)

    def post(self, path: str, body: object = None, **headers: str) -> Any:  # as above
        data = json.dumps(body) if body is not None else ""
        return self.client.post(
            f"/api/v1/{path}", data, content_type="application/json", headers=headers
        )


@pytest.fixture
def api(organisation: Organisation) -> Api:
    return Api(tokens.issue(organisation.vera, name="tests").secret)


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


@pytest.mark.parametrize("body", ["", "[]", '"text"', "{", "nul\xff", '{"a": NaN}'])
def test_what_is_no_object_is_refused(api: Api, body: str) -> None:
    answer = api.client.post("/api/v1/workloads", body, content_type="application/json")
    assert answer.status_code in (400, 422)
    assert answer["Content-Type"] == "application/problem+json"


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


# ---------------------------------------------------------------- looking


def test_reason_wait_and_phase_equal_the_pages(api: Api, organisation: Organisation) -> None:
    row = submitted(session_spec(organisation.vision), organisation.vera)
    row.reason = {
        "code": "interactive_over_quota",
        "message": "fallback",
        "details": {"quota": 1500, "resource": "gpu:t4"},
        "offers": [{"id": "request_quota"}],
    }
    row.queue_position, row.queue_length = 1, 1
    row.save()

    body = api.get(f"workloads/{row.pk}").json()
    assert body["phase"] == Phase.QUEUED
    assert body["reason"]["message"] == texts.reason_sentence(row.reason)
    assert body["reason"]["code"] == "interactive_over_quota"
    assert body["queue"] == {"position": 1, "of": 1}
    (wait,) = api.get(f"workloads/{row.pk}/waits").json()["items"]
    assert wait["message"] == texts.wait_cause(row.waits.get())
    assert wait["ended_at"] is None
    (event,) = api.get(f"workloads/{row.pk}/events").json()["items"]
    assert event["message"] == texts.event_sentence(row.events.get())
    total = waited([row.pk], row.submitted_at)[row.pk].total_s
    assert body["waited"]["total_s"] == pytest.approx(total, abs=30)
    assert body["waited"]["num_waits"] == 1


def test_a_colleague_sees_it_without_its_variables_and_a_stranger_not_at_all(
    api: Api, organisation: Organisation
) -> None:
    spec = session_spec(organisation.vision, env=(("SECRET", "x"),))
    row = submitted(spec, organisation.max)
    body = api.get(f"workloads/{row.pk}").json()
    assert body["env"] is None
    assert body["session_path"] is None

    own = Api(tokens.issue(organisation.max, name="tests").secret)
    body = own.get(f"workloads/{row.pk}").json()
    assert body["env"] == {"SECRET": "x"}
    assert body["session_path"] == f"/s/{row.pk}/"

    stranger = Api(tokens.issue(organisation.lena, name="tests").secret)
    assert stranger.get(f"workloads/{row.pk}").status_code == 404
    assert stranger.get("workloads").json()["items"] == []
    assert stranger.get("queue").json()["items"] == []
    assert stranger.post(f"workloads/{row.pk}/stop").status_code == 404


def test_lists_are_filtered_searched_sorted_and_cut(api: Api, organisation: Organisation) -> None:
    vision, vera = organisation.vision, organisation.vera
    for number in range(5):
        submitted(training_spec(vision, name=f"run-{number}"), vera)
    submitted(session_spec(vision, name="notebook"), organisation.max)

    page = api.get("workloads?limit=2&sort=name&filter=kind:training&fields=name,phase").json()
    assert page["items"] == [
        {"name": "run-0", "phase": "queued"},
        {"name": "run-1", "phase": "queued"},
    ]
    names = ["run-0", "run-1"]
    while page["next_cursor"]:
        page = api.get(
            f"workloads?limit=2&sort=name&filter=kind:training&cursor={page['next_cursor']}"
        ).json()
        names += [item["name"] for item in page["items"]]
    assert names == [f"run-{number}" for number in range(5)]

    def found(query: str) -> set[str]:
        return {item["name"] for item in api.get(f"workloads?{query}").json()["items"]}

    assert found("search=note") == {"notebook"}
    assert found("filter=owner:max") == {"notebook"}
    assert len(found("filter=owner:me&filter=phase:waiting")) == 5
    assert found("filter=phase:running,failed") == set()
    assert found("filter=project:language") == set()
    assert len(found("search=%00")) == 6


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=ten", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=cD1uZXZlcg", "cursor"),
        ("filter=colour:red", "filter"),
        ("filter=phase:asleep", "phase"),
        ("filter=kind:x", "kind"),
        ("sort=owner", "sort"),
        ("fields=name,colour", "fields"),
    ],
)
def test_a_wrong_query_is_answered_by_its_name(
    api: Api, organisation: Organisation, query: str, field: str
) -> None:
    submitted(training_spec(organisation.vision), organisation.vera)
    answer = api.get(f"workloads?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


def test_a_list_costs_the_same_with_few_and_many(
    api: Api,
    organisation: Organisation,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for number in range(12):
        submitted(training_spec(organisation.vision, name=f"run-{number}"), organisation.vera)
    api.get("workloads")
    with django_assert_max_num_queries(7):
        assert len(api.get("workloads").json()["items"]) == 12


def test_messages_speak_the_units_of_the_api(api: Api) -> None:
    body = {**SESSION, "gpu_milli": None, "gpu_memory_mib": 99999, "cpu_milli": 33000}
    (error,) = api.post("workloads", body, **{"Idempotency-Key": str(uuid.uuid4())}).json()[
        "errors"
    ]
    assert "99999 MiB" in error["message"]
    assert "14917 MiB" in error["message"]


def test_what_there_is_can_be_read(api: Api, organisation: Organisation) -> None:
    types = {item["name"]: item for item in api.get("node-types").json()["items"]}
    assert set(types) == {"cpu", "t4", "v100"}
    assert types["t4"]["total_gpu_milli"] == types["t4"]["free_gpu_milli"] == 8000
    assert types["t4"]["most_free_devices"] == 4
    assert types["t4"]["is_simulated"] is True
    assert api.get("node-types/t4").json() == types["t4"]

    nodes = api.get("nodes").json()["items"]
    assert [node["name"] for node in nodes] == ["sim-cpu-1", "sim-t4-1", "sim-t4-2", "sim-v100-1"]
    assert len(nodes[1]["devices"]) == 4
    assert api.get("nodes/sim-t4-1").json() == nodes[1]
    assert "relay" not in str(nodes)

    assert [item["name"] for item in api.get("projects").json()["items"]] == ["vision"]


def test_an_admin_closes_and_opens_a_node(api: Api, organisation: Organisation) -> None:
    refused = api.post("nodes/sim-t4-1/cordon")
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")

    admin = Api(tokens.issue(User.objects.create_superuser("root"), name="tests").secret)
    for _again in range(2):
        closed = admin.post("nodes/sim-t4-1/cordon").json()
        assert (closed["state"], closed["cordon"]["code"]) == ("cordoned", "by_admin")
        assert closed == api.get("nodes/sim-t4-1").json()
    for _again in range(2):
        opened = admin.post("nodes/sim-t4-1/uncordon").json()
        assert (opened["state"], opened["cordon"], opened["cordoned_at"]) == ("ready", {}, None)
    assert admin.post("nodes/nobody/cordon").status_code == 404
    quota = api.get("projects/vision/quota").json()
    assert [(row["node_type"], row["quota_gpu_milli"]) for row in quota["gpu"]] == [
        ("t4", 1500),
        ("v100", 2000),
    ]
    assert api.get("projects/language").status_code == 404
    assert api.get("projects/language/quota").status_code == 404


def test_templates_are_those_offered_to_the_person(api: Api, organisation: Organisation) -> None:
    Template.objects.create(
        name="Jupyter", kind=WorkloadKind.INTERACTIVE, scope=TemplateScope.PLATFORM, spec={}
    )
    Template.objects.create(
        name="Theirs",
        kind=WorkloadKind.TRAINING,
        scope=TemplateScope.PROJECT,
        project=organisation.language,
    )
    (item,) = api.get("templates").json()["items"]
    assert item["name"] == "Jupyter"
    assert api.get(f"templates/{item['id']}").json() == item


# ---------------------------------------------------------------- acting


def test_stop_is_harmless_twice_and_retry_starts_again(
    api: Api, organisation: Organisation
) -> None:
    row = submitted(training_spec(organisation.vision), organisation.vera)
    assert api.post(f"workloads/{row.pk}/stop").json()["phase"] == "stopped"
    assert api.post(f"workloads/{row.pk}/stop").status_code == 200
    assert api.post(f"workloads/{row.pk}/retry").json()["phase"] == "queued"
    answer = api.post(f"workloads/{row.pk}/retry")
    assert answer.status_code == 409
    assert answer.json()["code"] == "not_ended"
    assert api.post(f"workloads/{row.pk}/checkpoint").json()["code"] == "not_running"


def test_a_colleagues_workload_is_looked_at_and_not_touched(
    api: Api, organisation: Organisation
) -> None:
    row = submitted(training_spec(organisation.vision), organisation.max)
    answer = api.post(f"workloads/{row.pk}/stop")
    assert answer.status_code == 403
    assert answer.json()["code"] == "not_allowed"
    row.refresh_from_db()
    assert row.phase == Phase.QUEUED


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("get", "nowhere", 404),
        ("get", "workloads/1", 404),
        ("get", f"workloads/{NOBODYS}", 404),
        ("delete", f"workloads/{NOBODYS}", 405),
        ("put", "workloads", 405),
        ("get", f"workloads/{NOBODYS}/stop", 405),
    ],
)
def test_every_error_is_a_problem(api: Api, method: str, path: str, status: int) -> None:
    answer = getattr(api.client, method)(f"/api/v1/{path}")
    assert answer.status_code == status
    assert answer["Content-Type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["request_id"] == answer["X-Request-Id"]


def test_another_media_type_is_refused(api: Api) -> None:
    answer = api.client.post("/api/v1/workloads", {"name": "x"})
    assert answer.status_code == 415
    assert answer["Content-Type"] == "application/problem+json"


def test_a_nul_in_an_address_is_a_problem_as_others(api: Api) -> None:
    answer = api.get("analytics?metric=allocated_gpu_hours&project=vision%00")
    assert answer.status_code == 400
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "nul_in_address"


# ---------------------------------------------------------------- the document


def test_the_document_describes_every_address(client: Client, db: None) -> None:
    answer = client.get("/api/v1/openapi.json")
    assert answer.status_code == 200
    document = json.loads(answer.content)
    assert document["openapi"].startswith("3.1")
    assert {"/api/v1/workloads", "/api/v1/queue", "/api/v1/projects/{name}/quota"} <= set(
        document["paths"]
    )
    schemas = document["components"]["schemas"]
    assert {"gpu_milli", "cpu_milli", "memory_mib"} <= set(schemas["WorkloadSchema"]["properties"])


def test_the_document_names_the_fields_that_are_accepted(client: Client, db: None) -> None:
    from scheduling.api.requests import FIELDS
    from scheduling.api.schemas.workloads import NewWorkloadSchema

    assert set(NewWorkloadSchema().get_fields()) == set(FIELDS["training"])
