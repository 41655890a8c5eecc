"""The C parts on machines without a compiler: what was built elsewhere serves, if it fits."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduling.agent.fraction import build
from scheduling.agent.fraction.build import BuildError
from tests import needs

MACHINE = platform.machine()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command makes."""
    needs.compiler()
    folder = tmp_path_factory.mktemp("made")
    return build.prebuild(folder).parent


@pytest.fixture
def prebuilt(made: Path, tmp_path: Path) -> Path:
    """A copy of it, for a test to change."""
    return Path(shutil.copytree(made, tmp_path / "prebuilt"))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without one."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def change_manifest(name: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return change


@pytest.mark.usefixtures("no_compiler")
def test_prebuilt_libraries_serve_from_a_copy(prebuilt: Path, tmp_path: Path) -> None:
    libraries = build.build(tmp_path / "builds", prebuilt=prebuilt)
    build.check(prebuilt)
    assert libraries.folder.parent == tmp_path / "builds"
    shutil.rmtree(prebuilt)
    assert libraries.are_all_there()
    for path in libraries.folder.parent, libraries.folder:
        assert path.stat().st_mode & 0o777 == 0o755


def test_a_compiler_is_preferred(prebuilt: Path, tmp_path: Path) -> None:
    libraries = build.build(tmp_path / "builds", prebuilt=prebuilt)
    assert not (libraries.folder / "manifest.json").exists()


def test_they_serve_beside_a_compiler_that_fails(
    prebuilt: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As gcc does without the C library's headers."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cc").write_text("#!/bin/sh\necho no headers >&2; exit 1\n")
    (tmp_path / "bin" / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert (build.build(tmp_path / "builds", prebuilt=prebuilt).folder / "manifest.json").exists()
    with pytest.raises(BuildError, match="no headers") as refused:
        build.build(tmp_path / "builds", prebuilt=tmp_path / "none")
    assert refused.value.code == "compiler_failed"


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (change_manifest("sources", "0" * 64), "made from other sources than this version's"),
        (change_manifest("machine", "m68k"), "they are for m68k, not for"),
        (change_manifest("files", 7), "they are not whole"),
        (lambda folder: (folder / "manifest.json").unlink(), "they are not whole"),
        (lambda folder: (folder / "libcuda.so.1").unlink(), "they are not whole"),
        (lambda folder: (folder / "libcuda.so.1").write_bytes(b"cut"), "whole .libcuda.so.1"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "they are not whole"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(
    prebuilt: Path, tmp_path: Path, change: Callable[[Path], object], why: str
) -> None:
    change(prebuilt / MACHINE)
    for attempt in (
        lambda: build.build(tmp_path / "builds", prebuilt=prebuilt),
        lambda: build.check(prebuilt),
    ):
        with pytest.raises(BuildError, match=why) as refused:
            attempt()
        assert refused.value.code == "unfit_prebuilt"


@pytest.mark.usefixtures("no_compiler")
def test_libraries_of_a_newer_system_are_refused(prebuilt: Path, tmp_path: Path) -> None:
    """The dynamic linker of every workload would refuse them."""
    folder = prebuilt / MACHINE
    path = folder / "libregion.so"
    path.write_bytes(path.read_bytes() + b"\0GLIBC_2.99\0")
    files = json.loads((folder / "manifest.json").read_text())["files"]
    change_manifest("files", files | {path.name: build._sha256(path)})(folder)
    with pytest.raises(BuildError, match=r"need glibc 2\.99 or newer"):
        build.build(tmp_path / "builds", prebuilt=prebuilt)


@pytest.mark.usefixtures("no_compiler")
def test_without_either_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"apt-get install gcc libc6-dev") as refused:
        build.build(tmp_path / "builds", prebuilt=tmp_path)
    assert refused.value.code == "no_compiler"
    with pytest.raises(BuildError, match="no C compiler"):
        build.prebuild(tmp_path)


def test_the_command_says_where_the_libraries_are(tmp_path: Path) -> None:
    command = [".venv/bin/python", "-m", "scheduling.agent.fraction.build", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == f"{tmp_path / MACHINE}\n", done.stderr
    lost = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": ""})
    assert lost.returncode == 1
    assert "no C compiler" in lost.stderr
