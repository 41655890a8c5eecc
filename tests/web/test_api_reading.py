"""What programs read by the API, what they do to workloads, and what its document says."""

from __future__ import annotations

import json
import uuid

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from projects import tokens
from projects.models import Template, TemplateScope, User, WorkloadKind
from scheduling import texts
from scheduling.models import Phase
from scheduling.selectors import waited
from tests.factories import session_spec, submitted, training_spec
from tests.web.api_program import SESSION, Api
from tests.web.organisation import Organisation

# The same in every process: pytest-xdist compares the names of tests.
NOBODYS = uuid.UUID(int=1)

pytestmark = pytest.mark.django_db


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


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/v2/workloads", "/api/v1"])
def test_what_is_no_address_of_the_api_is_a_problem_too(api: Api, path: str) -> None:
    answer = api.client.get(path)
    assert answer.status_code == 404
    assert answer["Content-Type"] == "application/problem+json"


def test_another_media_type_is_refused(api: Api) -> None:
    answer = api.client.post("/api/v1/workloads", {"name": "x"})
    assert answer.status_code == 415
    assert answer["Content-Type"] == "application/problem+json"


def test_a_nul_in_an_address_is_a_problem_as_others(api: Api) -> None:
    answer = api.get("analytics?metric=allocated_gpu_hours&project=vision%00")
    assert answer.status_code == 400
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "nul_in_address"


def test_the_document_describes_every_address(client: Client, db: None) -> None:
    answer = client.get("/api/v1/openapi.json")
    assert answer.status_code == 200
    document = json.loads(answer.content)
    assert document["openapi"].startswith("3.1")
    assert {"/api/v1/workloads", "/api/v1/queue", "/api/v1/projects/{name}/quota"} <= set(
        document["paths"]
    )
    for path, method in (("workloads", "post"), ("projects/{name}/idle-rule", "patch")):
        answers = document["paths"][f"/api/v1/{path}"][method]["responses"]
        assert {"400", "413", "415", "422"} <= set(answers)
    schemas = document["components"]["schemas"]
    assert {"gpu_milli", "cpu_milli", "memory_mib"} <= set(schemas["WorkloadSchema"]["properties"])


@pytest.mark.parametrize(
    "accept", ["", "*/*", "application/json", "application/vnd.oai.openapi+json"]
)
def test_the_document_is_there_for_whoever_takes_json(
    client: Client, db: None, accept: str
) -> None:
    answer = client.get("/api/v1/openapi.json", headers={"Accept": accept} if accept else {})
    assert answer.status_code == 200
    assert "json" in answer["Content-Type"]
    assert json.loads(answer.content)["openapi"].startswith("3.1")


def test_an_error_at_the_document_is_a_problem(client: Client, db: None) -> None:
    for answer in (
        client.post("/api/v1/openapi.json"),
        client.get("/api/v1/openapi.json", headers={"Accept": "text/html"}),
    ):
        assert answer.status_code in (405, 406)
        assert answer["Content-Type"] == "application/problem+json"


def test_the_document_names_the_fields_that_are_accepted(client: Client, db: None) -> None:
    from scheduling.api.requests import FIELDS
    from scheduling.api.schemas.workloads import NewWorkloadSchema

    assert set(NewWorkloadSchema().get_fields()) == set(FIELDS["training"])
