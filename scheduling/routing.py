"""Where WebSockets of pages lead (those of sessions: `scheduling.proxy`)."""

from django.urls import path

from scheduling.consumers import LiveConsumer

websocket_urlpatterns = [path("ws/live", LiveConsumer.as_asgi())]
