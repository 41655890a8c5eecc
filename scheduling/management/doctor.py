"""What this machine offers Allot and lacks; each thing is tried, not looked up.

A finding that lacks something carries its remedy. Only some are required: without a GPU,
namespaces or cgroups Allot runs, with less. No question to a database.
"""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pynvml
import redis

from scheduling.agent import isolation
from scheduling.agent.cgroups import Limits, detect
from scheduling.agent.folders import Folders
from scheduling.agent.fraction import build
from scheduling.agent.fraction.mechanism import CHECKPOINT_DRIVER, TURING, Facts, choose
from scheduling.agent.fraction.simulated import DRIVER
from scheduling.management import embedded
from scheduling.texts.mechanisms import describe_fraction, describe_swap

# Debian and Ubuntu name it differently.
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
# Below this a checkpoint or two fill the disk.
MIN_FREE_GIB = 5
# An unprivileged user; nobody in particular.
OTHER_UID = 65534
TRY_LIMIT_S = 20.0
# <sys/timex.h>: what adjtimex answers when nothing synchronises the clock.
TIME_ERROR = 5
TIMEX_BYTES = 208


@dataclass(frozen=True, slots=True)
class Installation:
    """Where this copy of Allot keeps its things, and which servers it uses."""

    var: Path
    run: Path
    workload_python: Path
    database_url: str
    redis_url: str
    has_embedded_database: bool
    has_embedded_redis: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what is there, and what to do where it is lacking."""

    name: str
    is_ok: bool
    text: str
    remedy: str = ""
    # Whether Allot cannot run without it.
    is_required: bool = False

    @property
    def verdict(self) -> str:
        """Return the one word for it."""
        return "ok" if self.is_ok else "lacking"


@dataclass(frozen=True, slots=True)
class _Gpu:
    name: str
    driver: int
    capability: tuple[int, int]
    has_mig: bool


def examine(installation: Installation) -> Iterator[Finding]:
    """Look at everything, in the order in which it matters."""
    yield _python()
    yield _workloads(installation)
    yield _postgres(installation)
    yield _redis(installation)
    yield _disk(installation)
    yield _clock()
    with _nvml() as gpus:
        yield _gpus(gpus)
        yield from _mechanisms(gpus, installation)
    yield _cgroups()
    yield from _namespaces()
    yield _identities()
    yield _isolation(installation)
    yield _chromium()


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(
        "Python",
        (3, 11) <= sys.version_info < (3, 14),
        f"{version}, {sys.executable}",
        "use Python 3.11 to 3.13: make PYTHON=python3.13 setup",
        is_required=True,
    )


def _workloads(installation: Installation) -> Finding:
    python = installation.workload_python
    asked = _try(
        *_as_other_user(),
        str(python),
        "-c",
        "import jupyterlab, sys; print(jupyterlab.__version__, sys.version.split()[0])",
    )
    if asked.is_ok:
        jupyter, version = asked.text.split()
        return Finding("workload environment", True, f"JupyterLab {jupyter}, Python {version}")
    if not python.exists():
        return Finding(
            "workload environment", False, f"{python} is not there", "make setup", is_required=True
        )
    return Finding(
        "workload environment",
        False,
        f"other users cannot run {python}: {asked.text}",
        "put the repository and the Python where every user may pass, or rely on the agent's "
        "private view of the files, which needs namespaces (below)",
    )


def _postgres(installation: Installation) -> Finding:
    if installation.has_embedded_database:
        try:
            version = embedded.postgres_version(installation.var / "postgres")
        except embedded.EmbeddedServerError as error:
            return Finding("PostgreSQL", False, str(error), "see the text", is_required=True)
        return Finding("PostgreSQL", True, f"embedded, {version}")
    try:
        with psycopg.connect(installation.database_url, connect_timeout=5) as connection:
            number = connection.info.server_version
    except psycopg.Error as error:
        return Finding(
            "PostgreSQL",
            False,
            f"ALLOT_DATABASE_URL does not answer: {_first_line(error)}",
            "start it, or correct the address",
            is_required=True,
        )
    return Finding(
        "PostgreSQL",
        number >= 150000,
        f"version {number // 10000} answers at ALLOT_DATABASE_URL",
        "use PostgreSQL 15 or newer",
        is_required=True,
    )


def _redis(installation: Installation) -> Finding:
    if installation.has_embedded_redis:
        try:
            return Finding("Redis", True, f"embedded, {embedded.valkey_version()}")
        except embedded.EmbeddedServerError as error:
            return Finding("Redis", False, str(error), "see the text", is_required=True)
    try:
        with redis.Redis.from_url(installation.redis_url, socket_connect_timeout=5) as client:
            client.ping()
    except redis.RedisError as error:
        return Finding(
            "Redis",
            False,
            f"ALLOT_REDIS_URL does not answer: {_first_line(error)}",
            "start it, or correct the address",
            is_required=True,
        )
    return Finding("Redis", True, "answers at ALLOT_REDIS_URL")


def _disk(installation: Installation) -> Finding:
    folder = installation.var
    while not folder.exists():
        folder = folder.parent
    free_gib = shutil.disk_usage(folder).free / 2**30
    can_write = os.access(folder, os.W_OK)
    return Finding(
        "disk",
        can_write and free_gib >= MIN_FREE_GIB,
        f"{free_gib:.0f} GiB free below {folder}" + ("" if can_write else ", not writable"),
        f"free {MIN_FREE_GIB} GiB, or name another data folder in ALLOT_VAR",
        is_required=True,
    )


def _clock() -> Finding:
    """Ask the kernel whether something keeps the clock right."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    return Finding(
        "clock",
        0 <= state != TIME_ERROR,
        "synchronised" if 0 <= state != TIME_ERROR else "nothing synchronises it, says the kernel",
        "with more than one machine run chrony or systemd-timesyncd: leases and charts need "
        "clocks that agree to a second",
    )


@contextmanager
def _nvml() -> Iterator[list[_Gpu]]:
    """Find NVIDIA devices; an empty list without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield []
        return
    try:
        driver = int(pynvml.nvmlSystemGetDriverVersion().split(".")[0])
        yield [_gpu(index, driver) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int, driver: int) -> _Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    capability: Any = pynvml.nvmlDeviceGetCudaComputeCapability(handle)  # pynvml has no types
    try:
        has_mig = pynvml.nvmlDeviceGetMigMode(handle)[0] == 1
    except pynvml.NVMLError:
        has_mig = False
    return _Gpu(pynvml.nvmlDeviceGetName(handle), driver, tuple(capability), has_mig)


def _gpus(gpus: list[_Gpu]) -> Finding:
    names = [gpu.name for gpu in gpus]
    counted = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    return Finding(
        "GPUs",
        bool(gpus),
        f"{counted}, driver {gpus[0].driver}" if gpus else "no NVIDIA device answers through NVML",
        "install NVIDIA's driver; until then the agent offers simulated devices, marked so",
    )


def _mechanisms(gpus: list[_Gpu], installation: Installation) -> Iterator[Finding]:
    """What holds fractions here and what swaps, as the agent chooses it; the latter without why."""
    found = isolation.probe(Folders(installation.var, installation.run))
    hierarchy = found.cgroups
    lacking = _lacking_libraries()
    facts = Facts(
        driver=min((gpu.driver for gpu in gpus), default=int(DRIVER.split(".")[0])),
        capability=min((gpu.capability for gpu in gpus), default=TURING),
        has_mig=any(gpu.has_mig for gpu in gpus),
        has_cgroup_v2=hierarchy is not None and hierarchy.version == 2,
        can_mount=found.has_namespaces,
        why_not_built=lacking.code if lacking else "",
        is_x86=platform.machine() == "x86_64",
    )
    if hierarchy is not None:
        hierarchy.leave()
    choice = choose(facts)
    where = "" if gpus else "on simulated devices: "
    yield Finding(
        "fractions",
        choice.fraction != "none",
        where
        + describe_fraction(choice.fraction, choice.fraction_note, shares_time=choice.shares_time),
        f"{lacking or ''}; or put prebuilt libraries there: docs/fractions.md",
    )
    yield Finding(
        "Swap",
        choice.swap != "none",
        where + describe_swap(choice.swap, choice.swap_note),
        f"NVIDIA driver {CHECKPOINT_DRIVER} or newer, and no MIG",
    )


def _lacking_libraries() -> build.BuildError | None:
    try:
        build.check()
    except build.BuildError as error:
        return error
    return None


def _cgroups() -> Finding:
    """Make a cgroup with limits, and remove it."""
    name = f"allot-doctor-{os.getpid()}"
    remedy = (
        "run the agent as root, or (version 2) delegate cpu, memory and pids to it: Delegate=yes "
        "in its service unit; until then memory is watched instead of limited"
    )
    hierarchy = detect(name)
    if hierarchy is None:
        return Finding("cgroups", False, "none can be written with cpu, memory and pids", remedy)
    cgroup = hierarchy.cgroup("tried")
    try:
        cgroup.create(Limits(cpu_milli=1000, memory_mib=64))
        is_limited = cgroup.cpu_limit_milli() == 1000 and cgroup.memory_limit_mib() == 64
    except OSError as error:
        return Finding(
            "cgroups",
            False,
            f"version {hierarchy.version} refuses limits: {error.strerror}",
            remedy,
        )
    finally:
        cgroup.remove()
        for parent in hierarchy.parents:
            if parent.is_dir():
                parent.rmdir()
    text = f"version {hierarchy.version}; cpu, memory and pids limits hold"
    return Finding("cgroups", is_limited, text, remedy)


def _namespaces() -> Iterator[Finding]:
    remedy = "run the agent as root, outside a container or in one that allows unshare and mount"
    for name, options in (
        ("user namespace", ("--user", "--map-root-user")),
        ("mount namespace", ("--mount",)),
        ("PID namespace", ("--pid", "--fork", "--mount-proc")),
    ):
        tried = _try("unshare", *options, "--", "true")
        yield Finding(name, tried.is_ok, "works" if tried.is_ok else tried.text, remedy)


def _identities() -> Finding:
    tried = _try("setpriv", *_OTHER_USER, "id", "-u")
    works = tried.is_ok and tried.text == str(OTHER_UID)
    return Finding(
        "other users",
        works,
        "programs can run as another user" if works else f"not as us: {tried.text}",
        "run the agent as root; until then all workloads run as the agent's own user",
    )


def _isolation(installation: Installation) -> Finding:
    found = isolation.probe(Folders(installation.var, installation.run))
    return Finding(
        "isolation",
        found.is_complete,
        "workloads can neither see nor starve each other" if found.is_complete else found.note,
        "see cgroups, namespaces and other users; the node is marked not isolated until then",
    )


def _chromium() -> Finding:
    paths: Iterator[str | None] = map(shutil.which, CHROMIUM_NAMES)
    path = next(filter(None, paths), None)
    return Finding(
        "Chromium for tests",
        path is not None,
        path or "not found",
        "apt-get install --no-install-recommends chromium; only the end-to-end tests need it",
    )


@dataclass(frozen=True, slots=True)
class _Tried:
    is_ok: bool
    text: str


_OTHER_USER = (f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups", "--")


def _as_other_user() -> tuple[str, ...]:
    return ("setpriv", *_OTHER_USER) if os.geteuid() == 0 else ()


def _try(*command: str) -> _Tried:
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=TRY_LIMIT_S,
            # A folder where every user may be.
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _Tried(False, _first_line(error))
    text = done.stdout.strip() if done.returncode == 0 else done.stderr.strip()
    return _Tried(done.returncode == 0, text.splitlines()[-1] if text else "")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
