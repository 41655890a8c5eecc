"""Who shares it: the person's projects with their quota, and the templates offered to them."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from projects.access import may_administer_project, visible_projects
from projects.departments import DepartmentTree
from projects.models import Project, Template
from projects.templates import templates_for
from scheduling.api.base import FIELDS, ApiViewSet
from scheduling.api.idle_rules import change_idle_rule
from scheduling.api.problems import Problem, ProblemError
from scheduling.api.schemas.organisation import (
    IdleRuleAnswerSchema,
    IdleRuleSchema,
    ProjectQuotaSchema,
    ProjectSchema,
    TemplateSchema,
    idle_rule_of,
    quota_of,
)
from scheduling.api.schemas.problems import BODY_PROBLEMS, problems_of

ERRORS = problems_of(401, 404, 422)


class ProjectViewSet(ApiViewSet):
    """Projects that the person may see."""

    serializer_class = ProjectSchema
    lookup_field = "name"

    def get_queryset(self) -> QuerySet[Project]:
        """Those of which the person is a member; all for an admin."""
        return visible_projects(self.person).select_related("department")

    @extend_schema(parameters=[FIELDS], responses={200: ProjectSchema(many=True), **ERRORS})
    def list(self, request: Request) -> Response:
        """Projects by name."""
        return self.items(
            self.get_queryset(),
            ProjectSchema,
            ordering=("name",),
            context=lambda _rows: {"tree": DepartmentTree()},
        )

    @extend_schema(responses={200: ProjectSchema, **ERRORS})
    def retrieve(self, request: Request, name: str) -> Response:
        """One project."""
        project = get_object_or_404(self.get_queryset(), name=name)
        return Response(ProjectSchema(project, context={"tree": DepartmentTree()}).data)

    @extend_schema(responses={200: ProjectQuotaSchema, **ERRORS})
    @action(detail=True)
    def quota(self, request: Request, name: str) -> Response:
        """What it is promised and holds, per node type."""
        project: Project = get_object_or_404(self.get_queryset(), name=name)
        return Response(ProjectQuotaSchema(quota_of(project)).data)

    @extend_schema(responses={200: IdleRuleAnswerSchema, **ERRORS})
    @action(detail=True, url_path="idle-rule")
    def idle_rule(self, request: Request, name: str) -> Response:
        """What counts as idle in it, and what follows."""
        project: Project = get_object_or_404(self.get_queryset(), name=name)
        return Response(IdleRuleAnswerSchema(idle_rule_of(project)).data)

    @extend_schema(
        request=IdleRuleSchema,
        responses={200: IdleRuleAnswerSchema, **ERRORS, **problems_of(403), **BODY_PROBLEMS},
    )
    @idle_rule.mapping.patch
    def change_idle_rule(self, request: Request, name: str) -> Response:
        """Change the fields that the body names; for managers of the project and administrators."""
        project: Project = get_object_or_404(self.get_queryset(), name=name)
        if not may_administer_project(self.person, project.pk):
            detail = _("Only managers of the project and administrators change this.")
            raise ProblemError(Problem(403, "not_allowed", detail))
        changed = change_idle_rule(project, request.data, self.person)
        return Response(IdleRuleAnswerSchema(idle_rule_of(changed)).data)


class TemplateViewSet(ApiViewSet):
    """Saved forms: the platform's, the projects', the person's own."""

    serializer_class = TemplateSchema
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Template]:
        """Those offered to the person."""
        return templates_for(self.person)

    @extend_schema(parameters=[FIELDS], responses={200: TemplateSchema(many=True), **ERRORS})
    def list(self, request: Request) -> Response:
        """Templates by name."""
        return self.items(self.get_queryset(), TemplateSchema, ordering=("name", "id"))

    @extend_schema(responses={200: TemplateSchema, **ERRORS})
    def retrieve(self, request: Request, pk: str) -> Response:
        """One template."""
        return Response(TemplateSchema(get_object_or_404(self.get_queryset(), pk=pk)).data)
