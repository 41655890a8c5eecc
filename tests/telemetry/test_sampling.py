"""Sampling: real processes under a simulated device, and what NVML can and cannot say."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
import pytest

from scheduling.agent.protocol import (
    PROTOCOL,
    DeviceReport,
    GrantedDevice,
    NodeReport,
    SampleBatch,
    decode,
    encode,
)
from telemetry.messages import Sample
from telemetry.nvml import DeviceReading, NvmlReader, ProcessReading
from telemetry.processes import NetworkCounters, own_network, parse_net_dev, resident_mib
from telemetry.sampling import AttemptView, Sampler


def node(name: str, *uuids: str, is_simulated: bool = True) -> NodeReport:
    devices = [DeviceReport(uuid, i, "T4", 15_000) for i, uuid in enumerate(uuids)]
    return NodeReport(name, 8000, 32_000, {}, devices, is_simulated, is_isolated=True)


def grant(
    uuid: str, gpu_milli: int, *, memory_mib: int = 5000, is_simulated: bool = True
) -> GrantedDevice:
    return GrantedDevice(uuid, 0, "T4", gpu_milli, memory_mib, is_simulated)


@dataclass
class Group:
    """A cgroup whose counters a test sets."""

    cpu_s: float | None = 0.0
    held_back_s: float | None = 0.0
    memory: float | None = 100.0
    members: list[int] = field(default_factory=list)

    def cpu_usage_s(self) -> float | None:
        return self.cpu_s

    def throttled_s(self) -> float | None:
        return self.held_back_s

    def memory_mib(self) -> float | None:
        return self.memory

    def pids(self) -> list[int]:
        return self.members


def view(
    group: Group, *grants: GrantedDevice, name: str = "a", cpu_milli: int = 2000
) -> AttemptView:
    return AttemptView(f"attempt-{name}", name, "n", list(grants), group, cpu_milli)


def by_subject(samples: list[Sample]) -> dict[str, dict[str, float | None]]:
    return {sample.subject: sample.values for sample in samples}


class ProcessGroup:
    """What a cgroup would say of one real process; remembers its last CPU reading."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self.last_cpu_s = 0.0

    def cpu_usage_s(self) -> float:
        times = self.process.cpu_times()
        self.last_cpu_s = times.user + times.system
        return self.last_cpu_s

    def throttled_s(self) -> None:
        return None

    def memory_mib(self) -> float:
        return float(self.process.memory_info().rss) / 2**20

    def pids(self) -> list[int]:
        return [self.process.pid]


@pytest.fixture
def busy() -> Iterator[ProcessGroup]:
    """A real process that holds 50 MiB and computes without end."""
    program = "held = b'x' * (50 << 20)\nprint('up', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield ProcessGroup(process.pid)
        process.kill()


class TestReplicas:
    """Several attempts of one workload at once."""

    def replica(self, number: int, group: Group, milli: int, at: str) -> AttemptView:
        return AttemptView(f"attempt-{number}", "w", at, [grant(f"G{number}", milli)], group, 1000)

    def test_a_workload_is_all_its_replicas_together(self) -> None:
        groups = [Group(memory=100.0), Group(memory=300.0)]
        views = [
            self.replica(0, groups[0], 1000, "n"),
            self.replica(1, groups[1], 500, "m"),
        ]
        sampler = Sampler([node("n", "G0"), node("m", "G1")])
        sampler.sample(views, now=1000.0)
        groups[0].cpu_s, groups[1].cpu_s = 5.0, 10.0
        samples = sampler.sample(views, now=1010.0)
        assert len([sample for sample in samples if sample.subject == "workload:w"]) == 1
        values = by_subject(samples)["workload:w"]
        assert values["cpu_cores"] == pytest.approx(1.5)
        assert values["memory_mib"] == 400.0
        # Half of a whole one and all of a half one.
        assert values["gpu_util_percent"] == pytest.approx((50 * 1000 + 100 * 500) / 1500)

    def test_what_one_replica_does_not_tell_is_not_known_of_all(self) -> None:
        views = [
            self.replica(0, Group(memory=None), 1000, "n"),
            self.replica(1, Group(), 1000, "n"),
        ]
        values = by_subject(Sampler([node("n", "G0", "G1")]).sample(views, now=1000.0))
        assert values["workload:w"]["memory_mib"] is None

    def test_a_part_of_the_nodes_says_nothing_of_a_workload_that_is_on_others_too(self) -> None:
        views = [self.replica(0, Group(), 1000, "n"), self.replica(1, Group(), 1000, "m")]
        sampler = Sampler([node("n", "G0"), node("m", "G1")])
        assert "workload:w" not in by_subject(sampler.sample(views, now=1.0, only={"n"}))
        assert "workload:w" in by_subject(sampler.sample(views, now=2.0, only={"n", "m"}))


class TestRealProcesses:
    def test_a_simulated_device_does_what_its_process_does(self, busy: ProcessGroup) -> None:
        attempt = AttemptView("a1", "w1", "n", [grant("G", 500)], busy, cpu_milli=4000)
        sampler = Sampler([node("n", "G")])
        sampler.sample([attempt], now=1000.0)
        first_s = busy.last_cpu_s
        while busy.cpu_usage_s() < first_s + 0.1:
            pass
        values = by_subject(sampler.sample([attempt], now=1000.1))
        cores = (busy.last_cpu_s - first_s) / 0.1
        assert cores >= 1.0
        percent = min(100.0, 100 * cores / 4)
        assert values["workload:w1"]["cpu_cores"] == pytest.approx(cores)
        assert values["workload:w1"]["gpu_util_percent"] == pytest.approx(percent)
        assert values["device:G"]["gpu_util_percent"] == pytest.approx(percent / 2)
        assert values["node:n"]["cpu_cores"] == pytest.approx(cores)
        memory = values["device:G"]["memory_used_mib"]
        assert memory is not None
        assert 50 <= memory < 200

    def test_held_memory_stops_at_the_share(self, busy: ProcessGroup) -> None:
        attempt = AttemptView("a1", "w1", "n", [grant("G", 333, memory_mib=20)], busy)
        values = by_subject(Sampler([node("n", "G")]).sample([attempt], now=1.0))
        assert values["device:G"]["memory_used_mib"] == 20.0
        assert values["workload:w1"]["gpu_memory_mib"] == 20.0

    def test_what_was_taken_of_a_device_comes_before_resident_memory(
        self, busy: ProcessGroup
    ) -> None:
        taken = {"G": 2000.0, "H": 9000.0}
        grants = [grant(uuid, 333, memory_mib=4967) for uuid in ("G", "H")]
        attempt = AttemptView("a1", "w1", "n", grants, busy, device_memory_mib=taken)
        values = by_subject(Sampler([node("n", "G", "H")]).sample([attempt], now=1.0))
        assert values["device:G"]["memory_used_mib"] == 2000.0
        assert values["device:H"]["memory_used_mib"] == 4967.0
        assert values["workload:w1"]["gpu_memory_mib"] == 6967.0

    def test_a_process_that_has_ended_holds_nothing(self) -> None:
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        assert resident_mib([process.pid]) == 0.0
        assert own_network([process.pid]) is None

    def test_the_machine_itself_is_measured(self) -> None:
        sampler = Sampler([node("real", is_simulated=False)])
        first = by_subject(sampler.sample([], now=1.0))["node:real"]
        assert first["cpu_cores"] is None
        assert first["memory_mib"]
        time.sleep(0.3)  # The kernel's counters of a moment ago may be a tick larger than now.
        second = by_subject(sampler.sample([], now=6.0))["node:real"]
        assert second["cpu_cores"] is not None
        assert 0 <= second["cpu_cores"] <= (psutil.cpu_count() or 1) * 10

    def test_traffic_of_a_shared_network_belongs_to_nobody(self, busy: ProcessGroup) -> None:
        assert own_network(busy.pids()) is None


class TestRates:
    def test_the_first_reading_has_no_rate(self) -> None:
        group = Group()
        sampler = Sampler([node("n", "G")])
        first = by_subject(sampler.sample([view(group, grant("G", 1000))], now=0.0))
        assert first["workload:a"]["cpu_cores"] is None
        assert first["device:G"]["gpu_util_percent"] is None
        assert first["node:n"]["cpu_cores"] is None
        assert first["workload:a"]["memory_mib"] == 100.0

    def test_growth_per_second(self) -> None:
        group = Group()
        sampler = Sampler([node("n")])
        sampler.sample([view(group)], now=0.0)
        group.cpu_s, group.held_back_s = 7.5, 1.0
        values = by_subject(sampler.sample([view(group)], now=5.0))["workload:a"]
        assert values["cpu_cores"] == 1.5
        assert values["cpu_throttled_s_per_s"] == 0.2

    @pytest.mark.parametrize(("cpu_s", "now"), [(3.0, 5.0), (9.0, 0.0), (9.0, -5.0), (None, 5.0)])
    def test_a_counter_or_clock_that_went_back_has_none(
        self, cpu_s: float | None, now: float
    ) -> None:
        group = Group(cpu_s=8.0)
        sampler = Sampler([node("n")])
        sampler.sample([view(group)], now=0.0)
        group.cpu_s = cpu_s
        values = by_subject(sampler.sample([view(group)], now=now))["workload:a"]
        assert values["cpu_cores"] is None

    def test_a_new_attempt_of_the_same_workload_begins_anew(self) -> None:
        sampler = Sampler([node("n")])
        sampler.sample([AttemptView("a1", "w", "n", [], Group(cpu_s=1.0))], now=0.0)
        values = by_subject(
            sampler.sample([AttemptView("a2", "w", "n", [], Group(cpu_s=9.0))], now=5.0)
        )
        assert values["workload:w"]["cpu_cores"] is None


class TestSimulatedDevices:
    def test_holders_add_up_by_their_fractions(self) -> None:
        one, other = Group(), Group()
        attempts = [view(one, grant("G", 250)), view(other, grant("G", 500), name="b")]
        sampler = Sampler([node("n", "G", "H")])
        sampler.sample(attempts, now=0.0)
        one.cpu_s, other.cpu_s = 10.0, 2.5
        values = by_subject(sampler.sample(attempts, now=5.0))
        assert values["device:G"]["gpu_util_percent"] == 100 * 0.25 + 25 * 0.5
        assert values["workload:b"]["gpu_util_percent"] == 25.0
        # Held by nobody: that is a measured zero.
        assert values["device:H"] == {"gpu_util_percent": 0.0, "memory_used_mib": 0.0}

    def test_a_holder_without_data_leaves_the_device_without(self) -> None:
        attempts = [
            view(Group(cpu_s=None), grant("G", 250)),
            view(Group(), grant("G", 250), name="b"),
        ]
        sampler = Sampler([node("n", "G")])
        sampler.sample(attempts, now=0.0)
        assert by_subject(sampler.sample(attempts, now=5.0))["device:G"]["gpu_util_percent"] is None

    def test_more_cores_than_asked_for_is_all_of_the_grant(self) -> None:
        group = Group()
        sampler = Sampler([node("n", "G")])
        sampler.sample([view(group, grant("G", 1000))], now=0.0)
        group.cpu_s = 50.0
        values = by_subject(sampler.sample([view(group, grant("G", 1000))], now=5.0))
        assert values["device:G"]["gpu_util_percent"] == 100.0

    def test_a_workload_without_a_gpu_has_no_gpu_values(self) -> None:
        values = by_subject(Sampler([node("n")]).sample([view(Group())], now=0.0))
        assert "gpu_util_percent" not in values["workload:a"]


class Devices:
    """Readings by UUID, as NVML would give them."""

    def __init__(self, **readings: DeviceReading) -> None:
        self.readings = readings

    def read(self, uuid: str) -> DeviceReading | None:
        return self.readings.get(uuid)


VALUES: dict[str, float | None] = {
    "gpu_util_percent": 60.0,
    "memory_used_mib": 900.0,
    "power_w": None,
}


class TestRealDevices:
    def sample(
        self, reading: DeviceReading | None, *attempts: AttemptView
    ) -> dict[str, dict[str, float | None]]:
        devices = Devices(**({"G": reading} if reading else {}))
        return by_subject(
            Sampler([node("n", "G", is_simulated=False)], devices).sample(attempts, now=0.0)
        )

    def test_without_a_driver_there_is_no_data(self) -> None:
        assert NvmlReader().read("GPU-of-nobody") is None
        whole = view(Group(), grant("G", 1000, is_simulated=False))
        values = self.sample(None, whole)
        assert values["device:G"] == {}
        assert values["workload:a"]["gpu_util_percent"] is None
        assert values["workload:a"]["gpu_memory_mib"] is None

    def test_who_holds_a_device_alone_used_what_was_used(self) -> None:
        whole = view(Group(), grant("G", 1000, is_simulated=False))
        values = self.sample(DeviceReading(VALUES), whole)
        assert values["device:G"]["gpu_util_percent"] == 60.0
        assert values["device:G"]["power_w"] is None
        assert values["workload:a"]["gpu_util_percent"] == 60.0

    def test_on_a_shared_device_processes_are_told_apart(self) -> None:
        reading = DeviceReading(
            VALUES, (ProcessReading(11, 300.0), ProcessReading(22, 600.0)), {11: 15.0}
        )
        half = grant("G", 500, is_simulated=False)
        values = self.sample(
            reading, view(Group(members=[11]), half), view(Group(members=[22]), half, name="b")
        )
        assert values["workload:a"]["gpu_util_percent"] == 30.0
        assert values["workload:a"]["gpu_memory_mib"] == 300.0
        assert values["workload:b"]["gpu_util_percent"] == 0.0

    @pytest.mark.parametrize(
        "reading",
        [
            DeviceReading(VALUES, None, None),
            DeviceReading(VALUES, (ProcessReading(11, None),), None),
            DeviceReading(VALUES, (ProcessReading(4711, 300.0),), {4711: 15.0}),
        ],
        ids=["driver tells nothing", "no utilisation by process", "a process of another number"],
    )
    def test_what_cannot_be_told_apart_has_no_figure(self, reading: DeviceReading) -> None:
        half = grant("G", 500, is_simulated=False)
        values = self.sample(reading, view(Group(members=[11]), half))
        assert values["workload:a"]["gpu_util_percent"] is None
        assert values["workload:a"]["gpu_memory_mib"] is None


class TestNetwork:
    def test_interfaces_add_up_without_the_loopback(self) -> None:
        text = (
            "Inter-|   Receive                            |  Transmit\n"
            " face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n"
            "    lo: 9999 1 0 0 0 0 0 0 9999 1 0 0 0 0 0 0\n"
            "  eth0: 100 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n"
            "  eth1:5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n"
        )
        assert parse_net_dev(text) == NetworkCounters(rx_bytes=105, tx_bytes=27)


def test_the_agents_protocol_carries_batches() -> None:
    batch = SampleBatch("z", "n", "1", [Sample("node:n", 1.5, {"cpu_cores": None})])
    assert batch.protocol == PROTOCOL
    assert decode(encode(batch), SampleBatch) == batch


@pytest.mark.parametrize("module", ["telemetry.sampling", "telemetry.messages"])
def test_nodes_need_no_django(module: str) -> None:
    program = f"import sys, {module}; sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
