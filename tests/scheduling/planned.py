"""What the planner sees and predicts, for tests."""

from __future__ import annotations

import pytest

from scheduling import cycle, past
from scheduling.core import types as core
from scheduling.models import (
    Workload,
)
from scheduling.replicas import workload_id
from scheduling.snapshot import take_snapshot


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates in every cycle; nothing remembered of other tests' runs."""
    monkeypatch.setattr(cycle, "ESTIMATES_EVERY_S", 0.0)
    past.forget()


def seen(row: Workload) -> core.Workload:
    (found,) = (w for w in take_snapshot().snapshot.workloads if w.id == workload_id(row))
    return found
