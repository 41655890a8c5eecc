"""Builds the C parts with the system's compiler, once per contents, into the agent's data folder.

A folder is named after the digest of all sources, the compiler and the prefix; it gets its name
when it is whole, so that one that is there is right. Where no compiler is, a folder `prebuilt/` of
the same names beside the sources serves; without either, fractions are not enforced and the node
says so. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scheduling.agent.fraction import symbols

HERE = Path(__file__).parent
NATIVE, FAKE, PREBUILT = HERE / "native", HERE / "fake", HERE / "prebuilt"
DEFAULT_PREFIX = "/run/allot"
_COMPILERS = ("cc", "gcc", "clang")
# The TLS model: the general one crashes in a static program that loads us.
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec",
          "-Wall", "-Wextra", "-pthread")  # fmt: skip
_LINK = ("-shared", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,relro")
_COMMON = ("session", "region", "limits", "real", "gate")
_CUDA = ("memory", "alloc", "vmm", "arrays", "pools", "contexts", "queries", "resolver", "turn",
         "capture")  # fmt: skip
_FAKE_COMMON = ("driver",)
_FAKE_CUDA = ("core", "memory", "work", "checkpoint")
_TIME_LIMIT_S = 120


class BuildError(Exception):
    """The C parts cannot be had; says what is lacking."""


@dataclass(frozen=True, slots=True)
class Libraries:
    """Files of one build."""

    folder: Path

    @property
    def cuda(self) -> Path:
        """The proxy for libcuda.so.1."""
        return self.folder / "libcuda.so.1"

    @property
    def nvml(self) -> Path:
        """The proxy for libnvidia-ml.so.1."""
        return self.folder / "libnvidia-ml.so.1"

    @property
    def preload(self) -> Path:
        """The dlsym-hooking library for where nothing can be mounted."""
        return self.folder / "liballot-preload.so"

    @property
    def fake_cuda(self) -> Path:
        """The driver of simulated devices."""
        return self.folder / "fake-libcuda.so"

    @property
    def fake_nvml(self) -> Path:
        """NVML of simulated devices."""
        return self.folder / "fake-libnvidia-ml.so"

    @property
    def region(self) -> Path:
        """The accounting alone, for tests."""
        return self.folder / "libregion.so"

    def are_all_there(self) -> bool:
        """Whether nothing is missing."""
        return all(
            path.is_file()
            for path in (self.cuda, self.nvml, self.preload, self.fake_cuda, self.fake_nvml)
        )


def compiler() -> str:
    """The system's C compiler; empty if there is none."""
    return next((found for name in _COMPILERS if (found := shutil.which(name))), "")


def build(folder: Path, prefix: str = DEFAULT_PREFIX) -> Libraries:
    """Build what is not there yet.

    Args:
        folder: Where builds are kept.
        prefix: Where a session finds the limits and the real libraries.

    Raises:
        BuildError: no compiler and nothing prebuilt, or the compiler failed.
    """
    found = compiler()
    if not found:
        return _prebuilt(prefix)
    target = folder / _digest(found, prefix)
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=folder))
        try:
            _compile_all(found, prefix, temporary)
            temporary.chmod(0o755)
            _give_name(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return Libraries(target)


def _give_name(temporary: Path, target: Path) -> None:
    try:
        temporary.rename(target)
    except OSError:
        # Somebody else was quicker; both are the same.
        if not target.is_dir():
            raise


def _prebuilt(prefix: str) -> Libraries:
    ready = Libraries(PREBUILT / platform.machine())
    if prefix == DEFAULT_PREFIX and ready.are_all_there():
        return ready
    raise BuildError(
        "no C compiler (cc, gcc or clang) is installed and no prebuilt libraries are in "
        f"{ready.folder}: on Debian and Ubuntu apt-get install gcc libc6-dev"
    )


def _digest(found: str, prefix: str) -> str:
    version = _run([found, "--version"]).splitlines()[0]
    digest = hashlib.sha256(f"{version}\0{prefix}\0{platform.machine()}\0".encode())
    for path in sorted([*NATIVE.iterdir(), *FAKE.iterdir(), HERE / "symbols.py", Path(__file__)]):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _run(arguments: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{arguments[0]}: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(arguments)}\n{done.stderr[-2000:]}")
    return done.stdout


class _Workshop:
    """One build: compiler, prefix and a folder for what is made."""

    def __init__(self, found: str, prefix: str, folder: Path) -> None:
        self.compiler, self.prefix, self.folder = found, prefix, folder

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def library(self, name: str, sources: Sequence[Path], *options: str) -> None:
        """Compile and link one shared object."""
        _run([
            self.compiler, *_FLAGS, *_LINK, f"-I{NATIVE}", f"-I{FAKE}", f"-I{self.folder}",
            f'-DALLOT_PREFIX="{self.prefix}"', "-o", str(self.folder / name),
            *map(str, sources), *options, "-ldl",
        ])  # fmt: skip

    def stub(self, name: str) -> Path:
        """An empty library whose own name is the absolute path of the real one."""
        path = self.folder / f"stub-{name}.so"
        _run([
            self.compiler, "-shared", "-fPIC", "-nostdlib",
            f"-Wl,-soname,{self.prefix}/{name}.real", "-o", str(path), str(self.folder / "empty.c"),
        ])  # fmt: skip
        return path


def _native(names: Sequence[str]) -> list[Path]:
    return [NATIVE / f"{name}.c" for name in names]


def _fake(names: Sequence[str]) -> list[Path]:
    return [FAKE / f"{name}.c" for name in names]


def _compile_all(found: str, prefix: str, folder: Path) -> None:
    shop = _Workshop(found, prefix, folder)
    hooks = {
        name: shop.write(f"hooks_{name}.c", symbols.hooks_source(name)) for name in ("cuda", "nvml")
    }
    for name in hooks:
        shop.write(f"rules_{name}.h", symbols.rules_header(name))
    shop.write("empty.c", "")
    fake_rows = shop.write("fake_rows.c", symbols.fake_source())
    fake = [*_fake(_FAKE_COMMON), *_native(("region", "limits"))]
    jobs: list[Callable[[], None]] = [
        partial(_proxy, shop, "libcuda", hooks["cuda"], _CUDA, "-DALLOT_NO_NVML"),
        partial(_proxy, shop, "libnvidia-ml", hooks["nvml"], ("nvml",), "-DALLOT_NO_CUDA"),
        partial(
            shop.library,
            "liballot-preload.so",
            [*_native((*_COMMON, *_CUDA, "nvml", "preload")), *hooks.values()],
            "-DALLOT_PRELOAD", "-DALLOT_BESIDE",
        ),
        partial(
            shop.library, "fake-libcuda.so", [*_fake(_FAKE_CUDA), *fake, fake_rows],
            "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1",
        ),
        partial(
            shop.library, "fake-libnvidia-ml.so", [FAKE / "libnvidia_ml.c", *fake],
            "-Wl,-Bsymbolic", "-Wl,-soname,libnvidia-ml.so.1",
        ),
        partial(
            shop.library, "libregion.so", _native(("region", "limits")), "-fvisibility=default"
        ),
    ]  # fmt: skip
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for outcome in [pool.submit(job) for job in jobs]:
            outcome.result()


def _proxy(shop: _Workshop, name: str, hooks: Path, rules: Sequence[str], *options: str) -> None:
    library = "cuda" if name == "libcuda" else "nvml"
    names = shop.write(f"{library}.map", symbols.exports(library))
    shop.library(
        f"{name}.so.1",
        [*_native((*_COMMON, *rules)), hooks],
        *options,
        f"-Wl,-soname,{name}.so.1", f"-Wl,--version-script={names}",
        # No symbol of it is used: without this the linker drops it silently.
        "-Wl,--no-as-needed", str(shop.stub(name)),
    )  # fmt: skip
