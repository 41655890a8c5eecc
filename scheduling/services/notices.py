"""Mails about a workload to its owner: owed in the transaction of what they tell of, sent apart.

A mail may be sent twice (its sender dies between sending and noting it), and is never lost for
that.
"""

from __future__ import annotations

import logging
import smtplib
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import override

from scheduling import texts
from scheduling.models import Event, Notice

logger = logging.getLogger(__name__)

BATCH = 50
CLAIM_S = 120.0
MAX_TRIES = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 600.0


def owe_mail(event: Event) -> None:
    """Let the owner of the event's workload hear of it, where an address is known."""
    owner = event.workload.owner
    if owner.email and owner.is_active:
        Notice.objects.create(
            workload=event.workload, event=event, recipient=owner, due_at=event.at
        )


def send_due(now: datetime) -> int:
    """Send the mails that are due; one that cannot be sent is tried again later.

    Returns:
        How many were sent.
    """
    num_sent = 0
    for notice in _claim(now):
        try:
            _mail_of(notice).send()
        except (OSError, smtplib.SMTPException) as error:
            _fail(notice, str(error), now)
        else:
            Notice.objects.filter(pk=notice.pk).update(sent_at=now, last_error="")
            num_sent += 1
    return num_sent


@transaction.atomic
def _claim(now: datetime) -> Sequence[Notice]:
    """Those that are due; another sender finds them due again after `CLAIM_S`."""
    rows = list(
        Notice.objects.owed()
        .select_for_update(skip_locked=True, of=("self",), no_key=True)
        .select_related("recipient", "event__workload__project", "event__actor")
        .filter(due_at__lte=now)[:BATCH]
    )
    Notice.objects.filter(pk__in=[row.pk for row in rows]).update(
        due_at=now + timedelta(seconds=CLAIM_S), num_tries=F("num_tries") + 1
    )
    return rows


def _fail(notice: Notice, error: str, now: datetime) -> None:
    tries = notice.num_tries + 1
    pause_s = min(FIRST_PAUSE_S * 2 ** (tries - 1), LONGEST_PAUSE_S)
    logger.warning("a mail was not sent", extra={"notice": notice.pk, "error": error})
    Notice.objects.filter(pk=notice.pk).update(
        due_at=now + timedelta(seconds=pause_s),
        is_dead=tries >= MAX_TRIES,
        last_error=error[:500],
    )


def _mail_of(notice: Notice) -> EmailMessage:
    """In the language in which the workload was submitted."""
    workload = notice.event.workload
    address = f"{settings.ALLOT.public_url}/workloads/{workload.pk}"
    language = workload.language or settings.LANGUAGE_CODE
    with override(language), timezone.override(notice.recipient.time_zone or None):
        subject = _("Allot: %(name)s of project %(project)s") % {
            "name": workload.name,
            "project": workload.project,
        }
        body = f"{texts.event_sentence(notice.event)}\n\n{address}\n"
    return EmailMessage(subject=" ".join(subject.split()), body=body, to=[notice.recipient.email])
