"""What a node offers by what NVML says, and what the driver itself enforces: over the fake."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import pytest

from scheduling.agent import node
from scheduling.agent.folders import Folders
from scheduling.agent.fraction import driver_limits
from scheduling.agent.fraction.build import Libraries
from scheduling.agent.fraction.install import Fractions, real_binds
from scheduling.agent.fraction.limits import GpuLimit
from scheduling.agent.fraction.loader_cache import with_libraries
from scheduling.agent.fraction.region import Region
from scheduling.agent.isolation import Isolation
from tests import needs
from tests.fraction.conftest import BUILDS
from tests.fraction.world import GIB, MIB, UUIDS, FakeDevice, World

MakeWorld = Callable[..., World]
ALONE = Isolation(has_identities=False, has_namespaces=True, cgroups=None)
A100 = FakeDevice(UUIDS[0], 40_326 * MIB, 634 * MIB, (8, 0), "NVIDIA A100-SXM4-40GB")
MIG = tuple(f"MIG-5f0c0000-0000-4000-8000-00000000001{index}" for index in range(2))


def nvml_of(world: World) -> Any:
    """A pynvml of our own over the machine's fake library (the module has no types)."""
    found = find_spec("pynvml")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    module.nvmlLib = ctypes.CDLL(str(world.prefix / "libnvidia-ml.real"))  # type: ignore[attr-defined]
    return module


@pytest.fixture
def make_nvml(make_world: MakeWorld, tmp_path: Path) -> Callable[..., Any]:
    """The fake library, under a path that no other test has loaded."""

    def make(*instances: tuple[str, int], **changes: object) -> Any:
        world = make_world(**changes)
        sizes = [(each.uuid, each.usable) for each in world.devices] + list(instances)
        (world.prefix / "devices").unlink()
        Region.create(
            world.prefix / "devices", [GpuLimit(uuid, size, 1000) for uuid, size in sizes]
        )
        world.prefix = world.prefix.rename(tmp_path / "machine")
        text = (world.prefix / "driver.conf").read_text()
        before = next(line for line in text.splitlines() if line.startswith("region "))
        text = text.replace(before, f"region {world.prefix}/devices")
        (world.prefix / "driver.conf").write_text(text)
        return nvml_of(world)

    return make


def test_a_gpu_is_offered_with_its_usable_memory(make_nvml: Callable[..., Any]) -> None:
    found = node.find("z", ALONE, "auto", make_nvml(devices=(FakeDevice(), FakeDevice(UUIDS[1]))))
    [offered] = found.nodes
    assert [(each.uuid, each.memory_mib) for each in offered.devices] == [
        (UUIDS[0], 14_917),
        (UUIDS[1], 14_917),
    ]
    assert found.usable_bytes == dict.fromkeys(UUIDS[:2], 14_917 * MIB)
    assert found.capabilities == {offered.name: (7, 5)}
    assert offered.labels[node.NODE_TYPE_LABEL] == "t4"
    assert offered.driver == "580.95.05"


def test_mig_instances_are_devices_of_their_own_and_are_never_swapped(
    make_nvml: Callable[..., Any], tmp_path: Path
) -> None:
    nvml = make_nvml(
        (MIG[0], 4_864 * MIB),
        (MIG[1], 9_856 * MIB),
        devices=(A100,),
        extra=(
            f"mig {MIG[0]} {UUIDS[0]} {4_864 * MIB} 7 0 NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            f"mig {MIG[1]} {UUIDS[0]} {9_856 * MIB} 3 0 NVIDIA A100-SXM4-40GB MIG 2g.10gb",
        ),
    )
    found = node.find("z", ALONE, "auto", nvml)
    [offered] = found.nodes
    assert [(each.uuid, each.index, each.memory_mib) for each in offered.devices] == [
        (MIG[0], 0, 4_864),
        (MIG[1], 1, 9_856),
    ]
    assert offered.devices[1].model == "NVIDIA A100-SXM4-40GB MIG 2g.10gb"
    assert offered.labels[node.NODE_TYPE_LABEL] == "a100"
    folders = Folders(tmp_path / "var", tmp_path / "run")
    described = Fractions(folders, found, ALONE, builds=BUILDS).described(offered)
    assert (described.fraction_mechanism, described.swap_mechanism) == ("mig", "")
    assert (described.swap_note, described.shares_gpu_time) == ("mig", False)


# ---------------------------------------------------------------- limits of the driver


@pytest.fixture
def limited(make_world: MakeWorld, tmp_path: Path) -> tuple[str, str, World]:
    """A cgroup, the library that limits it, and a machine with driver 615."""
    needs.root()
    limits, cgroup = tmp_path / "limits", tmp_path / "cgroup"
    limits.mkdir()
    cgroup.mkdir()
    world = make_world(driver="615.71.09", cuda=13040, extra=(f"limits {limits}",))
    return str(cgroup), str(world.prefix / "libnvidia-ml.real"), world


def test_a_limit_is_set_read_back_and_lifted(limited: tuple[str, str, World]) -> None:
    cgroup, library, _ = limited
    driver_limits.apply(cgroup, {UUIDS[0]: 5 * GIB}, library)
    assert driver_limits.read(cgroup, UUIDS[0], library) == (5 * GIB, 5 * GIB)
    driver_limits.lift(cgroup, [UUIDS[0]], library)
    assert driver_limits.read(cgroup, UUIDS[0], library) == (0, driver_limits.UNLIMITED)


def test_nothing_is_started_without_its_limit(
    make_world: MakeWorld, limited: tuple[str, str, World], tmp_path: Path
) -> None:
    cgroup, library, _ = limited
    with pytest.raises(driver_limits.DriverLimitError, match="error 2"):
        driver_limits.apply(f"{cgroup}/gone", {UUIDS[0]: GIB}, library)
    with pytest.raises(driver_limits.DriverLimitError, match="error 6"):
        driver_limits.apply(cgroup, {UUIDS[3]: GIB}, library)


def test_an_older_driver_says_that_it_cannot(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(driver="610.10", extra=(f"limits {tmp_path}",))
    copy = tmp_path / "driver"
    copy.mkdir()
    for name in ("libnvidia-ml.real", "driver.conf"):
        (copy / name).write_bytes((world.prefix / name).read_bytes())
    with pytest.raises(driver_limits.DriverLimitError, match="not supported"):
        driver_limits.apply(str(tmp_path), {UUIDS[0]: GIB}, str(copy / "libnvidia-ml.real"))


# ---------------------------------------------------------------- a real driver's files


def machine(root: Path, version: str) -> Path:
    """A machine on which NVIDIA's libraries of a version are installed."""
    folder = root / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    libraries = {}
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (folder / f"{name}.{version}").write_text(version)
        link = folder / f"{name}.1"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{name}.{version}")
        libraries[f"{name}.1"] = str(link)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.cache").write_bytes(with_libraries(libraries))
    return folder


def test_proxies_lie_over_the_drivers_own_files(tmp_path: Path, libraries: Libraries) -> None:
    folder = machine(tmp_path, "580.95.05")
    binds = [(bind.source, bind.target) for bind in real_binds(libraries, tmp_path)]
    assert binds == [
        (str(folder / "libcuda.so.580.95.05"), "/run/allot/libcuda.real"),
        (str(libraries.cuda), str(folder / "libcuda.so.580.95.05")),
        (str(folder / "libnvidia-ml.so.580.95.05"), "/run/allot/libnvidia-ml.real"),
        (str(libraries.nvml), str(folder / "libnvidia-ml.so.580.95.05")),
    ]


def test_a_driver_that_was_updated_is_found_at_the_next_start(
    tmp_path: Path, libraries: Libraries
) -> None:
    machine(tmp_path, "580.95.05")
    folder = machine(tmp_path, "590.10")
    assert real_binds(libraries, tmp_path)[1].target == str(folder / "libcuda.so.590.10")


def test_a_newer_library_in_a_toolkits_folder_is_covered_too(
    tmp_path: Path, libraries: Libraries
) -> None:
    machine(tmp_path, "580.95.05")
    compat = tmp_path / "usr/local/cuda-13.0/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.590.10").touch()
    (compat / "libcuda.so.1").symlink_to("libcuda.so.590.10")
    last = real_binds(libraries, tmp_path)[-1]
    assert (last.source, last.target) == (str(libraries.cuda), str(compat / "libcuda.so.590.10"))


def test_proxies_need_no_name_of_a_certain_driver(libraries: Libraries) -> None:
    """A proxy built beside one driver serves another: it names a path, and looks names up."""
    names = subprocess.run(
        ["nm", "-D", "--undefined-only", libraries.cuda], capture_output=True, text=True, check=True
    ).stdout
    assert " cu" not in names
