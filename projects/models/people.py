"""People; what they may do is a matter of memberships."""

from __future__ import annotations

from typing import ClassVar
from zoneinfo import available_timezones

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _


def validate_time_zone(name: str) -> None:
    """Refuse a zone that nobody could be shown times in.

    Raises:
        ValidationError: it is none of the IANA database.
    """
    if name and name not in available_timezones():
        message = _("“%(zone)s” is not a time zone; an example is %(example)s.")
        params = {"zone": name[:60], "example": settings.TIME_ZONE}
        raise ValidationError(message, "unknown_time_zone", params)


class User(AbstractUser):
    """A person. `number` (the primary key) is what the agent maps to a uid."""

    time_zone = models.CharField(
        _("time zone"),
        max_length=64,
        blank=True,
        default="",
        validators=[validate_time_zone],
        help_text=_("Such as Europe/Moscow. Empty: the organisation's."),
    )

    class Meta(AbstractUser.Meta):
        constraints: ClassVar = []

    def __str__(self) -> str:
        return self.get_full_name() or self.username


class Role(models.TextChoices):
    """What a member may do in a project. Admins of the platform are `User.is_superuser`."""

    MANAGER = "manager", _("Manager")
    RESEARCHER = "researcher", _("Researcher")
    VIEWER = "viewer", _("Viewer")
