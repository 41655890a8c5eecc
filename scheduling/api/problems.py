"""Every error as `application/problem+json` (RFC 9457): code for programs, words for people.

Codes stay English; titles, details and messages follow `Accept-Language`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, JsonResponse
from django.utils.translation import gettext as _
from psycopg_pool import PoolTimeout
from rest_framework import exceptions
from rest_framework.permissions import SAFE_METHODS
from rest_framework.response import Response
from rest_framework.views import exception_handler

from scheduling import formats
from scheduling.services.actions import ActionRefusedError

CONTENT_TYPE = "application/problem+json"
WRONG_FIELDS = "invalid_fields"
RETRY_AFTER_S = 5
DATABASE_AWAY = (OperationalError, InterfaceError, PoolTimeout)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one field.

    `limit` is what would be accepted, where there is such a thing.
    """

    field: str
    code: str
    message: str
    limit: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One error answer."""

    status: int
    code: str
    detail: str
    errors: Sequence[FieldError] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        """What is answered; its `request_id` is also in the log."""
        request_id = str(uuid.uuid4())
        logger.info("refused", extra={"code": self.code, "request_id": request_id})
        return {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "request_id": request_id,
            "errors": [asdict(error) for error in self.errors],
        }

    def response(self) -> Response:
        """The answer of a view."""
        body = self.body()
        headers = self._headers(body)
        return Response(body, status=self.status, headers=headers, content_type=CONTENT_TYPE)

    def plain_response(self) -> JsonResponse:
        """The same where no view answers."""
        body = self.body()
        headers = self._headers(body)
        return JsonResponse(body, status=self.status, headers=headers, content_type=CONTENT_TYPE)

    def _headers(self, body: Mapping[str, object]) -> dict[str, str]:
        return {**self.headers, "X-Request-Id": str(body["request_id"])}


class ProblemError(Exception):
    """Raised to answer with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def wrong_fields(errors: Sequence[FieldError]) -> ProblemError:
    """422: the request was understood, and what it asks for cannot be."""
    return ProblemError(
        Problem(422, WRONG_FIELDS, _("Nothing was changed: some fields are wrong."), errors)
    )


def database_away() -> Problem:
    detail = _("The database does not answer; try again in a moment.")
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return Problem(503, "database_away", detail, headers=headers)


def handle(error: Exception, context: dict[str, Any]) -> Response | None:  # DRF's own signature
    """Turn what a view raised into a problem; None lets Django answer with its error page."""
    if isinstance(error, ProblemError):
        problem = error.problem
        if problem.code == WRONG_FIELDS and context["request"].method in SAFE_METHODS:
            # Nobody who only reads expects a change.
            problem = replace(problem, detail=_("Some parameters are wrong."))
        return problem.response()
    if isinstance(error, ActionRefusedError):
        status = 403 if error.code == "not_allowed" else 409
        return Problem(status, error.code, error.message).response()
    if isinstance(error, DATABASE_AWAY):
        return database_away().response()
    if isinstance(error, RequestDataTooBig):
        detail = _("The body is larger than %(limit)s.") % {
            "limit": formats.size(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        }
        return Problem(413, "body_too_large", detail).response()
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    elif isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    response = exception_handler(error, context)
    if response is None or not isinstance(error, exceptions.APIException):
        return response
    headers = {
        name: value
        for name, value in response.headers.items()
        if name in ("WWW-Authenticate", "Retry-After", "Allow")
    }
    return Problem(response.status_code, _code(error), _detail(error), headers=headers).response()


def _code(error: exceptions.APIException) -> str:
    codes = error.get_codes()
    return codes if isinstance(codes, str) else error.default_code


def _detail(error: exceptions.APIException) -> str:
    return str(error.detail) if isinstance(error.detail, str) else str(error.default_detail)
