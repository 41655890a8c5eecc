"""Reasons: a code, the numbers compared, and a sentence made from both, for all that is decided.

Codes and their numbers are listed in `docs/scheduler.md`. The sentences are English; pages
translate by code.
"""

from scheduling.core.reasons.acting import evicted, moved, started
from scheduling.core.reasons.waiting import Waiting, set_aside

__all__ = ["Waiting", "evicted", "moved", "set_aside", "started"]
