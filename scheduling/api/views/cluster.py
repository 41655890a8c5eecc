"""What there is: node types and nodes. Everybody in the organisation may see both."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from projects.models import NodeType
from scheduling.api.base import FIELDS, ApiViewSet
from scheduling.api.schemas.cluster import NodeSchema, NodeTypeSchema
from scheduling.api.schemas.problems import problems_of
from scheduling.capacity import supplies
from scheduling.models import Node
from scheduling.services import nodes

ERRORS = problems_of(401, 404, 422)
CHANGES = problems_of(401, 403, 404)


class NodeTypeViewSet(ApiViewSet):
    """Kinds of nodes, with what is free now."""

    serializer_class = NodeTypeSchema
    lookup_field = "name"

    def get_queryset(self) -> QuerySet[NodeType]:
        """All."""
        return NodeType.objects.all()

    @extend_schema(parameters=[FIELDS], responses={200: NodeTypeSchema(many=True), **ERRORS})
    def list(self, request: Request) -> Response:
        """Node types by name."""
        rows = self.get_queryset()
        return self.items(rows, NodeTypeSchema, ordering=("name",), context=_supplies)

    @extend_schema(responses={200: NodeTypeSchema, **ERRORS})
    def retrieve(self, request: Request, name: str) -> Response:
        """One node type."""
        row: NodeType = get_object_or_404(self.get_queryset(), name=name)
        return Response(NodeTypeSchema(row, context=_supplies([row])).data)


def _supplies(rows: list[NodeType]) -> dict[str, Any]:  # a serialiser's context
    return {"supplies": {supply.node_type.pk: supply for supply in supplies(rows)}}


class NodeViewSet(ApiViewSet):
    """Nodes and their devices."""

    serializer_class = NodeSchema
    lookup_field = "name"

    def get_queryset(self) -> QuerySet[Node]:
        """All."""
        return Node.objects.select_related("zone", "node_type").prefetch_related("devices")

    @extend_schema(parameters=[FIELDS], responses={200: NodeSchema(many=True), **ERRORS})
    def list(self, request: Request) -> Response:
        """Nodes by name."""
        return self.items(self.get_queryset(), NodeSchema, ordering=("name",))

    @extend_schema(responses={200: NodeSchema, **ERRORS})
    def retrieve(self, request: Request, name: str) -> Response:
        """One node."""
        return self._answer(name)

    @extend_schema(request=None, responses={200: NodeSchema, **CHANGES})
    @action(detail=True, methods=["post"])
    def cordon(self, request: Request, name: str) -> Response:
        """Let nothing new start there; what runs goes on. For admins; harmless twice."""
        nodes.cordon(self._node(name), actor=self.person)
        return self._answer(name)

    @extend_schema(request=None, responses={200: NodeSchema, **CHANGES})
    @action(detail=True, methods=["post"])
    def uncordon(self, request: Request, name: str) -> Response:
        """Open it again. For admins; harmless twice."""
        nodes.uncordon(self._node(name), actor=self.person)
        return self._answer(name)

    def _node(self, name: str) -> Node:
        row: Node = get_object_or_404(self.get_queryset(), name=name)
        return row

    def _answer(self, name: str) -> Response:
        return Response(NodeSchema(self._node(name)).data)
