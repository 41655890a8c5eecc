"""Whose login session a key is, asked without touching it.

For connections that outlive the request in which they began: WebSockets, streams, the proxy. What
Django's own look-up does besides (renewing or flushing a login session) belongs to requests that
can set cookies.
"""

from __future__ import annotations

from importlib import import_module

from django.conf import settings
from django.contrib.auth import (
    BACKEND_SESSION_KEY,
    HASH_SESSION_KEY,
    SESSION_KEY,
    get_user_model,
    load_backend,
)
from django.utils.crypto import constant_time_compare

from projects.models import User


def user_of_login(session_key: str) -> User | None:
    """The person who is logged in by this session; None once they have logged out."""
    login = import_module(settings.SESSION_ENGINE).SessionStore(session_key).load()
    path = login.get(BACKEND_SESSION_KEY)
    if path not in settings.AUTHENTICATION_BACKENDS:
        return None
    user_id = get_user_model()._meta.pk.to_python(login[SESSION_KEY])
    user = load_backend(path).get_user(user_id)
    if user is None:
        return None
    given = login.get(HASH_SESSION_KEY, "")
    hashes = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    if not any(constant_time_compare(given, expected) for expected in hashes):
        return None
    assert isinstance(user, User)
    return user
