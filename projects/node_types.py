"""Which node types a project's work may use, in order of preference."""

from __future__ import annotations

from collections.abc import Sequence

from projects.models import AllowedNodeType, NodeType, Project


def allowed_node_types(project: Project, kind: str) -> Sequence[NodeType]:
    """Node types open to this kind of work, most preferred first;

    all of them where none was chosen.
    """
    chosen = list(
        AllowedNodeType.objects.filter(project=project, kind=kind).select_related("node_type")
    )
    if chosen:
        return [row.node_type for row in chosen]
    return list(NodeType.objects.all())
