"""Departments in Django's admin: made, moved and given bounds and roles; what is changed is audited
and planned with."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
import pytest
from django.db import connection
from django.forms import model_to_dict
from django.test import Client
from django.urls import reverse

from projects.models import (
    AuditEntry,
    Department,
    DepartmentMembership,
    NodeType,
    User,
)
from projects.quotas import WAKE_CHANNEL, set_department_quota
from tests.factories import make_node_type, make_project
from tests.projects.conftest import Tree

pytestmark = pytest.mark.django_db


def posted(
    quotas: tuple[Mapping[str, object], ...] = (), members: tuple[Mapping[str, object], ...] = ()
) -> dict[str, object]:
    """The rows below a department's own fields, as a browser sends them."""
    values: dict[str, object] = {}
    for prefix, given in (("gpu_quotas", quotas), ("memberships", members)):
        values |= {f"{prefix}-TOTAL_FORMS": len(given), f"{prefix}-INITIAL_FORMS": 0}
        for number, row in enumerate(given):
            values |= {f"{prefix}-{number}-{name}": value for name, value in row.items()}
    return values


class TestAdmin:
    def test_the_tree_is_shown_by_paths(self, admin: Client, planted: Tree) -> None:
        text = admin.get(reverse("admin:projects_department_changelist")).content.decode()
        assert "Science / Research / Vision" in text
        address = reverse("admin:projects_project_changelist")
        assert "Science / Robots" in admin.get(address).content.decode()
        below = admin.get(address, {"department": planted.research.pk}).content.decode()
        assert "segmentation" in below
        assert "walking" not in below

    def test_a_department_is_made_with_its_bounds_and_roles(
        self, admin: Client, planted: Tree
    ) -> None:
        boss = User.objects.create_user("boss")
        values = {
            "name": "labs",
            "parent": planted.research.pk,
            **posted(
                ({"node_type": planted.t4.pk, "quota_milli": 5000, "limit_milli": 6000},),
                ({"user": boss.pk, "role": "manager"},),
            ),
        }
        assert admin.post(reverse("admin:projects_department_add"), values).status_code == 302
        labs = Department.objects.get(name="labs")
        assert labs.parent == planted.research
        assert labs.gpu_quotas.get().quota_milli == 5000
        told = AuditEntry.objects.get(action="department.departmentmemberships")
        assert told.entity_id == "labs"
        assert "boss" in str(told.after)

    def test_a_changed_role_leaves_before_and_after(self, admin: Client, planted: Tree) -> None:
        boss = User.objects.create_user("boss")
        row = DepartmentMembership.objects.create(
            user=boss, department=planted.products, role="viewer"
        )
        address = reverse("admin:projects_department_change", args=[planted.products.pk])
        own = {"title": "Products", "parent": ""}

        def save(**changes: object) -> None:
            member = {"id": row.pk, "user": boss.pk, "role": "manager", **changes}
            rows = posted((), (member,)) | {"memberships-INITIAL_FORMS": 1}
            assert admin.post(address, {**own, **rows}).status_code == 302

        save()
        told = AuditEntry.objects.get()
        assert (told.action, told.entity_id) == ("department.departmentmemberships", "products")
        name = "boss · Products · Manager"
        assert told.before == {"changed": [{"row": name, "role": "viewer"}]}
        assert told.after == {"changed": [{"row": name, "role": "manager"}]}
        # What is saved as it was leaves nothing.
        save()
        assert AuditEntry.objects.count() == 1
        save(DELETE="on")
        told = AuditEntry.objects.latest("pk")
        assert (told.before, told.after) == ({"removed": [name]}, {})

    def test_a_new_one_promises_no_more_than_its_parent_has(
        self, admin: Client, planted: Tree
    ) -> None:
        set_department_quota(planted.products, planted.t4, quota_milli=1000)
        row = {"node_type": planted.t4.pk, "quota_milli": 1001}
        values = {"name": "labs", "parent": planted.products.pk, **posted((row,))}
        answer = admin.post(reverse("admin:projects_department_add"), values)
        assert answer.status_code == 200
        assert "1.001 GPU asked, but of the 1 GPU" in answer.content.decode()
        assert not Department.objects.filter(name="labs").exists()

    @pytest.mark.parametrize(
        ("parent", "words"),
        [
            ("science", "itself or a department below it"),
            ("vision", "itself or a department below it"),
            ("products", "3 GPU asked, but of the 2.5 GPU of T4 that Products has"),
        ],
    )
    def test_a_wrong_place_is_refused_at_its_field(
        self, admin: Client, planted: Tree, parent: str, words: str
    ) -> None:
        set_department_quota(planted.products, planted.t4, quota_milli=2500)
        address = reverse("admin:projects_department_change", args=[planted.science.pk])
        values = {"name": "science", "parent": getattr(planted, parent).pk, **posted()}
        answer = admin.post(address, values)
        assert answer.status_code == 200
        assert words in answer.content.decode()
        planted.science.refresh_from_db()
        assert planted.science.parent is None

    def test_one_with_departments_in_it_stays(self, admin: Client, planted: Tree) -> None:
        address = reverse("admin:projects_department_delete", args=[planted.science.pk])
        admin.post(address, {"post": "yes"})
        assert Department.objects.filter(pk=planted.science.pk).exists()
        assert not AuditEntry.objects.filter(action="department.deleted").exists()

    def test_a_project_moves_and_the_move_is_audited(self, admin: Client, planted: Tree) -> None:
        set_department_quota(planted.products, planted.t4, quota_milli=1500)
        address = reverse("admin:projects_project_change", args=[planted.walking.pk])
        rows = posted()
        own = {"title": "Walking", "department": planted.products.pk, "priority": 100}
        more = {f"allowed_node_types-{name}_FORMS": 0 for name in ("TOTAL", "INITIAL")}
        answer = admin.post(address, {**own, **rows, **more})
        assert "2 GPU asked, but of the 1.5 GPU" in answer.content.decode()
        answer = admin.post(address, {**own, "department": planted.vision.pk, **rows, **more})
        assert answer.status_code == 302
        planted.walking.refresh_from_db()
        assert planted.walking.department == planted.vision
        entry = AuditEntry.objects.get(action="project.changed")
        assert (entry.before, entry.after) == (
            {"department": "Robots"},
            {"department": "Vision"},
        )

    def test_a_quota_keeps_its_node_type(self, admin: Client, planted: Tree) -> None:
        quota = planted.walking.gpu_quotas.get()
        other = NodeType.objects.create(name="v100", title="V100", label_value="v100")
        address = reverse("admin:projects_project_change", args=[planted.walking.pk])
        own = {"title": "Walking", "department": planted.walking.department_id, "priority": 100}
        more = {f"allowed_node_types-{name}_FORMS": 0 for name in ("TOTAL", "INITIAL")}
        row = {"id": quota.pk, "node_type": other.pk, "quota_milli": 1000, "weight": quota.weight}
        rows = posted() | {"gpu_quotas-TOTAL_FORMS": 1, "gpu_quotas-INITIAL_FORMS": 1}
        answer = admin.post(
            address, {**own, **rows, **more, **{f"gpu_quotas-0-{name}": row[name] for name in row}}
        )
        assert answer.status_code == 302
        kept = planted.walking.gpu_quotas.get()
        assert (kept.node_type, kept.quota_milli) == (quota.node_type, 1000)


@pytest.mark.django_db(transaction=True)
def test_whatever_is_changed_of_what_is_planned_wakes_the_planner(admin: Client) -> None:
    node_type, project = make_node_type("t4", gpus=8), make_project("vision")
    rows = {
        f"{prefix}-{name}_FORMS": 0
        for prefix in ("gpu_quotas", "allowed_node_types", "memberships")
        for name in ("TOTAL", "INITIAL")
    }
    own = {"title": "Vision", "priority": 100, **rows}
    of_project = reverse("admin:projects_project_change", args=[project.pk])
    of_type = reverse("admin:projects_nodetype_change", args=[node_type.pk])
    removal = reverse("admin:projects_project_delete", args=[project.pk])
    where = {name: connection.settings_dict[name.upper()] for name in ("host", "port", "user")}
    with psycopg.connect(dbname=connection.settings_dict["NAME"], autocommit=True, **where) as ear:
        ear.execute(f"LISTEN {WAKE_CHANNEL}")
        for address, values in (
            (of_project, {**own, "cpu_limit_milli": 4000}),
            (of_project, {**own, "cpu_limit_milli": 4000, "priority": 200}),
            (of_type, {**model_to_dict(node_type), "min_runtime_s": 60}),
            (removal, {"post": "yes"}),
        ):
            assert admin.post(address, values).status_code == 302
            (heard,) = ear.notifies(timeout=10, stop_after=1)
            assert heard.payload == "quota"
