"""What is integrated over each quarter-hour, and by what it can be told apart.

Measures only add up (peaks apart), so any period and grouping is a sum of quarter-hours; ratios
are divided last. The numbers are stored: never reuse one.
"""

from __future__ import annotations

from enum import IntEnum

QUARTER_S = 900
QUARTERS_PER_DAY = 96


class Measure(IntEnum):
    """An integral over time; GPU, core and GiB hours, seconds, or money."""

    GPU_CAPACITY = 1
    GPU_QUOTA = 2
    GPU_ALLOCATED = 3
    GPU_BORROWED = 4
    GPU_IDLE = 5
    GPU_MEASURED = 6
    """The part of allocated for which there are samples."""
    GPU_USED = 7
    GPU_BAND_0 = 8
    GPU_BAND_25 = 9
    GPU_BAND_50 = 10
    GPU_BAND_75 = 11
    """Measured hours by use: below 25 %, below 50 %, below 75 %, and above."""

    GPU_LENT = 12
    """The part of allocated that others used on loan; kept at the lender."""

    CPU_CAPACITY = 20
    CPU_QUOTA = 21
    CPU_ALLOCATED = 22
    CPU_IDLE = 23
    CPU_MEASURED = 24
    CPU_USED = 25
    CPU_THROTTLED_S = 26

    MEMORY_CAPACITY = 40
    MEMORY_QUOTA = 41
    MEMORY_ALLOCATED = 42
    MEMORY_IDLE = 43
    MEMORY_MEASURED = 44
    MEMORY_USED = 45
    MEMORY_PEAK = 46
    """Largest memory of a single workload, GiB: the one measure that is not added."""

    CAPACITY_COST = 60
    COST = 61
    IDLE_COST = 62


BANDS = (Measure.GPU_BAND_0, Measure.GPU_BAND_25, Measure.GPU_BAND_50, Measure.GPU_BAND_75)


class Scope(IntEnum):
    """How sums are kept: by project and one more key; under `NO_PROJECT` over all projects.

    `PROJECT` has no other key. `NODE` and all capacity have no project; `USER` has no totals, since
    most people work in one project.
    """

    NODE_TYPE = 1
    USER = 2
    KIND = 3
    TEMPLATE = 4
    NODE = 5
    PROJECT = 6


NO_PROJECT = 0
NO_KEY = ""
