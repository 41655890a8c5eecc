"""Error answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from scheduling.api.problems import CONTENT_TYPE


class FieldErrorSchema(serializers.Serializer[Any]):
    """What is wrong with one field."""

    field = serializers.CharField()
    code = serializers.CharField()
    message = serializers.CharField()
    limit = serializers.CharField(allow_null=True)


class ProblemSchema(serializers.Serializer[Any]):
    """RFC 9457."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField()
    request_id = serializers.UUIDField()
    errors = FieldErrorSchema(many=True)  # type: ignore[assignment]  # RFC 9457's own way


def problems_of(*statuses: int) -> dict[tuple[int, str], type[ProblemSchema]]:
    """Error answers, for the OpenAPI document."""
    return {(status, CONTENT_TYPE): ProblemSchema for status in statuses}


BODY_PROBLEMS = problems_of(400, 413, 415)
"""What is answered to a body that cannot be read."""
