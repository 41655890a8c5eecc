"""Labels and topology, and titles in reasons, on the rows."""

from __future__ import annotations

import pytest
from django.test import Client

from projects.models import Template, TemplateScope, User, WorkloadKind
from scheduling.cycle import run_cycle
from scheduling.models import (
    Phase,
    Workload,
)
from scheduling.snapshot import take_snapshot
from tests.factories import session_spec, submitted, training_spec
from tests.scheduling.conftest import Organisation
from tests.scheduling.planned import fresh

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fresh")]
__all__ = ["fresh"]


@pytest.fixture
def admin(db: None) -> User:
    return User.objects.create_superuser("root-admin")


# ---------------------------------------------------------------- labels and topology


def test_labels_of_a_template_bind_and_nobody_types_them(
    organisation: Organisation, client: Client
) -> None:
    organisation.agent.nodes[1].labels["net"] = "ib"
    organisation.agent.report()
    spec = training_spec(organisation.speech, node_labels=(("net", "ib"),))
    row = submitted(spec, organisation.sergey)
    none = submitted(
        training_spec(organisation.speech, node_labels=(("net", "roce"),)), organisation.sergey
    )
    run_cycle()
    row.refresh_from_db()
    none.refresh_from_db()
    assert row.node is not None
    assert row.node.name == "sim-t4-2"
    assert none.reason["code"] == "no_fit"
    assert none.reason["details"]["constraint"] == "labels"


def _body(organisation: Organisation, **more: object) -> dict[str, object]:
    return {
        "kind": "training",
        "project": organisation.speech.name,
        "name": "labelled",
        "command": ["true"],
        "cpu_milli": 1000,
        "memory_mib": 1024,
        "num_devices": 1,
        "gpu_milli": 1000,
        **more,
    }


def test_the_api_takes_labels_from_templates_and_admins_only(
    organisation: Organisation, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduling.forms.base.check_on_node", lambda spec, owner: [])
    Template.objects.create(
        name="fast net",
        kind=WorkloadKind.TRAINING,
        scope=TemplateScope.PLATFORM,
        spec={"node_labels": {"net": "ib"}},
    )
    client.force_login(organisation.sergey)
    typed = client.post(
        "/api/v1/workloads",
        _body(organisation, node_labels={"net": "ib"}),
        content_type="application/json",
    )
    assert typed.status_code == 422
    assert typed.json()["errors"][0]["field"] == "node_labels"
    assert typed.json()["errors"][0]["code"] == "labels_by_template"
    answer = client.post(
        "/api/v1/workloads",
        _body(organisation, template_name="fast net"),
        content_type="application/json",
    )
    assert answer.status_code == 201, answer.content
    assert answer.json()["node_labels"] == {"net": "ib"}
    wrong = client.post(
        "/api/v1/workloads",
        _body(organisation, name="other", node_labels={"a b": "c"}),
        content_type="application/json",
    )
    assert wrong.json()["errors"][0]["code"] == "invalid_label"


def test_the_zone_is_a_label_of_its_nodes(organisation: Organisation) -> None:
    taken = take_snapshot()
    assert {node.labels["zone"] for node in taken.snapshot.nodes} == {"local"}
    assert taken.policy.topology == ("rack", "zone")


# ---------------------------------------------------------------- words


def test_a_department_is_named_by_its_title(organisation: Organisation, client: Client) -> None:
    for _ in range(2):
        borrower = submitted(training_spec(organisation.language, num_devices=4), organisation.lena)
        run_cycle()
        organisation.agent.run(borrower)
    submitted(session_spec(organisation.speech, gpu_milli=1000), organisation.sergey)
    run_cycle()
    row = Workload.objects.get(phase=Phase.CHECKPOINTING)
    assert row.reason["details"]["titles"]["department:research"] == "Research"
    client.force_login(organisation.lena)
    page = client.get(f"/workloads/{row.pk}").content.decode()
    assert "department Products held" in page
    assert "department Research held" in page
