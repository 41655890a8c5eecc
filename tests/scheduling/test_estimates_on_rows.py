"""What rests on the past, on the rows: use before, predicted ends and estimates."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from scheduling import past
from scheduling.core import types as core
from scheduling.core.decisions import Eta
from scheduling.cycle import run_cycle
from scheduling.models import (
    Allocation,
    Attempt,
    Phase,
    PlannerPolicy,
    Workload,
)
from scheduling.services import preview
from scheduling.services.estimates import eta_json, eta_to_tell
from scheduling.snapshot import take_snapshot
from tests.factories import session_spec, submitted, training_spec
from tests.scheduling.conftest import Organisation
from tests.scheduling.planned import fresh, seen

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fresh")]
__all__ = ["fresh"]


# ---------------------------------------------------------------- history


def use(organisation: Organisation, hours_ago: float, hours: float, devices: int) -> None:
    """Speech held so many devices for so long, and gave them back."""
    row = submitted(training_spec(organisation.speech, num_devices=devices), organisation.sergey)
    run_cycle()
    organisation.agent.run(row)
    organisation.agent.end(row)
    began = timezone.now() - timedelta(hours=hours_ago)
    Allocation.objects.filter(workload=row).update(
        started_at=began, ended_at=began + timedelta(hours=hours)
    )


def past_use(project: str = "speech") -> int:
    (found,) = (p for p in take_snapshot().snapshot.projects if p.id == project)
    return found.past_use_ppm.get(core.ResourceKey("gpu:t4"), 0)


def test_past_use_is_off_by_default(organisation: Organisation) -> None:
    use(organisation, 5, 2, 4)
    assert past_use() == 0


def test_past_use_is_held_over_capacity_in_the_window(organisation: Organisation) -> None:
    PlannerPolicy.objects.create(pk=1, history_factor_milli=1000, history_window_s=36_000)
    use(organisation, 5, 2, 4)
    # 4 of 8 devices for 2 of 10 hours
    assert past_use() == pytest.approx(100_000, rel=0.01)
    assert past_use("vision") == 0


def test_old_use_decays_and_what_left_the_window_is_forgotten(organisation: Organisation) -> None:
    policy = PlannerPolicy.objects.create(
        pk=1, history_factor_milli=1000, history_window_s=36_000, history_half_life_s=7200
    )
    use(organisation, 2, 2, 4)
    young = past_use()
    Allocation.objects.update(
        started_at=timezone.now() - timedelta(hours=6), ended_at=timezone.now() - timedelta(hours=4)
    )
    assert past_use() == pytest.approx(young / 4, rel=0.01)
    policy.history_window_s = 3600
    policy.save()
    assert past_use() == 0


def test_past_use_tilts_the_share_and_the_page_says_so(
    organisation: Organisation, client: Client
) -> None:
    PlannerPolicy.objects.create(pk=1, history_factor_milli=1000, history_window_s=36_000)
    use(organisation, 9, 9, 4)
    submitted(training_spec(organisation.speech, num_devices=8), organisation.sergey)
    client.force_login(organisation.sergey)
    page = client.get(f"/projects/{organisation.speech.name}/why/shares").content.decode()
    assert "Of late it used 45" in page


# ---------------------------------------------------------------- predicted ends, estimates


def finish(organisation: Organisation, minutes: float) -> None:
    row = submitted(training_spec(organisation.speech), organisation.sergey)
    run_cycle()
    organisation.agent.run(row)
    organisation.agent.end(row)
    ended = timezone.now()
    Attempt.objects.filter(workload=row).update(
        placed_at=ended - timedelta(minutes=minutes),
        started_at=ended - timedelta(minutes=minutes),
        ended_at=ended,
    )


def test_runs_like_those_before_are_predicted_by_a_pessimistic_quantile(
    organisation: Organisation,
) -> None:
    for minutes in (10, 20, 30, 40):
        finish(organisation, minutes)
    past.forget()
    row = submitted(training_spec(organisation.speech), organisation.sergey)
    waiting = seen(row)
    assert waiting.expected_run_s == pytest.approx(2400, abs=2)
    assert waiting.expected_basis == "history"
    assert waiting.waiting_since_s == pytest.approx(time.time(), abs=30)
    run_cycle()
    organisation.agent.run(row)
    running = seen(row)
    assert running.expected_run_s is None
    assert running.expected_end_s == pytest.approx(time.time() + 2400, abs=30)
    assert running.early_end_s == pytest.approx(time.time() + 600, abs=30)
    assert running.waiting_since_s is None
    Attempt.objects.filter(workload=row).update(started_at=timezone.now() - timedelta(hours=1))
    late = seen(row)
    assert late.expected_end_s is None, "it has run longer than any before"
    other = submitted(training_spec(organisation.vision), organisation.vera)
    assert seen(other).expected_run_s is None
    session = submitted(session_spec(organisation.speech), organisation.sergey)
    assert seen(session).expected_run_s is None


def test_what_ran_before_an_eviction_counts(organisation: Organisation) -> None:
    for _ in range(3):
        finish(organisation, 40)
    past.forget()
    row = submitted(training_spec(organisation.speech), organisation.sergey)
    run_cycle()
    organisation.agent.run(row)
    Attempt.objects.filter(workload=row).update(started_at=timezone.now() - timedelta(minutes=15))
    organisation.agent.end(row, cause="node_shutdown", exit_code=143)
    Workload.objects.filter(pk=row.pk).update(num_preemptions=1)
    assert seen(row).expected_run_s == pytest.approx(25 * 60, abs=5)


def test_a_waiting_workload_gets_a_range_with_its_basis(
    organisation: Organisation, client: Client
) -> None:
    for minutes in (10, 20, 30):
        finish(organisation, minutes)
    past.forget()
    running = [submitted(training_spec(organisation.speech), organisation.sergey) for _ in range(8)]
    run_cycle()
    for row in running:
        organisation.agent.run(row)
    waiting = submitted(training_spec(organisation.language), organisation.lena)
    waiting = submitted(training_spec(organisation.speech), organisation.sergey)
    past.forget()
    run_cycle()
    waiting.refresh_from_db()
    assert waiting.phase == Phase.QUEUED
    assert waiting.eta["basis"] == "history"
    client.force_login(organisation.sergey)
    body = client.get(f"/api/v1/workloads/{waiting.pk}").json()
    assert body["eta"]["basis"] == "history"
    assert body["eta"]["confidence"] == "low"
    assert 500 <= body["eta"]["min_s"] <= body["eta"]["max_s"] <= 1900
    page = client.get(f"/workloads/{waiting.pk}").content.decode().replace("\xa0", " ")
    assert re.search(r"starts in (9|10) min to (29|30) min", page)
    assert "data-eta" in client.get("/queue").content.decode()
    asked = preview(training_spec(organisation.speech), owner=organisation.sergey)
    assert not asked.starts_now
    assert asked.eta["basis"] == "history"
    organisation.agent.end(running[0])
    run_cycle()
    waiting.refresh_from_db()
    if waiting.phase != Phase.QUEUED:
        assert waiting.eta == {}


def test_without_data_the_start_is_not_predictable(
    organisation: Organisation, client: Client
) -> None:
    for _ in range(2):
        row = submitted(training_spec(organisation.speech, num_devices=4), organisation.sergey)
        run_cycle()
        organisation.agent.run(row)
    waiting = submitted(training_spec(organisation.speech), organisation.sergey)
    run_cycle()
    client.force_login(organisation.sergey)
    assert client.get(f"/api/v1/workloads/{waiting.pk}").json()["eta"] is None
    assert "start not predictable" in client.get(f"/workloads/{waiting.pk}").content.decode()


def test_an_estimate_is_written_anew_only_when_it_has_moved() -> None:
    now_s = time.time()
    at = {"min_at_s": round(now_s), "max_at_s": round(now_s + 7200), "basis": "history"}
    known = {**at, "confidence": "low"}

    def told(max_s: float | None, basis: str = "history", confidence: str = "low") -> object:
        latest = None if max_s is None else now_s + max_s
        return eta_to_tell(known, Eta(now_s, latest, basis, confidence))

    assert told(7500) is known
    assert told(9000) is not known
    assert told(None) is not known
    assert told(7200, basis="prediction") is not known
    assert told(7200, confidence="high") is not known
    assert eta_to_tell(known, None) == {}
    assert eta_to_tell({}, None) == {}
    assert eta_json({}, now_s) is None
    assert eta_json(known, now_s + 100) == {
        "min_s": 0,
        "max_s": 7100,
        "basis": "history",
        "confidence": "low",
    }
