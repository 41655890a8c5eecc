"""What stood in a database before departments had bounds, and what is found in it today; two
programs of their own, since each needs its own database."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

import django
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

BEFORE = [("projects", "0007_idle_ending"), ("scheduling", "0018_idle_ending")]


def fill() -> None:
    """An organisation that works, as its models were."""
    MigrationExecutor(connection).migrate(BEFORE)
    models = MigrationExecutor(connection).loader.project_state(BEFORE).apps

    def make(model: str, **values: object) -> Any:  # a model of the past
        return models.get_model(model).objects.create(**values)

    t4 = make(
        "projects.NodeType",
        name="t4",
        title="T4",
        label_value="t4",
        gpu_model="Tesla T4",
        gpu_memory_mib=14_917,
        capacity_gpu_milli=8000,
    )
    research = make("projects.Department", name="research", title="Research")
    make("projects.Department", name="empty")
    projects = {}
    for name, department, quota, limit, weight in (
        ("vision", research, 1500, 3000, 3),
        ("language", research, 1000, None, 1),
        ("speech", None, 4000, None, 2),
    ):
        project = make("projects.Project", name=name, department=department)
        make(
            "projects.GpuQuota",
            project=project,
            node_type=t4,
            quota_milli=quota,
            limit_milli=limit,
            weight=weight,
        )
        projects[name] = project
    make("projects.User", username="root", is_superuser=True)
    now = timezone.now()
    yesterday = now - timedelta(days=1)
    for name, role, expires in (
        ("vera", "researcher", None),
        ("max", "manager", None),
        ("viktor", "viewer", None),
        ("gone", "manager", yesterday),
    ):
        person = make("projects.User", username=name)
        make(
            "projects.Membership",
            user=person,
            project=projects["vision"],
            role=role,
            expires_at=expires,
        )
    owner = models.get_model("projects.User").objects.get(username="vera")
    zone = make("scheduling.Zone", name="local", token_hash="x")
    node = make(
        "scheduling.Node", name="n1", zone=zone, node_type=t4, cpu_milli=32_000, memory_mib=65_536
    )
    for kind, phase in (
        ("interactive", "running"),
        ("training", "queued"),
        ("training", "completed"),
    ):
        workload = make(
            "scheduling.Workload",
            name=f"{kind}-{phase}",
            project=projects["vision"],
            owner=owner,
            kind=kind,
            phase=phase,
            phase_changed_at=now,
            submitted_at=now,
            ended_at=now if phase == "completed" else None,
            cpu_milli=1000,
            memory_mib=1024,
            num_devices=1,
            gpu_milli=500,
            node_types=["t4"],
            is_preemptible=kind == "training",
        )
        if phase == "running":
            attempt = make(
                "scheduling.Attempt",
                workload=workload,
                number=1,
                node=node,
                phase="running",
                placed_at=now,
                started_at=now,
                idle_warned_at=now,
                idle_end_at=now + timedelta(hours=1),
            )
            make(
                "scheduling.Allocation",
                attempt=attempt,
                workload=workload,
                project=projects["vision"],
                node=node,
                gpu_milli=500,
                cpu_milli=1000,
                memory_mib=1024,
                started_at=now,
            )


def found() -> dict[str, object]:
    """Who may do what, and what each is promised, by today's code."""
    from projects import access
    from projects.models import Department, DepartmentQuota, NodeType, Project, User
    from projects.quotas import check_gpu_quota
    from scheduling.models import Workload
    from scheduling.organisation import gpu_key
    from scheduling.rules import rule_for
    from scheduling.snapshot import take_snapshot

    session = Workload.objects.get(kind="interactive")
    vision, t4 = session.project, NodeType.objects.get()
    people = {user.username: user for user in User.objects.order_by("username")}
    check_gpu_quota(vision, t4, 3000, 3000)
    levels = take_snapshot().snapshot.projects
    shares = {level.id: level.shares[gpu_key("t4")] for level in levels}
    return {
        "shares": {name: [each.quota, each.limit, each.weight] for name, each in shares.items()},
        "parents": {level.id: level.parent for level in levels},
        "departments": sorted(Department.objects.values_list("name", "parent")),
        "bounds": DepartmentQuota.objects.count(),
        "see": [name for name, one in people.items() if access.may_view_project(one, vision.pk)],
        "submit": [name for name, one in people.items() if access.may_submit(one, vision.pk)],
        "administer": [
            name for name, one in people.items() if access.may_administer_project(one, vision.pk)
        ],
        "elsewhere": [
            name
            for name, one in people.items()
            if access.visible_projects(one).exclude(pk=vision.pk).exists()
        ],
        "unfinished": sorted(Workload.objects.unfinished().values_list("name", flat=True)),
        "max_run_s": rule_for(session).max_run_interactive_s,
        "projects": Project.objects.count(),
    }


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    django.setup()
    if sys.argv[1] == "fill":
        fill()
    else:
        print(json.dumps(found()))  # noqa: T201 (its answer)
