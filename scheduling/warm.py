"""The planner kept warm in one process: arrivals are answered from memory, at once.

After a full cycle that changed nothing, its state stays in this process (`core.incremental`). When
the planner is woken, the log of changes says what has happened since (`feed`). Were it only new
workloads, they are read alone and decided by increment; anything else, whoever did it and by
whatever way, calls for a full cycle. All of this runs under the cycle's advisory lock. What is kept
here can be lost at any moment: the next full cycle begins from the rows.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from scheduling import feed, unfinished
from scheduling.core import types as core
from scheduling.core.decisions import Decision, Hold, Plan, Start
from scheduling.core.incremental import Increment, WarmPlanner
from scheduling.models import Workload
from scheduling.replicas import workload_id
from scheduling.services.planning import StalePlanError, apply_plan
from scheduling.snapshot import Taken, read_arrivals, read_rows

MAX_AGE_S = 600.0
"""All is read again at least so often; the log of changes is kept for longer."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An increment that is in the rows, and the picture that it was made from."""

    taken: Taken
    plan: Plan
    at: datetime
    snapshot_s: float
    plan_s: float
    record_s: float


class Warm:
    """What one process remembers from its last full cycle."""

    def __init__(self) -> None:
        self.rows = unfinished.Rows()
        """For the next full cycle, which reads only what has changed."""
        self._planner: WarmPlanner | None = None
        self._taken: Taken | None = None
        self._arrived: list[core.Workload] = []
        self._mark = ""
        self._own: set[int] = set()
        self._since = 0.0

    @property
    def is_warm(self) -> bool:
        return self._planner is not None and self._planner.is_warm

    @property
    def is_ageing(self) -> bool:
        """Whether a quiet moment should be used to read all again, before somebody has to wait."""
        if self._planner is None:
            return False
        is_old = time.monotonic() - self._since > MAX_AGE_S / 2
        return is_old or not self._planner.is_valid(timezone.now().timestamp())

    def begin(self) -> str:
        """The mark to be given to `keep`, before the snapshot is taken."""
        return feed.mark()

    def keep(self, mark: str, taken: Taken, planner: WarmPlanner) -> None:
        """Keep a full cycle's planner, if it can be asked on."""
        self.drop()
        if planner.is_warm:
            self._planner, self._taken, self._mark = planner, taken, mark
            self._since = time.monotonic()
            if not planner.has_loans:
                # Large and here to stay: the collector need not look through it again and again,
                # nor once now. Whatever is garbage in it goes when it is dropped.
                gc.freeze()

    def drop(self) -> None:
        """Forget everything; a full cycle comes next."""
        if self._planner is not None:
            self._planner.close()
            gc.unfreeze()
        self._planner = self._taken = None
        self._arrived, self._own = [], set()

    def answer(self) -> list[Recorded] | None:
        """Decide and record what has arrived.

        Returns:
            One for each arrival; none where nothing has changed; None where only a full cycle can
            tell. Where it is not warm afterwards, a full cycle should follow.

        Raises:
            StalePlanError: something changed in between; a full cycle comes next.
        """
        planner = self._planner
        now = timezone.now()
        is_young = time.monotonic() - self._since < MAX_AGE_S
        if planner is None or not is_young or not planner.is_valid(now.timestamp()):
            self.drop()
            return None
        changes = feed.since(self._mark)
        arrived = self._only_arrivals(changes)
        if arrived is None or (planner.has_loans and not arrived):
            # Loans come and go in time: of them a full cycle is asked again and again.
            self.drop()
            return None
        self._mark = changes.mark
        self._own.clear()
        return self._decide(planner, arrived) if arrived else []

    def _only_arrivals(self, changes: feed.Changes) -> list[uuid.UUID] | None:
        """The workloads that have come; None where anything else has happened."""
        came: dict[str, int] = {}
        for xid, kind, operation, key in changes.rows:
            if xid in self._own:
                continue
            is_new = kind == "workload" and operation == "insert"
            is_same = kind == "workload" and operation == "update" and came.get(key) == xid
            if is_new:
                came[key] = xid
            elif not is_same:
                return None
        known = {str(workload.id) for workload in self._arrived}
        return [uuid.UUID(key) for key in came if key not in known]

    def _decide(self, planner: WarmPlanner, arrived: Sequence[uuid.UUID]) -> list[Recorded] | None:
        done: list[Recorded] = []
        marks = [time.monotonic()]
        found = read_arrivals(arrived)
        marks.append(time.monotonic())
        for row, workload in sorted(found, key=lambda pair: (pair[1].submitted, pair[1].id)):
            began = time.monotonic()
            at = timezone.now()
            increment = planner.arrive(workload, at.timestamp())
            decided = time.monotonic()
            if increment is None:
                self.drop()
                # Those that are done must be carried out first; the full cycle follows.
                return done or None
            taken, plan = self._partial(planner, row, workload, increment)
            with transaction.atomic():
                self._own.add(feed.this_transaction())
                apply_plan(taken, plan, is_partial=True)
            whole = self._whole(taken)
            recorded = Recorded(
                whole, plan, at, marks[1] - marks[0], decided - began, time.monotonic() - decided
            )
            done.append(recorded)
            if not planner.is_warm:
                # What it leaves to others is a full cycle's matter, as are further arrivals. That
                # cycle also takes apart what is kept: it takes longer than this answer.
                break
            self._arrived.append(_after(workload, increment.decisions))
        return done

    def _partial(
        self, planner: WarmPlanner, row: Workload, workload: core.Workload, increment: Increment
    ) -> tuple[Taken, Plan]:
        """What must be known to record an increment: the rows that it touches, read before the
        log says that they have not changed since they were planned with."""
        assert self._taken is not None
        touched = {d.workload for d in increment.decisions if d.workload != workload.id}
        rows = {workload_id(other): other for other in read_rows(touched)} if touched else {}
        if touched and self._only_arrivals(feed.since(self._mark)) is None:
            raise StalePlanError(", ".join(sorted(touched)))
        seen = [planner.workload(name) for name in touched]
        position = increment.position
        return (
            Taken(
                core.Snapshot((), (), (workload, *seen)),
                self._taken.policy,
                {workload.id: row, **rows},
                self._taken.titles,
            ),
            Plan(
                increment.decisions,
                increment.numbers,
                {} if position is None else {workload.id: position},
                has_estimates=False,
            ),
        )

    def _whole(self, partial: Taken) -> Taken:
        """The picture that an increment was made from, to be kept with its decisions."""
        assert self._taken is not None
        base = self._taken.snapshot
        workloads = (*base.workloads, *self._arrived, partial.snapshot.workloads[0])
        return Taken(
            replace(base, workloads=workloads), partial.policy, partial.rows, partial.titles
        )


def _after(workload: core.Workload, decisions: Sequence[Decision]) -> core.Workload:
    """An arrival as the next ones find it."""
    last = decisions[-1]
    placed = last.placements if isinstance(last, Start) else {}
    held = last.held if isinstance(last, Start | Hold) else {}
    return replace(
        workload,
        replicas=tuple(
            core.Replica(replica.id, core.ReplicaState.RUNNING, placed[replica.id])
            if replica.id in placed
            else core.Replica(replica.id, core.ReplicaState.PENDING, None, held.get(replica.id))
            for replica in workload.replicas
        ),
    )
