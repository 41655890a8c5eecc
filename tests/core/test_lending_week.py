"""The week that is measured, in small: a day of ten sessions on one device."""

from __future__ import annotations

from scheduling.management.benches.week import run


def test_a_day_of_idle_sessions_gains_and_comes_out_alike_each_time() -> None:
    day = run(1, 10, 1, seed=3, lends=True)
    assert 0 < day.gpu_h <= day.idle_gpu_h
    assert day.loans
    assert all(loan.runs_from_s > loan.from_s for loan in day.loans)
    assert all(0 < wake_s < 3 for wake_s in day.wakes_s)
    again = run(1, 10, 1, seed=3, lends=True)
    assert (again.gpu_h, again.loans) == (day.gpu_h, day.loans)


def test_without_lending_trainings_get_nothing() -> None:
    day = run(1, 10, 1, seed=3, lends=False)
    assert (day.gpu_h, day.loans) == (0.0, [])
