"""Limits that the driver itself enforces, from the agent through a shim and back: on files only.

The driver is the simulated one as of 615; where the machine has no cgroups of version 2 a folder of
plain files is one.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduling.agent import isolation
from scheduling.agent.cgroups import Hierarchy
from scheduling.agent.folders import Folders
from scheduling.agent.fraction import driver_limits
from scheduling.agent.fraction.install import Fractions
from scheduling.agent.fraction.simulated import SimulatedDriver
from scheduling.agent.node import DEMO, simulated_inventory
from scheduling.agent.protocol import AttemptPhase, AttemptSpec, Goal
from scheduling.agent.site import Site
from tests import needs
from tests.agent.conftest import end
from tests.agent.driver import NODE, PYTHON, Driver, a_third, spec
from tests.fraction.conftest import BUILDS

SHARE = 14_917 * 2**20 * 333 // 1000
INFO = """
import ctypes as c, sys, time
l, x, free, total = c.CDLL("libcuda.so.1"), c.c_void_p(), c.c_size_t(), c.c_size_t()
assert l.cuInit(0) == l.cuDevicePrimaryCtxRetain(c.byref(x), 0) == l.cuCtxSetCurrent(x) == 0
l.cuMemGetInfo_v2(c.byref(free), c.byref(total)); print(total.value, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def cgroups() -> Iterator[Path]:
    """A folder where workloads see it too, which have a /tmp of their own."""
    folder = Path(tempfile.mkdtemp(prefix="allot-cgroups-", dir="/srv"))
    yield folder
    # The agent may just be trying to remove what is in it.
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def driver(folders: Folders, cgroups: Path) -> Iterator[Driver]:
    """An agent on a node whose driver limits cgroups."""
    needs.root()
    allowed = isolation.probe(folders)
    needs.mounts(allowed)
    if allowed.cgroups is None or allowed.cgroups.version == 1:
        if allowed.cgroups is not None:
            allowed.cgroups.leave()
        allowed = replace(allowed, cgroups=Hierarchy(2, (cgroups,)))
    declared = [replace(each, driver="615.71.09") for each in DEMO]
    inventory = simulated_inventory("tests", allowed, declared)
    fractions = Fractions(folders, inventory, allowed, builds=BUILDS)
    running = Driver(Site(folders, allowed, PYTHON, fractions=fractions))
    yield running
    end(running)


def wanted(seconds: float = 0.0) -> AttemptSpec:
    return spec("python", "-c", INFO, str(seconds), devices=[a_third()], node=NODE)


def fractions_of(driver: Driver) -> Fractions:
    assert driver.site.fractions is not None
    return driver.site.fractions


def simulated(driver: Driver) -> SimulatedDriver:
    found = fractions_of(driver).driver_of(NODE)
    assert found is not None
    return found


def limits_of(driver: Driver, attempt: AttemptSpec) -> tuple[int, int]:
    folder = driver.runner.attempts[attempt.attempt_id].folder.name
    assert driver.isolation.cgroups is not None
    cgroup = driver.isolation.cgroups.cgroup(folder).folders[0]
    uuid = attempt.devices[0].uuid
    return driver_limits.read(str(cgroup), uuid, str(simulated(driver).nvml))


def test_the_nodes_mechanism_is_the_drivers_own(driver: Driver) -> None:
    fractions = fractions_of(driver)
    described = [fractions.described(node) for node in fractions.inventory.nodes]
    t4, _, v100, *_ = described
    assert (t4.driver, t4.fraction_mechanism) == ("615.71.09 (simulated)", "driver")
    assert t4.shares_gpu_time, "the proxy is beside it"
    assert v100.fraction_mechanism == "proxy", "before Turing no driver can"


def test_a_workload_starts_under_its_limit_which_is_lifted_at_its_end(driver: Driver) -> None:
    attempt = wanted(1000)
    driver.want(attempt)
    driver.until_logged(attempt, f"{SHARE}\n")
    assert limits_of(driver, attempt) == (SHARE, SHARE)
    driver.want(replace(attempt, goal=Goal.STOP, grace_s=0.0))
    driver.until_phase(attempt, AttemptPhase.EXITED)
    driver.until(lambda: not list(simulated(driver).limits.iterdir()))


def test_killed_with_its_shim_its_limit_is_lifted_too(driver: Driver) -> None:
    attempt = wanted(1000)
    driver.want(attempt)
    driver.until_logged(attempt, f"{SHARE}\n")
    os.kill(driver.shim_pid(attempt), signal.SIGKILL)
    driver.until_phase(attempt, AttemptPhase.EXITED)
    driver.until(lambda: not list(simulated(driver).limits.iterdir()))


def test_what_the_driver_refuses_is_not_started(driver: Driver) -> None:
    limits = simulated(driver).limits
    limits.rmdir()
    limits.write_text("no folder")
    attempt = wanted()
    report = driver.finish(attempt)
    assert report.phase == AttemptPhase.REFUSED
    assert "memory limit of GPU-" in report.error
    assert driver.log(attempt) == ""
    limits.unlink()
