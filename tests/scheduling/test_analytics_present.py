"""When nodes were ready, whether samples come, and who is idle now."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from projects.models import NodeType, PriceChange, Role
from scheduling.analytics import idle
from scheduling.analytics.collectors import collectors
from scheduling.models import Attempt, CapacityInterval, Loan, Node, Workload
from scheduling.services import uptime
from scheduling.services.silence import watch_nodes
from telemetry import rollups
from telemetry.ingestion import ingest
from telemetry.messages import Sample, SampleBatch
from tests.factories import make_member, submitted, training_spec
from tests.scheduling import history
from tests.scheduling.conftest import Organisation

S = timedelta(seconds=1)


def spans(node: str) -> list[tuple[datetime, datetime | None]]:
    rows = CapacityInterval.objects.filter(node__name=node, device="").order_by("started_at")
    return list(rows.values_list("started_at", "ended_at"))


class TestReadiness:
    def test_a_node_and_each_device_are_ready_from_the_first_report(
        self, organisation: Organisation
    ) -> None:
        organisation.agent.report()
        assert CapacityInterval.objects.filter(ended_at__isnull=True).count() == 2 + 8
        assert CapacityInterval.objects.count() == 10

    def test_a_lost_node_was_ready_until_its_last_report(self, organisation: Organisation) -> None:
        last = timezone.now() - 40 * S
        Node.objects.filter(name="sim-t4-1").update(last_report_at=last)
        CapacityInterval.objects.update(started_at=last - 100 * S)
        watch_nodes()
        assert spans("sim-t4-1") == [(last - 100 * S, last)]
        organisation.agent.report()
        (_, after) = spans("sim-t4-1")
        assert after[0] > last
        assert after[1] is None

    @pytest.mark.parametrize(("silence_s", "num_spans"), [(60, 1), (120, 2)])
    def test_only_a_short_silence_of_ours_counts_as_ready(
        self, organisation: Organisation, silence_s: int, num_spans: int
    ) -> None:
        last = timezone.now() - silence_s * S
        Node.objects.filter(name="sim-t4-1").update(last_report_at=last)
        CapacityInterval.objects.update(started_at=last - 100 * S)
        organisation.agent.report()
        assert len(spans("sim-t4-1")) == num_spans

    def test_a_device_that_fails_is_no_capacity(self, organisation: Organisation) -> None:
        node = Node.objects.get(name="sim-t4-1")
        node.devices.filter(index=0).update(is_healthy=False)
        uptime.seen({node.name: timezone.now()}, timezone.now(), bridged_s=90)
        rows = CapacityInterval.objects.filter(node=node, ended_at__isnull=True)
        assert rows.exclude(device="").count() == 3

    def test_more_cores_begin_a_new_interval(self, organisation: Organisation) -> None:
        Node.objects.filter(name="sim-t4-1").update(cpu_milli=99_000)
        uptime.seen({"sim-t4-1": timezone.now()}, timezone.now(), bridged_s=90)
        rows = CapacityInterval.objects.filter(node__name="sim-t4-1", device="")
        assert list(rows.order_by("started_at").values_list("cpu_milli", flat=True)) == [
            32_000,
            99_000,
        ]


class TestCollectors:
    def test_what_comes_what_was_lost_and_how_clocks_differ(
        self, organisation: Organisation
    ) -> None:
        now = timezone.now()
        sample = Sample("node:sim-t4-1", now.timestamp() - 10, {"cpu_cores": -1.0})
        ingest(SampleBatch("local", "sim-t4-1", "b", [sample], num_dropped=7), nodes={"sim-t4-1"})
        organisation.agent.zone.clock_skew_s = 3.5
        organisation.agent.zone.save()
        one, other = collectors(now)
        assert (one.node, one.num_dropped, one.num_refused) == ("sim-t4-1", 7, 1)
        assert one.age_s == pytest.approx(10, abs=0.01)
        assert not one.is_stale
        assert one.is_skewed
        assert other.is_stale
        assert other.last_sample_at is None
        assert collectors(now + 60 * S)[0].is_stale, "a collector that stopped is told, not zero"


class TestIdleNow:
    NOW = timezone.now().replace(microsecond=0)

    def hold(self, organisation: Organisation, minutes: int = 120) -> Workload:
        yesterday = self.NOW - timedelta(days=1)
        CapacityInterval.objects.update(started_at=yesterday)
        PriceChange.objects.update(valid_from=yesterday)
        Node.objects.update(last_report_at=self.NOW)
        work = submitted(training_spec(organisation.vision, cpu_milli=1000), organisation.vera)
        node = Node.objects.get(name="sim-t4-1")
        history.held(work, node, (self.NOW - minutes * 60 * S, None), devices=1)
        return work

    def measure(self, work: Workload, since_min: int, until_min: int, **values: float) -> None:
        """Every 20 s from so many minutes ago until so many minutes ago."""
        samples = [
            Sample(f"workload:{work.pk}", self.NOW.timestamp() - at_s, {**values})
            for at_s in range(60 * since_min, 60 * until_min, -20)
        ]
        number = f"{since_min}-{until_min}-{len(values)}"
        ingest(SampleBatch("local", "sim-t4-1", number, samples), nodes={"sim-t4-1"}, now=self.NOW)
        rollups.roll_up_new(now=self.NOW + 2 * 60 * S)

    def test_idle_since_it_last_did_something(self, organisation: Organisation) -> None:
        work = self.hold(organisation)
        self.measure(work, 110, 60, gpu_util_percent=90.0, cpu_cores=1.0)
        self.measure(work, 60, 0, gpu_util_percent=0.0, cpu_cores=0.01)
        (found,) = idle.now(organisation.vera, self.NOW)
        assert found.workload == work
        assert found.idle_s(self.NOW) == pytest.approx(3600, abs=90)
        assert float(found.cost or 0) == pytest.approx(48, rel=0.03)

    def test_idleness_costs_what_a_bill_says(self, organisation: Organisation) -> None:
        """The price doubles after half an hour, and for the last quarter another uses the GPU."""
        work = self.hold(organisation)
        self.measure(work, 60, 0, gpu_util_percent=0.0, cpu_cores=0.01)
        (before,) = idle.now(organisation.vera, self.NOW)
        t4 = NodeType.objects.get(name="t4")
        history.priced(t4, self.NOW - timedelta(minutes=30), gpu=90)
        (dearer,) = idle.now(organisation.vera, self.NOW)
        # The new price has none for cores and memory, which were 3 an hour.
        assert float(dearer.cost or 0) == pytest.approx(float(before.cost or 0) + 21, abs=0.1)
        other = submitted(training_spec(organisation.language), organisation.lena)
        node, quarter = Node.objects.get(name="sim-t4-1"), self.NOW - timedelta(minutes=15)
        borrower = history.held(other, node, (quarter, None), devices=1, first=1)
        Loan.objects.create(
            lender=Attempt.objects.get(workload=work),
            borrower=borrower,
            device=node.devices.get(index=0),
            gpu_milli=1000,
            state="lent",
            started_at=quarter,
            lent_at=quarter,
        )
        (lent,) = idle.now(organisation.vera, self.NOW)
        assert float(lent.cost or 0) == pytest.approx(float(dearer.cost or 0) - 22.5, abs=0.1)

    @pytest.mark.parametrize(
        "values",
        [
            {"gpu_util_percent": 5.0, "cpu_cores": 0.01},
            {"gpu_util_percent": 0.0, "cpu_cores": 0.5},
            {"gpu_util_percent": 0.0},
            {
                "gpu_util_percent": 0.0,
                "cpu_cores": 0.01,
                "net_rx_bytes_per_s": 60_000.0,
                "net_tx_bytes_per_s": 0.0,
            },
        ],
        ids=["GPU", "CPU", "no word of the CPU", "network"],
    )
    def test_who_does_something_or_is_not_known_to_do_nothing(
        self, organisation: Organisation, values: dict[str, float]
    ) -> None:
        self.measure(self.hold(organisation), 110, 0, **values)
        assert idle.now(organisation.vera, self.NOW) == []

    def test_half_an_hour_is_the_least(self, organisation: Organisation) -> None:
        self.measure(self.hold(organisation), 25, 0, gpu_util_percent=0.0, cpu_cores=0.01)
        assert idle.now(organisation.vera, self.NOW) == []

    def test_without_fresh_samples_nobody_is_idle(self, organisation: Organisation) -> None:
        self.measure(self.hold(organisation), 110, 20, gpu_util_percent=0.0, cpu_cores=0.01)
        assert idle.now(organisation.vera, self.NOW) == []

    def test_a_silence_in_between_is_not_idleness(self, organisation: Organisation) -> None:
        work = self.hold(organisation)
        self.measure(work, 110, 25, gpu_util_percent=0.0, cpu_cores=0.01)
        self.measure(work, 5, 0, gpu_util_percent=0.0, cpu_cores=0.01)
        assert idle.now(organisation.vera, self.NOW) == []

    def test_others_see_that_somebody_is_but_not_who_nor_the_cost(
        self, organisation: Organisation
    ) -> None:
        self.measure(self.hold(organisation), 110, 0, gpu_util_percent=0.0, cpu_cores=0.01)
        (found,) = idle.now(organisation.sergey, self.NOW)
        assert (found.workload, found.cost) == (None, None)
        viewer = make_member(organisation.vision, "viktor", Role.VIEWER)
        (found,) = idle.now(viewer, self.NOW)
        assert found.workload is not None
        assert found.cost is None
