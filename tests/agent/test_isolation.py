"""Two researchers on one node: neither reaches anything of the other's, nor of Allot's."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from scheduling.agent.protocol import AttemptPhase
from tests.agent.driver import Driver, a_third, bob, spec

SECRET = "a-secret-of-anns"


@pytest.fixture
def ann(driver: Driver) -> Driver:
    """Ann has a file, a variable, a listening socket and a process."""
    keeps = (
        "umask 0; for folder in . /tmp /dev/shm $ALLOT_CHECKPOINT_DIR; do "
        "echo $PASSWORD > $folder/mine; done; chmod 777 .; echo up; sleep 1000"
    )
    wanted = replace(spec("bash", "-c", keeps), env={"PASSWORD": SECRET})
    driver.want(wanted)
    driver.until_phase(wanted, AttemptPhase.RUNNING)
    driver.until_logged(wanted, "up")
    return driver


def from_bob(driver: Driver, script: str) -> str:
    """What a script of Bob's sees."""
    return driver.output(bob(spec("bash", "-c", script)))


def test_files_cannot_be_found_by_any_path(ann: Driver) -> None:
    home = ann.site.folders.home("vision", "ann")
    attempt = next(iter(ann.runner.attempts.values())).folder
    real = [home / "mine", attempt / "work" / "checkpoints" / "mine", attempt / "launch.json"]
    assert all(path.exists() for path in real)
    paths = [*map(str, real), "/home/ann/mine", "/tmp/mine", "/dev/shm/mine"]
    output = from_bob(ann, "; ".join(f"cat {shlex.quote(path)}" for path in paths))
    assert SECRET not in output
    assert output.count("No such file") + output.count("denied") == len(paths)


def test_processes_are_not_seen_and_their_environment_is_not_read(ann: Driver) -> None:
    output = from_bob(
        ann, "cat /proc/*/environ /proc/*/cmdline; ls /proc | grep -c '^[0-9]'; ps ax"
    )
    assert SECRET not in output
    assert "sleep 1000" not in output
    # Even the shim's own, which knows what Bob asked for.
    assert "denied" in output


def test_nobody_becomes_somebody_else(ann: Driver) -> None:
    output = from_bob(
        ann, "su -c id; setpriv --reuid 200001 id; kill -9 1; mount -t tmpfs x /mnt; id -u"
    )
    assert "uid=0" not in output
    assert "uid=200001" not in output
    assert output.rstrip().endswith("200002")


def test_allots_own_folders_are_empty_inside(ann: Driver) -> None:
    token = ann.site.folders.var / "agent-token"
    token.write_text(SECRET)
    (ann.site.folders.run / "relay.sock").touch()
    var, run = ann.site.folders.var, ann.site.folders.run
    output = from_bob(ann, f"cat {token}; ls -A {var} {run} /root; ls -A /home")
    assert SECRET not in output
    assert "relay.sock" not in output
    assert output.rstrip().endswith("bob")


def test_the_machine_itself_stays_as_it_was(ann: Driver) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    assert "/run/allot" not in mounts
    assert not os.path.exists("/run/allot")
    assert not os.path.exists("/usr/local/bin/nvidia-smi")
    assert " /usr/bin overlay " not in mounts


def test_a_workload_without_a_gpu_sees_no_device_files(ann: Driver) -> None:
    output = from_bob(ann, "ls /dev; echo data > /dev/null && tty < /dev/ptmx; echo $?")
    assert "nvidia" not in output
    assert "vda" not in output
    assert "null" in output


@pytest.mark.parametrize(
    "command",
    [
        "nvidia-smi",
        "bash -lc nvidia-smi",
        "env -i /bin/bash -lc nvidia-smi",
        "env -i /bin/bash -c nvidia-smi",
        "env -i nvidia-smi",
        "PATH=/usr/bin:/bin nvidia-smi",
        "/usr/bin/nvidia-smi",
        "env ALLOT_DEVICES= ALLOT_GPU_MILLI=1000 PYTHONPATH=/tmp nvidia-smi",
    ],
)
def test_nvidia_smi_shows_one_simulated_device_of_exactly_the_share(
    driver: Driver, command: str
) -> None:
    output = driver.output(replace(spec("bash", "-c", command), devices=[a_third()]))
    assert "0MiB / 4967MiB" in output
    assert "simulated" in output
    assert output.count("Tesla T4") == 1


def test_the_machines_programs_stay_what_they_are_beside_it(driver: Driver) -> None:
    script = "ls /usr/bin | grep -vx nvidia-smi; stat -c '%a %u' /usr/bin/su; rm -f /usr/bin/env"
    output = driver.output(replace(spec("bash", "-c", script), devices=[a_third()])).splitlines()
    there = sorted(name for name in os.listdir("/usr/bin") if name != "nvidia-smi")
    assert sorted(output[: len(there)]) == there
    mode = os.stat("/usr/bin/su").st_mode & 0o7777
    assert output[len(there)] == f"{mode:o} 0"
    assert "Read-only" in output[-1] or "denied" in output[-1]


def test_people_make_environments_of_their_own(driver: Driver) -> None:
    script = "python -m venv ~/env && ~/env/bin/pip --version"
    output = driver.output(spec("bash", "-c", script))
    assert "from /home/ann/env/lib/" in output


def test_nvidia_smi_answers_queries_as_programs_ask_them(driver: Driver) -> None:
    script = (
        "nvidia-smi --query-gpu=index,name,memory.total --format=csv,noheader,nounits; "
        "nvidia-smi --query-gpu=memory.total,utilization.gpu --format=csv; nvidia-smi -L; "
        "nvidia-smi -q; nvidia-smi --query-gpu=colour --format=csv; echo $?"
    )
    output = driver.output(replace(spec("bash", "-c", script), devices=[a_third()]))
    lines = output.splitlines()
    assert lines[:4] == [
        "0, Tesla T4, 4967",
        "memory.total [MiB], utilization.gpu [%]",
        "4967 MiB, 0 %",
        f"GPU 0: Tesla T4 (simulated) (UUID: {a_third().uuid})",
    ]
    assert lines[-2:] == ['Field "colour" is not a valid field to query.', "2"]


def test_nvidia_smi_finds_no_device_where_none_was_granted(driver: Driver) -> None:
    assert driver.output(spec("bash", "-c", "nvidia-smi; echo $?")) == "No devices were found\n6\n"


def test_login_shells_find_the_workloads_python(driver: Driver) -> None:
    output = driver.output(
        spec("bash", "-c", "bash -lc 'python -c \"import numpy, sys; print(sys.prefix)\"'")
    )
    assert output.rstrip().endswith(".venv-workload")
