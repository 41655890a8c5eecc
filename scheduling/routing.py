"""Where WebSockets of pages lead (those of sessions: `scheduling.proxy`)."""

from typing import Any

from django.urls import path, re_path

from scheduling.consumers import LiveConsumer, NowhereConsumer, SquaresConsumer

# `Any`: a route to an ASGI application, which Django's types of routes do not know.
websocket_urlpatterns: list[Any] = [
    path("ws/live", LiveConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ws/squares", SquaresConsumer.as_asgi()),  # type: ignore[arg-type]
    re_path("", NowhereConsumer.as_asgi()),  # type: ignore[arg-type]
]
