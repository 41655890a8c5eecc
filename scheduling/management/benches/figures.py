"""Measuring: monotonic and CPU time of repeated runs, and the JSON that they are reported in."""

from __future__ import annotations

import math
import os
import platform
import resource
import statistics
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "bench/1"


@dataclass(frozen=True, slots=True)
class Report:
    """What a bench found."""

    params: Mapping[str, object]
    figures: Mapping[str, Mapping[str, object]]
    phases: Mapping[str, float]
    # What a person is told below the table.
    note: str = ""


def new_folder(text: str) -> Path:
    """The type of an option that names a folder to be made."""
    folder = Path(text).expanduser().absolute()
    if folder.exists():
        raise ArgumentTypeError(f"{folder} exists: name a folder that does not")
    return folder


def at_least(minimum: int) -> Callable[[str], int]:
    """The type of a bench's option."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"a whole number is needed, not {text!r}") from None
        if value < minimum:
            raise ArgumentTypeError(f"{value} is less than {minimum}")
        return value

    return read


@dataclass(frozen=True, slots=True)
class Bench:
    """One thing that `manage.py bench NAME` measures.

    Attributes:
        about: One line for the help.
        add_arguments: Declares the bench's own options.
        measure: Options in, what was found out; it checks that the result is right before it
            reports a time.
        runs, warmup: Defaults.
    """

    about: str
    add_arguments: Callable[[ArgumentParser], None]
    measure: Callable[[Mapping[str, Any]], Report]
    runs: int = 9
    warmup: int = 2


@dataclass(slots=True)
class Runs:
    """Times of one repeated action, in seconds."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    steps_s: dict[str, list[float]] = field(default_factory=dict)


def repeat(action: Callable[[Callable[[str], None]], object], runs: int, warmup: int) -> Runs:
    """Run an action; it is given a function to call after each of its steps."""
    result = Runs()
    for number in range(warmup + runs):
        if number == warmup:
            result = Runs()
        started, cpu = time.monotonic(), time.process_time()
        marks = [started]

        def done(step: str, marks: list[float] = marks, result: Runs = result) -> None:
            marks.append(time.monotonic())
            result.steps_s.setdefault(step, []).append(marks[-1] - marks[-2])

        action(done)
        result.wall_s.append(time.monotonic() - started)
        result.cpu_s.append(time.process_time() - cpu)
    return result


def figure(values: Sequence[float], unit: str, target: float | None = None) -> dict[str, object]:
    """Median, 99th percentile (the largest of fewer than 100) and range."""
    ordered = sorted(values)
    p99 = ordered[math.ceil(len(ordered) * 0.99) - 1]
    result: dict[str, object] = {
        "median": _rounded(statistics.median(ordered)),
        "p99": _rounded(p99),
        "min": _rounded(ordered[0]),
        "max": _rounded(ordered[-1]),
        "unit": unit,
    }
    if target is not None:
        result["target"] = target
    return result


def phases(runs: Runs) -> dict[str, float]:
    """The median of each step."""
    return {step: _rounded(statistics.median(times)) for step, times in runs.steps_s.items()}


def peak_rss_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def machine() -> dict[str, object]:
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
