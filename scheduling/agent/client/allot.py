"""What a training may tell Allot, and ask of it: one file without dependencies.

    import allot

    with allot.progress(total_steps=10_000) as p:
        for step in range(p.first_step, 10_000):
            ...
            p.step(samples=batch_size)
            if p.checkpoint_due():
                save(allot.checkpoint_dir() / f"step-{step + 1}")   # a new name, by rename

Outside Allot all of it still works: nothing is reported and no checkpoint is ever due.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["Progress", "checkpoint_dir", "checkpoints", "is_leader", "progress", "replicas"]

# Progress is written at most this often, and requests are looked for at most this often.
_WRITE_EVERY_S = 1.0
_LOOK_EVERY_S = 0.2
_UNFINISHED = (".tmp", ".partial", ".part")


def checkpoint_dir() -> Path | None:
    """Where to save; None outside Allot."""
    folder = os.environ.get("ALLOT_CHECKPOINT_DIR")
    return Path(folder) if folder else None


def checkpoints() -> list[Path]:
    """Complete checkpoints, oldest first; the last one is what to resume from."""
    folder = checkpoint_dir()
    if folder is None or not folder.is_dir():
        return []
    whole = [
        entry
        for entry in folder.iterdir()
        if not entry.name.startswith(".") and not entry.name.endswith(_UNFINISHED)
    ]
    return sorted(whole, key=lambda entry: (entry.stat().st_mtime_ns, entry.name))


def is_leader() -> bool:
    """Whether this is the replica whose checkpoints and progress count; True outside Allot."""
    return os.environ.get("ALLOT_REPLICA", "0") == "0"


def replicas() -> list[int]:
    """The replicas that are there now: of an elastic training they change while it runs."""
    try:
        with open(os.environ["ALLOT_REPLICAS_FILE"]) as file:
            return [int(member["replica"]) for member in json.load(file)["members"]]
    except (OSError, ValueError, KeyError, TypeError):
        return [int(os.environ.get("ALLOT_REPLICA", "0"))]


class Progress:
    """How far a training is. Use `progress()`. Of several replicas only the leader's counts.

    Attributes:
        total_steps: As given; None if the training does not know.
        steps, samples: Done so far in this attempt.
    """

    def __init__(self, total_steps: int | None, first_step: int) -> None:
        self.total_steps = total_steps
        self.first_step = first_step
        self.steps = first_step
        self.samples = 0.0
        self._file = os.environ.get("ALLOT_PROGRESS_FILE")
        self._control = os.environ.get("ALLOT_CONTROL_FILE")
        self._began_at = time.time()
        self._written_s = 0.0
        self._looked_s = 0.0
        self._answered_at = self._began_at

    def __enter__(self) -> Progress:
        self._mark()
        self._write()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write()

    def step(self, count: int = 1, *, samples: float = 0.0) -> None:
        """Count finished steps and the samples in them."""
        self.steps += count
        self.samples += samples
        if time.monotonic() - self._written_s >= _WRITE_EVERY_S:
            self._write()

    def checkpoint_due(self) -> bool:
        """Whether to save now; true once per request."""
        now_s = time.monotonic()
        if self._control is None or now_s - self._looked_s < _LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        try:
            with open(self._control) as file:
                asked_at = float(json.load(file)["checkpoint_asked_at"])
        except (OSError, ValueError, KeyError):
            return False
        if asked_at <= self._answered_at:
            return False
        self._answered_at = asked_at
        return True

    def _mark(self) -> None:
        """Say that this program hears of requests by itself."""
        if self._file is not None:
            with suppress(OSError):
                Path(self._file).with_name("client").touch()

    def _write(self) -> None:
        """Replace the report; a failure to report must not stop the training."""
        self._written_s = time.monotonic()
        if self._file is None:
            return
        report = {
            "step": self.steps,
            "total_steps": self.total_steps,
            "samples": self.samples,
            "began_at": self._began_at,
            "at": time.time(),
        }
        temporary = f"{self._file}.tmp"
        with suppress(OSError):
            Path(temporary).write_text(json.dumps(report))
            os.replace(temporary, self._file)


def progress(total_steps: int | None = None, *, first_step: int = 0) -> Progress:
    """Report progress while the block lasts.

    Args:
        total_steps: How many there will be in all.
        first_step: Where this attempt begins, after a resume.
    """
    return Progress(total_steps, first_step)
