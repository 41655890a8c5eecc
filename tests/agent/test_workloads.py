"""A workload starts as its owner, within its limits, and its end is told as it was."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import replace

import psutil
import pytest

from scheduling.agent import processes
from scheduling.agent.protocol import AttemptPhase, ExitCause, Goal
from tests.agent.driver import FINAL, Driver, a_third, spec

BURN = "import threading\nwhile True: pass"


def test_a_workload_runs_as_its_owner_in_its_home(driver: Driver) -> None:
    output = driver.output(spec("bash", "-c", "id -un; id -u; id -G; pwd; ls; echo $ALLOT_PROJECT"))
    assert output.splitlines() == ["ann", "200001", "300001", "/home/ann", "examples", "vision"]


def test_the_exit_code_and_the_last_lines_are_reported(driver: Driver) -> None:
    report = driver.finish(spec("bash", "-c", "echo one; echo two >&2; exit 3"))
    assert (report.phase, report.exit_code, report.exit_cause) == (
        AttemptPhase.EXITED,
        3,
        ExitCause.OWN,
    )
    assert report.last_lines == ["one", "two"]
    assert report.started_at is not None
    assert report.ended_at is not None


def test_death_by_a_signal_is_told_as_a_shell_tells_it(driver: Driver) -> None:
    report = driver.finish(spec("bash", "-c", "kill -SEGV $$"))
    assert (report.exit_code, report.exit_cause) == (128 + 11, ExitCause.OWN)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"command": ["no-such-program"]}, "command"),
        ({"command": ["/etc/passwd"]}, "command"),
        ({"working_dir": "nowhere"}, "working_dir"),
        ({"working_dir": "/proc/1/cwd"}, "working_dir"),
        ({"node": "elsewhere"}, "node"),
        ({"command": []}, "command"),
        ({"command": ["true", "a\0b"]}, "command"),
        ({"env": {"A B": "c"}}, "env"),
        ({"tool": "unheard-of"}, "tool"),
    ],
)
def test_what_cannot_start_is_refused_at_the_field(
    driver: Driver, changes: dict[str, object], field: str
) -> None:
    wanted = replace(spec("true"), **changes)  # type: ignore[arg-type]
    report = driver.finish(wanted)
    assert report.phase == AttemptPhase.REFUSED
    assert report.error.startswith(f"{field}: ")
    assert not report.is_retryable


def test_a_checkpoint_folder_outside_the_workloads_own_is_refused(driver: Driver) -> None:
    wanted = spec("true")
    outside = replace(wanted.checkpoint, subfolder="../../../../etc")
    report = driver.finish(replace(wanted, checkpoint=outside))
    assert report.phase == AttemptPhase.REFUSED
    assert "'../../../../etc'" in report.error
    assert not report.is_retryable


def test_given_environment_never_replaces_allots_own(driver: Driver) -> None:
    wanted = spec("bash", "-c", "echo $COLOUR $ALLOT_GPU_MILLI $OMP_NUM_THREADS", cpu_milli=1500)
    given = {"COLOUR": "red", "ALLOT_GPU_MILLI": "4000"}
    assert driver.output(replace(wanted, env=given, devices=[a_third()])) == "red 333 2\n"


def busy_s() -> float:
    """Seconds that all cores together have worked since the machine started."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.steal


@pytest.mark.parametrize("cores", [0.25, 0.5, pytest.param(2.0, marks=pytest.mark.alone)])
def test_four_busy_processes_get_exactly_the_cores_of_the_limit(
    driver: Driver, cores: float
) -> None:
    """Never more in any second, and exactly that in one that leaves it so much.

    Other tests share the machine's cores, so not every second does. Where the limit is the whole
    machine, what everybody else used in that second is all that it may lack.
    """
    burn = "for i in 1 2 3 4; do python -c 'while True: pass' & done; wait"
    wanted = spec("bash", "-c", burn, cpu_milli=int(cores * 1000))
    driver.want(wanted)
    driver.until_phase(wanted, AttemptPhase.RUNNING)
    usage = driver.runner.attempts[wanted.attempt_id].usage()
    if cores < (os.cpu_count() or 1):
        driver.until(lambda: (usage.throttled_s() or 0) > 0)

    def cores_of_a_second() -> tuple[float, float]:
        """Used by the workload, and by everybody on the machine."""
        before, began, machine = usage.cpu_usage_s() or 0, time.monotonic(), busy_s()
        time.sleep(1)
        length = time.monotonic() - began
        return ((usage.cpu_usage_s() or 0) - before) / length, (busy_s() - machine) / length

    def is_exact() -> bool:
        used, machine = cores_of_a_second()
        assert used <= cores + 0.05
        others = machine - used if cores >= (os.cpu_count() or 1) else 0
        return used >= cores - others - 0.05

    driver.until(is_exact)


def test_two_cores_are_written_as_exactly_two_cores(driver: Driver) -> None:
    wanted = spec("sleep", "60", cpu_milli=2000)
    driver.want(wanted)
    driver.until_phase(wanted, AttemptPhase.RUNNING)
    assert driver.isolation.cgroups is not None
    cgroup = driver.isolation.cgroups.cgroup(wanted.attempt_id)
    assert cgroup.cpu_limit_milli() == 2000
    assert cgroup.memory_limit_mib() == 512


def test_allocating_beyond_the_memory_limit_is_killed_and_told_with_limit_and_peak(
    driver: Driver,
) -> None:
    report = driver.finish(spec("python", "-c", "b = bytearray(10**9)", memory_mib=128))
    assert report.exit_cause == ExitCause.OUT_OF_MEMORY
    assert report.exit_code == 128 + 9
    assert report.memory_limit_mib == 128
    assert report.peak_memory_mib is not None
    assert 120 <= report.peak_memory_mib <= 128


def test_what_a_program_leaves_running_ends_with_it(driver: Driver) -> None:
    wanted = spec("bash", "-c", "setsid sleep 1000 & echo $!; sleep 0.2")
    driver.finish(wanted)
    assert not driver.isolation.cgroups or wanted.attempt_id not in driver.isolation.cgroups.names()


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace(driver: Driver) -> None:
    wanted = spec("bash", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done", grace_s=1.0)
    driver.want(wanted)
    driver.until_logged(wanted, "up")
    driver.want(replace(wanted, goal=Goal.STOP))
    report = driver.until_phase(wanted, *FINAL)
    assert (report.exit_code, report.exit_cause) == (128 + 9, ExitCause.STOPPED)


def test_what_the_orchestrator_no_longer_lists_is_stopped(driver: Driver) -> None:
    wanted = spec("sleep", "1000")
    driver.want(wanted)
    driver.until_phase(wanted, AttemptPhase.RUNNING)
    del driver.wanted[wanted.attempt_id]
    driver.apply()
    report = driver.until_phase(wanted, *FINAL)
    assert report.exit_cause == ExitCause.STOPPED


def test_a_stop_before_the_start_starts_nothing(driver: Driver) -> None:
    report = driver.finish(spec("touch", "started", goal=Goal.STOP))
    assert (report.exit_cause, report.exit_code) == (ExitCause.STOPPED, None)


def test_a_settled_attempt_keeps_its_log_and_never_runs_again(driver: Driver) -> None:
    wanted = spec("echo", "hello")
    driver.finish(wanted)
    driver.until(lambda: driver.settled(wanted))
    driver.apply()
    assert not driver.runner.attempts
    assert driver.log(wanted) == "hello\n"


def test_a_log_that_grows_too_long_loses_its_older_part_and_says_so(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduling.agent.launch.LOG_LIMIT_BYTES", 100_000)
    wanted = spec("bash", "-c", "seq 100000; sleep 2; echo end")
    output = driver.output(wanted)
    assert re.match(r"\[allot\] the log had reached its limit of 0.0\d* MiB: the older", output)
    assert output.endswith("100000\nend\n")


def test_a_workload_ends_when_its_folder_is_deleted(driver: Driver) -> None:
    wanted = spec("sleep", "1000", kind="interactive")
    driver.want(wanted)
    pid = driver.until_phase(wanted, AttemptPhase.RUNNING).pid
    shutil.rmtree(driver.site.folders.attempt(wanted.attempt_id))
    assert pid is not None
    deadline = time.monotonic() + 30
    while processes.start_ticks(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes.start_ticks(pid) is None


def test_the_programs_pid_is_the_machines(driver: Driver) -> None:
    wanted = spec("sleep", "1000")
    driver.want(wanted)
    report = driver.until_phase(wanted, AttemptPhase.RUNNING)
    assert report.pid in processes.children()[driver.shim_pid(wanted)]


def test_no_device_is_given_twice_whatever_is_ordered(driver: Driver) -> None:
    half = replace(a_third(), gpu_milli=500)
    first, second = spec("sleep", "1000", devices=[half]), spec("sleep", "1000", devices=[half])
    third = spec("true", devices=[replace(half, gpu_milli=1)])
    driver.want(first, second)
    driver.until_phase(second, AttemptPhase.RUNNING)
    driver.want(third)
    driver.apply()
    assert driver.report(third).phase == AttemptPhase.STARTING
    assert not driver.runner.attempts[third.attempt_id].holds_devices
    never = spec("true", devices=[half])
    driver.want(never)
    del driver.wanted[never.attempt_id]
    driver.want(replace(first, goal=Goal.STOP))
    assert driver.until_phase(never, *FINAL).exit_cause == ExitCause.STOPPED
    driver.until_phase(first, *FINAL)
    driver.apply()
    assert driver.until_phase(third, *FINAL).exit_code == 0
