"""Nodes on which starts fail, on the rows: closed, avoided and opened again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from projects.models import AuditEntry, User
from scheduling.core.cycle import plan
from scheduling.core.scenario import load_scenario
from scheduling.cycle import run_cycle
from scheduling.models import (
    Attempt,
    CycleRecord,
    Node,
    NodeState,
    PlannerPolicy,
    Workload,
)
from scheduling.services import nodes as services_nodes
from scheduling.services.actions import ActionRefusedError
from tests.factories import attempt_report, submitted, training_spec
from tests.scheduling.conftest import Organisation
from tests.scheduling.planned import fresh, seen

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fresh")]
__all__ = ["fresh"]


@pytest.fixture
def admin(db: None) -> User:
    return User.objects.create_superuser("root-admin")


def refuse(organisation: Organisation, row: Workload, *, is_retryable: bool = True) -> None:
    """Its node could not start it."""
    report = attempt_report(row, phase="refused", error="no room", is_retryable=is_retryable)
    organisation.agent.report(report)


def again(row: Workload) -> None:
    Workload.objects.filter(pk=row.pk).update(not_before=None)


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
