"""Jupyter behind Allot's own address: `/s/<workload id>/…`, over HTTP and WebSocket.

The token that opens a person's Jupyter is put in by the relay, so whatever passes here acts in that
person's name, and Jupyter skips its own checks of origin and XSRF. Hence each request and each
WebSocket's opening is checked for login, ownership and origin, and what stays open is checked
again every few seconds. `docs/proxy.md` says what this does not protect from.
"""

from __future__ import annotations

from scheduling.proxy.application import SessionProxy

application = SessionProxy()

__all__ = ["SessionProxy", "application"]
