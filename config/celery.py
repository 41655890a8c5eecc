"""The Celery application: periodic rescheduling, dispatch to agents, telemetry."""

import logging.config
import os
from typing import Any

from celery import Celery
from celery.signals import beat_init, setup_logging, worker_ready

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("allot")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@setup_logging.connect
def use_our_logging(**_kwargs: Any) -> None:
    """Keep Celery from configuring logs of its own (`Any`: whatever the signal sends)."""
    from django.conf import settings

    logging.config.dictConfig(settings.LOGGING)


@worker_ready.connect
def say_worker_is_ready(**_kwargs: Any) -> None:
    """Start the planner's ear and tell the supervisor (`Any`: whatever the signal sends)."""
    from scheduling.listener import start_listener

    start_listener()
    _mark_ready("worker")


@beat_init.connect
def say_beat_is_ready(**_kwargs: Any) -> None:
    """Tell the supervisor (`Any`: whatever the signal sends)."""
    _mark_ready("beat")


def _mark_ready(name: str) -> None:
    """Leave a mark in the run folder; where there is none, nobody looks."""
    from django.conf import settings

    if settings.ALLOT.run.is_dir():
        (settings.ALLOT.run / f"{name}.ready").touch()
