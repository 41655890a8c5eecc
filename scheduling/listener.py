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

from scheduling.cycle import run_cycle
from scheduling.services.events import WAKE_CHANNEL
from scheduling.tasks import dispatch_commands

logger = logging.getLogger(__name__)

RECONNECT_S = 1.0


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
        _answer()
        while True:
            heard = list(ear.notifies(timeout=60, stop_after=1))
            close_old_connections()
            if heard:
                # Whatever else has arrived meanwhile is answered by the same cycle.
                list(ear.notifies(timeout=0))
                _answer()


def _answer() -> None:
    outcome = run_cycle(wait=True)
    if outcome is not None and outcome.has_effects:
        dispatch_commands()
