"""An attempt's checkpoint folder: filled at its start, and looked through for what is new."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path

from scheduling.agent import folders
from scheduling.agent.checkpoints import CheckpointError, Owner, Store
from scheduling.agent.homes import person
from scheduling.agent.isolation import Isolation
from scheduling.agent.outcome import ExitRecord, whole_entries
from scheduling.agent.protocol import AttemptSpec
from scheduling.agent.saved import Entry, entries

RESTORED = "restored.json"


class CheckpointFolder:
    """What an attempt was given of its workload's checkpoints, and what it adds to them.

    `fill` and `collect` block, one at a time.

    Attributes:
        kept: Complete checkpoints of its workload in the store.
        resumed_from: Key of the one that it was given at its start.
    """

    def __init__(self, folder: Path, store: Store, workload_id: str) -> None:
        """Take over what an earlier agent left.

        Args:
            folder: The attempt's.
            store: Of this agent.
            workload_id: Whose checkpoints they are.
        """
        self._folder = folder
        self._store = store
        self.kept = store.complete(workload_id)
        self.resumed_from: str | None = None
        self._known: set[Entry] = set()
        self._read_restored()

    def _read_restored(self) -> None:
        restored = folders.read_json(self._folder / RESTORED)
        if restored is not None:
            self.resumed_from = restored["key"]
            self._known = {Entry(**entry) for entry in restored["entries"]}

    def fill(self, spec: AttemptSpec, isolation: Isolation) -> None:
        """Give the attempt the newest checkpoint of its workload, once."""
        if (self._folder / RESTORED).exists():
            return
        who = person(spec)
        owner = Owner(who.uid, who.gid) if isolation.has_identities else None
        target = self._folder / folders.WORK / spec.checkpoint.subfolder
        log = self._folder / folders.LOG
        found = self._store.restore(
            spec.workload_id, target, owner, lambda line: folders.append_line(log, line)
        )
        if found is not None:
            at_step = "" if found.step is None else f" of step {found.step}"
            folders.append_line(log, f"resuming from checkpoint {found.name}{at_step}")
        with folders.opened(target) as fd:
            present = entries(fd, time.time_ns(), is_over=True)
        record = {"key": found and found.key, "entries": [asdict(entry) for entry in present]}
        with folders.opened(self._folder) as fd:
            folders.write_json(RESTORED, record, dir_fd=fd)
        self._read_restored()

    def collect(self, spec: AttemptSpec, record: ExitRecord | None) -> None:
        """Copy new checkpoints into the store.

        Args:
            spec: The attempt.
            record: Of its exit, once it has ended: then this is the last look.
        """
        with folders.opened(self._folder) as attempt_fd:
            try:
                fd = folders.open_below(attempt_fd, f"{folders.WORK}/{spec.checkpoint.subfolder}")
            except FileNotFoundError:
                # Its owner has removed it; and older agents made none for sessions.
                return
        try:
            fresh = [entry for entry in whole_entries(fd, record) if entry not in self._known]
            for entry in fresh:
                self._take(spec, fd, entry)
        finally:
            os.close(fd)
        if fresh:
            self._store.expire(spec.workload_id, spec.checkpoint.keep)
            self.kept = self._store.complete(spec.workload_id)

    def _take(self, spec: AttemptSpec, fd: int, entry: Entry) -> None:
        taken = {(c.attempt_number, c.inode, c.written_ns) for c in self.kept}
        self._known.add(entry)
        if (spec.number, entry.inode, entry.written_ns) in taken:
            return
        try:
            self._store.take(spec.workload_id, spec.number, fd, entry)
        except CheckpointError as error:
            log = self._folder / folders.LOG
            folders.append_line(log, f"checkpoint could not be stored: {error}")
