"""Who pays for a lent GPU, and for the room beside it."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import pytest
from django.utils import timezone

from projects.models import PriceChange
from scheduling.agent.protocol import LoanState
from scheduling.analytics.facts import read as read_facts
from scheduling.analytics.measures import Measure, Scope
from scheduling.analytics.usage import integrate, no_signals
from scheduling.costs import costs_so_far, spent
from scheduling.models import (
    Allocation,
    CapacityInterval,
    DeviceAllocation,
    Loan,
    Node,
)
from scheduling.views.charts import range_of
from scheduling.views.sum_charts import workload_cost_chart
from tests.lending_scene import GIB, Scene
from tests.lending_scene import scene as scene

pytestmark = pytest.mark.django_db


def test_a_lent_gpu_is_charged_once_to_its_borrower(scene: Scene) -> None:
    """Half an hour on loan of an hour held: 45 an hour for the GPU, 1 for a GiB of host memory."""
    now = timezone.now()
    hour, half = now - timedelta(hours=1), now - timedelta(minutes=30)
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, swapped_out_bytes=4 * GIB, lent_at=half.timestamp())
    _only_its_gpu_costs(scene, now)
    costs = costs_so_far([scene.session.pk, scene.training.pk], now)
    assert float(costs[scene.training.pk]) == pytest.approx(22.5, abs=0.05)
    assert float(costs[scene.session.pk]) == pytest.approx(45 - 22.5 + 2, abs=0.05)
    facts = read_facts(hour, now, now)
    edges = np.array([hour.timestamp(), now.timestamp()])
    sums = integrate(facts, edges, no_signals(1))
    vision, language = scene.organisation.vision.pk, scene.organisation.language.pk

    def hours(measure: Measure, project: int) -> float:
        row = sums.get((Scope.PROJECT, measure, project, ""))
        return 0.0 if row is None else float(row[0])

    assert hours(Measure.GPU_ALLOCATED, vision) == pytest.approx(1.0, abs=1e-3)
    assert hours(Measure.GPU_ALLOCATED, language) == 0.0
    assert hours(Measure.GPU_LENT, vision) == pytest.approx(0.5, abs=1e-3)
    assert hours(Measure.COST, language) == pytest.approx(22.5, abs=0.05)
    assert hours(Measure.COST, vision) == pytest.approx(24.5, abs=0.05)
    assert hours(Measure.GPU_BORROWED, language) == 0.0


def test_room_beside_what_is_lent_is_charged_to_the_borrower(scene: Scene) -> None:
    """0.6 GPU of which a third is lent, for half an hour, at 45 an hour; the rate is what grows."""
    now = timezone.now()
    loan = scene.lend()
    scene.run_training()
    half = now - timedelta(minutes=30)
    scene.say(loan, LoanState.LENT, swapped_out_bytes=4 * GIB, lent_at=half.timestamp())
    _only_its_gpu_costs(scene, now)
    Loan.objects.update(gpu_milli=333)
    for workload, milli in ((scene.session, 333), (scene.training, 600)):
        DeviceAllocation.objects.filter(allocation__workload=workload).update(gpu_milli=milli)
    costs = spent([scene.session.pk, scene.training.pk], now)
    borrower, lender = costs[scene.training.pk], costs[scene.session.pk]
    assert float(borrower.amount) == pytest.approx(0.6 * 22.5, abs=0.05)
    assert float(borrower.per_hour) == pytest.approx(0.6 * 45)
    assert float(lender.amount) == pytest.approx(0.333 * 22.5 + 2, abs=0.05)
    assert float(lender.per_hour) == pytest.approx(4)
    for workload in (scene.session, scene.training):
        shown = workload_cost_chart(workload, "UTC", range_of({}))
        (line,) = shown.chart.payload["lines"]
        amount, rate = costs[workload.pk].amount, costs[workload.pk].per_hour
        assert line["amount"] == pytest.approx(float(amount), abs=0.05)
        assert line["per_hour"] == pytest.approx(float(rate))
    # Whatever it was called back for, what it used beside the loan ends with it.
    Loan.objects.update(state="ended", ended_at=now - timedelta(minutes=10), is_wanted=False)
    costs = spent([scene.session.pk, scene.training.pk], now)
    assert float(costs[scene.training.pk].amount) == pytest.approx(0.6 * 15, abs=0.05)
    assert costs[scene.training.pk].per_hour == 0
    assert float(costs[scene.session.pk].per_hour) == pytest.approx(0.333 * 45)


def _only_its_gpu_costs(scene: Scene, now: datetime) -> None:
    """The session has held it for an hour, the training runs for half of it."""
    hour, half = now - timedelta(hours=1), now - timedelta(minutes=30)
    Allocation.objects.filter(workload=scene.session).update(started_at=hour, cpu_milli=0)
    Allocation.objects.filter(workload=scene.training).update(started_at=half, cpu_milli=0)
    Allocation.objects.update(memory_mib=0)
    CapacityInterval.objects.update(started_at=now - timedelta(days=1))
    PriceChange.objects.update(valid_from=now - timedelta(days=1))
    Node.objects.update(last_report_at=now)
