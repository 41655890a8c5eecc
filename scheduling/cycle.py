"""One planning cycle on the database: snapshot, plan, record. One at a time, whoever asks.

Called by the listening thread (woken by NOTIFY) and by the periodic task; both may fail or be
killed at any moment, and the next one begins from the rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import msgspec
from django.db import connection
from django.db.models import F, Func, IntegerField, OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from scheduling.core.cycle import plan, without_collector
from scheduling.core.decisions import Decision, Hold, Plan
from scheduling.core.incremental import WarmPlanner
from scheduling.core.scenario import export_scenario
from scheduling.models import CycleRecord, Device, DeviceAllocation, DeviceHold, PlannerStatus
from scheduling.services.planning import StalePlanError, apply_plan
from scheduling.snapshot import Taken, take_snapshot
from scheduling.warm import Recorded, Warm

logger = logging.getLogger(__name__)

LOCK_KEY = 0x416C6C6F74
"""Advisory lock of the planner ("Allot" in ASCII)."""
MAX_STALE_TRIES = 5
NUM_RECORDS_KEPT = 500
MAX_RECORDED_BYTES = 256 * 1024 * 1024
"""Of compressed scenarios in all: a cycle of 5,000 nodes and 75,000 workloads takes about 3 MiB."""
NUM_WAITING_KEPT = 200
ESTIMATES_EVERY_S = 5.0
"""Estimates change slowly and cost time: the cycles in between leave them as they are."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cycle did. `has_effects` when an agent has something new to do.

    Attributes:
        increments: Arrivals that were decided alone; what had effects is still to be remembered.
        needs_full: A full cycle should follow, for others or to be warm again.
    """

    has_effects: bool
    num_decisions: int
    seconds: float
    increments: tuple[Recorded, ...] = ()
    needs_full: bool = False


def run_cycle(*, wait: bool = False, warm: Warm | None = None) -> Outcome | None:
    """Plan until the plan could be recorded.

    Args:
        wait: While another process is planning, wait for it: its snapshot may not hold the news.
        warm: What this process keeps from one cycle to the next; arrivals are then answered
            without a full cycle where they can be.

    Returns:
        None when another process is planning and `wait` is false.
    """
    began = time.monotonic()
    with _planner_lock(wait=wait) as is_ours:
        if not is_ours:
            return None
        _expire_holds()
        if warm is not None and warm.is_warm:
            answered = _answer_arrivals(warm)
            if answered is not None:
                return replace(answered, seconds=time.monotonic() - began)
        _mend_devices()
        for _try in range(MAX_STALE_TRIES):
            try:
                decided = _plan_once(warm)
            except StalePlanError as error:
                logger.info("stale plan, planning again: %s", error)
                continue
            except Exception as error:
                _note_failure(error)
                raise
            effects = _has_effects(decided)
            is_cold = warm is not None and not warm.is_warm
            seconds = time.monotonic() - began
            return Outcome(effects, len(decided.decisions), seconds, needs_full=is_cold and effects)
    logger.warning("gave up after %s stale plans; the next cycle goes on", MAX_STALE_TRIES)
    return Outcome(False, 0, time.monotonic() - began)


def _answer_arrivals(warm: Warm) -> Outcome | None:
    """Decide by increment; None where a full cycle is needed."""
    try:
        recorded = warm.answer()
    except StalePlanError as error:
        logger.info("stale increment, planning anew: %s", error)
        warm.drop()
        return None
    except Exception:
        warm.drop()
        raise
    if recorded is None:
        return None
    decisions = [item for one in recorded for item in one.plan.decisions]
    has_effects = any(_has_effects(one.plan) for one in recorded)
    return Outcome(has_effects, len(decisions), 0.0, tuple(recorded), not warm.is_warm)


def _has_effects(decided: Plan) -> bool:
    return bool(decided.cordons) or any(not isinstance(item, Hold) for item in decided.decisions)


def remember_increments(outcome: Outcome) -> None:
    """Keep what increments changed, once their effects are on their way."""
    for one in outcome.increments:
        if not _has_effects(one.plan):
            continue
        marks = [0.0, one.snapshot_s, one.snapshot_s + one.plan_s]
        marks.append(marks[-1] + one.record_s)
        _remember(one.taken, one.plan, one.at.timestamp(), marks)


@contextmanager
def _planner_lock(*, wait: bool) -> Iterator[bool]:
    """A session lock: it goes with the connection when the process is killed."""
    with connection.cursor() as cursor:
        if wait:
            cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK_KEY])
            is_ours = True
        else:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [LOCK_KEY])
            is_ours = bool(cursor.fetchone()[0])
    try:
        yield is_ours
    finally:
        if is_ours:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK_KEY])


def _expire_holds() -> None:
    """Plan anew what was held for too long: victims hang, or the claimant cannot start."""
    DeviceHold.objects.filter(expires_at__lt=timezone.now()).delete()


def _mend_devices() -> None:
    """Re-derive what devices hold from the open allocations, should somebody have deleted some."""
    held = (
        DeviceAllocation.objects.filter(device=OuterRef("pk"), is_open=True, is_lent=False)
        .values("device")
        .annotate(total=Sum("gpu_milli"))
        .values("total")
    )
    wrong = Device.objects.annotate(held=Coalesce(Subquery(held), 0)).exclude(
        allocated_milli=F("held")
    )
    for device in wrong:
        logger.warning("device %s held %s, not %s", device, device.held, device.allocated_milli)
        Device.objects.filter(pk=device.pk).update(allocated_milli=device.held)


def _note_failure(error: Exception) -> None:
    """Let pages say that nothing is being planned, and why."""
    PlannerStatus.objects.update_or_create(
        pk=PlannerStatus.ONLY,
        defaults={"failed_at": timezone.now(), "error": f"{type(error).__name__}: {error}"[:2000]},
    )


@dataclass(slots=True)
class _Estimated:
    """When this process last asked when what waits will start."""

    at: float = float("-inf")


_estimated = _Estimated()


@without_collector()
def _plan_once(warm: Warm | None) -> Plan:
    started_at = timezone.now()
    marks = [time.monotonic()]
    if warm is not None:
        warm.drop()
    mark = warm.begin() if warm is not None else ""
    taken = take_snapshot(None if warm is None else warm.rows)
    marks.append(time.monotonic())
    with_estimates = marks[0] - _estimated.at >= ESTIMATES_EVERY_S
    planner: WarmPlanner | None = None
    picture = (taken.snapshot, taken.policy, started_at.timestamp())
    if warm is None:
        decided = plan(*picture, with_estimates=with_estimates)
    else:
        planner = WarmPlanner(*picture, with_estimates=with_estimates)
        decided = planner.plan
    for name, problem in decided.set_aside.items():
        logger.warning("workload %s is set aside: %s", name, problem)
    marks.append(time.monotonic())
    apply_plan(taken, decided)
    if with_estimates:
        _estimated.at = marks[0]
    marks.append(time.monotonic())
    if warm is not None and planner is not None:
        warm.keep(mark, taken, planner)
    if _has_effects(decided):
        _remember(taken, decided, started_at.timestamp(), marks)
    return decided


def _remember(taken: Taken, decided: Plan, now_s: float, marks: list[float]) -> None:
    """Keep a cycle that changed something, so that it can be read, exported and replayed."""
    started_at = timezone.now() - timedelta(seconds=marks[-1] - marks[0])
    record = CycleRecord.objects.create(
        started_at=started_at,
        snapshot_s=marks[1] - marks[0],
        plan_s=marks[2] - marks[1],
        record_s=marks[3] - marks[2],
        packed_scenario=CycleRecord.pack(
            export_scenario(
                taken.snapshot, taken.policy, now_s, scenario_id=f"cycle/{started_at.isoformat()}"
            )
        ),
        decisions=[
            {"type": type(item).__name__.lower(), **msgspec.to_builtins(item)}
            for item in (*decided.cordons, *_worth_reading(decided.decisions))
        ],
        numbers=msgspec.to_builtins(decided.numbers),
    )
    _forget_old_records(record.pk)


def _worth_reading(decisions: Sequence[Decision]) -> Iterator[Decision]:
    """All that acts or is kept for somebody, and so many of the rest: a queue may be long."""
    num_waiting = 0
    for decision in decisions:
        if isinstance(decision, Hold) and not decision.held:
            num_waiting += 1
            if num_waiting > NUM_WAITING_KEPT:
                continue
        yield decision


def _forget_old_records(newest: int) -> None:
    """Keep the newest, no more than so many and so much in all."""
    CycleRecord.objects.filter(pk__lte=newest - NUM_RECORDS_KEPT).delete()
    sizes = CycleRecord.objects.order_by("-pk").annotate(
        size=Func("packed_scenario", function="octet_length", output_field=IntegerField())
    )
    total = 0
    for pk, size in sizes.values_list("pk", "size"):
        total += size
        if total > MAX_RECORDED_BYTES and pk != newest:
            CycleRecord.objects.filter(pk__lte=pk).delete()
            break
