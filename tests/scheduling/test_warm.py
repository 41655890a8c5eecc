"""Arrivals answered from memory: the rows are those that a full cycle would have written."""

from __future__ import annotations

import psycopg
import pytest
from django.db import connection

from scheduling import feed
from scheduling.cycle import remember_increments, run_cycle
from scheduling.models import CycleRecord, DeviceHold, Node, NodeState, Phase, Workload
from scheduling.services import stop
from scheduling.warm import Warm
from tests.factories import session_spec, submitted, training_spec
from tests.scheduling.conftest import Organisation

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def warm(organisation: Organisation) -> Warm:
    """A planner that has looked at the cluster, twice if it had something to do."""
    kept = Warm()
    settle(kept)
    return kept


def settle(warm: Warm) -> None:
    for _ in range(4):
        if warm.is_warm:
            return
        run_cycle(wait=True, warm=warm)
    raise AssertionError("the planner never settled")


def test_a_session_starts_without_a_full_cycle(organisation: Organisation, warm: Warm) -> None:
    row = submitted(session_spec(organisation.vision), organisation.vera)
    outcome = run_cycle(wait=True, warm=warm)
    assert outcome is not None
    assert outcome.has_effects
    assert warm.is_warm
    row.refresh_from_db()
    assert row.phase == Phase.STARTING
    assert row.reason["code"] == "started_in_quota"
    remember_increments(outcome)
    record = CycleRecord.objects.get()
    assert [item["workload"] for item in record.decisions] == [str(row.pk)]
    cold = run_cycle(wait=True)
    assert cold is not None
    assert not cold.has_effects


def test_a_fresh_picture_is_not_old(warm: Warm) -> None:
    assert not warm.is_ageing
    warm.drop()
    assert not warm.is_ageing


def test_one_that_waits_is_told_why(organisation: Organisation, warm: Warm) -> None:
    rows = [submitted(session_spec(organisation.vision), organisation.vera) for _ in range(5)]
    outcome = run_cycle(wait=True, warm=warm)
    assert outcome is not None
    assert outcome.num_decisions == 5
    phases = [Workload.objects.get(pk=row.pk).phase for row in rows]
    assert phases == [Phase.STARTING] * 4 + [Phase.QUEUED]
    last = Workload.objects.get(pk=rows[-1].pk)
    assert last.reason["code"] == "interactive_over_quota"
    assert (last.queue_position, last.queue_length) == (1, 1)


def test_a_guarantee_takes_back_at_once_and_a_full_cycle_follows(
    organisation: Organisation, warm: Warm
) -> None:
    borrower = submitted(training_spec(organisation.language, num_devices=4), organisation.lena)
    other = submitted(training_spec(organisation.language, num_devices=4), organisation.lena)
    run_cycle(wait=True, warm=warm)
    for row in (borrower, other):
        organisation.agent.run(row)
    warm.drop()
    settle(warm)
    claimant = submitted(training_spec(organisation.speech), organisation.sergey)
    outcome = run_cycle(wait=True, warm=warm)
    assert outcome is not None
    assert outcome.has_effects
    assert outcome.needs_full
    assert not warm.is_warm
    assert DeviceHold.objects.get().workload_id == claimant.pk
    assert Workload.objects.filter(phase=Phase.CHECKPOINTING).count() == 1
    claimant.refresh_from_db()
    assert claimant.reason["code"] == "awaiting_release"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("UPDATE scheduling_node SET state = 'cordoned'", id="node"),
        pytest.param("UPDATE scheduling_device SET is_healthy = false", id="device"),
        pytest.param("UPDATE projects_gpuquota SET quota_milli = 0", id="quota"),
        pytest.param("UPDATE projects_nodetype SET min_runtime_s = 60", id="node type"),
        pytest.param("UPDATE scheduling_workload SET priority = 10", id="priority"),
        pytest.param("UPDATE scheduling_attempt SET goal = 'stop'", id="goal"),
        pytest.param("DELETE FROM scheduling_deviceallocation", id="allocation"),
        pytest.param("UPDATE scheduling_zone SET is_stopping = true", id="zone"),
    ],
)
def test_rows_changed_by_hand_call_for_a_full_cycle(
    organisation: Organisation, warm: Warm, change: str
) -> None:
    submitted(session_spec(organisation.vision), organisation.vera)
    run_cycle(wait=True, warm=warm)
    assert warm.is_warm
    with connection.cursor() as cursor:
        cursor.execute(change)
    assert warm.answer() is None
    assert not warm.is_warm


def test_what_another_process_planned_calls_for_a_full_cycle(
    organisation: Organisation, warm: Warm
) -> None:
    mine = submitted(session_spec(organisation.vision), organisation.vera)
    run_cycle(wait=True)
    assert warm.answer() is None
    mine.refresh_from_db()
    assert mine.phase == Phase.STARTING
    settle(warm)
    later = submitted(session_spec(organisation.vision), organisation.vera)
    run_cycle(wait=True, warm=warm)
    later.refresh_from_db()
    assert later.phase == Phase.STARTING


def test_what_plans_do_not_depend_on_changes_nothing(
    organisation: Organisation, warm: Warm
) -> None:
    Node.objects.update(driver="570.0")
    Workload.objects.update(reason={})
    assert warm.answer() == []
    assert warm.is_warm


def test_an_arrival_that_is_gone_again_is_nobodys(organisation: Organisation, warm: Warm) -> None:
    row = submitted(session_spec(organisation.vision), organisation.vera)
    stop(row, actor=organisation.vera)
    run_cycle(wait=True, warm=warm)
    row.refresh_from_db()
    assert row.phase == Phase.STOPPED
    assert not row.attempts.exists()


def test_a_transaction_that_commits_late_is_not_missed(
    organisation: Organisation, warm: Warm
) -> None:
    """Its number is smaller than that of changes already read."""
    parameters = connection.get_connection_params()
    for unwanted in ("cursor_factory", "context", "prepare_threshold", "pool"):
        parameters.pop(unwanted, None)
    with psycopg.connect(**parameters) as slow:
        slow.execute("UPDATE scheduling_node SET state = 'cordoned'")
        submitted(session_spec(organisation.vision), organisation.vera)
        mark = feed.mark()
        assert warm.answer() != []
        slow.commit()
    assert any(kind == "node" for _, kind, _, _ in feed.since(mark).rows)
    assert warm.answer() is None
    assert Node.objects.filter(state=NodeState.CORDONED).exists()


def test_a_transaction_that_stays_open_makes_nothing_new_again(organisation: Organisation) -> None:
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("SELECT pg_current_xact_id()")
        Node.objects.update(state=NodeState.CORDONED)
        assert feed.since(feed.mark()).rows == ()
