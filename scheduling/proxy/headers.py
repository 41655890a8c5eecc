"""What of a browser's request Jupyter may see, and what of its answer the browser may.

Both share one host name with Allot's own pages, so cookies and headers that reach beyond
`/s/<workload id>/` must not pass in either direction.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.messages.storage.cookie import CookieStorage
from django.core.handlers.asgi import ASGIRequest

from scheduling.agent.forward import Answer, Headers, Scope, end_to_end, get_header

SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))

# What the browser says about itself to Allot, or a proxy says to us, is not for Jupyter.
_NOT_ONWARD: Final = frozenset(b"authorization cookie forwarded x-real-ip".split())

# These act on the whole host, not on one session's paths.
_NOT_BACK: Final = frozenset(
    b"alt-svc clear-site-data nel report-to service-worker-allowed set-cookie"
    b" strict-transport-security".split()
)


def own_cookie(name: str) -> bool:
    """Whether a cookie is Allot's: this copy's or, on the same host, another's."""
    return name.startswith("allot_") or name in {
        settings.SESSION_COOKIE_NAME,
        settings.CSRF_COOKIE_NAME,
        settings.LANGUAGE_COOKIE_NAME,
        CookieStorage.cookie_name,
    }


def onward_headers(scope: Scope, request: ASGIRequest, relay_secret: str) -> Headers:
    """The headers for the relay."""
    headers = [
        (name, value)
        for name, value in end_to_end(scope["headers"])
        if name not in _NOT_ONWARD and not name.startswith((b"x-forwarded-", b"x-allot-"))
    ]
    if cookies := _foreign_cookies(scope):
        headers.append((b"cookie", cookies))
    added = {
        "authorization": f"Bearer {relay_secret}",
        "x-forwarded-for": request.META.get("REMOTE_ADDR") or "unknown",
        "x-forwarded-proto": request.scheme or "http",
        "x-forwarded-host": request.get_host(),
    }
    headers += [(name.encode(), value.encode("latin-1")) for name, value in added.items()]
    return headers


def _foreign_cookies(scope: Scope) -> bytes:
    """The `Cookie` header without Allot's own."""
    pairs = [
        pair.strip()
        for name, value in scope["headers"]
        if name == b"cookie"
        for pair in value.split(b";")
    ]
    return b"; ".join(
        pair for pair in pairs if pair and not own_cookie(_cookie_name(pair.decode("latin-1")))
    )


def back_headers(answer: Answer, path: str) -> Headers:
    """The headers for the browser.

    Args:
        answer: Jupyter's.
        path: The session's, `/s/<workload id>/`.
    """
    headers = [item for item in answer.headers if item[0] not in _NOT_BACK]
    for name, value in answer.headers:
        if name == b"set-cookie" and (confined := confine_cookie(value.decode("latin-1"), path)):
            headers.append((name, confined.encode("latin-1")))
    # Policies add up: Jupyter's stays in force.
    headers.append((b"content-security-policy", b"frame-ancestors 'self'"))
    return headers


def confine_cookie(set_cookie: str, path: str) -> str | None:
    """A `Set-Cookie` value that only this session gets back; None if it could pose as Allot's.

    A nameless cookie `=name=value` is sent back as `name=value`, so it may not pass either.
    """
    pair, *attributes = [part.strip() for part in set_cookie.split(";")]
    name = _cookie_name(pair)
    if "=" not in pair or not name or own_cookie(name):
        return None
    kept = [
        attribute
        for attribute in attributes
        if attribute.partition("=")[0].strip().lower() not in {"path", "domain"}
    ]
    return "; ".join([pair, *kept, f"Path={path}"])


def _cookie_name(pair: str) -> str:
    return pair.partition("=")[0].strip()


def is_from_here(scope: Scope, request: ASGIRequest) -> bool:
    """Whether a request may act in its sender's name: one of our own pages made it.

    WebSockets and unsafe methods must say where they come from: by `Origin`; an unsafe method
    without one by `Sec-Fetch-Site` or `Referer`.
    """
    is_websocket = scope["type"] == "websocket"
    if not is_websocket and scope["method"] in SAFE_METHODS:
        return True
    headers = scope["headers"]
    own = {f"{request.scheme}://{request.get_host()}", *settings.CSRF_TRUSTED_ORIGINS}
    origin = get_header(headers, b"origin")
    if origin is not None or is_websocket:
        return origin is not None and origin.decode("latin-1") in own
    site = get_header(headers, b"sec-fetch-site")
    if site is not None:
        return site == b"same-origin"
    referer = urlsplit((get_header(headers, b"referer") or b"").decode("latin-1"))
    return f"{referer.scheme}://{referer.netloc}" in own


def is_navigation(scope: Scope) -> bool:
    """Whether a person looks at the answer, rather than a script."""
    if scope["type"] == "websocket" or scope["method"] not in {"GET", "HEAD"}:
        return False
    mode = get_header(scope["headers"], b"sec-fetch-mode")
    if mode is not None:
        return mode == b"navigate"
    return b"text/html" in (get_header(scope["headers"], b"accept") or b"")
