"""The administration says which bounds it has taken and cannot keep now."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from django.test import Client
from django.urls import reverse

from projects.models import NodeType, Project, User
from scheduling.cycle import run_cycle
from tests.factories import session_spec, submitted
from tests.scheduling.conftest import Organisation

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("root"))
    return client


def save(
    client: Client, kind: str, pk: int, own: Mapping[str, object], quota: Mapping[str, object] = {}
) -> list[str]:
    """What is said after the page of a project or department was sent."""
    values: dict[str, object] = dict(own)
    for prefix in ("gpu_quotas", "memberships", "allowed_node_types"):
        values |= {f"{prefix}-TOTAL_FORMS": 0, f"{prefix}-INITIAL_FORMS": 0}
    if quota:
        values |= {f"gpu_quotas-0-{name}": value for name, value in quota.items()}
        values |= {"gpu_quotas-TOTAL_FORMS": 1, "gpu_quotas-INITIAL_FORMS": int("id" in quota)}
    answer = client.post(reverse(f"admin:projects_{kind}_change", args=[pk]), values, follow=True)
    assert answer.redirect_chain, answer.context["errors"]
    return [str(said) for said in answer.context["messages"] if said.level_tag == "warning"]


def own(project: Project, **changes: object) -> dict[str, object]:
    department = project.department_id
    return {"title": project.title, "department": department, "priority": 100, **changes}


def test_a_limit_below_what_is_held_is_told(admin: Client, organisation: Organisation) -> None:
    vision = organisation.vision
    for _ in range(3):
        submitted(session_spec(vision), organisation.vera)
    run_cycle()
    quota, t4 = vision.gpu_quotas.get(), NodeType.objects.get()
    row = {"id": quota.pk, "node_type": t4.pk, "weight": 2, "quota_milli": 900}

    assert save(admin, "project", vision.pk, own(vision), {**row, "limit_milli": 900}) == [
        "Vision, T4: 0.999 GPU held now, above the limit of 0.9 GPU. Nothing is stopped; nothing "
        "more starts until less is held.",
        "Vision, T4: 0.999 GPU held now by sessions and other work that is never stopped, above "
        "the quota of 0.9 GPU. Until it ends, others may wait for what they are promised.",
    ]
    row["quota_milli"] = 999
    assert not save(admin, "project", vision.pk, own(vision), {**row, "limit_milli": 999})
    # What was not changed is not told again.
    (said,) = save(admin, "project", vision.pk, own(vision, cpu_limit_milli=5000))
    assert said.startswith("Vision: 6 cores held now, above the limit of 5 cores.")
    assert not save(admin, "project", vision.pk, own(vision, cpu_limit_milli=5000, title="V"))


def test_a_department_s_limit_counts_all_below_it(
    admin: Client, organisation: Organisation
) -> None:
    research = organisation.vision.department
    assert research is not None
    submitted(session_spec(organisation.vision, gpu_milli=900), organisation.vera)
    submitted(session_spec(organisation.language, gpu_milli=900), organisation.lena)
    run_cycle()
    for project in Project.objects.exclude(name="speech"):
        project.gpu_quotas.update(quota_milli=0)
    row = {"node_type": NodeType.objects.get().pk, "limit_milli": 1500}
    values = {"name": research.name, "title": research.title}

    admin.cookies["allot_language"] = "ru"
    assert save(admin, "department", research.pk, values, row) == [
        "Research, T4: сейчас занято 1,8 GPU, это выше предела 1,5 GPU. Ничего не "
        "останавливается; новое не запустится, пока не станет занято меньше."
    ]


def test_cores_promised_before_their_nodes_come_are_told(
    admin: Client, organisation: Organisation
) -> None:
    vision = organisation.vision
    Project.objects.filter(name="speech").update(cpu_quota_milli=60_000)
    assert not save(admin, "project", vision.pk, own(vision, cpu_quota_milli=4000))
    assert save(admin, "project", vision.pk, own(vision, cpu_quota_milli=5000)) == [
        "CPU quota: 5 cores promised to Vision, 65 cores to all projects together, but all nodes "
        "together have 64 cores. What is beyond that waits for more nodes."
    ]
    (said,) = save(admin, "project", vision.pk, own(vision, memory_quota_mib=1024 * 1024))
    assert said.startswith("Memory quota: 1\N{NO-BREAK SPACE}TiB promised to Vision, ")
    vision.refresh_from_db()
    assert vision.memory_quota_mib == 1024 * 1024
