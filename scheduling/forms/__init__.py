"""The forms of workloads: one validation for pages, the API and every other way in."""

from scheduling.forms.base import SPEC_NAMES, GpuMode, Spelling, WorkloadForm
from scheduling.forms.session import SessionForm
from scheduling.forms.training import TrainingForm

__all__ = ["SPEC_NAMES", "GpuMode", "SessionForm", "Spelling", "TrainingForm", "WorkloadForm"]
