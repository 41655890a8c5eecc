"""Quotas never promise more than there is, and every change is on the record."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, IntegrityError, transaction
from django.forms import model_to_dict
from django.test import Client
from django.urls import reverse

from projects.models import AuditEntry, GpuQuota, User
from projects.quotas import set_gpu_quota
from tests.factories import make_node_type, make_project

pytestmark = pytest.mark.django_db


def test_the_sum_of_quotas_may_not_exceed_what_there_is() -> None:
    node_type = make_node_type("t4", gpus=8)
    make_project("one", t4=5000)
    two = make_project("two")
    set_gpu_quota(two, node_type, quota_milli=3000)
    with pytest.raises(ValidationError) as refusal:
        set_gpu_quota(two, node_type, quota_milli=3001)
    (message,) = refusal.value.message_dict["quota_milli"]
    assert "3.001" in message
    assert "at most 3." in message
    assert GpuQuota.objects.get(project=two).quota_milli == 3000


def test_a_limit_below_the_quota_is_refused_by_service_and_schema() -> None:
    node_type = make_node_type("t4", gpus=8)
    project = make_project("one", t4=2000)
    with pytest.raises(ValidationError) as refusal:
        set_gpu_quota(project, node_type, quota_milli=2000, limit_milli=1000)
    assert "limit_milli" in refusal.value.message_dict
    with pytest.raises(IntegrityError), transaction.atomic():
        GpuQuota.objects.filter(project=project).update(limit_milli=1000)


def test_a_change_leaves_before_and_after_that_nobody_can_alter() -> None:
    node_type = make_node_type("t4", gpus=8)
    project = make_project("one", t4=2000)
    set_gpu_quota(project, node_type, quota_milli=3000, limit_milli=4000)
    entry = AuditEntry.objects.get(action="quota.set")
    assert entry.before == {"quota_milli": 2000, "limit_milli": None, "weight": 2}
    assert entry.after is not None
    assert entry.after["quota_milli"] == 3000
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        AuditEntry.objects.all().delete()
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        AuditEntry.objects.update(action="nothing")


def test_a_cpu_limit_below_its_quota_is_refused_with_both_values() -> None:
    project = make_project("vision")
    project.cpu_quota_milli, project.cpu_limit_milli = 500, 10
    with pytest.raises(ValidationError) as refused:
        project.full_clean()
    assert refused.value.message_dict == {
        "cpu_limit_milli": ["The limit 10 is below the quota 500."]
    }


def test_a_gpu_without_memory_is_refused_at_its_field() -> None:
    node_type = make_node_type("t4", gpus=8)
    node_type.full_clean()
    node_type.gpu_memory_mib = 0
    with pytest.raises(ValidationError) as refused:
        node_type.full_clean()
    assert refused.value.message_dict == {
        "gpu_memory_mib": ["“Tesla T4” with 0 MiB of memory: a GPU has at least 1."]
    }
    make_node_type("cpu", gpus=0).full_clean()


def test_a_type_whose_nodes_have_gpus_keeps_their_model() -> None:
    node_type = make_node_type("t4", gpus=8)
    node_type.gpu_model = ""
    with pytest.raises(ValidationError) as refused:
        node_type.full_clean()
    assert refused.value.message_dict == {
        "gpu_model": ["Nodes of this type have 8 GPU: their model cannot be left out."]
    }


def test_a_node_type_keeps_the_name_by_which_work_asks_for_it(client: Client) -> None:
    client.force_login(User.objects.create_superuser("root"))
    node_type = make_node_type("t4", gpus=8)
    address = reverse("admin:projects_nodetype_change", args=[node_type.pk])
    values = {**model_to_dict(node_type), "name": "new", "title": "T4 of the lab"}
    assert client.post(address, values).status_code == 302
    node_type.refresh_from_db()
    assert (node_type.name, node_type.title) == ("t4", "T4 of the lab")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("label_key", "bad key!"),
        ("label_key", "/t4"),
        ("label_key", "allot/node-type/t4"),
        ("label_value", "bad value!"),
        ("label_value", "-t4"),
        ("label_value", "t4\n"),
    ],
)
def test_a_selector_that_no_node_can_have_is_refused(field: str, value: str) -> None:
    node_type = make_node_type("t4", gpus=8)
    setattr(node_type, field, value)
    with pytest.raises(ValidationError) as refused:
        node_type.full_clean()
    (message,) = refused.value.message_dict[field]
    assert f"“{value}” is no" in message
    assert "63" in message
    setattr(node_type, field, "nvidia.com/gpu.product" if field == "label_key" else "Tesla-T4_1.0")
    node_type.full_clean()
