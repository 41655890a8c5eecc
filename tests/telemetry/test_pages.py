"""Telemetry on real pages: a session's charts and its cost, from the agent's post to the reader."""

from __future__ import annotations

import time

import pytest
from django.test import Client

from projects.models import User
from scheduling.agent.protocol import encode
from scheduling.cycle import run_cycle
from scheduling.models import Workload
from telemetry.messages import Sample, SampleBatch
from tests.factories import (
    AGENT_TOKEN,
    FakeAgent,
    make_member,
    make_node_type,
    make_project,
    session_spec,
    submitted,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def agent() -> FakeAgent:
    make_node_type()
    agent = FakeAgent()
    agent.report()
    return agent


@pytest.fixture
def session(agent: FakeAgent) -> Workload:
    """A session that runs on a third of a simulated T4."""
    project = make_project("vision", t4=1500)
    workload = submitted(session_spec(project), make_member(project, "vera"))
    run_cycle()
    agent.run(workload)
    workload.refresh_from_db()
    return workload


def logged_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def post(batch: SampleBatch) -> int:
    answer = Client().post(
        "/agent/v1/samples",
        encode(batch),
        content_type="application/json",
        headers={"Authorization": f"Bearer {AGENT_TOKEN}"},
    )
    return answer.status_code


def batch_about(workload: Workload) -> SampleBatch:
    node = workload.node.name if workload.node else ""
    sample = Sample(f"workload:{workload.pk}", time.time() - 1, {"cpu_cores": 1.5})
    return SampleBatch("local", node, "b1", [sample])


def test_what_the_agent_posts_is_on_the_owners_page(session: Workload) -> None:
    assert post(batch_about(session)) == 204
    client = logged_in(session.owner)
    answer = client.get(f"/workloads/{session.pk}/series", {"metric": "cpu_cores"})
    assert answer.json()["figure"]["data"][0]["y"] == [1.5]
    page = client.get(f"/workloads/{session.pk}")
    html = page.content.decode()
    assert f'data-topic="telemetry:workload:{session.pk}"' in html
    assert f'data-cost-topic="telemetry:workload:{session.pk}"' in html
    assert "style-src 'self' 'unsafe-inline'" in page.headers["Content-Security-Policy"]
    assert "script-src 'self';" in page.headers["Content-Security-Policy"] + ";"


def test_a_stranger_sees_neither_chart_nor_data(session: Workload) -> None:
    stranger = logged_in(User.objects.create_user("mallory"))
    answer = stranger.get(f"/workloads/{session.pk}/series", {"metric": "cpu_cores"})
    assert answer.status_code in (403, 404)


def test_the_nodes_page_has_a_line_per_device(session: Workload) -> None:
    html = logged_in(session.owner).get("/nodes/sim-t4-1").content.decode()
    for index in range(4):
        assert f'data-topic="telemetry:device:GPU-sim-t4-1-{index}"' in html


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({"node": "elsewhere"}, 422, "elsewhere"),
        ({"zone": "moon"}, 400, "moon"),
        ({"batch_id": ""}, 422, "batch_id"),
        ({"protocol": "allot-agent/9"}, 400, "allot-agent/9"),
    ],
)
def test_a_batch_that_cannot_be_taken_in_is_refused_in_words(
    agent: FakeAgent, change: dict[str, str], status: int, word: str
) -> None:
    values = {"zone": "local", "node": "sim-t4-1", "batch_id": "b", "samples": []} | change
    answer = Client().post(
        "/agent/v1/samples",
        encode(values),
        content_type="application/json",
        headers={"Authorization": f"Bearer {AGENT_TOKEN}"},
    )
    assert answer.status_code == status
    assert word in answer.content.decode()


def test_a_batch_cut_in_the_middle_is_refused(session: Workload) -> None:
    answer = Client().post(
        "/agent/v1/samples",
        encode(batch_about(session))[:-9],
        content_type="application/json",
        headers={"Authorization": f"Bearer {AGENT_TOKEN}"},
    )
    assert answer.status_code == 400
