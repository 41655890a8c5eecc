"""Create the demonstration organisation, once, with its logins in a file that we alone read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from projects.models import (
    AllowedNodeType,
    Department,
    Membership,
    NodeType,
    Project,
    Role,
    Template,
    TemplateScope,
    User,
    WorkloadKind,
)
from projects.quotas import set_gpu_quota
from scheduling import demonstration as demo


class Command(BaseCommand):
    help = "Create the demonstration organisation in an empty database."

    def handle(self, *_args: Any, **_options: Any) -> None:  # what Django passes
        if User.objects.exists():
            raise CommandError(
                "there are users already: the demonstration is for an empty database"
            )
        # Inside, so that nobody is created whose password was never written down.
        with transaction.atomic():
            _write_logins(settings.ALLOT.var / "logins.txt", create_organisation())


def create_organisation() -> dict[str, str]:
    """Create everything.

    Returns:
        Password by login.
    """
    node_types = {item.name: _node_type(item) for item in demo.NODE_TYPES}
    departments = {
        name: Department.objects.create(name=name, title=title) for name, title in demo.DEPARTMENTS
    }
    logins = {"admin": _password()}
    admin = User.objects.create_superuser("admin", password=logins["admin"])
    for item in demo.PROJECTS:
        project = Project.objects.create(
            name=item.name,
            title=item.title,
            department=departments[item.department],
            is_personal=item.is_personal,
            lends_idle=True,
        )
        logins[item.person] = _password()
        person = User.objects.create_user(
            item.person, password=logins[item.person], first_name=item.first_name
        )
        Membership.objects.create(user=person, project=project, role=Role.RESEARCHER)
        _give_quotas(project, item, node_types, admin)
    for name, kind, description, spec in demo.TEMPLATES:
        Template.objects.create(
            name=name,
            kind=kind,
            description=description,
            spec=spec,
            scope=TemplateScope.PLATFORM,
            owner=admin,
        )
    return logins


def _node_type(item: demo.DemoNodeType) -> NodeType:
    # Until its nodes register, a type offers what the simulated ones will.
    return NodeType.objects.create(
        name=item.name,
        title=item.title,
        label_value=item.name,
        gpu_model=item.gpu_model,
        gpu_memory_mib=item.gpu_memory_mib,
        capacity_gpu_milli=1000 * item.num_devices,
        gpu_price_per_hour=item.gpu_price,
        cpu_price_per_hour=demo.CPU_PRICE,
        memory_price_per_hour=demo.MEMORY_PRICE,
        rank=item.rank,
        swap_enabled=item.num_devices > 0,
    )


def _give_quotas(
    project: Project, item: demo.DemoProject, node_types: dict[str, NodeType], admin: User
) -> None:
    for type_name, quota_milli in item.quotas:
        set_gpu_quota(project, node_types[type_name], quota_milli=quota_milli, actor=admin)
    for rank, type_name in enumerate(item.training_types):
        AllowedNodeType.objects.create(
            project=project,
            node_type=node_types[type_name],
            kind=WorkloadKind.TRAINING,
            rank=rank,
        )


def _password() -> str:
    return secrets.token_urlsafe(9)


def _write_logins(file: Path, logins: dict[str, str]) -> None:
    about = {item.person: f"researcher, project {item.title}" for item in demo.PROJECTS}
    lines = "".join(
        f"  {name:<8} {password:<14} {about.get(name, 'administrator')}\n"
        for name, password in logins.items()
    )
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as output:
        output.write(f"Logins of the demonstration:\n{lines}")
