"""The administration's pages do not cost more with every row, and every person."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from projects import audit
from projects.models import NodeType, Template, User
from scheduling.models import Event, Node, Wait, Workload, Zone
from tests.factories import make_project, session_spec, submitted
from tests.scheduling.conftest import Organisation

pytestmark = pytest.mark.django_db


def workload(place: Organisation) -> Workload:
    return submitted(session_spec(place.vision), place.vera)


def a_record(place: Organisation, number: int) -> None:
    person = User.objects.create_user(f"person{number}")
    audit.record(person, action="token.issued", entity=("token", str(number)))


def a_template(place: Organisation, number: int) -> None:
    person = User.objects.create_user(f"person{number}")
    project = make_project(f"project{number}")
    Template.objects.create(
        name=f"Jupyter {number}",
        kind="interactive",
        scope="project",
        owner=person,
        project=project,
    )


def a_node(place: Organisation, number: int) -> None:
    Node.objects.create(
        name=f"n{number}",
        zone=Zone.objects.get_or_create(name="lab")[0],
        node_type=NodeType.objects.create(
            name=f"type{number}", title=f"Type {number}", label_value=f"type{number}"
        ),
        cpu_milli=1000,
        memory_mib=1024,
    )


def an_event(place: Organisation, number: int) -> None:
    person = User.objects.create_user(f"person{number}")
    Event.objects.create(
        workload=workload(place), at=timezone.now(), code="stopped", phase="queued", actor=person
    )


def a_wait(place: Organisation, number: int) -> None:
    at = timezone.now()
    Wait.objects.create(
        workload=workload(place),
        claimant=workload(place),
        started_at=at,
        ended_at=at,
        cause="reclaimed",
    )


@pytest.mark.parametrize(
    ("page", "make"),
    [
        ("projects_auditentry", a_record),
        ("projects_template", a_template),
        ("scheduling_node", a_node),
        ("scheduling_event", an_event),
        ("scheduling_wait", a_wait),
    ],
)
def test_a_list_of_many_is_asked_for_as_one_of_few(
    admin_client: Client,
    organisation: Organisation,
    page: str,
    make: Callable[[Organisation, int], None],
) -> None:
    address = reverse(f"admin:{page}_changelist")

    def num_queries() -> int:
        with CaptureQueriesContext(connection) as asked:
            assert admin_client.get(address).status_code == 200
        return len(asked)

    make(organisation, 1)
    num_queries()  # what is kept from the first page on
    few = num_queries()
    make(organisation, 2)
    make(organisation, 3)
    assert num_queries() == few


def test_a_template_s_page_does_not_list_everybody(
    admin_client: Client, organisation: Organisation
) -> None:
    page = admin_client.get(reverse("admin:projects_template_add")).content.decode()
    assert str(organisation.vera) not in page
    assert str(organisation.vision) not in page
    found = admin_client.get(
        reverse("admin:autocomplete"),
        {
            "app_label": "projects",
            "model_name": "template",
            "field_name": "owner",
            "term": organisation.vera.username,
        },
    ).json()
    assert [row["text"] for row in found["results"]] == [str(organisation.vera)]
