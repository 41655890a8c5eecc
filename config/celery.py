"""The Celery application: periodic rescheduling, dispatch to agents, telemetry."""

import logging.config
import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("allot")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@setup_logging.connect
def use_our_logging(**_kwargs: Any) -> None:
    """Keep Celery from configuring logs of its own (`Any`: whatever the signal sends)."""
    from django.conf import settings

    logging.config.dictConfig(settings.LOGGING)
