"""What all views of the API share: who may call, in what form they answer, how lists are cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from projects.models import User
from scheduling.api.auth import BearerAuthentication
from scheduling.api.parsers import JsonParser
from scheduling.api.problems import FieldError, handle, wrong_fields

DEFAULT_LIMIT = 50
MAX_LIMIT = 500

FIELDS = OpenApiParameter(
    "fields", OpenApiTypes.STR, description="Only these fields of each item, separated by commas."
)


class ListPages(CursorPagination):
    """`limit` and `cursor`; a page deep inside costs what the first one does."""

    page_size = DEFAULT_LIMIT
    page_size_query_param = "limit"
    page_size_query_description = f"Items per page, 1 to {MAX_LIMIT}."
    cursor_query_param = "cursor"
    cursor_query_description = "`next_cursor` of the page before."

    def get_page_size(self, request: Request) -> int:
        """The limit asked for.

        Raises:
            ProblemError: 422, it is no number from 1 to 500.
        """
        text = request.query_params.get("limit", str(DEFAULT_LIMIT))
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= MAX_LIMIT):
            message = _("“%(value)s” is no number of items from 1 to %(limit)s.")
            words = message % {"value": text[:40], "limit": MAX_LIMIT}
            raise wrong_fields([FieldError("limit", "invalid_limit", words, str(MAX_LIMIT))])
        return int(text)

    def paginate_queryset(
        self,
        queryset: QuerySet[Any] | Sequence[Any],  # of any list
        request: Request,
        view: Any = None,  # DRF's own signature
    ) -> list[Any] | None:
        """Cut one page.

        Raises:
            ProblemError: 422, the cursor is not one of ours, or names a place that cannot be.
        """
        try:
            return super().paginate_queryset(queryset, request, view)
        except (NotFound, ValidationError, ValueError) as error:
            message = _("The cursor is not one of ours; begin without it.")
            raise wrong_fields([FieldError("cursor", "invalid_cursor", message)]) from error

    def get_paginated_response(self, data: Any) -> Response:  # serialised items
        """Items, and where to go on."""
        link = self.get_next_link()
        cursors = parse_qs(urlsplit(link).query).get("cursor") if link else None
        return Response({"items": data, "next_cursor": cursors[0] if cursors else None})

    def get_paginated_response_schema(
        self, schema: dict[str, Any]
    ) -> dict[str, Any]:  # JSON schema
        """The same, for the OpenAPI document."""
        return {
            "type": "object",
            "required": ["items", "next_cursor"],
            "properties": {
                "items": schema,
                "next_cursor": {"type": ["string", "null"]},
            },
        }


class ApiViewSet(GenericViewSet):  # type: ignore[type-arg]  # one class for several models
    """Bearer token or session, JSON both ways, errors as problems."""

    authentication_classes = (BearerAuthentication, SessionAuthentication)
    permission_classes = (IsAuthenticated,)
    parser_classes = (JsonParser,)
    renderer_classes: tuple[type[BaseRenderer], ...] = (JSONRenderer,)
    pagination_class = ListPages
    search_fields: tuple[str, ...] = ()

    @property
    def person(self) -> User:
        """Who calls; the permission has made sure that it is somebody."""
        user = self.request.user
        if not isinstance(user, User):
            raise TypeError("an anonymous request came past the permission")
        return user

    def get_exception_handler(self) -> Callable[..., Response | None]:
        """Ours, whatever the settings say."""
        return handle

    def items(
        self,
        rows: QuerySet[Any],  # of the view's model
        serialise: type[BaseSerializer[Any]],
        *,
        ordering: tuple[str, ...],
        context: Callable[[list[Any]], Mapping[str, object]] = lambda _rows: {},
    ) -> Response:
        """One page of a list.

        Args:
            rows: All that the person may see.
            serialise: What makes an item of a row.
            ordering: A timestamp or name, then something unique.
            context: What the serialiser needs beside the rows of the page, in one go.
        """
        paginator = self.paginator
        if not isinstance(paginator, ListPages):
            raise TypeError("lists are cut by ListPages")
        paginator.ordering = ordering
        found = paginator.paginate_queryset(rows, self.request, view=self) or []
        extra = {**self.get_serializer_context(), **context(found)}
        data = serialise(found, many=True, context=extra).data
        return paginator.get_paginated_response(self._only_fields(data, serialise))

    def _only_fields(self, data: Any, serialise: type[BaseSerializer[Any]]) -> Any:  # JSON
        """What `fields` names of each item.

        Raises:
            ProblemError: 422, an item has no such field.
        """
        text = self.request.query_params.get("fields", "")
        if not text:
            return data
        names = [name.strip() for name in text.split(",")]
        known = list(serialise().get_fields())  # type: ignore[attr-defined]  # ours all have fields
        for name in names:
            if name not in known:
                message = _("There is no field “%(value)s”; there are: %(limit)s.")
                words = message % {"value": name[:40], "limit": ", ".join(known)}
                raise wrong_fields([FieldError("fields", "unknown_field", words, ", ".join(known))])
        return [{name: item[name] for name in names} for item in data]
