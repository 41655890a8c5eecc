"""The planner's ear: a thread in the worker that hears NOTIFY and plans at once.

Beat's periodic task does the same work when a notification is missed, so this thread may die with
its process at any moment. Notifications that come while a cycle runs are answered by one more
cycle.
"""

from __future__ import annotations

import logging
import threading

import psycopg
from django.db import close_old_connections, connection

from scheduling.cycle import remember_increments, run_cycle
from scheduling.services.events import ARRIVED, WAKE_CHANNEL
from scheduling.tasks import dispatch_commands
from scheduling.warm import Warm

logger = logging.getLogger(__name__)

RECONNECT_S = 1.0
FOLLOW_UP_S = 0.5
"""After a cycle that changed something, the next one finds it settled and keeps it in memory."""


def start_listener() -> threading.Thread:
    """Start listening; the thread ends with the process."""
    thread = threading.Thread(target=_listen_for_ever, name="planner", daemon=True)
    thread.start()
    return thread


def _listen_for_ever() -> None:
    stopped = threading.Event()
    while not stopped.wait(RECONNECT_S):
        try:
            _listen()
        except (psycopg.Error, OSError) as error:
            logger.warning("the planner's connection was lost, trying again: %s", error)
        except Exception:
            logger.exception("a cycle failed; the next one begins from the rows")
        finally:
            connection.close()


def _listen() -> None:
    parameters = connection.get_connection_params()
    for unwanted in ("cursor_factory", "context", "prepare_threshold", "pool"):
        parameters.pop(unwanted, None)
    with psycopg.connect(**parameters, autocommit=True) as ear:
        ear.execute(f"LISTEN {WAKE_CHANNEL}")
        warm = Warm()
        try:
            is_due = _answer(warm)
            while True:
                heard = list(ear.notifies(timeout=FOLLOW_UP_S if is_due else 60, stop_after=1))
                close_old_connections()
                if not heard and warm.is_ageing:
                    warm.drop()
                    is_due = True
                if heard or is_due:
                    # Whatever else has arrived meanwhile is answered by the same cycle.
                    heard += ear.notifies(timeout=0)
                    if any(notice.payload != ARRIVED for notice in heard):
                        # The log may not show why, as with idle marks: all is looked at.
                        warm.drop()
                    is_due = _answer(warm)
        finally:
            warm.drop()


def _answer(warm: Warm) -> bool:
    """Run a cycle, or an increment; whether a full cycle should follow soon."""
    outcome = run_cycle(wait=True, warm=warm)
    if outcome is None:
        return False
    if outcome.has_effects:
        dispatch_commands()
    remember_increments(outcome)
    return outcome.needs_full
