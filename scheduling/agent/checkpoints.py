"""The checkpoint store of a node: complete checkpoints only, checked before they are trusted.

What a training saved is copied, because the training may still write to its own files; a copy gets
its final name only once all of it is on disk, with a manifest of sizes and a SHA-256 over content.
Before the next attempt gets one it is read again against that manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scheduling.agent import folders
from scheduling.agent.removal import remove_tree
from scheduling.agent.saved import Entry

_MANIFEST, _DATA, _UNFINISHED = "manifest.json", "data", ".unfinished-"
_CHUNK_BYTES = 4 * 2**20
_METADATA, _METADATA_MAX_BYTES = "metadata.json", 2**20
# A program may name any number and its files any time; what rows cannot hold stops here.
_STEP_MAX = 2**63 - 1
_STEP_IN_NAME = (re.compile(r"step[-_=.]?(\d+)", re.IGNORECASE), re.compile(r"(\d+)(?=\D*$)"))


class CheckpointError(Exception):
    """A checkpoint cannot be taken over or is not what its manifest says."""


@dataclass(frozen=True, slots=True)
class Owner:
    """To whom restored files belong."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One complete checkpoint.

    Attributes:
        key: Its folder's name; later ones sort behind earlier ones.
        name: As the training named it.
        attempt_number: Of the attempt that saved it.
        inode, written_ns: Which entry of that attempt's folder it was.
        step: As the name or a `metadata.json` says; None if neither does.
    """

    key: str
    name: str
    attempt_number: int
    inode: int
    written_ns: int
    saved_at: float
    size_bytes: int
    sha256: str
    step: int | None


class Store:
    """Checkpoints of all workloads below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _folder(self, workload_id: str) -> Path:
        return self.root / folders.safe_name(workload_id, "workload")

    def complete(self, workload_id: str) -> list[Checkpoint]:
        """A workload's checkpoints, oldest first."""
        try:
            keys = sorted(os.listdir(self._folder(workload_id)))
        except FileNotFoundError:
            return []
        found = (self._read(workload_id, key) for key in keys if not key.startswith("."))
        return [checkpoint for checkpoint in found if checkpoint is not None]

    def _read(self, workload_id: str, key: str) -> Checkpoint | None:
        fields = folders.read_json(self._folder(workload_id) / key / _MANIFEST)
        try:
            return Checkpoint(**fields) if fields is not None else None
        except TypeError:
            return None

    def take(self, workload_id: str, number: int, folder_fd: int, entry: Entry) -> Checkpoint:
        """Take over one whole entry of a training's checkpoint folder.

        Args:
            workload_id: Whose it is.
            number: Of the attempt that saved it.
            folder_fd: The folder; its owner may change it meanwhile.
            entry: Seen to be whole.

        Raises:
            CheckpointError: it changed or vanished meanwhile, or there is no room.
        """
        workload = self._folder(workload_id)
        temporary = workload / f"{_UNFINISHED}{number}-{entry.inode}"
        remove_tree(temporary)
        try:
            (temporary / _DATA).mkdir(parents=True, mode=0o700)
            with folders.opened(temporary / _DATA) as target_fd:
                digest = _copy(folder_fd, entry.name, target_fd, entry.name)
            return self._commit(workload, temporary, number, entry, digest)
        except (OSError, CheckpointError, RecursionError) as error:
            remove_tree(temporary)
            raise CheckpointError(f"{entry.name}: {error}") from error

    def _commit(
        self, workload: Path, temporary: Path, number: int, entry: Entry, digest: _Digest
    ) -> Checkpoint:
        """Give a copy its final name, behind all that are there."""
        keys = [key for key in os.listdir(workload) if not key.startswith(".")]
        place = max((int(key.partition("-")[0]) for key in keys), default=0) + 1
        checkpoint = Checkpoint(
            key=f"{place:06d}-{folders.safe_name(entry.name, 'saved')}",
            name=entry.name,
            attempt_number=number,
            inode=entry.inode,
            written_ns=entry.written_ns,
            saved_at=min(max(entry.written_ns / 1e9, 0.0), time.time()),
            size_bytes=digest.size_bytes,
            sha256=digest.hexdigest(),
            step=_step(entry.name, temporary / _DATA / entry.name),
        )
        with folders.opened(temporary) as fd:
            folders.write_json(_MANIFEST, asdict(checkpoint), dir_fd=fd)
            os.fsync(fd)
        temporary.rename(workload / checkpoint.key)
        with folders.opened(workload) as fd:
            os.fsync(fd)
        return checkpoint

    def restore(
        self, workload_id: str, target: Path, owner: Owner | None, say: Callable[[str], None]
    ) -> Checkpoint | None:
        """Put a workload's newest sound checkpoint into a new attempt's folder.

        Args:
            workload_id: Whose.
            target: The attempt's checkpoint folder, not yet in use.
            owner: To whom the files are to belong; None leaves them ours.
            say: Tells the attempt's log of what is damaged.

        Returns:
            None if there is none.
        """
        for checkpoint in reversed(self.complete(workload_id)):
            data = self._folder(workload_id) / checkpoint.key / _DATA
            try:
                with folders.opened(data) as source_fd, folders.opened(target) as target_fd:
                    _restore(checkpoint, source_fd, target_fd, owner)
            except (OSError, CheckpointError, RecursionError) as error:
                say(f"checkpoint {checkpoint.name} is damaged, taking the one before it: {error}")
                continue
            return checkpoint
        return None

    def expire(self, workload_id: str, keep: int) -> None:
        """Delete all but the last `keep` checkpoints, and what was left unfinished by a crash."""
        workload = self._folder(workload_id)
        for checkpoint in self.complete(workload_id)[: -max(1, keep)]:
            hidden = workload / f"{_UNFINISHED}{checkpoint.key}"
            (workload / checkpoint.key).rename(hidden)
            remove_tree(hidden)

    def clean(self) -> None:
        """Delete what a crash left unfinished; only while nothing is being taken over."""
        for path in self.root.glob(f"*/{_UNFINISHED}*"):
            remove_tree(path)


def _step(name: str, data: Path) -> int | None:
    """The training step that a checkpoint stands for; None if it names none that can be one."""
    step = _step_in(data / _METADATA)
    for pattern in _STEP_IN_NAME:
        if step is None and (found := pattern.search(name)):
            step = int(found[1])
    return step if step is not None and 0 <= step <= _STEP_MAX else None


def _step_in(metadata: Path) -> int | None:
    """As a checkpoint that is a folder may say."""
    try:
        with open(metadata, "rb") as file:
            text = file.read(_METADATA_MAX_BYTES + 1)
        return int(json.loads(text)["step"]) if len(text) <= _METADATA_MAX_BYTES else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


class _Digest:
    """SHA-256 over names, sizes and contents in a fixed order."""

    def __init__(self) -> None:
        self._hash: Any = hashlib.sha256()  # typeshed names no public class for it
        self.size_bytes = 0

    def begin(self, path: str, kind: str) -> None:
        """Start an entry, so that content cannot pass for a name."""
        self._hash.update(f"{kind}\0{path}\0".encode(errors="surrogateescape"))

    def content(self, chunk: bytes) -> None:
        """Add a part of a file's content."""
        self._hash.update(chunk)
        self.size_bytes += len(chunk)

    def end(self, size: int) -> None:
        """Close a file with its size."""
        self._hash.update(f"\0{size}\0".encode())

    def hexdigest(self) -> str:
        """The digest as text."""
        return str(self._hash.hexdigest())


def _restore(checkpoint: Checkpoint, source_fd: int, target_fd: int, owner: Owner | None) -> None:
    # Short: a name may be as long as names can be.
    temporary = ".restoring"
    _remove(temporary, target_fd)
    digest = _copy(source_fd, checkpoint.name, target_fd, temporary, owner)
    if (digest.size_bytes, digest.hexdigest()) != (checkpoint.size_bytes, checkpoint.sha256):
        _remove(temporary, target_fd)
        raise CheckpointError(
            f"{digest.size_bytes} bytes with SHA-256 {digest.hexdigest()[:12]}…, "
            f"saved were {checkpoint.size_bytes} with {checkpoint.sha256[:12]}…"
        )
    _remove(checkpoint.name, target_fd)
    os.rename(temporary, checkpoint.name, src_dir_fd=target_fd, dst_dir_fd=target_fd)


def _remove(name: str, folder_fd: int) -> None:
    try:
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(name, dir_fd=folder_fd)
    else:
        os.unlink(name, dir_fd=folder_fd)


_Place = tuple[int, str]
"""A name in an open folder."""


def _copy(
    source_fd: int, name: str, target_fd: int, new_name: str, owner: Owner | None = None
) -> _Digest:
    """Copy a file or folder without following a link, reading its digest on the way.

    The entry's own name is left out of the digest: a copy has another one until it is whole.
    """
    digest = _Digest()
    if stat.S_ISDIR(os.stat(name, dir_fd=source_fd, follow_symlinks=False).st_mode):
        _copy_folder((source_fd, name), (target_fd, new_name), digest, owner)
    else:
        _copy_file((source_fd, name), (target_fd, new_name), digest, owner)
    os.fsync(target_fd)
    return digest


def _copy_folder(source: _Place, target: _Place, digest: _Digest, owner: Owner | None) -> None:
    os.mkdir(target[1], 0o700, dir_fd=target[0])
    for walked, subfolders, files, fd in os.fwalk(source[1], dir_fd=source[0]):
        path = os.path.relpath(walked, source[1])
        subfolders.sort()
        copy_fd = folders.open_below(target[0], os.path.join(target[1], path))
        try:
            _own(copy_fd, owner)
            for name in subfolders:
                if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    raise CheckpointError(f"{os.path.join(path, name)} is a symbolic link")
                os.mkdir(name, 0o700, dir_fd=copy_fd)
                digest.begin(os.path.join(path, name), "folder")
            for name in sorted(files):
                digest.begin(os.path.join(path, name), "file")
                _copy_file((fd, name), (copy_fd, name), digest, owner)
            os.fsync(copy_fd)
        finally:
            os.close(copy_fd)


def _copy_file(source: _Place, target: _Place, digest: _Digest, owner: Owner | None) -> None:
    """Copy one regular file; O_NONBLOCK so that a pipe of that name cannot hold us up."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    read_fd = os.open(source[1], flags, dir_fd=source[0])
    with os.fdopen(read_fd, "rb", buffering=0) as reader:
        if not stat.S_ISREG(os.fstat(read_fd).st_mode):
            raise CheckpointError(f"{source[1]} is no regular file")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        write_fd = os.open(target[1], flags, 0o600, dir_fd=target[0])
        with os.fdopen(write_fd, "wb") as writer:
            size = 0
            while chunk := reader.read(_CHUNK_BYTES):
                digest.content(chunk)
                writer.write(chunk)
                size += len(chunk)
            digest.end(size)
            _own(write_fd, owner)
            writer.flush()
            os.fsync(write_fd)


def _own(fd: int, owner: Owner | None) -> None:
    if owner is not None:
        os.fchown(fd, owner.uid, owner.gid)
