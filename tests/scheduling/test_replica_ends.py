"""What the end or the loss of a replica means for its gang or elastic training, on the rows."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.agent import protocol
from scheduling.cycle import run_cycle
from scheduling.models import (
    Allocation,
    Attempt,
    DeviceHold,
    Node,
    Phase,
    Workload,
)
from scheduling.services import checkpoint_now, retry, stop
from scheduling.services.claims import GIVEN_UP_AFTER_S
from scheduling.services.silence import watch_nodes
from tests.factories import (
    submitted,
    training_spec,
)
from tests.scheduling.conftest import Organisation
from tests.scheduling.crews import end, num_held, placed, report, run, silence, started

pytestmark = pytest.mark.django_db


class TestEnding:
    def test_it_is_complete_when_all_have_succeeded(self, organisation: Organisation) -> None:
        row = started(organisation, 2, 3)
        end(organisation, row, 0)
        assert row.phase == Phase.RUNNING
        end(organisation, row, 2)
        run_cycle()
        assert placed(row) == [1]
        row.refresh_from_db()
        assert row.incomplete_since is None
        end(organisation, row, 1)
        assert row.phase == Phase.COMPLETED
        assert num_held() == 0
        assert not Allocation.objects.filter(ended_at__isnull=True).exists()

    def test_what_was_given_back_is_not_missed_at_the_end(self, organisation: Organisation) -> None:
        row = started(organisation, 1, 8)
        submitted(training_spec(organisation.speech), organisation.sergey)
        run_cycle()
        for replica in range(7):
            end(organisation, row, replica)
        assert row.phase == Phase.RUNNING
        end(organisation, row, 7, "evicted", 143)
        assert row.phase == Phase.COMPLETED

    def test_a_failed_member_takes_its_gang_along_and_all_start_again(
        self, organisation: Organisation
    ) -> None:
        row = started(organisation, 3, 3)
        end(organisation, row, 1, exit_code=7)
        assert row.phase == Phase.CHECKPOINTING
        assert row.reason["code"] == "exited"
        assert row.reason["details"]["replica"] == 1
        goals = Attempt.objects.of(row).open().values_list("goal", flat=True)
        assert list(goals) == ["evict", "evict"]
        run_cycle()
        assert placed(row) == [0, 2]
        end(organisation, row, 0, "evicted", 143)
        end(organisation, row, 2, "evicted", 143)
        assert row.phase == Phase.QUEUED
        assert row.num_failures == 1
        assert row.num_preemptions == 0
        assert row.not_before is not None
        assert row.reason["details"]["exit_code"] == 7
        assert row.waits.get(ended_at__isnull=True).cause == "failed"
        Workload.objects.filter(pk=row.pk).update(not_before=None)
        run_cycle()
        assert placed(row) == [0, 1, 2]

    def test_a_gang_that_fails_again_and_again_fails(self, organisation: Organisation) -> None:
        row = started(organisation, 2, 2, backoff_limit=1)
        for _ in range(2):
            end(organisation, row, 1, exit_code=1)
            end(organisation, row, 0, "evicted", 143)
            Workload.objects.filter(pk=row.pk).update(not_before=None)
            run_cycle()
        row.refresh_from_db()
        assert row.phase == Phase.FAILED
        assert row.reason["details"]["replica"] == 1

    def test_what_the_leader_saves_because_another_failed_is_no_progress(
        self, organisation: Organisation
    ) -> None:
        row = started(organisation, 2, 2, backoff_limit=1)
        for number in range(2):
            end(organisation, row, 1, exit_code=1)
            time.sleep(0.01)
            saved = protocol.CheckpointReport(
                key=f"step-{number}", saved_at=time.time(), size_bytes=1, sha256="0" * 64, step=1
            )
            organisation.agent.report(
                report(
                    row,
                    0,
                    "exited",
                    exit_cause=protocol.ExitCause.EVICTED,
                    exit_code=0,
                    checkpoints=[saved],
                )
            )
            Workload.objects.filter(pk=row.pk).update(not_before=None)
            run_cycle()
        row.refresh_from_db()
        assert row.phase == Phase.FAILED

    def test_without_a_gang_a_failed_replica_starts_again_alone(
        self, organisation: Organisation
    ) -> None:
        row = started(organisation, 1, 3)
        end(organisation, row, 1, exit_code=1)
        assert row.phase == Phase.RUNNING
        assert row.num_failures == 1
        run_cycle()
        assert placed(row) == [0, 2]
        row.refresh_from_db()
        assert row.reason["growth"]["code"] == "backing_off"
        Workload.objects.filter(pk=row.pk).update(not_before=timezone.now())
        run_cycle()
        assert placed(row) == [0, 1, 2]
        assert Attempt.objects.of(row).open().get(replica=1).number == 2

    def test_a_replica_that_fails_too_often_ends_all(self, organisation: Organisation) -> None:
        row = started(organisation, 1, 2, backoff_limit=0)
        end(organisation, row, 1, exit_code=3)
        assert row.phase == Phase.CHECKPOINTING
        end(organisation, row, 0, "evicted", 143)
        assert row.phase == Phase.FAILED
        assert row.reason["details"]["exit_code"] == 3

    @pytest.mark.parametrize("least", [1, 2])
    def test_a_kill_at_the_memory_limit_ends_all(
        self, organisation: Organisation, least: int
    ) -> None:
        row = started(organisation, least, 2)
        end(organisation, row, 1, "out_of_memory", 137)
        assert row.phase == Phase.CHECKPOINTING
        end(organisation, row, 0, "evicted", 143)
        assert row.phase == Phase.FAILED
        assert row.reason["code"] == "out_of_memory"

    def test_a_stop_ends_all(self, organisation: Organisation) -> None:
        row = started(organisation, 2, 3)
        stop(row, actor=organisation.lena)
        row.refresh_from_db()
        assert row.phase == Phase.CHECKPOINTING
        for replica in (0, 1):
            end(organisation, row, replica, "stopped", 143)
            assert row.phase == Phase.CHECKPOINTING
        end(organisation, row, 2, "stopped", 143)
        assert row.phase == Phase.STOPPED
        assert num_held() == 0
        retry(row, actor=organisation.lena)
        run_cycle()
        assert placed(row) == [0, 1, 2]

    def test_a_stop_while_a_gang_leaves_for_a_failure_stops_it(
        self, organisation: Organisation
    ) -> None:
        row = started(organisation, 2, 2)
        end(organisation, row, 1, exit_code=1)
        stop(row, actor=organisation.lena)
        end(organisation, row, 0, "stopped", 143)
        assert row.phase == Phase.STOPPED

    def test_the_leader_is_asked_to_save(self, organisation: Organisation) -> None:
        row = started(organisation, 2, 2)
        checkpoint_now(row, actor=organisation.lena)
        assert dict(Attempt.objects.of(row).values_list("replica", "goal")) == {
            0: "checkpoint",
            1: "run",
        }
        saved = protocol.CheckpointReport(
            key="step-5", saved_at=time.time(), size_bytes=10, sha256="0" * 64, step=5
        )
        organisation.agent.report(report(row, 0, "running", checkpoints=[saved]))
        assert set(Attempt.objects.of(row).values_list("goal")) == {("run",)}


class TestLosses:
    def test_a_lost_member_is_replaced(self, organisation: Organisation) -> None:
        row = started(organisation, 3, 3)
        end(organisation, row, 2, "vanished")
        assert row.phase == Phase.RUNNING
        assert row.incomplete_since is not None
        run_cycle()
        row.refresh_from_db()
        assert placed(row) == [0, 1, 2]
        assert row.incomplete_since is None

    def test_a_gang_that_does_not_become_whole_within_its_grace_stops(
        self, organisation: Organisation
    ) -> None:
        row = started(organisation, 8, 8)
        end(organisation, row, 3, "node_shutdown")
        Node.objects.filter(name="sim-t4-1").update(state="cordoned")
        run_cycle()
        row.refresh_from_db()
        assert row.phase == Phase.RUNNING
        assert placed(row) == [0, 1, 2, 4, 5, 6, 7]
        row.incomplete_since = timezone.now() - timedelta(seconds=61)
        row.save()
        run_cycle()
        row.refresh_from_db()
        assert row.phase == Phase.CHECKPOINTING
        assert row.reason["code"] == "stale_gang"
        for replica in placed(row):
            end(organisation, row, replica, "evicted", 143)
        assert row.phase == Phase.PREEMPTED
        assert row.waits.get(ended_at__isnull=True).cause == "stale_gang"
        assert row.incomplete_since is None
        run_cycle()
        assert placed(row) == []

    def test_a_gang_is_lost_with_the_node_of_one_member_and_back_with_it(
        self, organisation: Organisation
    ) -> None:
        row = started(organisation, 2, 2, num_devices=4)
        nodes = set(Attempt.objects.of(row).values_list("node__name", flat=True))
        assert nodes == {"sim-t4-1", "sim-t4-2"}
        silence("sim-t4-2", 20)
        watch_nodes()
        row.refresh_from_db()
        assert row.phase == Phase.LOST
        run(organisation, row, 0, 1)
        assert row.phase == Phase.RUNNING

    def test_what_a_lost_node_held_is_given_up_after_its_lease_and_the_gang_not_run_in_part(
        self, organisation: Organisation
    ) -> None:
        row = started(organisation, 2, 2, num_devices=4)
        silence("sim-t4-2", GIVEN_UP_AFTER_S + 1)
        watch_nodes()
        watch_nodes()
        assert len(placed(row)) == 1
        row.refresh_from_db()
        row.incomplete_since = timezone.now() - timedelta(seconds=61)
        row.save()
        run_cycle()
        row.refresh_from_db()
        assert row.phase == Phase.CHECKPOINTING
        (last,) = placed(row)
        end(organisation, row, last, "evicted", 143)
        assert row.phase == Phase.PREEMPTED

    def test_elastic_work_goes_on_without_the_lost_node(self, organisation: Organisation) -> None:
        row = started(organisation, 1, 2, num_devices=4)
        away = Attempt.objects.of(row).get(replica=1).node.name
        silence(away, GIVEN_UP_AFTER_S + 1)
        watch_nodes()
        row.refresh_from_db()
        assert row.phase == Phase.RUNNING
        assert placed(row) == [0]

    def test_all_replicas_lost_bring_it_back_into_the_queue(
        self, organisation: Organisation
    ) -> None:
        row = started(organisation, 1, 8)
        for name in ("sim-t4-1", "sim-t4-2"):
            silence(name, GIVEN_UP_AFTER_S + 1)
        watch_nodes()
        watch_nodes()
        row.refresh_from_db()
        assert row.phase == Phase.QUEUED
        assert row.waits.get(ended_at__isnull=True).cause == "node_lost"
        assert num_held() == 0


def test_a_gang_of_which_one_member_must_move_stops_whole_and_starts_where_it_was_kept_room(
    organisation: Organisation,
) -> None:
    fillers = [started(organisation, 1, 1, num_devices=3) for _node in range(2)]
    gang = started(organisation, 2, 2)
    where = dict(Attempt.objects.of(gang).values_list("replica", "node__name"))
    assert len(set(where.values())) == 2
    for filler in fillers:
        end(organisation, filler, 0)
    claimant = submitted(training_spec(organisation.speech, num_devices=4), organisation.sergey)
    run_cycle()
    gang.refresh_from_db()
    assert gang.phase == Phase.CHECKPOINTING
    assert gang.reason["code"] == "moved"
    assert set(Attempt.objects.of(gang).values_list("goal")) == {("evict",)}
    holds = DeviceHold.objects.filter(workload=gang)
    (room,) = set(holds.values_list("node__name", flat=True))
    assert holds.count() == 2
    end(organisation, gang, 0, "evicted", 143)
    run_cycle()
    assert holds.count() == 2
    end(organisation, gang, 1, "evicted", 143)
    run_cycle()
    assert placed(gang) == [0, 1]
    assert set(Attempt.objects.of(gang).open().values_list("node__name")) == {(room,)}
    assert placed(claimant) == [0]
    assert not DeviceHold.objects.exists()
