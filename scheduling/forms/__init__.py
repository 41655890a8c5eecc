"""The forms of workloads: one validation for pages, the API and every other way in."""

from scheduling.forms.base import WorkloadForm
from scheduling.forms.modes import SPEC_NAMES, GpuMode, Spelling
from scheduling.forms.session import SessionForm
from scheduling.forms.training import TrainingForm

__all__ = ["SPEC_NAMES", "GpuMode", "SessionForm", "Spelling", "TrainingForm", "WorkloadForm"]
