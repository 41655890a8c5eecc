"""Analytics over any period, as JSON or CSV, and who is idle now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from projects.models import User
from scheduling.analytics import answer, idle, query, table
from scheduling.analytics.metrics import METRICS, Group
from scheduling.api.base import ApiViewSet
from scheduling.api.problems import FieldError, ProblemError, wrong_fields
from scheduling.api.schemas.analytics import (
    AnswerSchema,
    HoldingSchema,
    answer_json,
    holdings_json,
)
from scheduling.api.schemas.problems import problems_of

ERRORS = problems_of(401, 422)


class CsvRenderer(BaseRenderer):
    """Lets clients ask for `text/csv`; the view writes the lines itself."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(
        self,
        data: Any,  # DRF's own signature
        accepted_media_type: str | None = None,
        renderer_context: Any = None,
    ) -> bytes:
        """Errors are JSON whatever was asked for."""
        return bytes(JSONRenderer().render(data))


def _parameter(
    name: str, words: str, *, choices: Sequence[str] | None = None, is_required: bool = False
) -> OpenApiParameter:
    return OpenApiParameter(
        name, OpenApiTypes.STR, description=words, enum=choices, required=is_required
    )


PARAMETERS = [
    _parameter("metric", "What to sum up.", choices=list(METRICS), is_required=True),
    _parameter("group_by", "By what to tell apart.", choices=[str(group) for group in Group]),
    _parameter("from", "Date or time, ISO 8601; without an offset it is the zone's."),
    _parameter("to", "Likewise; the present if missing."),
    _parameter("step", "Width of a bucket.", choices=query.STEPS),
    _parameter("tz", "IANA time zone in which days and hours are cut."),
    _parameter("project", "Only this project."),
    _parameter("department", "Only projects of this department and of those below it."),
    _parameter("spreadsheet", "For CSV: `1` writes a byte order mark and `;`.", choices=["0", "1"]),
]


class AnalyticsViewSet(ApiViewSet):
    """Sums, ratios and statistics over a period."""

    renderer_classes = (JSONRenderer, CsvRenderer)

    @extend_schema(parameters=PARAMETERS, responses={200: AnswerSchema, **ERRORS})
    def list(self, request: Request) -> HttpResponse:
        """One metric over one period, by one group."""
        found = ask(request, self.person, timezone.now())
        if getattr(request.accepted_renderer, "format", "") == CsvRenderer.format:
            return csv_response(found, request.query_params.get("spreadsheet") == "1")
        return Response(answer_json(found))


class IdleViewSet(ApiViewSet):
    """Who holds a GPU and does nothing with it."""

    @extend_schema(responses={200: HoldingSchema(many=True), **problems_of(401)})
    def list(self, request: Request) -> Response:
        """Longest first."""
        now = timezone.now()
        return Response({"items": holdings_json(idle.now(self.person, now), now)})


def ask(request: Request, viewer: User, now: datetime) -> answer.Answer:
    """Read and answer a question.

    Raises:
        ProblemError: 422, with every parameter that is wrong.
    """
    try:
        return answer.run(query.read(request.query_params, now, viewer), viewer, now)
    except query.QueryError as error:
        raise _problem(error) from error


def _problem(error: query.QueryError) -> ProblemError:
    return wrong_fields(
        [FieldError(one.field, one.code, one.message, one.limit) for one in error.problems]
    )


def csv_response(found: answer.Answer, for_spreadsheets: bool) -> HttpResponse:
    """The answer as a file."""
    lines = table.csv_lines(found, for_spreadsheets=for_spreadsheets)
    name = f"{found.query.metric.name}-{found.query.since:%Y%m%d}-{found.query.until:%Y%m%d}.csv"
    return HttpResponse(
        "".join(lines).encode(),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )
