"""A person's tokens for the API: make one, see it once, revoke it."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from projects import tokens as token_rules
from projects.models import Token, User

NEW_TOKEN_COOKIE = "allot_new_token"
"""Carries a new token over the redirect to the page that shows it once: the browser's own, since
the server keeps no token."""
NEW_TOKEN_S = 60


class OwnRequest(HttpRequest):
    """A request of somebody who is logged in."""

    user: User


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: OwnRequest) -> HttpResponse:
    """List the person's tokens. A new one is shown by the page that follows its making, and never
    again; loading that page anew makes none."""
    address = reverse("projects:tokens")
    if request.method == "POST":
        try:
            name, days = request.POST.get("name", ""), _days(request)
            issued = token_rules.issue(request.user, name=name, days=days)
        except ValidationError as error:
            return _show(request, errors=error.message_dict, status=422)
        made = redirect(address)
        made.set_cookie(
            NEW_TOKEN_COOKIE,
            issued.secret,
            max_age=NEW_TOKEN_S,
            path=address,
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
            samesite="Strict",
        )
        return made
    response = _show(request)
    if NEW_TOKEN_COOKIE in request.COOKIES:
        response.delete_cookie(NEW_TOKEN_COOKIE, path=address, samesite="Strict")
    return response


def _days(request: HttpRequest) -> int:
    """The lifetime asked for.

    Raises:
        ValidationError: it is no whole number.
    """
    text = request.POST.get("days", "").strip()
    try:
        return int(text)
    except ValueError as error:
        message = _("“%(value)s” is no whole number of days from %(least)s to %(limit)s.")
        params = {
            "value": text[:40],
            "least": token_rules.MIN_DAYS,
            "limit": token_rules.MAX_DAYS,
        }
        problem = ValidationError(message, code="not_a_number", params=params)
        raise ValidationError({"days": problem}) from error


@login_required
@require_POST
def revoke_token(request: OwnRequest, token_id: int) -> HttpResponse:
    """End one of the person's tokens."""
    token = get_object_or_404(Token, pk=token_id, user=request.user)
    token_rules.revoke(token, actor=request.user)
    messages.success(request, _("Token “%(name)s” is revoked.") % {"name": token.name})
    return redirect("projects:tokens")


def _show(
    request: OwnRequest,
    *,
    errors: dict[str, list[str]] | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "tokens": Token.objects.filter(user=request.user),
        "now": timezone.now(),
        "issued": token_rules.issued_to(request.user, request.COOKIES.get(NEW_TOKEN_COOKIE, "")),
        "errors": errors or {},
        "name": request.POST.get("name", ""),
        "days": request.POST.get("days", ""),
        "default_days": token_rules.DEFAULT_DAYS,
        "max_days": token_rules.MAX_DAYS,
    }
    response = render(request, "projects/tokens.html", context, status=status)
    # The secret must not stay in any cache, the browser's included.
    response["Cache-Control"] = "no-store"
    return response
