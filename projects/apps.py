"""Registers the app of departments, projects, people and quotas."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ProjectsConfig(AppConfig):
    """Departments, projects, people and quotas."""

    name = "projects"
    verbose_name = _("Projects")
