"""The worker's tasks: the periodic cycle, dispatch, the watch over nodes. The work is elsewhere."""

from __future__ import annotations

import logging
from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from scheduling import feed, outbox, relay_client
from scheduling.analytics import keeping
from scheduling.cycle import run_cycle
from scheduling.models import Command
from scheduling.services import notices
from scheduling.services.ending import watch_ending
from scheduling.services.idleness import watch_idle
from scheduling.services.silence import watch_nodes

logger = logging.getLogger(__name__)

DONE_COMMANDS_KEPT = timedelta(days=1)
CHANGES_KEPT = timedelta(hours=1)


@shared_task(name="scheduling.cycle", ignore_result=True, time_limit=120)
def cycle() -> None:
    """The periodic rescheduling; wake-ups in between come to `listener`."""
    outcome = run_cycle()
    if outcome is not None and outcome.has_effects:
        dispatch_commands()


@shared_task(name="scheduling.dispatch", ignore_result=True, time_limit=60)
def dispatch() -> None:
    """The outbox on a timer: what the hint after a cycle has missed."""
    dispatch_commands()
    outbox.expire(timezone.now() - DONE_COMMANDS_KEPT)
    feed.expire(timezone.now() - CHANGES_KEPT)


@shared_task(name="scheduling.watch_idle", ignore_result=True, time_limit=30)
def watch_sessions() -> None:
    """Which sessions are idle: candidates for lending; and what of the idle is to be warned of its
    end, or ended. Without it no new loan begins and nothing ends; wakes are the agents' own."""
    watch_idle(timezone.now())
    watch_ending(timezone.now())


@shared_task(name="scheduling.send_notices", ignore_result=True, time_limit=600)
def send_notices() -> None:
    """Mails that are owed."""
    notices.send_due(timezone.now())


@shared_task(name="scheduling.keep_usage", ignore_result=True, time_limit=600)
def keep_usage() -> None:
    """Sums of the running day, and of past days and months that lack them."""
    keeping.keep_days(timezone.now())
    keeping.keep_months(timezone.now())


@shared_task(name="scheduling.watch_nodes", ignore_result=True, time_limit=60)
def watch() -> None:
    watch_nodes()


def dispatch_commands() -> None:
    """Wake each zone that is owed something, once."""
    by_zone: dict[int, list[Command]] = {}
    for command in outbox.claim():
        by_zone.setdefault(command.zone_id, []).append(command)
    for commands in by_zone.values():
        try:
            relay_client.wake(commands[0].zone)
        except relay_client.AgentAwayError as error:
            outbox.fail(commands, str(error))
        else:
            outbox.complete(commands)
