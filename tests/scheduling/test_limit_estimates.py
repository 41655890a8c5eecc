"""What the planner predicts of work that has a time limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from projects.models import Project
from scheduling import past, time_limits
from scheduling.cycle import run_cycle
from scheduling.models import Attempt, Phase, Workload
from scheduling.services import (
    preview,
)
from scheduling.snapshot import read_arrivals
from tests.factories import submitted, training_spec
from tests.scheduling.conftest import Organisation
from tests.scheduling.limits import HOUR, MINUTE, limits, started
from tests.scheduling.planned import seen

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("limits")]
__all__ = ["limits"]


# ---------------------------------------------------------------- what the planner knows


def test_without_history_the_limit_is_the_range_and_its_basis(organisation: Organisation) -> None:
    past.forget()
    rows = [started(organisation, hours=1, max_run_s=2 * HOUR) for _ in range(8)]
    now_s = timezone.now().timestamp()
    for row in rows:
        known = seen(row)
        assert known.expected_end_s == pytest.approx(now_s + HOUR, abs=120)
        assert (known.early_end_s, known.expected_basis) == (None, "time_limits")
    waiting = submitted(training_spec(organisation.vision), organisation.vera)
    assert seen(waiting).expected_run_s == 4 * HOUR
    assert read_arrivals([waiting.pk])[0][1].expected_run_s == 4 * HOUR
    run_cycle()
    waiting.refresh_from_db()
    assert waiting.eta["basis"] == "time_limits"
    assert waiting.eta["max_at_s"] == pytest.approx(now_s + HOUR, abs=120)
    asked = preview(training_spec(organisation.vision), owner=organisation.vera)
    assert asked.eta["basis"] == "time_limits"


def finished(organisation: Organisation, minutes: float) -> None:
    row = started(organisation)
    organisation.agent.end(row)
    ended = timezone.now()
    Attempt.objects.filter(workload=row).update(
        started_at=ended - timedelta(minutes=minutes), ended_at=ended
    )


@pytest.mark.parametrize(
    ("hours", "basis", "end_h", "early_h"),
    [(0.0, "history", 0.5, 10 / 60), (1.0, "time_limits", 3.0, None)],
    ids=["earlier", "used up"],
)
def test_history_stays_the_range_where_it_is_earlier(
    organisation: Organisation, hours: float, basis: str, end_h: float, early_h: float | None
) -> None:
    for minutes in (10, 20, 30):
        finished(organisation, minutes)
    past.forget()
    now_s = timezone.now().timestamp()
    known = seen(started(organisation, hours=hours))
    assert known.expected_basis == basis
    assert known.expected_end_s == pytest.approx(now_s + end_h * HOUR, abs=120)
    early = None if early_h is None else pytest.approx(now_s + early_h * HOUR, abs=120)
    assert known.early_end_s == early
    past.forget()


def test_a_limit_before_what_history_says_cuts_the_range(organisation: Organisation) -> None:
    for minutes in (10, 20, 30):
        finished(organisation, minutes)
    past.forget()
    now_s = timezone.now().timestamp()
    known = seen(started(organisation, max_run_s=15 * MINUTE))
    assert known.expected_end_s == pytest.approx(now_s + 15 * MINUTE, abs=120)
    assert known.early_end_s == pytest.approx(now_s + 10 * MINUTE, abs=120)
    assert known.expected_basis == "time_limits"
    past.forget()


SECONDS = st.floats(1, 40 * 86_400)


@given(
    st.integers(60, 30 * 86_400),
    st.integers(0, 86_400),
    st.floats(0, 40 * 86_400),
    st.floats(0, 40 * 86_400),
    st.tuples(SECONDS, SECONDS).map(sorted) | st.none(),
)
def test_whatever_is_known_nothing_is_predicted_beyond_its_limit(
    limit_s: int, extended_s: int, ran_s: float, before_s: float, history: list[float] | None
) -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    row = Workload(project=Project(), kind="training", phase=Phase.RUNNING)
    row.max_run_s, row.extended_s = limit_s, extended_s
    leader = Attempt(workload=row, started_at=now - timedelta(seconds=ran_s))
    early, late = history or (None, None)
    basis = "history" if history else ""
    waiting = past.Expected(run_s=late, basis=basis)
    run = time_limits.bounded(waiting, row, None, before_s, now)
    assert run.run_s is not None
    assert 0 < run.run_s <= limit_s + extended_s
    assert (run == waiting) is (run.basis == "history")
    late_at, early_at = (None if each is None else now.timestamp() + each for each in (late, early))
    known = past.Expected(late_at, early_at, basis=basis)
    end = time_limits.bounded(known, row, leader, before_s, now)
    notice_s = time_limits.ending_rule(row, leader).first_warning_s
    left_s = max(limit_s + extended_s - ran_s - before_s, notice_s)
    assert end.end_s is not None
    assert end.end_s <= now.timestamp() + left_s + 0.001
    assert end.early_end_s is None or end.early_end_s <= end.end_s
    if late is None or abs(late - left_s) > 0.001:
        is_earlier = late is not None and late < left_s
        assert end.basis == ("history" if is_earlier else "time_limits")
