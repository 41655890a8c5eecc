"""Estimates on the rows: written anew only where they have changed by more than a little.

Most estimates rest on predicted ends, which stand still while time goes by; those that rest on how
long others will run slide with it. To write a long queue anew for a few seconds would cost more
than they are worth.
"""

from __future__ import annotations

import time
from typing import Any

from scheduling.core.decisions import Eta

SLACK_S = 60.0
SLACK_PART = 0.1

Json = dict[str, Any]


def eta_to_tell(known: Json, eta: Eta | None) -> Json:
    """What the row is to say: what it says already, if that is near enough."""
    fresh: Json = {}
    if eta is not None:
        fresh = {
            "min_at_s": round(eta.min_at_s),
            "max_at_s": None if eta.max_at_s is None else round(eta.max_at_s),
            "basis": eta.basis,
            "confidence": eta.confidence,
        }
    return known if _is_near(known, fresh, time.time()) else fresh


def _is_near(known: Json, fresh: Json, now_s: float) -> bool:
    if not known or not fresh:
        return known == fresh
    if any(known[name] != fresh[name] for name in ("basis", "confidence")):
        return False
    for name in ("min_at_s", "max_at_s"):
        old, new = known[name], fresh[name]
        if old is None or new is None:
            if old != new:
                return False
            continue
        left_s = max(0.0, new - now_s)
        if abs(max(old, now_s) - max(new, now_s)) > max(SLACK_S, SLACK_PART * left_s):
            return False
    return True


def eta_json(known: Json, now_s: float) -> Json | None:
    """As the API sends it: seconds from now; None where nothing is known."""
    if not known:
        return None
    latest = known["max_at_s"]
    return {
        "min_s": max(0, round(known["min_at_s"] - now_s)),
        "max_s": None if latest is None else max(0, round(latest - now_s)),
        "basis": known["basis"],
        "confidence": known["confidence"],
    }
