"""The checks of a machine with a GPU: over the fake driver here, over the real one by marker."""

from __future__ import annotations

import pytest

from scheduling.agent.fraction import gpu_check
from tests import needs


def test_all_checks_hold_over_the_fake_driver() -> None:
    needs.compiler()
    rows = list(gpu_check.run(is_fake=True))
    assert [(row.name, row.detail) for row in rows if row.outcome == "differs"] == []
    assert len(rows) == 1 + len(gpu_check.CHECKS)
    assert "data intact" in rows[-1].name
    assert rows[-1].outcome == "ok"


@pytest.mark.gpu
def test_all_checks_hold_on_this_machines_driver() -> None:
    rows = list(gpu_check.run())
    assert [(row.name, row.detail) for row in rows if row.outcome == "differs"] == []
    assert rows[0].outcome == "ok", rows[0].detail
