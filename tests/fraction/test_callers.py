"""Whoever calls the driver, and however it came by its functions, is held to the limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scheduling.agent.fraction import build
from scheduling.agent.fraction.build import Libraries
from tests.fraction.world import GIB, World

SOURCE = Path(__file__).with_name("callers.c")
# 5 GiB by 256 MiB, then out of memory; and what the device's total is said to be.
CAPPED = f"20 2 {5 * GIB}\n"

Programs = dict[str, Path]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, libraries: Libraries) -> Programs:
    """The caller as each kind of program."""
    folder = tmp_path_factory.mktemp("callers")
    wanted: dict[str, list[str | Path]] = {
        "plain": [],
        # As against the real library: what is recorded is its name, libcuda.so.1.
        "linked": ["-DLINKED", libraries.fake_cuda],
        "static": ["-DSTATIC", "-static"],
        "library": ["-DLIBRARY", "-shared", "-fPIC"],
    }  # fmt: skip
    made = {}
    for name, options in wanted.items():
        made[name] = folder / name
        command = [build.compiler(), "-O1", "-w", SOURCE, "-o", made[name], *options, "-ldl"]
        subprocess.run([str(part) for part in command], check=True)
    return made


@pytest.mark.parametrize("kind", ["dlopen", "old dlsym", "resolver", "dlmopen"])
def test_a_program_that_looks_functions_up_is_capped(
    world: World, programs: Programs, kind: str
) -> None:
    assert world.run([programs["plain"], kind]) == CAPPED


def test_a_linked_program_is_capped(world: World, programs: Programs) -> None:
    assert world.run([programs["linked"]]) == CAPPED


def test_a_library_that_binds_deeply_is_capped(world: World, programs: Programs) -> None:
    assert world.run([programs["plain"], "deepbind", programs["library"]]) == CAPPED


@pytest.mark.filterwarnings("ignore")
def test_a_static_program_that_loads_the_driver_is_capped(world: World, programs: Programs) -> None:
    assert world.run([programs["static"], "dlopen"]) == CAPPED


@pytest.mark.parametrize("kind", ["dlopen", "dlmopen"])
def test_a_program_that_names_the_file_is_capped(
    world: World, programs: Programs, kind: str
) -> None:
    output = world.run([programs["plain"], kind, world.libraries.cuda], LD_LIBRARY_PATH="")
    assert output == CAPPED


def test_python_by_ctypes_is_capped(world: World) -> None:
    assert world.ask(["start"], ["fill", "alloc", 256 << 20])[1] == [20, 2]


def test_cuda_bindings_are_capped(world: World) -> None:
    script = (
        "from cuda.bindings import driver as cu\n"
        "cu.cuInit(0); _, c = cu.cuDevicePrimaryCtxRetain(0); cu.cuCtxSetCurrent(c); n = 0\n"
        "while not (r := cu.cuMemAlloc(256 << 20)[0]): n += 1\n"
        "print(n, int(r), cu.cuDeviceTotalMem(0)[1])"
    )
    assert world.run([sys.executable, "-c", script]) == CAPPED


@pytest.mark.parametrize(
    "environment",
    [
        {"LD_PRELOAD": ""},
        {"ALLOT_LIMIT": "999999999999", "ALLOT_GPU_MILLI": "1000", "CUDA_MEM_LIMIT": "0"},
        {"CUDA_VISIBLE_DEVICES": "0"},
    ],
    ids=["LD_PRELOAD=", "invented limits", "visible devices"],
)
def test_no_variable_lifts_the_limit(
    world: World, programs: Programs, environment: dict[str, str]
) -> None:
    assert world.run([programs["plain"], "dlopen"], **environment) == CAPPED


class TestPreload:
    """The fall-back where nothing can be mounted: misses what the reference says it misses."""

    @pytest.fixture
    def world(self, world: World) -> World:
        """The driver by its ordinary name, and the preload library with the limits beside it."""
        plain = world.prefix / "plain"
        plain.mkdir()
        for name, source in (
            ("libcuda.so.1", world.libraries.fake_cuda),
            ("libnvidia-ml.so.1", world.libraries.fake_nvml),
            ("preload.so", world.libraries.preload),
        ):
            (plain / name).write_bytes(source.read_bytes())
        (plain / "driver.conf").write_bytes((world.prefix / "driver.conf").read_bytes())
        (plain / "limits").write_bytes((world.prefix / "limits").read_bytes())
        (plain / "limits").chmod(0o644)
        world.environment = {
            "LD_LIBRARY_PATH": str(plain),
            "LD_PRELOAD": str(plain / "preload.so"),
        }
        return world

    def go(self, world: World, *arguments: object) -> str:
        return world.run([*map(str, arguments)], **world.environment)

    @pytest.mark.parametrize("kind", ["dlopen", "old dlsym", "resolver"])
    def test_a_program_that_looks_functions_up_is_capped(
        self, world: World, programs: Programs, kind: str
    ) -> None:
        assert self.go(world, programs["plain"], kind) == CAPPED

    def test_a_linked_program_is_capped(self, world: World, programs: Programs) -> None:
        assert self.go(world, programs["linked"]) == CAPPED

    def test_python_by_ctypes_is_capped(self, world: World) -> None:
        world_answers = world.ask(["start"], ["fill", "alloc", 256 << 20], ["nvml"])
        assert world_answers[1] == [20, 2]
        assert world_answers[2]["total_v2"] == 5 * GIB  # type: ignore[index]

    def test_bash_is_unaffected(self, world: World) -> None:
        """HAMi #27: a preload library linked to the driver breaks every program."""
        without = {**world.environment, "LD_LIBRARY_PATH": "/nowhere"}
        assert world.run(["bash", "-c", "echo fine; ls / > /dev/null"], **without) == "fine\n"

    def test_looking_up_the_next_definition_never_finds_nothing(
        self, world: World, tmp_path: Path
    ) -> None:
        """HAMi-core source: repeated dlsym(RTLD_NEXT, x) gives NULL after a while."""
        source = tmp_path / "next.c"
        source.write_text(
            "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\n"
            'int main(void) { for (int i = 0; i < 100000; i++) if (!dlsym(RTLD_NEXT, "malloc"))'
            " return 1; return 0; }"
        )
        subprocess.run([build.compiler(), source, "-o", tmp_path / "next", "-ldl"], check=True)
        self.go(world, tmp_path / "next")
