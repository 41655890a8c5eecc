"""Bearer tokens for the API: issued, shown once, verified by their hash, revoked.

A token is 256 random bits, so a plain SHA-256 is as good as a slow hash and does not slow every
request down. What is stored cannot be turned back into the token.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import NamedTuple

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from projects import audit
from projects.models import Token, User, one_line

PREFIX = "allot_pat_"
# So many characters of the secret are kept readable, to tell tokens apart in the list.
NUM_SHOWN_CHARS = 4
MAX_NAME_CHARS = 80
MIN_DAYS = 1
MAX_DAYS = 365
DEFAULT_DAYS = 90
# "Last used" is a hint; writing it at most this often keeps busy clients off the row.
LAST_USED_STEP = timedelta(minutes=1)


class Issued(NamedTuple):
    """A new token and its secret, which exists nowhere else."""

    token: Token
    secret: str


@transaction.atomic
def issue(user: User, *, name: str, days: int = DEFAULT_DAYS) -> Issued:
    """Make a token that lets its bearer act as this person.

    Raises:
        ValidationError: keyed by field (`name`, `days`), naming value and limit.
    """
    name = one_line(name)
    _check(name, days)
    secret = PREFIX + secrets.token_urlsafe(32)
    token = Token.objects.create(
        user=user,
        name=name,
        prefix=secret[: len(PREFIX) + NUM_SHOWN_CHARS],
        secret_hash=_hash(secret),
        expires_at=timezone.now() + timedelta(days=days),
    )
    audit.record(
        user,
        action="token.issued",
        entity=("token", str(token.pk)),
        after={"name": name, "prefix": token.prefix, "expires_at": token.expires_at.isoformat()},
    )
    return Issued(token, secret)


def _check(name: str, days: int) -> None:
    problems: dict[str, ValidationError] = {}
    if not name or len(name) > MAX_NAME_CHARS:
        problems["name"] = ValidationError(
            _("“%(value)s” has %(length)s characters: a token's name has 1 to %(limit)s."),
            code="invalid_token_name",
            params={"value": name[:40], "length": len(name), "limit": MAX_NAME_CHARS},
        )
    if not MIN_DAYS <= days <= MAX_DAYS:
        problems["days"] = ValidationError(
            _("%(value)s days are not allowed: a token lives %(least)s to %(limit)s days."),
            code="invalid_token_days",
            params={"value": days, "least": MIN_DAYS, "limit": MAX_DAYS},
        )
    if problems:
        raise ValidationError(problems)


def verify(secret: str) -> Token | None:
    """The token in force behind a secret, with its person; None for any other text."""
    if not secret.startswith(PREFIX):
        return None
    token = (
        Token.objects.filter(
            secret_hash=_hash(secret),
            revoked_at__isnull=True,
            expires_at__gt=timezone.now(),
            user__is_active=True,
        )
        .select_related("user")
        .first()
    )
    if token is not None:
        _note_use(token)
    return token


def issued_to(user: User, secret: str) -> Issued | None:
    """The person's own token behind a secret, which does not count as a use of it."""
    token = Token.objects.filter(user=user, secret_hash=_hash(secret)).first()
    return None if token is None else Issued(token, secret)


def _note_use(token: Token) -> None:
    now = timezone.now()
    stale = Q(last_used_at__isnull=True) | Q(last_used_at__lt=now - LAST_USED_STEP)
    Token.objects.filter(stale, pk=token.pk).update(last_used_at=now)


@transaction.atomic
def revoke(token: Token, *, actor: User) -> None:
    """End a token at once; harmless twice. One's own, or any as an admin.

    Raises:
        PermissionError: it is another person's.
    """
    if token.user_id != actor.pk and not actor.is_superuser:
        raise PermissionError("A token is revoked by its owner or an admin.")
    num_revoked = Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(
        revoked_at=timezone.now()
    )
    if num_revoked:
        audit.record(
            actor,
            action="token.revoked",
            entity=("token", str(token.pk)),
            before={"name": token.name, "prefix": token.prefix},
        )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
