"""Rules that rest on rows: failing nodes, labels, past use, predicted ends and estimates."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from projects.models import AuditEntry, Template, TemplateScope, User, WorkloadKind
from scheduling import cycle, past
from scheduling.core import types as core
from scheduling.core.cycle import plan
from scheduling.core.decisions import Eta
from scheduling.core.scenario import load_scenario
from scheduling.cycle import run_cycle
from scheduling.models import (
    Allocation,
    Attempt,
    CycleRecord,
    Node,
    NodeState,
    Phase,
    PlannerPolicy,
    Workload,
)
from scheduling.services import nodes as services_nodes
from scheduling.services import preview
from scheduling.services.actions import ActionRefusedError
from scheduling.services.estimates import eta_json, eta_to_tell
from scheduling.snapshot import take_snapshot, workload_id
from tests.factories import attempt_report, session_spec, submitted, training_spec
from tests.scheduling.conftest import Organisation

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates in every cycle; nothing remembered of other tests' runs."""
    monkeypatch.setattr(cycle, "ESTIMATES_EVERY_S", 0.0)
    past.forget()


@pytest.fixture
def admin(db: None) -> User:
    return User.objects.create_superuser("root-admin")


def refuse(organisation: Organisation, row: Workload, *, is_retryable: bool = True) -> None:
    """Its node could not start it."""
    report = attempt_report(row, phase="refused", error="no room", is_retryable=is_retryable)
    organisation.agent.report(report)


def again(row: Workload) -> None:
    Workload.objects.filter(pk=row.pk).update(not_before=None)


def seen(row: Workload) -> core.Workload:
    (found,) = (w for w in take_snapshot().snapshot.workloads if w.id == workload_id(row))
    return found


def fail_on(organisation: Organisation, name: str, count: int, **how: bool) -> list[Workload]:
    """So many different workloads fail to start on this node, the others being closed to them."""
    others = Node.objects.exclude(name=name)
    others.update(state=NodeState.LOST)
    rows = []
    for _ in range(count):
        row = submitted(training_spec(organisation.speech, backoff_limit=9), organisation.sergey)
        run_cycle()
        row.refresh_from_db()
        assert row.node is not None
        assert row.node.name == name
        refuse(organisation, row, **how)
        Workload.objects.filter(pk=row.pk).update(not_before=timezone.now() + timedelta(hours=2))
        rows.append(row)
        others.update(state=NodeState.LOST)
    organisation.agent.report()
    return rows


# ---------------------------------------------------------------- failing nodes


def test_a_node_that_fails_different_workloads_is_closed(organisation: Organisation) -> None:
    fail_on(organisation, "sim-t4-1", 3)
    run_cycle()
    node = Node.objects.get(name="sim-t4-1")
    assert node.state == NodeState.CORDONED
    assert node.cordon["code"] == "failing_starts"
    assert node.cordon["details"]["failures"] == 3
    assert node.cordoned_by is None
    entry = AuditEntry.objects.get(action="cordoned")
    assert (entry.entity_id, entry.channel, entry.actor) == ("sim-t4-1", "planner", None)
    after = submitted(training_spec(organisation.vision), organisation.vera)
    run_cycle()
    after.refresh_from_db()
    assert after.node is not None
    assert after.node.name == "sim-t4-2"


def test_the_cycle_that_closed_it_can_be_replayed(organisation: Organisation) -> None:
    fail_on(organisation, "sim-t4-1", 3)
    run_cycle()
    record = CycleRecord.objects.order_by("pk").last()
    assert record is not None
    assert [item["type"] for item in record.decisions if item["type"] == "cordon"] == ["cordon"]
    scenario = load_scenario(record.scenario)
    again = plan(scenario.snapshot, scenario.policy, scenario.now_s)
    assert [one.node for one in again.cordons] == ["sim-t4-1"]


@pytest.mark.parametrize("how", ["few", "own fault", "a good start", "off"])
def test_a_node_is_not_closed_without_cause(organisation: Organisation, how: str) -> None:
    if how == "off":
        PlannerPolicy.objects.create(pk=1, cordon_failures=0)
    count = 2 if how == "few" else 3
    fail_on(organisation, "sim-t4-1", count, is_retryable=how != "own fault")
    if how == "a good start":
        attempt = Attempt.objects.filter(node__name="sim-t4-1").last()
        assert attempt is not None
        Attempt.objects.filter(pk=attempt.pk).update(ready_at=timezone.now())
    run_cycle()
    assert Node.objects.get(name="sim-t4-1").state == NodeState.READY


def test_an_admin_opens_it_again_and_old_failures_are_forgiven(
    organisation: Organisation, admin: User
) -> None:
    fail_on(organisation, "sim-t4-1", 3)
    run_cycle()
    node = Node.objects.get(name="sim-t4-1")
    with pytest.raises(ActionRefusedError):
        services_nodes.uncordon(node, actor=organisation.vera)
    services_nodes.uncordon(node, actor=admin)
    assert AuditEntry.objects.filter(action="uncordoned", actor=admin).exists()
    run_cycle()
    node.refresh_from_db()
    assert (node.state, node.cordon) == (NodeState.READY, {})


def test_a_closed_node_that_was_lost_comes_back_closed(
    organisation: Organisation, admin: User
) -> None:
    services_nodes.cordon(Node.objects.get(name="sim-t4-1"), actor=admin)
    Node.objects.filter(name="sim-t4-1").update(state=NodeState.LOST)
    organisation.agent.report()
    assert Node.objects.get(name="sim-t4-1").state == NodeState.CORDONED


def test_the_node_page_says_why_and_lets_admins_open_it(
    organisation: Organisation, admin: User, client: Client
) -> None:
    services_nodes.cordon(Node.objects.get(name="sim-t4-1"), actor=admin)
    client.force_login(organisation.vera)
    page = client.get("/nodes/sim-t4-1").content.decode()
    assert "Closed by root-admin" in page
    assert "/nodes/sim-t4-1/uncordon" not in page
    assert client.post("/nodes/sim-t4-1/uncordon").status_code == 403
    client.force_login(admin)
    assert "/nodes/sim-t4-1/uncordon" in client.get("/nodes/sim-t4-1").content.decode()
    assert client.post("/nodes/sim-t4-1/uncordon").status_code == 302
    assert Node.objects.get(name="sim-t4-1").state == NodeState.READY
    assert client.post("/nodes/sim-t4-1/cordon").status_code == 302
    assert Node.objects.get(name="sim-t4-1").cordoned_by == admin


def test_a_workload_avoids_the_node_where_its_start_failed(organisation: Organisation) -> None:
    row = submitted(training_spec(organisation.speech), organisation.sergey)
    run_cycle()
    row.refresh_from_db()
    first = row.node
    assert first is not None
    refuse(organisation, row)
    assert seen(row).avoided_nodes == {first.name}
    again(row)
    run_cycle()
    row.refresh_from_db()
    assert row.node != first


def test_the_only_node_is_tried_again(organisation: Organisation) -> None:
    (row,) = fail_on(organisation, "sim-t4-1", 1)
    assert seen(row).avoided_nodes == {"sim-t4-1"}
    Node.objects.filter(name="sim-t4-2").update(state=NodeState.LOST)
    assert seen(row).avoided_nodes == frozenset()


def test_a_start_that_failed_and_a_run_that_ended_are_told_apart(
    organisation: Organisation,
) -> None:
    row = submitted(training_spec(organisation.speech), organisation.sergey)
    run_cycle()
    organisation.agent.run(row)
    organisation.agent.end(row, exit_code=3)
    run_cycle()
    row.refresh_from_db()
    assert row.reason["code"] == "backing_off"
    assert row.reason["details"]["exit_code"] == 3
    run_cycle()
    row.refresh_from_db()
    assert row.reason["details"]["exit_code"] == 3, "kept from one cycle to the next"
    other = submitted(training_spec(organisation.speech), organisation.sergey)
    run_cycle()
    refuse(organisation, other)
    run_cycle()
    other.refresh_from_db()
    assert "exit_code" not in other.reason["details"]
    assert other.reason["details"]["last_error"] == "no room"


# ---------------------------------------------------------------- labels and topology


def test_labels_of_a_template_bind_and_nobody_types_them(
    organisation: Organisation, client: Client
) -> None:
    organisation.agent.nodes[1].labels["net"] = "ib"
    organisation.agent.report()
    spec = training_spec(organisation.speech, node_labels=(("net", "ib"),))
    row = submitted(spec, organisation.sergey)
    none = submitted(
        training_spec(organisation.speech, node_labels=(("net", "roce"),)), organisation.sergey
    )
    run_cycle()
    row.refresh_from_db()
    none.refresh_from_db()
    assert row.node is not None
    assert row.node.name == "sim-t4-2"
    assert none.reason["code"] == "no_fit"
    assert none.reason["details"]["constraint"] == "labels"


def _body(organisation: Organisation, **more: object) -> dict[str, object]:
    return {
        "kind": "training",
        "project": organisation.speech.name,
        "name": "labelled",
        "command": ["true"],
        "cpu_milli": 1000,
        "memory_mib": 1024,
        "num_devices": 1,
        "gpu_milli": 1000,
        **more,
    }


def test_the_api_takes_labels_from_templates_and_admins_only(
    organisation: Organisation, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduling.forms.base.check_on_node", lambda spec, owner: [])
    Template.objects.create(
        name="fast net",
        kind=WorkloadKind.TRAINING,
        scope=TemplateScope.PLATFORM,
        spec={"node_labels": {"net": "ib"}},
    )
    client.force_login(organisation.sergey)
    typed = client.post(
        "/api/v1/workloads",
        _body(organisation, node_labels={"net": "ib"}),
        content_type="application/json",
    )
    assert typed.status_code == 422
    assert typed.json()["errors"][0]["field"] == "node_labels"
    assert typed.json()["errors"][0]["code"] == "labels_by_template"
    answer = client.post(
        "/api/v1/workloads",
        _body(organisation, template_name="fast net"),
        content_type="application/json",
    )
    assert answer.status_code == 201, answer.content
    assert answer.json()["node_labels"] == {"net": "ib"}
    wrong = client.post(
        "/api/v1/workloads",
        _body(organisation, name="other", node_labels={"a b": "c"}),
        content_type="application/json",
    )
    assert wrong.json()["errors"][0]["code"] == "invalid_label"


def test_the_zone_is_a_label_of_its_nodes(organisation: Organisation) -> None:
    taken = take_snapshot()
    assert {node.labels["zone"] for node in taken.snapshot.nodes} == {"local"}
    assert taken.policy.topology == ("rack", "zone")


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
    page = client.get(f"/projects/{organisation.speech.name}/why").content.decode()
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


# ---------------------------------------------------------------- words


def test_a_department_is_named_by_its_title(organisation: Organisation, client: Client) -> None:
    for _ in range(2):
        borrower = submitted(training_spec(organisation.language, num_devices=4), organisation.lena)
        run_cycle()
        organisation.agent.run(borrower)
    submitted(session_spec(organisation.speech, gpu_milli=1000), organisation.sergey)
    run_cycle()
    row = Workload.objects.get(phase=Phase.CHECKPOINTING)
    assert row.reason["details"]["titles"]["department:research"] == "Research"
    client.force_login(organisation.lena)
    page = client.get(f"/workloads/{row.pk}").content.decode()
    assert "department Products held" in page
    assert "department Research held" in page
