"""What the planner is told of running sessions' use of their devices: since when each rests, how
long it will, and what stands in the way of lending."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from django.db.models import F, Window
from django.db.models.functions import RowNumber

from scheduling.core import types as core
from scheduling.core.lenders import LENDING_OFF
from scheduling.core.predict.idleness import Spell, expected_left_s
from scheduling.models import Attempt, IdleSpell, SwapState, Workload
from scheduling.moments import unix_s
from scheduling.unfinished import children

IDLE_MARK_LASTS_S = 40.0
"""A session that the periodic watch has not seen idle for so long is not lent."""
MAX_SPELLS = 200
"""A person's latest idle spells on which the prediction rests."""
ASKED_LEFT_S = 86_400.0
"""Whoever asks for it to be swapped out will not be back soon."""
MIB = 1024 * 1024


def idleness_of(rows: Sequence[Workload], now: datetime) -> Mapping[uuid.UUID, core.Idleness]:
    """What is known of running sessions' use of their devices."""
    sessions = [
        (row, attempt)
        for row in rows
        if row.is_session
        for attempt in children(row, "attempts")
        if attempt.is_ready and not attempt.is_leaving and children(attempt.allocation, "devices")
    ]
    resting = [row.owner_id for row, attempt in sessions if _is_resting(attempt, now)]
    spells = _spells(resting) if resting else {}
    return {row.pk: _idle(row, attempt, spells, now) for row, attempt in sessions}


def _is_resting(attempt: Attempt, now: datetime) -> bool:
    """Seen idle by the watch, lately, and with its device."""
    seen_at, since = attempt.idle_seen_at, attempt.idle_since
    is_fresh = seen_at is not None and (now - seen_at).total_seconds() <= IDLE_MARK_LASTS_S
    has_device = attempt.swap_state == SwapState.RUNNING and not children(attempt, "loans_given")
    return is_fresh and since is not None and has_device


def _spells(owners: Iterable[int]) -> Mapping[int, Sequence[Spell]]:
    """Latest idle spells of these people."""
    newest = Window(RowNumber(), partition_by=F("owner"), order_by=F("ended_at").desc())
    found: dict[int, list[Spell]] = defaultdict(list)
    rows = (
        IdleSpell.objects.filter(owner__in=set(owners))
        .annotate(rank=newest)
        .filter(rank__lte=MAX_SPELLS)
        .values_list("owner", "started_at", "ended_at", "is_cut_off")
    )
    for owner, started_at, ended_at, is_cut_off in rows:
        found[owner].append(Spell((ended_at - started_at).total_seconds(), is_cut_off))
    return found


def _idle(
    row: Workload, attempt: Attempt, spells: Mapping[int, Sequence[Spell]], now: datetime
) -> core.Idleness:
    """One session's; while it lends, its agent watches it, and wakes it without asking."""
    since: datetime | None = None
    left_s: float | None = None
    lent = [loan for loan in children(attempt, "loans_given") if loan.is_wanted]
    is_asked = attempt.lend_asked_at is not None
    if lent:
        since = lent[0].started_at
    elif _is_resting(attempt, now):
        since = attempt.idle_since
        asked_back_at = getattr(attempt, "asked_back_at", None)
        if since is not None and asked_back_at is not None:
            # Whoever presses the button wants it, and an agent that refuses knows better than
            # these marks: the window begins anew.
            since = max(since, asked_back_at)
    if since is not None and not lent:
        past = spells.get(row.owner_id, ())
        idle_for_s = max(0.0, (now - since).total_seconds())
        left_s = ASKED_LEFT_S if is_asked else expected_left_s(past, idle_for_s)
    parts = children(attempt.allocation, "devices")
    held_mib = sum(part.memory_mib for part in parts)
    used_mib = -(-max(attempt.bytes_on_device, attempt.bytes_on_host) // MIB)
    return core.Idleness(
        since_s=unix_s(since),
        window_s=0.0 if is_asked else float(row.project.lending_window_s),
        expected_left_s=left_s,
        memory_mib=used_mib or held_mib,
        obstacle=obstacle_of(row, attempt),
        woke_s=unix_s(attempt.woke_at),
    )


def obstacle_of(row: Workload, attempt: Attempt) -> str:
    """Why a session's device may not be lent, whatever its use: a code; empty if it may."""
    node = attempt.allocation.node
    if not row.project.lends_idle:
        return LENDING_OFF
    if node.node_type is None or not node.node_type.swap_enabled:
        return "switched_off"
    if not node.swap_mechanism:
        return "no_mechanism"
    return attempt.swap_obstacle
