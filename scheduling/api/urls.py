"""Addresses under `/api/v1`, and the document that describes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import path, re_path
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2
from drf_spectacular.views import SpectacularAPIView
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from scheduling.api.base import ApiViewSet
from scheduling.api.problems import handle
from scheduling.api.views.analytics import AnalyticsViewSet, IdleViewSet
from scheduling.api.views.cluster import NodeTypeViewSet, NodeViewSet
from scheduling.api.views.organisation import ProjectViewSet, TemplateViewSet
from scheduling.api.views.workloads import QueueViewSet, WorkloadViewSet

app_name = "api"

router = SimpleRouter(trailing_slash=False, use_regex_path=False)
router.register("workloads", WorkloadViewSet, basename="workload")
router.register("queue", QueueViewSet, basename="queue")
router.register("node-types", NodeTypeViewSet, basename="node-type")
router.register("nodes", NodeViewSet, basename="node")
router.register("projects", ProjectViewSet, basename="project")
router.register("templates", TemplateViewSet, basename="template")
router.register("analytics", AnalyticsViewSet, basename="analytics")
router.register("idle", IdleViewSet, basename="idle")


class UnknownAddress(ApiViewSet):
    """Answers what is no address of ours as the API answers, not with a page."""

    schema = None

    def not_found(self, request: Request, *args: object, **kwargs: object) -> Response:
        """404.

        Raises:
            NotFound: always.
        """
        raise NotFound


METHODS: dict[str, Any] = dict.fromkeys(  # DRF's own union of names and functions
    ("get", "post", "put", "patch", "delete"), "not_found"
)

DOCUMENT_SETTINGS = {
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "ENUM_NAME_OVERRIDES": {
        "WorkloadKind": "projects.models.WorkloadKind",
        "WorkloadPhase": "scheduling.models.Phase",
        "AttemptPhase": "scheduling.models.AttemptPhase",
    },
}


class Document(SpectacularAPIView):
    """The document, which fails as the rest of the API does."""

    def get_exception_handler(self) -> Callable[..., Response | None]:
        """Ours, whatever the settings say."""
        return handle


document = Document.as_view(
    renderer_classes=[OpenApiJsonRenderer, OpenApiJsonRenderer2],
    authentication_classes=[],
    permission_classes=[],
    custom_settings=DOCUMENT_SETTINGS,
)
unknown_address = UnknownAddress.as_view(METHODS)

urlpatterns = [
    path("openapi.json", document, name="openapi"),
    *router.urls,
    re_path(r"^.*$", unknown_address),
]
