"""The web process: one ASGI application for pages, the API, live updates and Jupyter traffic."""

import os
from importlib.util import find_spec

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

# Loads the apps; what follows imports models.
django_application = get_asgi_application()

SESSION_PREFIX = "/s/"


class SessionRouter:
    """Sends Jupyter traffic to the proxy and the rest on."""

    def __init__(self, proxy, rest) -> None:
        self.proxy = proxy
        self.rest = rest

    async def __call__(self, scope, receive, send) -> None:
        target = self.proxy if scope["path"].startswith(SESSION_PREFIX) else self.rest
        await target(scope, receive, send)


if find_spec("scheduling.routing"):
    from scheduling.routing import websocket_urlpatterns
else:
    websocket_urlpatterns = []

live_updates = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))

if find_spec("scheduling.proxy"):
    from scheduling.proxy import application as proxy_application

    proxy = AuthMiddlewareStack(proxy_application)
    application = ProtocolTypeRouter(
        {
            "http": SessionRouter(proxy, django_application),
            "websocket": SessionRouter(proxy, live_updates),
        }
    )
else:
    application = ProtocolTypeRouter({"http": django_application, "websocket": live_updates})
