"""Zones and the tokens by which their agents are known; only hashes are stored."""

from __future__ import annotations

import hashlib
import hmac

from scheduling.models import Zone


def ensure_zone(name: str, token: str) -> Zone:
    """Make the zone known, with this token and no other."""
    zone, _created = Zone.objects.update_or_create(
        name=name, defaults={"token_hash": _token_hash(token)}
    )
    return zone


def zone_of_token(token: str) -> Zone | None:
    """The zone whose agent presents this token."""
    presented = _token_hash(token)
    for zone in Zone.objects.all():
        if hmac.compare_digest(zone.token_hash, presented):
            return zone
    return None


def _token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
