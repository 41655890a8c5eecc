"""Passes one HTTP request or WebSocket on to another server, whole and as it flows.

Jupyter traffic takes two hops (browser → web → relay → Jupyter) and both use this forwarder.
Neither holds a body or answer in memory: what one side sends is read only as fast as the other
side takes it, and when one side goes away the other is told. What may pass, and with which
headers, is for the hop to decide before it calls here.

The last hop is a Unix socket on purpose: over TCP a cell's round trip takes 40 ms longer, since
Jupyter's small writes meet Nagle's algorithm and delayed acknowledgements.
"""

from __future__ import annotations

from scheduling.agent.forward.connection import (
    SERVER_OPTIONS,
    Answer,
    Client,
    ClientGoneError,
    Close,
    Headers,
    Onward,
    Receive,
    Scope,
    Send,
    UnreachableError,
    Upstream,
    end_to_end,
    get_header,
    has_dot_segments,
    target_of,
)
from scheduling.agent.forward.http import HttpForwarder
from scheduling.agent.forward.websocket import forward_websocket

__all__ = [
    "SERVER_OPTIONS",
    "Answer",
    "Client",
    "ClientGoneError",
    "Close",
    "Headers",
    "HttpForwarder",
    "Onward",
    "Receive",
    "Scope",
    "Send",
    "UnreachableError",
    "Upstream",
    "end_to_end",
    "forward_websocket",
    "get_header",
    "has_dot_segments",
    "target_of",
]
