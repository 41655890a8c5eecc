"""The list of hooks: what is made of it, and that it says what NVIDIA's headers say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scheduling.agent.fraction import build, symbols
from scheduling.agent.fraction.build import FAKE, NATIVE, Libraries

NAMED = """
cuGetProcAddress cuMemAlloc cuMemAllocPitch cuMemAllocManaged cuMemAllocAsync
cuMemAllocFromPoolAsync cuMemFree cuMemFreeAsync cuMemCreate cuMemRelease cuMemMap cuMemUnmap
cuMemRetainAllocationHandle cuMemImportFromShareableHandle cuArrayCreate cuArray3DCreate
cuMipmappedArrayCreate cuMemPoolCreate cuMemPoolDestroy cuMemPoolTrimTo cuMemPoolSetAttribute
cuDeviceSetMemPool cuMemSetMemPool cuGraphAddMemAllocNode cuGraphAddNode cuGraphLaunch
cuDeviceGraphMemTrim cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease cuDevicePrimaryCtxReset
cuCtxCreate cuCtxDestroy cuMemGetInfo cuDeviceTotalMem cuLaunchKernel cuLaunchKernelEx
cuLaunchCooperativeKernel cuStreamSynchronize cuCtxSynchronize cuEventSynchronize
"""


def exported(library: Path) -> set[str]:
    output = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[-1].partition("@")[0] for line in output.splitlines()}


@pytest.mark.parametrize("library", ["cuda", "nvml"])
def test_a_proxy_exports_the_hooked_names_and_nothing_else(
    libraries: Libraries, library: str
) -> None:
    proxy = {"cuda": libraries.cuda, "nvml": libraries.nvml}[library]
    assert exported(proxy) == {hook.symbol for hook in symbols.read(library)}


def test_a_proxy_needs_the_real_library_by_its_path(libraries: Libraries, prefix: Path) -> None:
    output = subprocess.run(
        ["readelf", "-d", libraries.cuda], capture_output=True, text=True, check=True
    ).stdout
    assert f"[{prefix}/libcuda.real]" in output
    assert "soname: [libcuda.so.1]" in output


def test_the_fake_driver_has_every_hooked_function(libraries: Libraries) -> None:
    assert {hook.symbol for hook in symbols.read("cuda")} <= exported(libraries.fake_cuda)


def test_all_that_the_reference_names_is_hooked() -> None:
    bases = {hook.base for hook in symbols.read("cuda")}
    for wanted in NAMED.split():
        assert wanted in bases, wanted
    # Every runtime uses its undocumented tables; a hook there would break them.
    assert "cuGetExportTable" not in bases


def test_the_sources_compile_without_a_warning(libraries: Libraries) -> None:
    for source in (*sorted(NATIVE.glob("*.c")), *sorted(FAKE.glob("*.c"))):
        command = [build.compiler(), "-std=gnu11", "-O2", "-Wall", "-Wextra", "-fsyntax-only"]
        includes = [f"-I{NATIVE}", f"-I{FAKE}", f"-I{libraries.folder}", str(source)]
        done = subprocess.run([*command, *includes], capture_output=True, text=True, check=True)
        assert done.stderr == "", source.name


HEADERS = [path for path in (Path("/usr/local/cuda/include/cuda.h"),) if path.exists()]
LAYOUTS = """
#include <stddef.h>
#include "cuda.h"
#define SIZE(type, size) _Static_assert(sizeof(type) == size, #type)
SIZE(CUmemAllocationProp, 32); SIZE(CUmemPoolProps, 88); SIZE(CUDA_ARRAY_DESCRIPTOR, 24);
SIZE(CUDA_ARRAY3D_DESCRIPTOR, 40); SIZE(CUDA_MEM_ALLOC_NODE_PARAMS, 120);
SIZE(CUlaunchConfig, 56); SIZE(CUDA_ARRAY_MEMORY_REQUIREMENTS, 32);
_Static_assert(offsetof(CUlaunchConfig, hStream) == 32, "hStream");
_Static_assert(offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize) == 104, "bytesize");
_Static_assert(offsetof(CUmemAllocationProp, location) == 8, "location");
"""
OURS = LAYOUTS.replace('"cuda.h"', '"cuda_abi.h"')


@pytest.mark.parametrize(
    ("text", "folder"),
    [(OURS, NATIVE), *((LAYOUTS, header.parent) for header in HEADERS)],
    ids=["ours", *map(str, HEADERS)],
)
def test_structures_have_the_layout_of_cudas_headers(
    tmp_path: Path, text: str, folder: Path
) -> None:
    source = tmp_path / "layout.c"
    source.write_text(text)
    command = [build.compiler(), "-fsyntax-only", f"-I{folder}", str(source)]
    subprocess.run(command, check=True)
