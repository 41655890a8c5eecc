"""Charts of use and cost: their numbers are those of analytics, and who may see them."""

from __future__ import annotations

import json
import re
import uuid
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from projects.models import Membership, Role, User
from scheduling import costs
from scheduling.analytics import answer, query
from scheduling.models import CapacityInterval, Node, Workload
from telemetry.ingestion import ingest
from telemetry.messages import Sample, SampleBatch
from telemetry.rollups import roll_up_new
from tests.factories import make_member, make_node_type, make_project
from tests.scheduling import history
from tests.scheduling.history import Cluster

pytestmark = pytest.mark.django_db


class Past:
    """A node of one GPU at 60 an hour; vera's session holds half of it since forty minutes ago.

    For the second ten of these minutes the node was down.
    """

    def __init__(self) -> None:
        self.now = timezone.now()
        self.began = self.now - timedelta(minutes=40)
        t4 = make_node_type("t4")
        vision = make_project("vision")
        speech = make_project("speech")
        self.vera, self.sergey = make_member(vision, "vera"), make_member(speech, "sergey")
        self.admin = User.objects.create_superuser("root")
        long_ago = self.now - timedelta(days=2)
        history.priced(t4, long_ago, gpu=60)
        down, up = self.began + timedelta(minutes=10), self.began + timedelta(minutes=20)
        cluster = Cluster(long_ago)
        self.node = cluster.node(t4, gpus=1, until=down)
        cluster.ready(self.node, up, None)
        Node.objects.filter(pk=self.node.pk).update(last_report_at=self.now)
        self.work = history.workload(vision, self.vera, cpu_milli=100, memory_mib=64)
        self.attempt = history.held(self.work, self.node, (self.began, None), devices=1, milli=500)
        Workload.objects.filter(pk=self.work.pk).update(
            current=self.attempt,
            phase="running",
            node=self.node,
            node_type=t4,
            num_devices=1,
            gpu_milli=500,
        )


@pytest.fixture
def past() -> Past:
    return Past()


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def read(user: User, address: str) -> dict[str, Any]:
    response = client_of(user).get(address)
    assert response.status_code == 200, response.content
    found: dict[str, Any] = json.loads(response.content)
    return found


def values(payload: dict[str, Any], line: int = 0) -> list[float | None]:
    found: list[float | None] = payload["figure"]["data"][line]["y"]
    return found


def test_a_workloads_cost_is_that_of_analytics_though_its_node_was_down(past: Past) -> None:
    now = timezone.now()
    amount = costs.costs_so_far([past.work.pk], now)[past.work.pk]
    # Ten minutes up, ten down, twenty up: half an hour of half a GPU.
    assert float(amount) == pytest.approx(15.0, rel=0.01)
    asked = query.read(
        {"metric": "cost", "group_by": "user", "from": f"{past.began:%Y-%m-%d}", "tz": "UTC"},
        now,
        past.admin,
    )
    assert answer.run(asked, past.admin, now).whole.total == pytest.approx(float(amount), rel=1e-3)


def test_what_has_just_begun_costs_nothing_but_has_a_cost(past: Past) -> None:
    work = history.workload(past.work.project, past.vera)
    now = timezone.now()
    history.held(work, past.node, (now, None))
    soon = now + timedelta(microseconds=1)
    assert costs.costs_so_far([work.pk], soon)[work.pk] < Decimal("0.001")
    assert costs.costs_so_far([uuid.uuid4()], timezone.now()) == {}


def test_a_workloads_cost_chart_grows_to_what_its_page_says(past: Past) -> None:
    payload = read(past.vera, f"/workloads/{past.work.pk}/cost/series?range=3h")
    (line,) = payload["lines"]
    assert line["topic"] == f"telemetry:workload:{past.work.pk}"
    assert line["per_hour"] == pytest.approx(30.0)
    assert line["amount"] == pytest.approx(15.0, rel=0.01)
    known = [value for value in values(payload) if value is not None]
    assert known == sorted(known)
    assert known[0] < 1.0
    assert known[-1] == pytest.approx(line["amount"])
    page = client_of(past.vera).get(f"/workloads/{past.work.pk}?range=3h").content.decode()
    address = f"/workloads/{past.work.pk}/cost/series?range=3h&format=csv"
    assert address.replace("&", "&amp;") in page
    rows = client_of(past.vera).get(address).content.decode().splitlines()
    assert rows[0].endswith('"Cost so far, RUB"')
    assert len(rows) > 2
    assert 'id="chart-cost"' in page


@pytest.mark.parametrize("metric", ["chart-cost"])
def test_cost_is_for_who_may_see_it(past: Past, metric: str) -> None:
    colleague = User.objects.create_user("anna")
    Membership.objects.create(user=colleague, project=past.work.project, role=Role.RESEARCHER)
    page = client_of(colleague).get(f"/workloads/{past.work.pk}").content.decode()
    assert f'id="{metric}"' not in page
    for user in (colleague, past.sergey):
        refused = client_of(user).get(f"/workloads/{past.work.pk}/cost/series")
        assert refused.status_code == 403
    node = f"/nodes/{past.node.name}/cost/series"
    assert set(values(read(past.sergey, node))) == {0.0}
    assert values(read(past.vera, node))[-1] == pytest.approx(30.0)
    assert values(read(past.admin, node))[-1] == pytest.approx(30.0)
    cluster = "/cluster/series?of=cost"
    assert set(values(read(past.sergey, cluster))) == {0.0}
    assert read(past.admin, cluster)["lines"][0]["amount"] == pytest.approx(30.0)


def test_a_nodes_cost_is_nothing_while_it_is_down(past: Past) -> None:
    found = values(read(past.vera, f"/nodes/{past.node.name}/cost/series?range=3h"))
    # 240 bins of 45 s: 40 minutes ago is the 187th.
    assert found[:185] == [0.0] * 185
    assert found[190:198] == pytest.approx([30.0] * 8)
    assert found[203:211] == [0.0] * 8
    assert found[216:] == pytest.approx([30.0] * 24)


def test_the_overview_reads_its_charts_after_the_page_and_says_what_is_used(past: Past) -> None:
    at = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=5)
    device = past.node.devices.get()
    samples = [
        Sample(f"device:{device.uuid}", at.timestamp() + s, {"gpu_util_percent": 40.0})
        for s in range(0, 60, 5)
    ]
    ingest(SampleBatch("z", "n", "b", samples), nodes={"n"})
    roll_up_new()
    page = client_of(past.sergey).get("/").content.decode()
    for chart in ("chart-cluster", "chart-cluster-cost"):
        data = re.search(rf'<script id="{chart}-data"[^>]*>(.*?)</script>', page, re.DOTALL)
        assert data is not None
        payload = json.loads(data[1])
        assert payload["is_lazy"] is True
        assert values(payload) == []
        assert 'data-topic="cluster"' in page
    found = read(past.sergey, "/cluster/series?of=use")
    assert values(found)[-1] == pytest.approx(0.5)
    assert max(value for value in values(found, 1) if value is not None) == pytest.approx(0.4)
    assert [line["metric"] for line in found["lines"]] == ["gpu_held", "gpu_used"]


@pytest.mark.parametrize("address", ["/cluster/series", "/cluster/series?of=\x00"])
def test_a_wrong_question_is_refused(past: Past, address: str) -> None:
    assert client_of(past.vera).get(address).status_code == 400


@pytest.mark.parametrize(
    "address",
    [
        "/cluster/series?of=cost",
        "/nodes/n/cost/series",
        f"/workloads/{uuid.UUID(int=1)}/cost/series",
    ],
)
def test_nobody_sees_it_without_logging_in(db: None, address: str) -> None:
    assert Client().get(address).status_code == 302


def test_without_nodes_or_work_charts_are_empty(db: None) -> None:
    admin = User.objects.create_superuser("root")
    assert not CapacityInterval.objects.exists()
    assert set(values(read(admin, "/cluster/series?of=cost"))) == {0.0}
    assert set(values(read(admin, "/cluster/series?of=use"))) == {0.0}
