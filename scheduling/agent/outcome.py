"""What is made of an attempt's end: why it ended, which checkpoints count, what is told of it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from scheduling.agent.checkpoints import Checkpoint
from scheduling.agent.protocol import AttemptReport, CheckpointReport, ExitCause
from scheduling.agent.saved import Entry, entries

_NUM_LAST_LINES, _LAST_LINES_BYTES, _LINE_CHARS = 20, 16_384, 500
# An exit code from here on means death by a signal.
_KILLED = 128

ExitRecord = dict[str, Any]
"""JSON of `exit.json`, by the shim or in its place by the agent, hence Any."""


def final(running: AttemptReport, record: ExitRecord, log: Path) -> AttemptReport:
    """The report of an attempt that has ended, from the last one of its life."""
    return replace(
        running,
        pid=None,
        ended_at=record.get("ended_at"),
        exit_code=record.get("code"),
        exit_cause=None if "refusal" in record else cause(record),
        peak_memory_mib=record.get("peak_mib"),
        memory_limit_mib=record.get("memory_limit_mib") or running.memory_limit_mib,
        cpu_limit_milli=record.get("cpu_limit_milli") or running.cpu_limit_milli,
        last_lines=last_lines(log),
        error=record.get("refusal", ""),
        is_retryable=not record.get("field"),
    )


def cause(record: ExitRecord) -> ExitCause:
    """Why it ended.

    An exit after SIGTERM was asked for. One before it, while saving, was too if the program had
    saved or failed; else the program had just come to its own end.
    """
    asked = record.get("cause")
    if asked and (record.get("is_terminated") or record.get("has_saved") or record.get("code")):
        return ExitCause(asked)
    if record.get("is_out_of_memory") and record.get("code"):
        return ExitCause.OUT_OF_MEMORY
    return ExitCause.OWN


def whole_entries(fd: int, record: ExitRecord | None) -> list[Entry]:
    """Whole checkpoints in an attempt's folder, running (no record) or ended.

    A program that was killed may have been writing: what counts is what was whole by then. Where
    nobody knows when that was, only what came by rename counts.
    """
    if record is None:
        return entries(fd, time.time_ns())
    code = record.get("code")
    if code is None:
        return entries(fd, 0)
    return entries(fd, int(record["ended_at"] * 1e9), is_over=int(code) < _KILLED)


def reported(checkpoint: Checkpoint) -> CheckpointReport:
    """A stored checkpoint as it is told."""
    return CheckpointReport(
        key=checkpoint.key,
        saved_at=checkpoint.saved_at,
        size_bytes=checkpoint.size_bytes,
        sha256=checkpoint.sha256,
        step=checkpoint.step,
    )


def last_lines(log: Path) -> list[str]:
    """The end of a log."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LAST_LINES_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line[:_LINE_CHARS] for line in text.splitlines()[-_NUM_LAST_LINES:]]
