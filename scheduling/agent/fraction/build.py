"""Builds the C parts with the system's compiler, once per contents, into the agent's data folder.

A folder is named after the digest of all sources, the compiler and the prefix; it gets its name
when it is whole, so that one that is there is right. Where no compiler is, `prebuilt/<machine>/`
beside the sources serves if it was made from just these sources; without either, fractions are not
enforced and the node says so. On a machine of the same kind that has a compiler,

    python -m scheduling.agent.fraction.build [FOLDER]

fills that folder, or another that is then copied there. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scheduling.agent.fraction import symbols

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
NATIVE, FAKE, PREBUILT = HERE / "native", HERE / "fake", HERE / "prebuilt"
DEFAULT_PREFIX = "/run/allot"
_COMPILERS = ("cc", "gcc", "clang")
# The TLS model: the general one crashes in a static program that loads us.
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec",
          "-Wall", "-Wextra", "-pthread")  # fmt: skip
_LINK = ("-shared", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,relro")
_COMMON = ("region", "limits", "gate")
_CUDA = ("memory", "alloc", "vmm", "arrays", "pools", "graphs", "contexts", "queries", "resolver",
         "turn", "capture")  # fmt: skip
_FAKE_CUDA = ("core", "memory", "graphs", "work", "checkpoint")
_TIME_LIMIT_S = 120
_MANIFEST = "manifest.json"
_REMEDY = "on Debian and Ubuntu apt-get install gcc libc6-dev"
# Versions of the C library whose functions a library asks for, as its dynamic section names them.
_GLIBC = re.compile(rb"\0GLIBC_(\d+)\.(\d+)")


class BuildError(Exception):
    """The C parts cannot be had; says what is lacking.

    Attributes:
        code: `no_compiler`, `compiler_failed` or `unfit_prebuilt`; the server has a sentence each.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


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


def build(folder: Path, prefix: str = DEFAULT_PREFIX, *, prebuilt: Path = PREBUILT) -> Libraries:
    """Build what is not there yet, or take what was built elsewhere.

    Args:
        folder: Where builds are kept.
        prefix: Where a session finds the limits and the real libraries.
        prebuilt: Holds a folder per architecture, for want of a working compiler.

    Raises:
        BuildError: no compiler, or it failed, and nothing prebuilt that fits.
    """
    found = compiler()
    try:
        _try(found)
        version = _run([found, "--version"]).splitlines()[0]
        target = folder / _digest(sources_digest(), version, prefix, platform.machine())
        return _kept(target, lambda temporary: _compile_all(found, prefix, temporary))
    except BuildError as error:
        ready = _fit(prebuilt / platform.machine(), prefix, error)
        log.info("%s: the prebuilt libraries in %s serve", error, ready)
    # Copied, so that whoever changes them disturbs nothing that runs.
    target = folder / _digest((ready / _MANIFEST).read_text())
    return _kept(target, lambda temporary: shutil.copytree(ready, temporary, dirs_exist_ok=True))


def check(prebuilt: Path = PREBUILT) -> None:
    """Raise what `build` would, without building."""
    try:
        _try(compiler())
    except BuildError as error:
        _fit(prebuilt / platform.machine(), DEFAULT_PREFIX, error)


def _try(found: str) -> None:
    """See whether a compiler compiles at all; one without the C library's headers does not."""
    if not found:
        raise BuildError("no_compiler", "no C compiler (cc, gcc or clang) is installed")
    _run([found, *_FLAGS, f"-I{NATIVE}", "-fsyntax-only", str(NATIVE / "limits.c")])


def _kept(target: Path, make: Callable[[Path], object]) -> Libraries:
    """A folder of builds, made in another that gets its name when it is whole."""
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.parent.chmod(0o755)
        temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
        try:
            make(temporary)
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


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def sources_digest() -> str:
    """Of all that libraries are made from, and how; the compiler apart."""
    digest = hashlib.sha256()
    for path in sorted([*NATIVE.iterdir(), *FAKE.iterdir(), HERE / "symbols.py", Path(__file__)]):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


# ---------------------------------------------------------------------- built elsewhere


def prebuild(folder: Path) -> Path:
    """Build for other machines of this architecture; where the libraries are now.

    Raises:
        BuildError: this machine has no compiler, or it failed.
    """
    found, machine = compiler(), platform.machine()
    _try(found)
    target = folder / machine
    shutil.rmtree(target, ignore_errors=True)

    def make(temporary: Path) -> None:
        _compile_all(found, DEFAULT_PREFIX, temporary)
        for path in temporary.glob("*.[ch]"):
            path.unlink()
        manifest = {
            "sources": sources_digest(),
            "machine": machine,
            "files": {path.name: _sha256(path) for path in sorted(temporary.glob("*.so*"))},
        }
        (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1))

    return _kept(target, make).folder


def _fit(ready: Path, prefix: str, error: BuildError) -> Path:
    """The folder of prebuilt libraries, if they can serve instead of a compiler."""
    if prefix != DEFAULT_PREFIX or not ready.is_dir():
        lacking = f"{error}, and no prebuilt libraries are in {ready}: {_REMEDY}"
        raise BuildError(error.code, lacking) from error
    if why := _unfit(ready):
        lacking = f"{error}, and the prebuilt libraries in {ready} are refused: {why}"
        raise BuildError("unfit_prebuilt", lacking) from error
    return ready


def _unfit(ready: Path) -> str:
    """Why prebuilt libraries cannot serve here; empty if they can."""
    try:
        manifest = json.loads((ready / _MANIFEST).read_text())
        sources, machine = manifest["sources"], manifest["machine"]
        files = dict(manifest["files"])
        damaged = [name for name, digest in files.items() if _sha256(ready / name) != digest]
        newest = max((_glibc_of(ready / name) for name in files), default=(0, 0))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"they are not whole ({error})"
    own = tuple(int(each) for each in platform.libc_ver()[1].split(".")[:2] if each)
    if sources != sources_digest():
        return "they were made from other sources than this version's; build them anew"
    if machine != platform.machine():
        return f"they are for {machine}, not for {platform.machine()}"
    if damaged or not Libraries(ready).are_all_there():
        return f"they are not whole ({', '.join(damaged) or 'files are absent'})"
    if newest > own:
        return f"they need glibc {newest[0]}.{newest[1]} or newer; build them on an older system"
    return ""


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _glibc_of(path: Path) -> tuple[int, int]:
    """The newest version of the C library that a library asks for."""
    asked = ((int(major), int(minor)) for major, minor in _GLIBC.findall(path.read_bytes()))
    return max(asked, default=(0, 0))


# ---------------------------------------------------------------------- the compiler


def _run(arguments: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError("compiler_failed", f"{arguments[0]}: {error}") from error
    if done.returncode:
        said = f"{' '.join(arguments)}\n{done.stderr[-2000:]}"
        raise BuildError("compiler_failed", f"the C compiler failed: {said}")
    return done.stdout


class _Workshop:
    """One build: compiler, prefix, a folder for what is made, and threads that make it."""

    def __init__(self, found: str, prefix: str, folder: Path, pool: Executor) -> None:
        self.compiler, self.prefix, self.folder, self.pool = found, prefix, folder, pool
        self._objects: dict[tuple[Path, tuple[str, ...]], Future[Path]] = {}

    def write(self, name: str, text: str) -> Path:
        """Write a generated source."""
        path = self.folder / name
        path.write_text(text)
        return path

    def compiled(self, source: Path, *defines: str) -> Future[Path]:
        """The object of a source; each is compiled once."""
        key = (source, defines)
        if key not in self._objects:
            target = self.folder / f"{len(self._objects)}.o"
            self._objects[key] = self.pool.submit(self._compile, source, target, defines)
        return self._objects[key]

    def _compile(self, source: Path, target: Path, defines: Sequence[str]) -> Path:
        _run([
            self.compiler, *_FLAGS, f"-I{NATIVE}", f"-I{FAKE}", f"-I{self.folder}",
            f'-DALLOT_PREFIX="{self.prefix}"', *defines, "-c", str(source), "-o", str(target),
        ])  # fmt: skip
        return target

    def link(self, name: str, objects: Sequence[Future[Path]], *options: str) -> None:
        """Link one shared object."""
        files = [str(each.result()) for each in objects]
        path = str(self.folder / name)
        _run([self.compiler, *_LINK, "-pthread", "-o", path, *files, *options, "-ldl"])

    def stub(self, name: str) -> str:
        """An empty library whose own name is the absolute path of the real one."""
        path = str(self.folder / f"stub-{name}.so")
        soname = f"-Wl,-soname,{self.prefix}/{name}.real"
        empty = str(self.compiled(self.folder / "empty.c").result())
        _run([self.compiler, "-shared", "-nostdlib", soname, "-o", path, empty])
        return path


def _compile_all(found: str, prefix: str, folder: Path) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        shop = _Workshop(found, prefix, folder, pool)
        _link_all(shop)
    for left_over in folder.glob("*.o"):
        left_over.unlink()


def _link_all(shop: _Workshop) -> None:
    for library in ("cuda", "nvml"):
        shop.write(f"rules_{library}.h", symbols.rules_header(library))
        shop.write(f"{library}.map", symbols.exports(library))
    shop.write("empty.c", "")
    hooks = {
        library: shop.compiled(shop.write(f"hooks_{library}.c", symbols.hooks_source(library)))
        for library in ("cuda", "nvml")
    }
    fake_rows = shop.compiled(shop.write("fake_rows.c", symbols.fake_source()))
    common = [shop.compiled(NATIVE / f"{name}.c") for name in _COMMON]
    accounting = [shop.compiled(NATIVE / f"{name}.c") for name in ("region", "limits")]
    cuda = [shop.compiled(NATIVE / f"{name}.c") for name in _CUDA]
    nvml = shop.compiled(NATIVE / "nvml.c")
    session, real = NATIVE / "session.c", NATIVE / "real.c"
    driver = shop.compiled(FAKE / "driver.c")
    fakes = [shop.compiled(FAKE / f"{name}.c") for name in _FAKE_CUDA]
    fake_nvml = shop.compiled(FAKE / "libnvidia_ml.c")
    in_place = shop.compiled(session)
    real_cuda = shop.compiled(real, "-DALLOT_NO_NVML")
    real_nvml = shop.compiled(real, "-DALLOT_NO_CUDA")
    preloaded = [
        shop.compiled(session, "-DALLOT_BESIDE"),
        shop.compiled(real, "-DALLOT_PRELOAD"),
        shop.compiled(NATIVE / "preload.c"),
    ]
    _link_proxy(shop, "libcuda", "cuda", [*common, in_place, real_cuda, *cuda, hooks["cuda"]])
    _link_proxy(shop, "libnvidia-ml", "nvml", [*common, in_place, real_nvml, nvml, hooks["nvml"]])
    shop.link("liballot-preload.so", [*common, *preloaded, *cuda, nvml, *hooks.values()])
    shop.link(
        "fake-libcuda.so", [*fakes, driver, *accounting, fake_rows],
        "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1",
    )  # fmt: skip
    # Without a name of its own: loaded by its path it must not become everybody's NVML.
    shop.link(
        "fake-libnvidia-ml.so", [fake_nvml, driver, *accounting],
        "-Wl,-Bsymbolic",
    )  # fmt: skip
    visible = [
        shop.compiled(NATIVE / f"{name}.c", "-fvisibility=default") for name in ("region", "limits")
    ]
    shop.link("libregion.so", visible)


def _link_proxy(shop: _Workshop, name: str, library: str, objects: Sequence[Future[Path]]) -> None:
    shop.link(
        f"{name}.so.1", objects,
        f"-Wl,-soname,{name}.so.1", f"-Wl,--version-script={shop.folder / f'{library}.map'}",
        # No symbol of it is used: without this the linker drops it silently.
        "-Wl,--no-as-needed", shop.stub(name),
    )  # fmt: skip


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{prebuild(Path(sys.argv[1]) if sys.argv[1:] else PREBUILT)}\n")
    except BuildError as lacking:
        sys.exit(str(lacking))
