"""One way to render a page or, for htmx, its content only; and the cursor of long lists."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django_htmx.middleware import HtmxDetails

from projects.models import User


class PageRequest(HttpRequest):
    """A request of somebody who is logged in, as our middleware leaves it."""

    user: User
    htmx: HtmxDetails


def page(
    request: PageRequest, template: str, context: Mapping[str, object], status: int = 200
) -> HttpResponse:
    """Render the whole page, or the content alone for htmx: same address, same access check."""
    is_fragment = bool(request.htmx) and not request.htmx.boosted
    base = "_partial.html" if is_fragment else "base.html"
    response = render(request, template, {**context, "base": base}, status=status)
    response["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ["HX-Request"])
    return response


class Cursor(NamedTuple):
    """Where a page of a list ends, by value: a deep page costs what the first one does."""

    at: datetime
    id: uuid.UUID

    def encode(self) -> str:
        text = f"{self.at.isoformat()}|{self.id}"
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(text: str) -> Cursor | None:
    """The cursor of an address; None where it is missing or damaged, which is the first page."""
    try:
        padded = text + "=" * (-len(text) % 4)
        at, _, identity = base64.urlsafe_b64decode(padded.encode()).decode().partition("|")
        return Cursor(datetime.fromisoformat(at), uuid.UUID(identity))
    except (ValueError, binascii.Error, UnicodeError):
        return None
