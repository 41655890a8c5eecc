"""Saved workload forms: who sees which, and keeping one's own.

A template's `spec` holds initial values by form field name, in the units of the page and written
without locale (`{"gpu_mode": "fraction", "gpu_fraction": "0.333", "cpu_cores": "2", "node_types":
["t4"]}`); every field is optional, and a name that the form does not know is ignored, so that a
template outlives a field.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from projects import audit
from projects.access import visible_projects
from projects.models import Template, TemplateScope, User, one_line

MAX_NAME_CHARS = 80


def templates_for(user: User, kind: str | None = None) -> QuerySet[Template]:
    """Templates offered to a person: the platform's, those of their projects, their own."""
    offered = Template.objects.filter(
        Q(scope=TemplateScope.PLATFORM)
        | Q(scope=TemplateScope.PROJECT, project__in=visible_projects(user))
        | Q(scope=TemplateScope.PRIVATE, owner=user),
        is_active=True,
    )
    if kind is not None:
        offered = offered.filter(kind=kind)
    return offered.select_related("project").order_by("name", "id")


def find_template(user: User, template_id: str, kind: str) -> Template | None:
    """The offered template with this id.

    None for another's, a retired one, and for no id at all.
    """
    try:
        key = uuid.UUID(template_id)
    except ValueError:
        return None
    return templates_for(user, kind).filter(pk=key).first()


def labels_of(user: User, kind: str, name: str) -> dict[str, str]:
    """Labels that a template requires of nodes: an admin's, never a private one's."""
    shared = templates_for(user, kind).filter(name=name).exclude(scope=TemplateScope.PRIVATE)
    for template in shared:
        labels = template.spec.get("node_labels")
        if isinstance(labels, dict):
            return {str(key): str(value) for key, value in labels.items()}
    return {}


@transaction.atomic
def save_private(user: User, *, name: str, kind: str, spec: Mapping[str, object]) -> Template:
    """Keep form values as the person's own template; the same name again replaces its values.

    Raises:
        ValidationError: the name is empty or too long.
    """
    name = one_line(name)
    if not name or len(name) > MAX_NAME_CHARS:
        message = _("“%(value)s” has %(length)s characters: a template's name has 1 to %(limit)s.")
        params = {"value": name[:40], "length": len(name), "limit": MAX_NAME_CHARS}
        raise ValidationError(message, code="invalid_template_name", params=params)
    template, is_new = Template.objects.update_or_create(
        owner=user,
        scope=TemplateScope.PRIVATE,
        project=None,
        name=name,
        defaults={"kind": kind, "spec": dict(spec), "is_active": True},
    )
    audit.record(
        user,
        action="template.created" if is_new else "template.changed",
        entity=("template", str(template.pk)),
        after={"name": name, "kind": kind, "spec": dict(spec)},
    )
    return template
