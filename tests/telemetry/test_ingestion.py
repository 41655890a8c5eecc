"""Batches in: once, whatever is repeated, late, absurd or unknown."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from telemetry import live, partitions, tasks
from telemetry.ingestion import IngestionError, Receipt, UnknownNodeError, ingest
from telemetry.messages import Sample, SampleBatch
from telemetry.models import Batch, DeviceSample, NodeSample, Subject, WorkloadSample

NOW = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
NODES = {"node-1", "node-2"}


def batch(*samples: Sample, batch_id: str = "b1", node: str = "node-1") -> SampleBatch:
    return SampleBatch(zone="here", node=node, batch_id=batch_id, samples=list(samples))


def device(at_s: float = 0.0, uuid: str = "GPU-1", **values: float | None) -> Sample:
    return Sample(f"device:{uuid}", NOW.timestamp() + at_s, values)


def take(*samples: Sample, batch_id: str = "b1") -> Receipt:
    return ingest(batch(*samples, batch_id=batch_id), nodes=NODES, now=NOW)


@pytest.mark.django_db
class TestStoring:
    def test_each_kind_lands_in_its_table(self) -> None:
        at = NOW.timestamp()
        receipt = take(
            device(gpu_util_percent=41.5, memory_used_mib=6000.0),
            Sample("workload:5e0c", at, {"cpu_cores": 1.5}),
            Sample("node:node-2", at, {"cpu_cores": 3.0, "memory_mib": 900.0}),
        )
        assert receipt == Receipt(num_stored=3)
        row = DeviceSample.objects.get(subject__name="GPU-1")
        assert (row.at, row.gpu_util_percent, row.memory_used_mib) == (NOW, 41.5, 6000.0)
        assert WorkloadSample.objects.get().cpu_cores == 1.5
        assert NodeSample.objects.get(subject__name="node-2").memory_mib == 900.0

    def test_no_data_is_null_and_zero_is_zero(self) -> None:
        take(device(gpu_util_percent=None, memory_used_mib=0.0))
        row = DeviceSample.objects.get()
        assert row.gpu_util_percent is None
        assert row.temperature_c is None
        assert row.memory_used_mib == 0.0

    def test_a_repeated_batch_changes_nothing(self) -> None:
        take(device(gpu_util_percent=1.0))
        assert take(device(gpu_util_percent=2.0)) == Receipt(is_repeat=True)
        assert DeviceSample.objects.get().gpu_util_percent == 1.0
        assert Batch.objects.count() == 1

    def test_a_repeated_sample_is_stored_once_and_the_first_stays(self) -> None:
        receipt = take(device(gpu_util_percent=1.0), device(gpu_util_percent=2.0))
        assert receipt.num_stored == 1
        again = take(device(gpu_util_percent=3.0), device(5.0, gpu_util_percent=4.0), batch_id="b2")
        assert again.num_stored == 1
        assert list(
            DeviceSample.objects.order_by("at").values_list("gpu_util_percent", flat=True)
        ) == [1.0, 4.0]

    def test_late_samples_get_their_own_day(self) -> None:
        almost_two_days_s = 47 * 3600.0
        assert (
            take(device(-almost_two_days_s, gpu_util_percent=5.0), device(-3600.0)).num_stored == 2
        )
        assert DeviceSample.objects.earliest("at").at == NOW - timedelta(hours=47)

    def test_unknown_metrics_are_ignored(self) -> None:
        assert take(device(gpu_util_percent=1.0, flux_capacitance=2.0)) == Receipt(num_stored=1)


@pytest.mark.django_db
class TestRefusing:
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 100.1, 1e300], ids=str)
    def test_an_absurd_value_becomes_no_data_and_is_counted(self, value: float) -> None:
        receipt = take(device(gpu_util_percent=value, memory_used_mib=7.0))
        assert receipt == Receipt(num_stored=1, num_refused=1)
        row = DeviceSample.objects.get()
        assert row.gpu_util_percent is None
        assert row.memory_used_mib == 7.0
        assert "gpu_util_percent" in Batch.objects.get().note

    @pytest.mark.parametrize(
        "at_s", [301.0, 366 * 86_400.0, -48 * 3600.0 - 1, float("nan")], ids=str
    )
    def test_an_impossible_time_is_refused_and_named(self, at_s: float) -> None:
        receipt = take(device(at_s, gpu_util_percent=1.0), device(300.0))
        assert receipt == Receipt(num_stored=1, num_refused=1)
        assert Batch.objects.get().note.startswith("device:GPU-1: at is ")

    @pytest.mark.parametrize(
        "subject", ["GPU-1", "device:", "disk:sda", "device:a\x00b", "workload:" + "x" * 101]
    )
    def test_a_subject_that_cannot_be_is_refused(self, subject: str) -> None:
        assert take(Sample(subject, NOW.timestamp(), {})) == Receipt(num_refused=1)

    def test_many_refusals_are_counted_and_the_first_five_named(self) -> None:
        receipt = take(*(device(float(i), gpu_util_percent=-1.0) for i in range(20)))
        assert receipt.num_refused == 20
        assert len(Batch.objects.get().note.splitlines()) == 5

    def test_an_unknown_node_is_an_error_in_words(self) -> None:
        with pytest.raises(UnknownNodeError, match="node is 'elsewhere'"):
            ingest(batch(device(), node="elsewhere"), nodes=NODES, now=NOW)
        with pytest.raises(UnknownNodeError, match="node is 'elsewhere'"):
            take(device(), Sample("node:elsewhere", NOW.timestamp(), {}))
        assert not Batch.objects.exists()
        assert not DeviceSample.objects.exists()

    @pytest.mark.parametrize("batch_id", ["", "x" * 65, "a\x00"])
    def test_a_batch_needs_a_usable_number(self, batch_id: str) -> None:
        with pytest.raises(IngestionError, match="batch_id"):
            take(device(), batch_id=batch_id)


@pytest.mark.django_db
def test_nodes_say_how_many_samples_they_dropped() -> None:
    ingest(SampleBatch("here", "node-1", "b1", [device()], num_dropped=12), nodes=NODES, now=NOW)
    assert Batch.objects.get().num_dropped == 12


@pytest.mark.django_db(transaction=True)
def test_the_same_batch_at_the_same_time_is_stored_once() -> None:
    samples = [
        device(-float(i), f"GPU-{i % 7}", gpu_util_percent=float(i % 100)) for i in range(700)
    ]
    receipts: list[Receipt] = []
    start = threading.Barrier(4)

    def send(number: int) -> None:
        start.wait()
        # Two twins, and two batches with the same samples in another order.
        ordered = samples if number % 2 else samples[::-1]
        receipts.append(ingest(batch(*ordered, batch_id=f"b{number % 2}"), nodes=NODES, now=NOW))
        connection.close()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(receipt.is_repeat for receipt in receipts) == [False, False, True, True]
    assert sum(receipt.num_stored for receipt in receipts) == 700
    assert DeviceSample.objects.count() == 700
    assert Subject.objects.count() == 7


@pytest.mark.django_db
class TestExpiry:
    def test_old_days_are_dropped_whole(self) -> None:
        now = datetime.now(UTC)
        old = now - timedelta(days=20)
        ingest(
            batch(Sample("device:GPU-1", old.timestamp(), {}), batch_id="old"), nodes=NODES, now=old
        )
        ingest(
            batch(Sample("device:GPU-1", now.timestamp(), {}), batch_id="new"), nodes=NODES, now=now
        )
        assert tasks.expire() >= 3
        assert DeviceSample.objects.get().at == now
        assert Batch.objects.get().batch_id == "new"
        assert tasks.expire() == 0

    def test_the_next_day_is_ready_before_it_begins(self) -> None:
        tasks.expire()
        tomorrow = datetime.now(UTC).date() + timedelta(days=1)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT to_regclass(%s) IS NOT NULL", [f"telemetry_nodesample_{tomorrow:%Y%m%d}"]
            )
            assert cursor.fetchone() == (True,)

    def test_days_may_be_asked_for_again(self) -> None:
        partitions.ensure_days([NOW.date()])
        partitions.ensure_days([NOW.date(), NOW.date() + timedelta(days=1)])
        assert DeviceSample.objects.count() == 0


class TestTopics:
    def test_a_topic_leads_back_to_its_subject(self) -> None:
        assert live.subject_of(live.topic_for("workload:5e0c")) == "workload:5e0c"

    @pytest.mark.parametrize("topic", ["queue", "workload:5e0c", "telemetry:", "telemetry:disk:a"])
    def test_other_topics_have_none(self, topic: str) -> None:
        assert live.subject_of(topic) is None

    def test_group_names_suit_channels(self) -> None:
        group = live.group_of(live.topic_for("device:GPU-" + "é" * 200))
        assert group.isascii()
        assert len(group) < 100
        assert group != live.group_of(live.topic_for("device:GPU-1"))

    def test_a_topic_passes_once_a_second(self) -> None:
        clock = iter([0.0, 0.5, 1.0, 1.1])
        throttle = live.Throttle(1.0, clock=lambda: next(clock))
        assert throttle.passing(["a", "b"]) == {"a", "b"}
        assert throttle.passing(["a", "c"]) == {"c"}
        assert throttle.passing(["a", "c"]) == {"a"}
        assert throttle.passing(["a", "c"]) == set()
