"""What a workload sees of the machine."""

from __future__ import annotations

from pathlib import Path

from scheduling.agent import jupyter
from scheduling.agent.folders import WORK
from scheduling.agent.homes import Person
from scheduling.agent.namespaces import HIDDEN, INSIDE, Bind, View
from scheduling.agent.protocol import AttemptSpec
from scheduling.agent.site import Site

_TEMPORARY = ("/tmp", "/var/tmp")


def attempt_view(
    site: Site, spec: AttemptSpec, who: Person, home: Path, more: tuple[Bind, ...]
) -> View:
    """What the workload sees of the machine."""
    attempt = site.folders.attempt(spec.attempt_id)
    own = str(INSIDE / "own")
    binds = [
        *(Bind(str(attempt / "tmp"), folder, is_read_only=False) for folder in _TEMPORARY),
        *_visible(site),
        Bind(str(home), f"/home/{who.owner}", is_read_only=False),
        Bind(str(attempt / WORK), str(INSIDE / "attempt"), is_read_only=False),
        Bind(str(attempt / "control"), str(INSIDE / "control")),
        Bind(str(attempt / "own"), own),
        Bind(str(site.tools), str(INSIDE / "lib")),
        Bind(str(attempt / "own" / "passwd"), "/etc/passwd"),
        Bind(str(attempt / "own" / "group"), "/etc/group"),
        *more,
    ]
    additions = {"/etc/profile.d": {"allot-workload.sh": f"{own}/profile.sh"}}
    overlays = {}
    if site.is_simulated(spec.node):
        additions["/usr/local/bin"] = {"nvidia-smi": f"{own}/bin/nvidia-smi"}
        # Where drivers have it, and where it is found without a PATH.
        overlays["/usr/bin"] = f"{own}/bin"
    if spec.tool == jupyter.TOOL:
        session = site.folders.session(spec.attempt_id)
        binds.append(Bind(str(session), str(INSIDE / "session"), is_read_only=False))
    files = [name for device in spec.devices for name in site.device_files.get(device.uuid, ())]
    return View(
        hidden=_hidden(site),
        binds=tuple(binds),
        additions=additions,
        overlays=overlays,
        devices=tuple(dict.fromkeys(files)),
        shm_mib=spec.memory_mib,
    )


def person_view(site: Site, who: Person, home: Path) -> View:
    """What any workload of a person sees, for a look before one is accepted."""
    return View(
        hidden=(*_hidden(site), *_TEMPORARY),
        binds=(*_visible(site), Bind(str(home), f"/home/{who.owner}")),
    )


def _hidden(site: Site) -> tuple[str, ...]:
    return str(site.folders.var), str(site.folders.run)


def _visible(site: Site) -> list[Bind]:
    """The workloads' environment and its interpreter, where they lie in a hidden folder."""
    interpreter = site.workload_python.resolve().parent.parent
    hidden = [Path(folder).resolve() for folder in (*HIDDEN, *_TEMPORARY, *_hidden(site))]
    return [
        Bind(str(path), str(path))
        for path in (site.environment, interpreter)
        if any(path.is_relative_to(folder) for folder in hidden)
    ]
