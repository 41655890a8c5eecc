"""Notify the owner of what idles whether it is still needed."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from projects.models import User
from scheduling import formats, idle_now
from scheduling.models import Event, Phase, Workload
from scheduling.services.actions import ActionRefusedError, locked_for
from scheduling.services.events import announce_workload, record_event
from scheduling.services.notices import owe_mail

NOTIFIED_EVERY = timedelta(hours=1)


def notified_lately(workloads: Iterable[uuid.UUID], now: datetime) -> Mapping[uuid.UUID, datetime]:
    """When owners were notified so lately that they are not asked again; one query."""
    events = Event.objects.filter(
        workload__in=workloads, code="idle_notified", at__gt=now - NOTIFIED_EVERY
    )
    return dict(events.order_by("at").values_list("workload", "at"))


@transaction.atomic
def notify_owner(workload: Workload, *, actor: User) -> Workload:
    """Tell its owner, on the page and by mail, that it idles and somebody asks for it.

    Raises:
        ActionRefusedError: it does not run, is the person's own, its owner was asked just now, or
            it is not idle as *Idle now* judges.
    """
    row = locked_for(workload, actor)
    if row.phase != Phase.RUNNING:
        raise ActionRefusedError("not_running", _("It does not run, so it holds nothing."))
    if row.owner_id == actor.pk:
        raise ActionRefusedError("own_work", _("It is yours: there is nobody else to notify."))
    now = timezone.now()
    last = notified_lately([row.pk], now).get(row.pk)
    if last is not None:
        values = {
            "ago": formats.ago(last, now),
            "limit": formats.duration(NOTIFIED_EVERY.total_seconds()),
        }
        message = _("Its owner was notified %(ago)s; at most once in %(limit)s.") % values
        raise ActionRefusedError("notified_lately", message)
    if not idle_now.found(now, row.pk):
        message = _(
            "It is not idle by the rule of project %(project)s, so there is nothing to ask its "
            "owner."
        )
        raise ActionRefusedError("not_idle", message % {"project": row.project})
    event = record_event(row, "idle_notified", at=now, attempt=row.current, actor=actor)
    owe_mail(event)
    announce_workload(row)
    return row
