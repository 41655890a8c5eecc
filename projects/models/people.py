"""People; what they may do is a matter of memberships."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils.translation import gettext_lazy as _


class User(AbstractUser):
    """A person. `number` (the primary key) is what the agent maps to a uid."""

    time_zone = models.CharField(_("time zone"), max_length=64, blank=True, default="")

    class Meta(AbstractUser.Meta):
        constraints: ClassVar = []

    def __str__(self) -> str:
        return self.get_full_name() or self.username


class Role(models.TextChoices):
    """What a member may do in a project. Admins of the platform are `User.is_superuser`."""

    MANAGER = "manager", _("Manager")
    RESEARCHER = "researcher", _("Researcher")
    VIEWER = "viewer", _("Viewer")
