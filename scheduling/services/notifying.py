"""Notify the owner of what idles whether it is still needed."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from projects.models import User
from scheduling import formats
from scheduling.models import Event, Phase, Workload
from scheduling.services.actions import ActionRefusedError, locked_for
from scheduling.services.events import announce_workload, record_event
from scheduling.services.notices import owe_mail

NOTIFIED_EVERY = timedelta(hours=1)


@transaction.atomic
def notify_owner(workload: Workload, *, actor: User) -> Workload:
    """Tell its owner, on the page and by mail, that it idles and somebody asks for it.

    Raises:
        ActionRefusedError: it does not run, is the person's own, or its owner was asked just now.
    """
    row = locked_for(workload, actor)
    if row.phase != Phase.RUNNING:
        raise ActionRefusedError("not_running", _("It does not run, so it holds nothing."))
    if row.owner_id == actor.pk:
        raise ActionRefusedError("own_work", _("It is yours: there is nobody else to notify."))
    now = timezone.now()
    lately = Event.objects.filter(workload=row, code="idle_notified", at__gt=now - NOTIFIED_EVERY)
    last = lately.select_related("actor").order_by("at").last()
    if last is not None:
        values = {"ago": formats.ago(last.at, now), "limit": formats.duration(3600)}
        message = _("Its owner was notified %(ago)s; at most once in %(limit)s.") % values
        raise ActionRefusedError("notified_lately", message)
    event = record_event(row, "idle_notified", at=now, attempt=row.current, actor=actor)
    owe_mail(event)
    announce_workload(row)
    return row
