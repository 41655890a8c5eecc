"""What an agent offers; cgroups of version 2, whose files are written here by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from scheduling.agent import cgroups, node
from scheduling.agent.cgroups import CgroupV2, Limits
from scheduling.agent.homes import UID_BASE, person
from scheduling.agent.isolation import Isolation
from scheduling.agent.protocol import GrantedDevice, NodeReport, SampleBatch, decode
from scheduling.agent.spool import Spool
from telemetry.sampling import AttemptView
from tests.agent.driver import spec

ALONE = Isolation(has_identities=True, has_namespaces=True, cgroups=None)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA Graphics Device", "graphics"),
    ],
)
def test_a_node_type_is_named_after_the_product(model: str, name: str) -> None:
    assert node.node_type(model) == name


def test_simulated_devices_keep_their_uuids_and_zones_do_not_share_them() -> None:
    first, again, other = (node.find(zone, ALONE, "demo") for zone in ("a", "a", "b"))
    assert first == again
    assert not uuids(first.nodes) & uuids(other.nodes)
    assert first.is_simulated("sim-t4-1")


def uuids(nodes: tuple[NodeReport, ...]) -> set[str]:
    return {device.uuid for each in nodes for device in each.devices}


def test_an_operator_may_label_its_nodes() -> None:
    found = node.find("zone-1", ALONE, "demo")
    nodes = node.labelled(found, {"rack": "r1", "allot/node-type": "other"}).nodes
    assert {each.labels["rack"] for each in nodes} == {"r1"}
    kinds = [each.labels["allot/node-type"] for each in found.nodes]
    assert [each.labels["allot/node-type"] for each in nodes] == kinds


def test_the_machine_itself_is_offered_on_demand() -> None:
    offered = node.find("a", ALONE, "off").nodes
    assert len(offered) == 1
    assert not offered[0].is_simulated
    assert offered[0].cpu_milli >= 1000
    assert offered[0].memory_mib > 0
    assert not offered[0].is_isolated
    assert "cgroup" in offered[0].isolation_note


class FakeNvml:
    """Two T4s, as the driver's library tells of them."""

    NVMLError = RuntimeError
    nvmlMemory_v2 = 2

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:
        return 1 - handle

    def nvmlDeviceGetMemoryInfo(self, _handle: int, version: int) -> SimpleNamespace:
        assert version == 2
        return SimpleNamespace(total=15360 * 2**20, reserved=443 * 2**20)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetMigMode(self, _handle: int) -> list[int]:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetCudaComputeCapability(self, _handle: int) -> list[int]:
        return [7, 5]

    def nvmlDeviceGetName(self, _handle: int) -> str:
        return "Tesla T4"


def test_real_devices_are_offered_with_their_usable_memory() -> None:
    found = node.find("a", ALONE, "auto", FakeNvml())
    [offered] = found.nodes
    assert not offered.is_simulated
    assert offered.labels == {node.NODE_TYPE_LABEL: "t4"}
    assert [(each.uuid, each.memory_mib) for each in offered.devices] == [
        ("GPU-0", 14_917),
        ("GPU-1", 14_917),
    ]
    assert offered.driver == "580.95.05"
    assert set(found.device_files) == {"GPU-0", "GPU-1"}


def test_people_and_projects_have_numbers_and_unsafe_names_stand_ins() -> None:
    who = person(spec(owner="../x", user_number=7, project="vision"))
    assert (who.owner, who.uid, who.project) == ("_7", UID_BASE + 7, "vision")


# ---------------------------------------------------------------- version 2


@pytest.fixture
def v2(tmp_path: Path) -> CgroupV2:
    """Files as the kernel's cgroup v2 shows them."""
    folder = tmp_path / "attempt"
    folder.mkdir()
    texts = {
        "cpu.stat": "usage_usec 2500000\nuser_usec 2\nthrottled_usec 750000\n",
        "memory.current": f"{100 * 2**20}\n",
        "memory.stat": f"anon 1\ninactive_file {40 * 2**20}\n",
        "memory.peak": f"{120 * 2**20}\n",
        "memory.events": "low 0\noom 3\noom_kill 2\n",
        "cgroup.procs": "12\n0\n13\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return CgroupV2((folder,))


def test_version_2_is_limited_exactly(v2: CgroupV2) -> None:
    v2.create(Limits(cpu_milli=2333, memory_mib=512))
    assert (v2.folder / "cpu.max").read_text() == "233300 100000"
    assert (v2.folder / "memory.max").read_text() == str(512 * 2**20)
    assert (v2.cpu_limit_milli(), v2.memory_limit_mib()) == (2333, 512)


def test_version_2_is_read(v2: CgroupV2) -> None:
    assert (v2.cpu_usage_s(), v2.throttled_s()) == (2.5, 0.75)
    assert (v2.memory_mib(), v2.peak_mib(), v2.num_oom_kills()) == (60, 120, 2)
    assert v2.pids() == [12, 13]


def test_a_cgroup_that_is_gone_gives_zeros(tmp_path: Path) -> None:
    gone = CgroupV2((tmp_path / "gone",))
    assert (gone.cpu_usage_s(), gone.memory_mib(), gone.peak_mib(), gone.pids()) == (0, 0, None, [])
    assert gone.remove()


def test_version_2_is_prepared_only_where_all_controllers_are_offered(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    assert cgroups.detect("allot", mounts) is None
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids\n")
    found = cgroups.detect("allot", mounts)
    assert found is not None
    assert found.version == 2
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


# ---------------------------------------------------------------- samples


class Usage:
    """A cgroup with fixed figures."""

    def cpu_usage_s(self) -> float | None:
        return 1.0

    def throttled_s(self) -> float | None:
        return 0.0

    def memory_mib(self) -> float | None:
        return 64.0

    def pids(self) -> list[int]:
        return []


NODES = node.find("a", ALONE, "demo").nodes


def workload_view() -> AttemptView:
    device = NODES[0].devices[0]
    grant = GrantedDevice(device.uuid, 0, device.model, 333, 4967, is_simulated=True)
    return AttemptView("x", "w", NODES[0].name, [grant], Usage(), 1000)


def drained(spool: Spool) -> list[SampleBatch]:
    batches = []
    while (data := spool.first()) is not None:
        batches.append(decode(data, SampleBatch))
        spool.drop_first()
    return batches


def test_samples_are_kept_per_node_with_their_own_times(tmp_path: Path) -> None:
    spool = Spool("a", NODES, tmp_path)
    spool.sample([workload_view()], 100.0)
    spool.sample([workload_view()], 105.0)
    batches = drained(spool)
    assert [batch.node for batch in batches] == 2 * [each.name for each in NODES]
    assert [batch.samples[0].at for batch in batches] == [100.0] * len(NODES) + [105.0] * len(NODES)
    assert len({batch.batch_id for batch in batches}) == len(batches)
    assert "workload:w" in {sample.subject for sample in batches[0].samples}
    assert drained(spool) == []


def test_a_full_spool_drops_the_oldest_and_counts_them(tmp_path: Path) -> None:
    Spool("a", NODES[:1], tmp_path).sample([], 100.0)
    num_bytes = next(tmp_path.iterdir()).stat().st_size
    full = Spool("a", NODES[:1], tmp_path, max_bytes=num_bytes + 50)
    for at in (105.0, 110.0, 115.0):
        full.sample([], at)
    (batch,) = drained(full)
    assert {sample.at for sample in batch.samples} == {115.0}
    full.sample([], 120.0)
    (later,) = drained(full)
    # A batch tells of what those before it displaced.
    assert batch.num_dropped + later.num_dropped == 3 * len(batch.samples)


def test_the_next_agent_sends_what_the_last_one_could_not(tmp_path: Path) -> None:
    Spool("a", NODES, tmp_path).sample([workload_view()], 100.0)
    (tmp_path / "00000000000000000001-1.part").write_bytes(b'{"cut off')
    later = Spool("a", NODES, tmp_path)
    later.sample([workload_view()], 200.0)
    assert [batch.samples[0].at for batch in drained(later)] == [100.0] * len(NODES) + [
        200.0
    ] * len(NODES)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_makes_room_while_it_is_sent_takes_no_other_with_it(tmp_path: Path) -> None:
    spool = Spool("a", NODES[:1], tmp_path)
    spool.sample([], 100.0)
    one = next(tmp_path.iterdir()).stat().st_size
    tight = Spool("a", NODES[:1], tmp_path, max_bytes=one + 50)
    assert tight.first() is not None
    tight.sample([], 105.0)
    tight.drop_first()
    assert [batch.samples[0].at for batch in drained(tight)] == [105.0]
