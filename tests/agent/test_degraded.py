"""Where the machine allows less, workloads still run, and the node says what is lacking."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from scheduling.agent.fraction.install import Fractions
from scheduling.agent.isolation import Isolation
from scheduling.agent.protocol import AttemptPhase, ExitCause, Goal
from scheduling.agent.site import Site
from tests import needs
from tests.agent.conftest import end
from tests.agent.driver import FINAL, INVENTORY, Driver, a_third, example, spec
from tests.fraction.conftest import BUILDS


@pytest.fixture
def bare(site: Site) -> Iterator[Driver]:
    """Neither namespaces nor cgroups; identities only."""
    needs.root()
    site.folders.var.parent.chmod(0o711)
    lacking = Isolation(has_identities=True, has_namespaces=False, cgroups=None)
    fractions = Fractions(site.folders, INVENTORY, lacking, builds=BUILDS)
    running = Driver(replace(site, isolation=lacking, fractions=fractions))
    yield running
    end(running)


def test_the_note_names_everything_that_is_lacking() -> None:
    nothing = Isolation(has_identities=False, has_namespaces=False, cgroups=None)
    assert not nothing.is_complete
    for word in ("not root", "namespaces", "cgroup"):
        assert word in nothing.note


def test_identities_alone_keep_files_apart(bare: Driver) -> None:
    output = bare.output(spec("bash", "-c", "id -u; umask 0; echo mine > mine; ls; pwd"))
    home = bare.site.folders.home("vision", "ann")
    assert output.split() == ["200001", "examples", "mine", str(home)]
    stranger = spec("cat", str(home / "mine"), owner="bob", user_number=2)
    assert "denied" in bare.output(stranger)
    assert (home / "mine").read_text() == "mine\n"


def test_the_watchdog_kills_what_exceeds_its_memory(bare: Driver) -> None:
    hungry = "import time; b = bytearray(400 * 2**20); time.sleep(1000)"
    report = bare.finish(spec("python", "-c", hungry, memory_mib=128))
    assert report.exit_cause == ExitCause.OUT_OF_MEMORY
    assert report.memory_limit_mib == 128
    assert (report.peak_memory_mib or 0) > 128


def test_whole_cpus_stand_in_for_cores(bare: Driver) -> None:
    assert bare.output(spec("nproc", cpu_milli=500)) == "1\n"


def test_a_training_is_evicted_and_resumes(bare: Driver) -> None:
    wanted = example("--steps", "300", "--step-delay", "0.01", "--checkpoint-every", "9999")
    bare.want(wanted)
    bare.until_logged(wanted, "step 50 loss")
    bare.want(replace(wanted, goal=Goal.EVICT))
    report = bare.until_phase(wanted, *FINAL)
    assert report.exit_cause == ExitCause.EVICTED
    del bare.wanted[wanted.attempt_id]
    resumed = replace(wanted, attempt_id=spec().attempt_id, number=2)
    assert f"starting at step {report.checkpoints[-1].step}" in bare.output(resumed)


def test_killing_the_shim_ends_its_workload(bare: Driver) -> None:
    wanted = spec("bash", "-c", "echo up; exec sleep 1000")
    bare.want(wanted)
    bare.until_logged(wanted, "up")
    pid = bare.until_phase(wanted, AttemptPhase.RUNNING).pid
    os.kill(bare.shim_pid(wanted), 9)
    assert bare.until_phase(wanted, *FINAL).exit_cause == ExitCause.VANISHED
    assert pid is not None
    bare.until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_a_session_answers_and_its_terminal_shows_the_share(bare: Driver) -> None:
    wanted = spec(
        kind="interactive",
        tool="jupyter",
        base_url="/s/a/",
        session_secret="secret",
        memory_mib=2048,
        devices=[a_third()],
    )
    bare.want(wanted)

    def is_ready() -> bool:
        asyncio.run(bare.runner.look_for_answers())
        return bare.report(wanted).is_ready

    bare.until(is_ready)
    shows = replace(spec("nvidia-smi"), devices=[a_third()])
    assert "4967MiB" in bare.output(shows)
    assert "4967MiB" in bare.output(
        replace(shows, command=["env", "-i", "bash", "-lc", "nvidia-smi"])
    )
    cuda = "import ctypes as c; f = c.c_size_t(); l = c.CDLL('libcuda.so.1'); l.cuInit(0); "
    cuda += "l.cuDeviceTotalMem_v2(c.byref(f), 0); print(f.value)"
    shows = replace(spec("python", "-c", cuda), devices=[a_third()])
    assert bare.output(shows) == f"{14_917 * 2**20 * 333 // 1000}\n"
