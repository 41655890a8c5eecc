"""The world as one workload sees it: its own /tmp, /dev, /proc and homes, and nothing of Allot's.

A process that is about to become a workload (or to check something in its place) calls `enter`
after it has left its PID namespace. Every change is made in a private mount namespace, so the
machine itself never sees any; mount points that are missing are made in empty file systems laid
over the hidden folders. Python 3.11 has no `unshare` and never had `mount`, hence ctypes.
Standard library only, since the shim starts with nothing else.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# <sched.h>, <sys/mount.h>, <sys/prctl.h>
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x00020000, 0x08000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38

# Of Allot's own things inside; below a hidden folder, so that nothing is made on the machine.
INSIDE = Path("/run/allot")
_HOST_COPY = INSIDE / "host"

# Laid over with emptiness: other people's homes and files, other programs' sockets.
HIDDEN = ("/root", "/home", "/run")
# Of /run, what name resolution and the NVIDIA driver need.
_KEPT_OF_RUN = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf",
                "/run/nvidia-persistenced")  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or folder of the machine that appears at a place of the workload's view."""

    source: str
    target: str
    is_read_only: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """What a workload sees instead of the machine's own tree.

    Attributes:
        hidden: Folders that appear empty, beside `HIDDEN`.
        binds: What appears nevertheless, in this order.
        additions: Per folder, names that appear in it beside what the machine has there, each with
            the file (as seen inside) that it stands for.
        overlays: Per folder, another one (as seen inside) whose files lie over the machine's, where
            the kernel allows it. For folders of programs: those look for what belongs to them
            beside the place that links lead to.
        devices: Device files below /dev beside the harmless ones.
        shm_mib: Size of /dev/shm.
    """

    hidden: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()
    additions: Mapping[str, Mapping[str, str]] | None = None
    overlays: Mapping[str, str] | None = None
    devices: tuple[str, ...] = ()
    shm_mib: int = 64


def view_from(fields: Mapping[str, Any]) -> View:
    """Read a view from its JSON form (JSON values, hence Any)."""
    return View(
        hidden=tuple(fields["hidden"]),
        binds=tuple(Bind(**bind) for bind in fields["binds"]),
        additions=fields["additions"],
        overlays=fields["overlays"],
        devices=tuple(fields["devices"]),
        shm_mib=fields["shm_mib"],
    )


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave namespaces; a new PID namespace is entered by the next child."""
    _check(_libc.unshare(flags), "unshare")


def prctl(option: int, value: int) -> None:
    """Set an attribute of the calling process."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system, or bind a file or folder."""
    _check(
        _libc.mount(
            source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags),
            options.encode(),
        ),
        f"mount {kind or source} on {target}",
    )  # fmt: skip


def enter(view: View) -> None:
    """Leave the machine's mounts and IPC, and see `view` from now on.

    Needs root; the caller is the first process of a new PID namespace.

    Raises:
        OSError: the kernel or the container forbids it, or something to bind is not there.
    """
    unshare(CLONE_NEWNS | CLONE_NEWIPC)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    # After the unsharing, since only this namespace's own mounts can be bound in it.
    sources = [os.open(bind.source, os.O_PATH) for bind in view.binds]
    kept = {path: os.open(path, os.O_PATH) for path in _KEPT_OF_RUN if os.path.exists(path)}
    _hide({*HIDDEN, *view.hidden})
    INSIDE.mkdir(mode=0o755)
    for path, fd in kept.items():
        _bind(fd, path, is_read_only=False)
    for bind, fd in zip(view.binds, sources, strict=True):
        _bind(fd, bind.target, is_read_only=bind.is_read_only)
    for folder, names in (view.additions or {}).items():
        _add_to(Path(folder), names)
    for folder, over in (view.overlays or {}).items():
        # Not allowed everywhere, nor over every file system: then those files are not there.
        with suppress(OSError):
            mount("overlay", folder, "overlay", MS_RDONLY | MS_NODEV, f"lowerdir={over}:{folder}")
    _make_dev(view)
    for fd in (*sources, *kept.values()):
        os.close(fd)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _hide(folders: set[str]) -> None:
    """Lay an empty file system over each; what lies below another one is gone with it."""
    real = sorted({os.path.realpath(folder) for folder in folders if os.path.isdir(folder)})
    for folder in real:
        if os.path.isdir(folder):
            mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")


def _bind(fd: int, target: str, *, is_read_only: bool) -> None:
    is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
    place = Path(target)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        if is_folder:
            place.mkdir()
        else:
            place.touch()
    mount(f"/proc/self/fd/{fd}", target, flags=MS_BIND | MS_REC)
    if is_read_only:
        mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)


def _add_to(folder: Path, names: Mapping[str, str]) -> None:
    """Show a folder of the machine with more names in it.

    Links stand for the machine's own entries, which stay reachable at another place: a file system
    that unites folders (overlay) is not everywhere allowed.
    """
    if not folder.is_dir():
        return
    folder = folder.resolve()
    original = _HOST_COPY / str(folder).strip("/").replace("/", "-")
    original.mkdir(parents=True)
    mount(str(folder), str(original), flags=MS_BIND | MS_REC)
    entries = {entry.name: entry for entry in os.scandir(original)}
    mount("tmpfs", str(folder), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    for name, entry in entries.items():
        if name not in names:
            # A link of the machine's is repeated as it is: it may be relative to its folder.
            text = os.readlink(entry.path) if entry.is_symlink() else entry.path
            os.symlink(text, folder / name)
    for name, inside in names.items():
        os.symlink(inside, folder / name)


def _make_dev(view: View) -> None:
    """A /dev of harmless devices, terminals of its own, and the GPUs that were granted."""
    names = (*_DEVICES, *view.devices)
    nodes = {name: os.open(f"/dev/{name}", os.O_PATH) for name in names}
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name, fd in nodes.items():
        _bind(fd, f"/dev/{name}", is_read_only=False)
        os.close(fd)
    os.mkdir("/dev/pts")
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
          "newinstance,ptmxmode=0666,mode=620")  # fmt: skip
    os.mkdir("/dev/shm")
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={view.shm_mib}m")
    for name, text in _DEVICE_LINKS.items():
        with suppress(FileExistsError):
            os.symlink(text, f"/dev/{name}")
