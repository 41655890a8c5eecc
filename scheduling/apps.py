"""Registers the app of nodes, workloads and allocations."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class SchedulingConfig(AppConfig):
    """Nodes, workloads and allocations."""

    name = "scheduling"
    verbose_name = _("Scheduling")
