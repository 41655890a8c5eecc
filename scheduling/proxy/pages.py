"""What somebody reads who may not pass: a page for a person, a sentence for a script."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.views import redirect_to_login
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import translation
from django.utils.translation import gettext as _

from scheduling.agent.forward import Client
from scheduling.proxy.access import Refusal, Why
from scheduling.proxy.headers import is_navigation

REFRESH_S = 3


@dataclass(frozen=True, slots=True)
class _Words:
    title: str
    text: str
    is_passing: bool = False
    """It may be different in a moment: the page tries again by itself."""


async def refuse(client: Client, request: ASGIRequest, refusal: Refusal) -> None:
    """Answer a request or a WebSocket's opening with why not."""
    with translation.override(translation.get_language_from_request(request)):
        response = _response(request, refusal, for_person=is_navigation(client.scope))
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in response.items()
    ]
    await client.respond(response.status_code, headers, response.content)


def _response(request: ASGIRequest, refusal: Refusal, *, for_person: bool) -> HttpResponse:
    if refusal.why is Why.LOGIN and for_person:
        return redirect_to_login(request.get_full_path())
    words = _words(refusal)
    if for_person:
        context = {
            "words": words,
            "status": refusal.why.status,
            "workload_url": _workload_url(refusal),
        }
        body = str(render_to_string("scheduling/session_refused.html", context, request))
    else:
        body = f"{words.title}. {words.text}\n"
    response = HttpResponse(
        body,
        status=refusal.why.status,
        content_type=f"text/{'html' if for_person else 'plain'}; charset=utf-8",
    )
    response["Cache-Control"] = "no-store"
    response["Content-Security-Policy"] = (
        "default-src 'none'; style-src 'self'; img-src 'self'; font-src 'self';"
        " frame-ancestors 'self'"
    )
    if words.is_passing:
        response["Retry-After"] = str(REFRESH_S)
        if for_person:
            response["Refresh"] = str(REFRESH_S)
    return response


def _words(refusal: Refusal) -> _Words:
    match refusal.why:
        case Why.LOGIN:
            return _Words(_("You are signed out"), _("Sign in to Allot to use this session."))
        case Why.FORBIDDEN:
            return _Words(
                _("This session is somebody else's"),
                _("Only the person who started a session, and is still in its project, enters it."),
            )
        case Why.OTHER_SITE:
            return _Words(
                _("This request came from another site"),
                _("A session takes changes only from Allot's own pages."),
            )
        case Why.UNKNOWN:
            return _Words(
                _("There is no such session"), _("The address is wrong, or it was deleted.")
            )
        case Why.BAD_ADDRESS:
            return _Words(
                _("This address cannot be used"),
                _("It is for another host, or has “.” or “..” as a part."),
            )
        case Why.NOT_READY | Why.ENDED:
            return _state_words(refusal)
        case Why.NO_ANSWER:
            return _Words(
                _("The session does not answer"),
                _("Its node or its agent is away. The session itself may well be running."),
                is_passing=True,
            )
        case Why.NO_DATABASE:
            return _Words(
                _("Allot cannot look this up now"),
                _("Its database does not answer. Sessions go on meanwhile."),
                is_passing=True,
            )


def _state_words(refusal: Refusal) -> _Words:
    assert refusal.phase is not None
    title = f"{refusal.name}: {refusal.phase.label}"
    if refusal.why is Why.ENDED:
        return _Words(title, _("This session has ended."))
    return _Words(title, _("The session is not ready yet."), is_passing=True)


def _workload_url(refusal: Refusal) -> str | None:
    if refusal.workload_id is None:
        return None
    return reverse("scheduling:workload", args=[refusal.workload_id])
