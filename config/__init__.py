"""The project: environment, settings, and what each process starts from.

Celery's application is made here so that every process that publishes a task by name, web pages
and commands too, finds our broker.
"""

from config.celery import app as celery_app

__all__ = ["celery_app"]
