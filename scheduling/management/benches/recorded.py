"""The planner's figures with a real database: rows read, decisions recorded and committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

from django.db import transaction
from django.utils import timezone

from projects.models import NodeType, Project, User
from scheduling import feed
from scheduling.core import types as core
from scheduling.core.cycle import plan, without_collector
from scheduling.core.incremental import WarmPlanner
from scheduling.cycle import Outcome, run_cycle
from scheduling.management.benches.cluster import Size
from scheduling.management.benches.database import own_servers
from scheduling.management.benches.figures import Report, figure, peak_rss_mib, phases, repeat
from scheduling.management.benches.stored import row_of, store
from scheduling.models import Attempt, Node, PlannerPolicy, Wait, Workload
from scheduling.services.planning import apply_plan
from scheduling.snapshot import take_snapshot
from scheduling.unfinished import Rows
from scheduling.warm import Warm

REPORTED = 10
"""Of what runs, one in so many is reported on between two cycles."""


@contextmanager
def _stored(snapshot: core.Snapshot) -> Iterator[None]:
    with own_servers():
        PlannerPolicy.objects.create(topology=[])
        store(snapshot)
        yield


def cycle_recorded(size: Size, snapshot: core.Snapshot, runs: int, warmup: int) -> Report:
    """Snapshot, plan and record of a cycle with much to do; each record is undone, so that the
    next one finds the same. Of what runs a part has been reported on since the rows were last
    read."""
    rows = Rows()

    @without_collector()
    def run(done: Callable[[str], None]) -> None:
        taken = take_snapshot(rows)
        done("snapshot")
        decided = plan(taken.snapshot, taken.policy, timezone.now().timestamp(), on_step=done)
        with transaction.atomic():
            apply_plan(taken, decided)
            transaction.set_rollback(True)
        done("record")
        _report_some()
        done("reports")
        placed.append(sum(len(getattr(d, "placements", ())) for d in decided.decisions))

    placed: list[int] = []
    with _stored(snapshot):
        began = time.monotonic()
        take_snapshot(rows)
        first_s = time.monotonic() - began
        result = repeat(run, runs, warmup)
    if not placed[-1]:
        raise AssertionError("nothing was placed")
    outside = ("snapshot", "record", "reports")
    snapshots, records, reports = (result.steps_s[name] for name in outside)
    plans = [
        wall - sum(others)
        for wall, *others in zip(result.wall_s, snapshots, records, reports, strict=True)
    ]
    return Report(
        params=_params(size, snapshot),
        figures={
            "cycle_s": figure(plans, "s", 0.5),
            "first_snapshot_s": figure([first_s], "s"),
            "snapshot_s": figure(snapshots, "s"),
            "record_s": figure(records, "s"),
            "cycle_cpu_s": figure(result.cpu_s, "s"),
            "placements_per_s": figure(
                [n / wall for n, wall in zip(placed[-runs:], result.wall_s, strict=True)], "1/s"
            ),
            "peak_rss_mib": figure([peak_rss_mib()], "MiB", 1024),
        },
        phases=phases(result),
    )


def _report_some() -> None:
    """What agents write between two cycles: a sign of life of each node, the idleness of a tenth
    of what runs."""
    now = timezone.now()
    Node.objects.update(last_report_at=now)
    reported = list(Attempt.objects.open().values_list("pk", flat=True))[::REPORTED]
    Attempt.objects.filter(pk__in=reported).update(idle_seen_at=now)


def arrivals_recorded(
    size: Size, snapshot: core.Snapshot, arrivals: Sequence[core.Workload], warmup: int
) -> Report:
    """From a committed submission to its recorded, committed decision, in the warm process."""
    times: list[float] = []
    decided: list[float] = []
    full = after = 0
    with _stored(snapshot):
        warm = _warmed()
        for newcomer in arrivals:
            seconds, outcome = _answer(warm, newcomer)
            times.append(seconds)
            if outcome.increments:
                decided.append(outcome.increments[0].plan_s)
                after += outcome.needs_full
            else:
                full += 1
    return Report(
        params=_params(size, snapshot),
        figures={
            "decide_s": figure(decided[warmup:], "s"),
            "recorded_s": figure(times[warmup:], "s", 0.1),
            "decided_by_full_cycle": figure([float(full)], "arrivals"),
            "followed_by_full_cycle": figure([float(after)], "arrivals"),
            "peak_rss_mib": figure([peak_rss_mib()], "MiB", 1024),
        },
        phases={},
    )


def reclaims_recorded(
    size: Size, snapshot: core.Snapshot, claim: core.Workload, runs: int, warmup: int
) -> Report:
    """One GPU claimed back: from the committed claim to the recorded eviction."""
    times: list[float] = []
    decided: list[float] = []
    with _stored(snapshot):
        warm = _warmed()
        for _ in range(warmup + runs):
            seconds, outcome = _answer(warm, claim)
            times.append(seconds)
            if not outcome.increments or outcome.num_decisions != 2:
                raise AssertionError("one victim is needed")
            decided.append(outcome.increments[0].plan_s)
    return Report(
        params=_params(size, snapshot),
        figures={
            "decide_s": figure(decided[warmup:], "s", 0.02),
            "recorded_s": figure(times[warmup:], "s", 0.2),
            "peak_rss_mib": figure([peak_rss_mib()], "MiB", 1024),
        },
        phases={},
    )


class _Resumable(Warm):
    """Can be warm again from memory alone, where nothing else has happened since."""

    def drop(self) -> None:
        """Forget, but for what `resume` needs."""
        if self._taken is not None:
            self._last = (self._taken, self._arrived)
        super().drop()

    def resume(self) -> None:
        """Plan once more from what was kept."""
        self.drop()
        taken, arrived = self._last
        whole = replace(taken.snapshot, workloads=(*taken.snapshot.workloads, *arrived))
        planner = WarmPlanner(whole, taken.policy, timezone.now().timestamp())
        self.keep(feed.mark(), replace(taken, snapshot=whole), planner)


def _warmed() -> _Resumable:
    warm = _Resumable()
    outcome = run_cycle(wait=True, warm=warm)
    if outcome is None or outcome.has_effects or not warm.is_warm:
        raise AssertionError("the stored cluster has not settled")
    return warm


def _answer(warm: _Resumable, newcomer: core.Workload) -> tuple[float, Outcome]:
    """Submit, decide and record; what calls for a full cycle is taken back afterwards."""
    row = _submit(newcomer)
    began = time.monotonic()
    try:
        with transaction.atomic():
            outcome = run_cycle(wait=True, warm=warm)
            assert outcome is not None
            if not warm.is_warm:
                transaction.set_rollback(True)
    finally:
        seconds = time.monotonic() - began
    if not warm.is_warm:
        row.waits.all().delete()
        Workload.objects.filter(pk=row.pk).delete()
        warm.resume()
    return seconds, outcome


def _submit(newcomer: core.Workload) -> Workload:
    owner = User.objects.get(username="bench")
    types = list(NodeType.objects.order_by("name").values_list("name", flat=True))
    row = row_of(
        newcomer, {newcomer.project: Project.objects.get(name=newcomer.project)}, owner, types
    )
    row.submitted_at = row.phase_changed_at = timezone.now()
    row.save(force_insert=True)
    Wait.objects.create(workload=row, started_at=row.submitted_at, cause="submitted")
    return row


def _params(size: Size, snapshot: core.Snapshot) -> dict[str, object]:
    running = sum(1 for w in snapshot.workloads if any(r.placement for r in w.replicas))
    pending = len(snapshot.workloads) - running
    return {**asdict(size), "running": running, "pending": pending, "database": True}
