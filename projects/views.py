"""A person's tokens for the API: make one, see it once, revoke it."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from projects import tokens as token_rules
from projects.models import Token, User


class OwnRequest(HttpRequest):
    """A request of somebody who is logged in."""

    user: User


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: OwnRequest) -> HttpResponse:
    """List the person's tokens; a new one is shown in the answer to its making, and never again."""
    if request.method != "POST":
        return _show(request)
    try:
        issued = token_rules.issue(
            request.user, name=request.POST.get("name", ""), days=_days(request)
        )
    except ValidationError as error:
        return _show(request, errors=error.message_dict, status=422)
    return _show(request, issued=issued)


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
    issued: token_rules.Issued | None = None,
    errors: dict[str, list[str]] | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "tokens": Token.objects.filter(user=request.user),
        "now": timezone.now(),
        "issued": issued,
        "errors": errors or {},
        "name": "" if issued else request.POST.get("name", ""),
        "days": "" if issued else request.POST.get("days", ""),
        "default_days": token_rules.DEFAULT_DAYS,
        "max_days": token_rules.MAX_DAYS,
    }
    response = render(request, "projects/tokens.html", context, status=status)
    # The secret must not stay in any cache, the browser's included.
    response["Cache-Control"] = "no-store"
    return response
