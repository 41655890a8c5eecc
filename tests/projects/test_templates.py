"""Templates: who is offered which, and keeping one's own."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest
from django.core.exceptions import ValidationError
from django.forms import model_to_dict
from django.test import Client
from django.urls import reverse

from projects.models import (
    AuditEntry,
    GpuQuota,
    NodeType,
    Project,
    Template,
    TemplateScope,
    User,
    WorkloadKind,
)
from projects.templates import find_template, save_private, templates_for
from tests.factories import make_member, make_node_type, make_project

pytestmark = pytest.mark.django_db

SESSION, TRAINING = WorkloadKind.INTERACTIVE, WorkloadKind.TRAINING


@pytest.fixture
def vision() -> Project:
    make_node_type("t4")
    return make_project("vision", t4=1500)


@pytest.fixture
def vera(vision: Project) -> User:
    return make_member(vision, "vera")


def template(name: str, scope: TemplateScope, **values: object) -> Template:
    return Template.objects.create(name=name, scope=scope, **{"kind": SESSION, **values})


def test_one_is_offered_the_platforms_the_projects_and_ones_own(
    vera: User, vision: Project
) -> None:
    other = make_project("language")
    template("everybody's", TemplateScope.PLATFORM)
    template("retired", TemplateScope.PLATFORM, is_active=False)
    template("the project's", TemplateScope.PROJECT, project=vision, kind=TRAINING)
    template("another project's", TemplateScope.PROJECT, project=other)
    template("mine", TemplateScope.PRIVATE, owner=vera)
    template("hers", TemplateScope.PRIVATE, owner=make_member(vision, "lena"))

    assert [item.name for item in templates_for(vera)] == ["everybody's", "mine", "the project's"]
    assert [item.name for item in templates_for(vera, TRAINING)] == ["the project's"]


def test_only_an_offered_template_is_found(vera: User, vision: Project) -> None:
    hers = template("hers", TemplateScope.PRIVATE, owner=make_member(vision, "lena"))
    mine = template("mine", TemplateScope.PRIVATE, owner=vera)
    assert find_template(vera, str(mine.pk), SESSION) == mine
    assert find_template(vera, str(mine.pk), TRAINING) is None
    for unknown in (str(hers.pk), str(uuid.uuid4()), "", "../x"):
        assert find_template(vera, unknown, SESSION) is None


def test_keeping_the_same_name_again_replaces_it_and_is_recorded(vera: User) -> None:
    save_private(vera, name=" My \0 notebook ", kind=SESSION, spec={"cpu_cores": "1"})
    save_private(vera, name="My notebook", kind=SESSION, spec={"cpu_cores": "2"})
    kept = Template.objects.get()
    assert (kept.name, kept.spec, kept.owner) == ("My notebook", {"cpu_cores": "2"}, vera)
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert actions == {"template.created", "template.changed"}


@pytest.mark.parametrize("name", ["", "   ", "x" * 81])
def test_a_name_that_cannot_be_kept_is_refused(vera: User, name: str) -> None:
    with pytest.raises(ValidationError, match="80"):
        save_private(vera, name=name, kind=SESSION, spec={})
    assert not Template.objects.exists()


# ---------------------------------------------------------------- the admins' pages


def quota_rows(*rows: Mapping[str, object]) -> dict[str, object]:
    """The inline rows of a project's page, as a browser sends them."""
    values: dict[str, object] = {}
    for prefix, given in (("gpu_quotas", rows), ("allowed_node_types", ()), ("memberships", ())):
        initial = sum(1 for row in given if row.get("id"))
        values |= {f"{prefix}-TOTAL_FORMS": len(given), f"{prefix}-INITIAL_FORMS": initial}
        for number, row in enumerate(given):
            values |= {f"{prefix}-{number}-{name}": value for name, value in row.items()}
    return values


def own_values(project: Project) -> dict[str, object]:
    """The project's own fields, as its page fills them in."""
    values = model_to_dict(project, exclude=["name", "department"])
    return {name: value for name, value in values.items() if value not in (None, False)}


def test_an_admin_cannot_promise_more_than_there_is(admin: Client, vision: Project) -> None:
    node_type = NodeType.objects.get()
    make_project("language", t4=4000)
    address = reverse("admin:projects_project_change", args=[vision.pk])
    quota = vision.gpu_quotas.get()
    row = {"id": quota.pk, "project": vision.pk, "node_type": node_type.pk, "weight": 2}
    own = own_values(vision)

    answer = admin.post(address, {**own, **quota_rows({**row, "quota_milli": 4001})})
    assert answer.status_code == 200
    text = answer.content.decode()
    assert "4.001" in text
    assert "at most 4." in text
    quota.refresh_from_db()
    assert quota.quota_milli == 1500

    answer = admin.post(address, {**own, **quota_rows({**row, "quota_milli": 4000})})
    assert answer.status_code == 302
    quota.refresh_from_db()
    assert quota.quota_milli == 4000
    assert AuditEntry.objects.filter(action="quota.set").exists()


def test_a_new_project_is_made_with_its_quota(admin: Client, vision: Project) -> None:
    row = {"node_type": NodeType.objects.get().pk, "quota_milli": 500, "weight": 1}
    values = {**own_values(Project()), "name": "speech", **quota_rows(row)}
    assert admin.post(reverse("admin:projects_project_add"), values).status_code == 302
    assert GpuQuota.objects.get(project__name="speech").quota_milli == 500
    assert AuditEntry.objects.filter(action="project.created").exists()


def test_a_template_with_a_misspelt_field_is_refused(admin: Client) -> None:
    values = {
        "name": "Jupyter",
        "kind": SESSION.value,
        "scope": "platform",
        "spec": '{"gpu_fracton": "0.3"}',
        "is_active": "on",
    }
    address = reverse("admin:projects_template_add")
    answer = admin.post(address, values)
    assert answer.status_code == 200
    assert "gpu_fracton" in answer.content.decode()
    for value in (r'"a\u0000"', r'"\ud800"', "[" * 100_000 + "]" * 100_000):
        answer = admin.post(address, {**values, "spec": f'{{"env": {value}}}'})
        assert "has a character that cannot be stored" in answer.content.decode()
    assert not Template.objects.exists()
    assert admin.post(address, {**values, "spec": '{"gpu_fraction": "0.3"}'}).status_code == 302
    assert Template.objects.get().spec == {"gpu_fraction": "0.3"}


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ("private", "A private template has an owner."),
        ("project", "A template of a project names the project."),
        ("platform", "belongs to no project, “Vision” neither"),
    ],
)
def test_a_template_has_what_its_scope_needs(
    admin: Client, vision: Project, scope: str, words: str
) -> None:
    values = {"name": "Jupyter", "kind": SESSION.value, "scope": scope, "spec": "{}"}
    if scope == "platform":
        values["project"] = str(vision.pk)
    answer = admin.post(reverse("admin:projects_template_add"), values)
    assert words in answer.content.decode()
    assert not Template.objects.exists()


@pytest.mark.parametrize("model", ["workload", "attempt", "wait", "node", "command"])
def test_what_runs_is_looked_at_only(admin: Client, model: str) -> None:
    assert admin.get(reverse(f"admin:scheduling_{model}_changelist")).status_code == 200
    assert admin.get(reverse(f"admin:scheduling_{model}_add")).status_code == 403


def test_the_audit_trail_is_looked_at_only(admin: Client, vera: User) -> None:
    save_private(vera, name="mine", kind=SESSION, spec={})
    entry = AuditEntry.objects.get()
    address = reverse("admin:projects_auditentry_change", args=[entry.pk])
    assert admin.get(address).status_code == 200
    assert admin.post(address, {"action": "x"}).status_code == 403
    assert (
        admin.get(reverse("admin:projects_auditentry_delete", args=[entry.pk])).status_code == 403
    )
