"""Gangs and elastic workloads on the rows: placed together, grown, shrunk."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from scheduling.cycle import run_cycle
from scheduling.models import (
    Allocation,
    Attempt,
    DeviceHold,
    Event,
    Phase,
    Workload,
)
from tests.factories import (
    make_node_type,
    session_spec,
    simulated_node,
    submitted,
    training_spec,
)
from tests.scheduling.conftest import Organisation
from tests.scheduling.crews import end, num_held, placed, run, started

pytestmark = pytest.mark.django_db


class TestStarting:
    def test_a_gang_gets_all_its_places_in_one_plan(self, organisation: Organisation) -> None:
        row = submitted(
            training_spec(organisation.language, min_replicas=3, max_replicas=3, num_devices=2),
            organisation.lena,
        )
        run_cycle()
        row.refresh_from_db()
        assert placed(row) == [0, 1, 2]
        assert row.phase == Phase.STARTING
        assert row.current is not None
        assert row.current.replica == 0
        assert num_held() == 6000
        assert Allocation.objects.filter(workload=row).count() == 3
        numbers = Attempt.objects.of(row).values_list("number", "num_replicas", flat=False)
        assert set(numbers) == {(1, 3)}

    def test_a_gang_of_which_only_a_part_fits_waits_whole(self, organisation: Organisation) -> None:
        started(organisation, 1, 1, num_devices=2)
        row = started(organisation, 2, 2, num_devices=3)
        assert placed(row) == []
        assert row.phase == Phase.QUEUED
        assert row.reason["code"] == "gang_incomplete"
        assert row.reason["details"]["placeable"] == 1
        assert num_held() == 2000

    def test_it_runs_once_its_minimum_runs(self, organisation: Organisation) -> None:
        row = submitted(
            training_spec(organisation.language, min_replicas=2, max_replicas=3),
            organisation.lena,
        )
        run_cycle()
        run(organisation, row, 0)
        assert row.phase == Phase.STARTING
        run(organisation, row, 2)
        assert row.phase == Phase.RUNNING
        run(organisation, row, 1)
        assert row.phase == Phase.RUNNING

    def test_leaders_get_ports_of_their_own(self, organisation: Organisation) -> None:
        for _ in range(3):
            started(organisation, 2, 2)
        ports = Attempt.objects.filter(replica=0).values_list("rendezvous_port", flat=True)
        assert len(set(ports)) == 3
        assert not Attempt.objects.exclude(replica=0).filter(rendezvous_port__isnull=False)

    def test_a_gang_waits_for_victims_as_a_whole(self, organisation: Organisation) -> None:
        borrower = started(organisation, 1, 1, num_devices=4)
        other = started(organisation, 1, 1, num_devices=2)
        claimant = submitted(
            training_spec(organisation.speech, min_replicas=4, max_replicas=4),
            organisation.sergey,
        )
        run_cycle()
        claimant.refresh_from_db()
        assert placed(claimant) == []
        assert claimant.reason["code"] == "awaiting_release"
        holds = DeviceHold.objects.filter(workload=claimant)
        assert sorted(holds.values_list("replica", flat=True)) == [0, 1, 2, 3]
        evicted = Attempt.objects.get(goal="evict")
        assert evicted.workload_id in (borrower.pk, other.pk)
        end(organisation, Workload.objects.get(pk=evicted.workload_id), 0, "evicted", 143)
        run_cycle()
        assert placed(claimant) == [0, 1, 2, 3]
        assert not DeviceHold.objects.filter(workload=claimant).exists()

    def test_planning_again_changes_nothing(self, organisation: Organisation) -> None:
        started(organisation, 2, 4)
        submitted(
            training_spec(organisation.speech, min_replicas=5, max_replicas=6),
            organisation.sergey,
        )
        run_cycle()
        before = list(Workload.objects.order_by("pk").values_list("pk", "phase", "generation"))
        outcome = run_cycle()
        assert outcome is not None
        assert not outcome.has_effects
        assert before == list(
            Workload.objects.order_by("pk").values_list("pk", "phase", "generation")
        )


class TestElastic:
    def test_it_takes_what_is_free_up_to_its_maximum(self, organisation: Organisation) -> None:
        assert placed(started(organisation, 1, 3)) == [0, 1, 2]
        assert placed(started(organisation, 1, 30)) == [0, 1, 2, 3, 4]

    def test_it_grows_when_room_comes(self, organisation: Organisation) -> None:
        first = started(organisation, 1, 1, num_devices=4)
        elastic = started(organisation, 1, 6)
        assert placed(elastic) == [0, 1, 2, 3]
        assert elastic.reason["code"] == "started_borrowing"
        run_cycle()
        elastic.refresh_from_db()
        assert elastic.reason["code"] == "started_borrowing"
        assert elastic.reason["growth"]["code"] == "over_share"
        end(organisation, first, 0)
        run_cycle()
        elastic.refresh_from_db()
        assert placed(elastic) == [0, 1, 2, 3, 4, 5]
        assert elastic.phase == Phase.RUNNING
        assert "growth" not in elastic.reason
        event = Event.objects.get(workload=elastic, code="grown")
        assert event.details["replicas"] == [4, 5]
        assert event.details["num_replicas"] == 6
        assert set(
            Attempt.objects.of(elastic).filter(replica__gte=4).values_list("num_replicas")
        ) == {(6,)}

    def test_it_shrinks_one_by_one_for_whoever_claims(self, organisation: Organisation) -> None:
        elastic = started(organisation, 1, 8)
        assert placed(elastic) == list(range(8))
        for count in (1, 2):
            claimant = submitted(training_spec(organisation.speech), organisation.sergey)
            run_cycle()
            leaving = Attempt.objects.of(elastic).open().get(goal="evict")
            assert leaving.replica == 8 - count
            elastic.refresh_from_db()
            assert elastic.phase == Phase.RUNNING
            assert elastic.num_preemptions == 0
            assert elastic.claimant is None
            end(organisation, elastic, leaving.replica, "evicted", 143)
            assert elastic.phase == Phase.RUNNING
            run_cycle()
            assert placed(claimant) == [0]
            run(organisation, claimant, 0)
        assert placed(elastic) == list(range(6))
        shrunk = Event.objects.filter(workload=elastic, code="shrunk")
        assert [event.details["num_replicas"] for event in shrunk] == [7, 6]
        assert shrunk[0].details["cause"] == "reclaimed"
        assert not elastic.waits.filter(ended_at__isnull=True).exists()

    def test_a_gang_with_surplus_keeps_its_minimum_or_leaves_whole(
        self, organisation: Organisation
    ) -> None:
        elastic = started(organisation, 6, 8)
        claimant = submitted(training_spec(organisation.speech, num_devices=4), organisation.sergey)
        run_cycle()
        elastic.refresh_from_db()
        assert elastic.phase == Phase.CHECKPOINTING
        assert Attempt.objects.of(elastic).open().filter(goal="evict").count() == 8
        for replica in range(7):
            end(organisation, elastic, replica, "evicted", 143)
            assert elastic.phase == Phase.CHECKPOINTING
            run_cycle()
            assert placed(elastic) == list(range(replica + 1, 8))
        end(organisation, elastic, 7, "evicted", 143)
        assert elastic.phase == Phase.PREEMPTED
        assert elastic.num_preemptions == 1
        run_cycle()
        assert placed(claimant) == [0]
        assert placed(elastic) == []

    def test_a_replica_that_runs_in_the_leaders_absence_is_not_the_leader(
        self, organisation: Organisation
    ) -> None:
        row = started(organisation, 1, 2)
        end(organisation, row, 0, "vanished")
        assert row.phase == Phase.RUNNING
        run_cycle()
        row.refresh_from_db()
        assert placed(row) == [0, 1]
        assert row.current is not None
        assert (row.current.replica, row.current.number) == (0, 2)


def test_a_gang_keeps_to_one_node_type(organisation: Organisation) -> None:
    make_node_type("v100", gpus=4)
    organisation.agent.nodes.append(simulated_node("sim-v100-1", kind="v100", gpus=4))
    organisation.agent.report()
    row = started(organisation, 10, 10, node_types=("t4", "v100"))
    assert placed(row) == []
    row = started(organisation, 4, 4, node_types=("v100", "t4"))
    assert set(Attempt.objects.of(row).values_list("node__node_type__name", flat=True)) == {"v100"}


class TestTheSchemaRefuses:
    @pytest.mark.parametrize(("least", "most"), [(0, 1), (2, 1), (1, 513)])
    def test_replicas_out_of_range(self, organisation: Organisation, least: int, most: int) -> None:
        with (
            pytest.raises(IntegrityError, match="workload_replicas_range"),
            transaction.atomic(),
        ):
            submitted(
                training_spec(organisation.language, min_replicas=least, max_replicas=most),
                organisation.lena,
            )

    def test_a_session_of_two(self, organisation: Organisation) -> None:
        with (
            pytest.raises(IntegrityError, match="workload_session_is_one"),
            transaction.atomic(),
        ):
            submitted(session_spec(organisation.vision, max_replicas=2), organisation.vera)
