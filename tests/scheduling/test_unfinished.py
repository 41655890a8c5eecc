"""Rows as plans are made from them: a fixed number of queries, and what is kept is never old."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import connection, transaction
from django.db.models import F, Model, QuerySet
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from projects.models import NodeType, Project
from scheduling import snapshot, unfinished
from scheduling.agent.protocol import LoanState, SwapState
from scheduling.core.cycle import plan
from scheduling.cycle import run_cycle
from scheduling.models import (
    Attempt,
    Device,
    DeviceHold,
    Node,
    NodeState,
    Workload,
)
from scheduling.replicas import workload_id
from scheduling.services import stop
from scheduling.services.planning import StalePlanError, apply_plan
from scheduling.snapshot import Taken, take_snapshot
from tests.factories import submitted, training_spec
from tests.lending_scene import Scene, scene
from tests.scheduling.conftest import Organisation

__all__ = ["scene"]

pytestmark = pytest.mark.django_db

Check = Callable[[], Taken]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """Take a snapshot from kept rows, and see that all rows read anew give the same."""
    rows = unfinished.Rows()
    take_snapshot(rows)

    def take() -> Taken:
        now = timezone.now()
        with monkeypatch.context() as stopped:
            stopped.setattr(snapshot, "timezone", SimpleNamespace(now=lambda: now))
            kept, anew = take_snapshot(rows), take_snapshot()
        assert kept.snapshot == anew.snapshot
        assert list(map(said, kept.rows.values())) == list(map(said, anew.rows.values()))
        return kept

    return take


def said(row: Model) -> dict[str, object]:
    """All that was read of a row."""
    fields = {name: value for name, value in vars(row).items() if not name.startswith("_")}
    children = unfinished.children(row, "attempts") if isinstance(row, Workload) else ()
    return fields | {f"attempt {child.replica}": said(child) for child in children}


def num_queries(ask: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as asked:
        ask()
    return len(asked)


def test_a_snapshot_takes_a_fixed_number_of_queries(organisation: Organisation) -> None:
    for _ in range(3):
        submitted(training_spec(organisation.speech), organisation.sergey)
    run_cycle()
    few = num_queries(take_snapshot)
    for _ in range(20):
        submitted(training_spec(organisation.language), organisation.lena)
    run_cycle()
    assert num_queries(take_snapshot) == few <= 22


def test_what_changes_while_rows_are_read_has_another_generation(
    organisation: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = submitted(training_spec(organisation.speech), organisation.sergey)
    read = unfinished._attempts

    def changed_before() -> QuerySet[Attempt]:
        Workload.objects.filter(pk=row.pk).update(generation=F("generation") + 1)
        return read()

    monkeypatch.setattr(unfinished, "_attempts", changed_before)
    taken = take_snapshot()
    with pytest.raises(StalePlanError):
        apply_plan(taken, plan(taken.snapshot, taken.policy, time.time()))


# ---------------------------------------------------------------- kept from plan to plan


def test_what_has_not_changed_is_not_read_again(organisation: Organisation) -> None:
    rows = unfinished.Rows()
    same, changed, *_others = [
        submitted(training_spec(organisation.speech), organisation.sergey) for _ in range(8)
    ]
    run_cycle()
    before = take_snapshot(rows).rows
    Workload.objects.filter(pk=changed.pk).update(num_failures=1)
    Attempt.objects.filter(workload=same).update(ready_at=timezone.now())
    after = take_snapshot(rows).rows
    assert after[workload_id(same)] is before[workload_id(same)]
    assert after[workload_id(changed)].num_failures == 1
    assert before[workload_id(changed)].num_failures == 0
    assert unfinished.children(after[workload_id(same)], "attempts")[0].ready_at is not None


def test_kept_rows_follow_a_life(organisation: Organisation, check: Check) -> None:
    borrowers = [
        submitted(training_spec(organisation.language, num_devices=4), organisation.lena)
        for _ in range(2)
    ]
    check()
    run_cycle()
    check()
    for row in borrowers:
        organisation.agent.run(row)
    check()
    claimant = submitted(training_spec(organisation.speech), organisation.sergey)
    run_cycle()
    assert DeviceHold.objects.exists()
    check()
    Workload.objects.filter(pk=claimant.pk).update(priority=90)
    check()
    victim = Workload.objects.get(phase="checkpointing")
    organisation.agent.end(victim, "evicted")
    check()
    run_cycle()
    check()
    stop(Workload.objects.get(pk=claimant.pk), actor=organisation.sergey)
    check()
    Workload.objects.filter(pk=victim.pk).delete()
    assert workload_id(victim) not in check().rows


def test_kept_rows_follow_nodes_and_settings(organisation: Organisation, check: Check) -> None:
    submitted(training_spec(organisation.speech), organisation.sergey)
    run_cycle()
    node = Node.objects.all()[0]
    Node.objects.filter(pk=node.pk).update(state=NodeState.CORDONED)
    assert not all(each.is_ready for each in check().snapshot.nodes)
    Node.objects.filter(pk=node.pk).update(state=NodeState.READY)
    check()
    Device.objects.filter(pk=node.devices.all()[0].pk).update(is_healthy=False)
    assert not all(each.is_ready for each in check().snapshot.nodes)
    NodeType.objects.update(swap_host_mib=F("swap_host_mib") + 1024)
    check()
    Node.objects.filter(pk=node.pk).update(node_type=None)
    check()
    Project.objects.update(lending_window_s=77)
    check()


def test_kept_rows_follow_loans(scene: Scene, check: Check) -> None:
    check()
    loan = scene.lend()
    check()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.swap_out_session()
    scene.run_training()
    (lent,) = check().snapshot.loans
    assert lent.borrower == f"{scene.training.pk}/0"
    scene.say(loan, LoanState.WAKING)
    check()
    scene.say(loan, LoanState.ENDED, ended_by="button", ended_at=time.time())
    scene.run_training(SwapState.SWAPPED_OUT)
    assert not check().snapshot.loans
    scene.rest()
    Attempt.objects.filter(workload=scene.session).update(
        idle_since=timezone.now() - timedelta(minutes=9), idle_seen_at=timezone.now()
    )
    check()


def test_a_plan_that_was_not_recorded_leaves_kept_rows_as_they_were(
    organisation: Organisation, check: Check
) -> None:
    submitted(
        training_spec(organisation.speech, num_devices=8, gpu_milli=1000), organisation.sergey
    )
    taken = check()
    (row,) = taken.rows.values()
    before = copy(vars(row))
    with transaction.atomic():
        apply_plan(taken, plan(taken.snapshot, taken.policy, time.time()))
        transaction.set_rollback(True)
    assert vars(row) == before
    check()
