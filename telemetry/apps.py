"""Registers the app of samples and their history."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class TelemetryConfig(AppConfig):
    """Samples and their history."""

    name = "telemetry"
    verbose_name = _("Telemetry")
