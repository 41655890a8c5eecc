"""The web process: one ASGI application for pages, the API, live updates and Jupyter traffic."""

import gc
import os
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application
from django.urls import get_resolver, re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

# Loads the apps; what is imported below needs their models.
pages = get_asgi_application()

from scheduling.proxy import application as session_proxy  # noqa: E402
from scheduling.routing import websocket_urlpatterns  # noqa: E402

# Both Django's and Channels' types know less than is true: a route leads to any ASGI application.
route: Any = re_path

# The proxy checks login and Origin itself: it remembers a yes for a moment, where this stack would
# ask the database for each of JupyterLab's hundreds of files.
sessions = route(r"^s/", session_proxy)
consumers: Any = websocket_urlpatterns
live_updates = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(consumers)))

application = ProtocolTypeRouter(
    {
        "http": URLRouter([sessions, route(r"", pages)]),
        "websocket": URLRouter([sessions, route(r"", live_updates)]),
    }
)

# What is loaded by now stays. Looked through for garbage again and again, it would hold up every
# page and live message for some 0.2 s each time.
assert get_resolver().url_patterns
gc.collect()
gc.freeze()
