"""In whose words a form is written, how GPUs are asked for, and which field of a form is which of a
spec."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


class Spelling(enum.Enum):
    """Who wrote the values, hence their units."""

    PEOPLE = "people"
    PROGRAM = "program"


class GpuMode(enum.StrEnum):
    """How GPUs are asked for."""

    NONE = "none"
    FRACTION = "fraction"
    WHOLE = "whole"
    MEMORY = "memory"


GPU_MODES: tuple[tuple[str, StrOrPromise], ...] = (
    (GpuMode.FRACTION, _("Part of a GPU")),
    (GpuMode.WHOLE, _("Whole GPUs")),
    (GpuMode.MEMORY, _("GPU memory")),
    (GpuMode.NONE, _("No GPU")),
)

# The field that each mode needs; the others are not looked at.
GPU_FIELD = {
    GpuMode.FRACTION: "gpu_fraction",
    GpuMode.WHOLE: "gpu_count",
    GpuMode.MEMORY: "gpu_memory_gib",
}

# Only these decide where and when a workload could start.
PLANNED_FIELDS = frozenset(
    {
        "project",
        "node_types",
        "gpu_mode",
        "cpu_cores",
        "memory_gib",
        "priority",
        "min_replicas",
        "max_replicas",
        "max_run_min",
        *GPU_FIELD.values(),
    }
)
DRAFT_NAME = "draft"

# Form field → field of `WorkloadSpec` and of the API; all others have one name.
SPEC_NAMES: Mapping[str, str] = {
    "gpu_fraction": "gpu_milli",
    "gpu_count": "num_devices",
    "gpu_memory_gib": "gpu_memory_mib",
    "cpu_cores": "cpu_milli",
    "memory_gib": "memory_mib",
    "checkpoint_every_min": "checkpoint_every_s",
    "max_run_min": "max_run_s",
    "from_template": "template_name",
}
