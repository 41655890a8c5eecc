"""Who calls: the bearer of a token, or the browser's session (which then needs the CSRF token)."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from projects import tokens
from projects.models import Token, User

SCHEME = "Bearer"


class BearerAuthentication(BaseAuthentication):
    """`Authorization: Bearer allot_pat_…`; a token never travels in an address."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        """Find the person behind the token; None leaves the request to the browser's session.

        Raises:
            AuthenticationFailed: the token is unknown, revoked or expired.
        """
        words = get_authorization_header(request).split()
        if not words or words[0].lower() != SCHEME.lower().encode():
            return None
        secret = words[1].decode("ascii", "replace") if len(words) == 2 else ""
        token = tokens.verify(secret)
        if token is None:
            raise AuthenticationFailed(
                _("The token is unknown, revoked or expired."), code="invalid_token"
            )
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for."""
        return SCHEME


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # untyped
    """How the document describes it."""

    target_class = BearerAuthentication
    name = "bearer"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """The scheme of the OpenAPI document."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": tokens.PREFIX + "…"}
