"""From an attempt's order to what its shim carries out: folders, environment, view, identity.

The orchestrator's `AttemptSpec` speaks of projects and GPUs; `launch.json` speaks of uids, mounts
and argv. Only this module, with `homes` and `views`, knows how one becomes the other; everything
here may be done twice.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scheduling.agent import crew, jupyter
from scheduling.agent import folders as on_disk
from scheduling.agent.folders import PROGRESS, WORK, opened, safe_name
from scheduling.agent.fraction.install import Installed
from scheduling.agent.fraction.limits import LimitsError
from scheduling.agent.homes import Person, make_home, person
from scheduling.agent.namespaces import INSIDE
from scheduling.agent.protocol import AttemptSpec
from scheduling.agent.site import Site
from scheduling.agent.views import attempt_view

LOG_LIMIT_BYTES = 64 * 2**20
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Libraries that would otherwise start a thread per core of the machine.
_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                  "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")  # fmt: skip


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class RefusedError(Exception):
    """The order cannot be carried out; trying again as it is will not help."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the workload itself sees its things; the machine's own paths without namespaces."""

    home: Path
    work: Path
    control: Path
    session: Path
    tools: Path
    own: Path


def places(site: Site, who: Person, attempt_id: str) -> Places:
    """Name the places of an attempt."""
    if site.isolation.has_namespaces:
        return Places(
            home=Path("/home") / who.owner,
            work=INSIDE / "attempt",
            control=INSIDE / "control",
            session=INSIDE / "session",
            tools=INSIDE / "lib",
            own=INSIDE / "own",
        )
    attempt = site.folders.attempt(attempt_id)
    return Places(
        home=site.folders.home(who.project, who.owner),
        work=attempt / WORK,
        control=attempt / "control",
        session=site.folders.session(attempt_id),
        tools=site.tools,
        own=attempt / "own",
    )


# ---------------------------------------------------------------- folders


def make_folders(site: Site, spec: AttemptSpec, who: Person) -> Path:
    """Make everything that the attempt's folder holds before the workload starts; its path."""
    attempt = site.folders.attempt(spec.attempt_id)
    for name, mode in ((WORK, 0o755), ("control", 0o755), ("own", 0o755), ("own/bin", 0o755)):
        (attempt / name).mkdir(parents=True, exist_ok=True)
        (attempt / name).chmod(mode)
    attempt.chmod(0o700 if site.isolation.has_namespaces else 0o711)
    owned = [attempt / WORK / PROGRESS]
    owned.append(attempt / WORK / spec.checkpoint.subfolder)
    if spec.tool == jupyter.TOOL:
        owned.append(site.folders.session(spec.attempt_id))
    for folder in owned:
        if not folder.is_dir():
            _make_owned(site, who, folder)
    temporary = attempt / "tmp"
    temporary.mkdir(exist_ok=True)
    temporary.chmod(0o1777)
    _write_own_files(site, spec, who, attempt / "own")
    return attempt


def _make_owned(site: Site, who: Person, folder: Path) -> None:
    missing = [folder]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for part in reversed(missing):
        part.mkdir(mode=0o700)
        if site.isolation.has_identities:
            os.chown(part, who.uid, who.gid)


def _write_own_files(site: Site, spec: AttemptSpec, who: Person, own: Path) -> None:
    where = places(site, who, spec.attempt_id)
    devices = {"node": spec.node, "devices": [asdict(device) for device in spec.devices]}
    path = shlex.quote(f"{site.environment / 'bin'}:{where.own / 'bin'}")
    texts = {
        "devices.json": json.dumps(devices),
        "profile.sh": f"# Login shells set PATH anew.\nPATH={path}:$PATH\nexport PATH\n",
        "passwd": _with_line(
            "/etc/passwd", f"{who.owner}:x:{who.uid}:{who.gid}::{where.home}:/bin/bash"
        ),
        "group": _with_line("/etc/group", f"{who.project}:x:{who.gid}:"),
    }
    for name, text in texts.items():
        file = own / name
        file.write_text(text)
        file.chmod(0o644)


def _install(site: Site, spec: AttemptSpec, attempt: Path, where: Places) -> Installed:
    """Put its share of the devices into the attempt's folder.

    Raises:
        RefusedError: a device is gone, or the share is nothing.
    """
    installed = Installed()
    if site.fractions is not None:
        try:
            installed = site.fractions.install(spec, attempt)
        except LimitsError as error:
            raise RefusedError(str(error)) from error
    if site.is_simulated(spec.node):
        # Where nothing can be mounted it needs the same variables, whatever the caller's are.
        variables = [f"{name}={value}" for name, value in installed.environment.items()]
        command = [str(site.workload_python), "-IS", str(where.tools / "nvidia_smi.py")]
        words = shlex.join(["env", *variables, *command] if variables else command)
        script = attempt / "own" / "bin" / "nvidia-smi"
        script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        script.chmod(0o755)
    return installed


def _with_line(path: str, line: str) -> str:
    text = Path(path).read_text() if os.path.exists(path) else ""
    return f"{text.rstrip()}\n{line}\n".lstrip()


# ---------------------------------------------------------------- the launch


def is_outside(subfolder: str) -> bool:
    """Whether a checkpoint folder would not lie in the workload's own folder."""
    path = Path(subfolder)
    return not path.parts or path.is_absolute() or ".." in path.parts


def check(spec: AttemptSpec) -> None:
    """Refuse what no second try can make right.

    Raises:
        RefusedError: says which field, which value and why.
    """
    subfolder = spec.checkpoint.subfolder
    if is_outside(subfolder):
        raise RefusedError(
            f"checkpoint.subfolder: {subfolder!r} lies outside the workload's folder"
        )
    if spec.checkpoint.signal not in signal.Signals.__members__:
        raise RefusedError(f"checkpoint.signal: {spec.checkpoint.signal!r} is no signal's name")
    if spec.tool not in ("", jupyter.TOOL):
        raise RefusedError(f"tool: {spec.tool!r} is not known to this agent")
    if not spec.command and spec.tool != jupyter.TOOL:
        raise RefusedError("command: is empty")
    texts = {"command": spec.command, "working_dir": [spec.working_dir], "env": spec.env.values()}
    for name, values in texts.items():
        if any("\0" in value for value in values):
            raise RefusedError(f"{name}: contains a zero byte")
    for name in spec.env:
        if not _VARIABLE.fullmatch(name):
            raise RefusedError(f"env: {name[:80]!r} is no name of an environment variable")


def write_launch(site: Site, spec: AttemptSpec, lease_s: float) -> Path:
    """Make the attempt's folders and write its `launch.json`; the folder's path.

    Args:
        site: This agent.
        spec: What is wanted; checked.
        lease_s: How long a training may go on without the agent; sessions have no lease.
    """
    who = person(spec)
    home = make_home(site, who)
    attempt = make_folders(site, spec, who)
    where = places(site, who, spec.attempt_id)
    installed = _install(site, spec, attempt, where)
    launch = {
        "argv": _argv(site, spec, where),
        "env": environment(site, spec, where) | dict(installed.environment),
        "cwd": str(where.home / spec.working_dir),
        "cwd_as_given": spec.working_dir or "the home folder",
        "uid": who.uid,
        "gid": who.gid,
        "use_identity": site.isolation.has_identities,
        "use_namespaces": site.isolation.has_namespaces,
        "view": asdict(attempt_view(site, spec, who, home, installed.binds)),
        "driver_limits": dict(installed.driver_limits),
        "cgroup": _cgroup(site, spec.attempt_id),
        "cpu_milli": spec.cpu_milli,
        "memory_mib": spec.memory_mib,
        "grace_s": spec.grace_s,
        "lease_s": lease_s if spec.kind == "training" else 0,
        "log_limit_bytes": LOG_LIMIT_BYTES,
        "is_leader": crew.is_leader(spec),
        "checkpoint": {
            "mode": spec.checkpoint.mode,
            "signum": int(signal.Signals[spec.checkpoint.signal]),
            "is_server": spec.tool == jupyter.TOOL,
            "command": spec.checkpoint.command,
            "subfolder": spec.checkpoint.subfolder,
        },
    }
    with opened(attempt) as fd:
        on_disk.write_json(on_disk.LAUNCH, launch, dir_fd=fd)
    return attempt


def _argv(site: Site, spec: AttemptSpec, where: Places) -> list[str]:
    if spec.tool == jupyter.TOOL:
        return jupyter.argv(
            python=site.workload_python,
            socket=where.session / jupyter.SOCKET,
            home=where.home,
            base_url=spec.base_url,
            has_private_paths=site.isolation.has_namespaces,
        )
    return list(spec.command)


def _cgroup(site: Site, attempt_id: str) -> dict[str, Any] | None:
    hierarchy = site.isolation.cgroups
    if hierarchy is None:
        return None
    return {
        "version": hierarchy.version,
        "parents": [str(parent) for parent in hierarchy.parents],
        "name": safe_name(attempt_id, "attempt"),
    }


def search_path(site: Site, where: Places) -> str:
    """Where a workload's commands are looked for."""
    return f"{site.environment / 'bin'}:{where.own / 'bin'}:{_SYSTEM_PATH}"


def environment(site: Site, spec: AttemptSpec, where: Places) -> dict[str, str]:
    """The workload's environment: our defaults, then the person's, then what must hold."""
    python_path = [str(where.tools), *filter(None, [spec.env.get("PYTHONPATH")])]
    threads = str(max(1, math.ceil(spec.cpu_milli / 1000)))
    who = person(spec)
    defaults = {
        "PATH": search_path(site, where),
        "VIRTUAL_ENV": str(site.environment),
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "PYTHONUNBUFFERED": "1",
        **dict.fromkeys(_THREAD_COUNTS, threads),
    }
    defaults |= crew.default_environment(spec)
    if not site.isolation.has_namespaces:
        defaults["TMPDIR"] = str(site.folders.attempt(spec.attempt_id) / "tmp")
    given = {name: value for name, value in spec.env.items() if not name.startswith("ALLOT_")}
    fixed = {
        "HOME": str(where.home),
        "USER": who.owner,
        "LOGNAME": who.owner,
        "PYTHONPATH": os.pathsep.join(python_path),
        "ALLOT_WORKLOAD": spec.workload_id,
        "ALLOT_ATTEMPT": spec.attempt_id,
        "ALLOT_PROJECT": spec.project,
        **crew.fixed_environment(spec, where.control),
        "ALLOT_GPU_MILLI": str(sum(device.gpu_milli for device in spec.devices)),
        "ALLOT_DEVICES": ",".join(f"{device.uuid}:{device.gpu_milli}" for device in spec.devices),
        "ALLOT_PROGRESS_FILE": str(where.work / PROGRESS / "progress.json"),
        "ALLOT_CONTROL_FILE": str(where.control / "control.json"),
        "CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in spec.devices),
    }
    fixed["ALLOT_CHECKPOINT_DIR"] = str(where.work / spec.checkpoint.subfolder)
    if spec.checkpoint.every_s:
        fixed["ALLOT_CHECKPOINT_EVERY_S"] = f"{spec.checkpoint.every_s:g}"
    if spec.tool == jupyter.TOOL:
        fixed |= jupyter.environment(spec.session_secret, where.session)
    return defaults | given | fixed
