"""The agent's side door: tokens, versions, and messages that cannot be understood."""

from __future__ import annotations

import time

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from projects.models import NodeType
from scheduling.agent import protocol
from scheduling.cycle import run_cycle
from scheduling.models import Device, Node
from tests.factories import AGENT_TOKEN, session_spec, simulated_node, submitted, training_spec
from tests.scheduling.conftest import Organisation

pytestmark = pytest.mark.django_db


@pytest.fixture
def agent_client(organisation: Organisation) -> Client:
    return Client(headers={"authorization": f"Bearer {AGENT_TOKEN}"})


def report(**changes: object) -> bytes:
    values: dict[str, object] = {
        "zone": "local",
        "sent_at": time.time(),
        "relay_url": "unix:/somewhere/relay.sock",
        "relay_secret": "s",
        "nodes": [],
        "attempts": [],
    }
    return protocol.encode(protocol.Report(**{**values, **changes}))  # type: ignore[arg-type]  # by name


def post(client: Client, path: str, body: bytes) -> tuple[int, bytes]:
    response = client.post(f"/agent/v1/{path}", body, content_type="application/json")
    return response.status_code, response.content


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Basic {AGENT_TOKEN}"])
def test_without_the_zones_token_nothing_is_answered(
    organisation: Organisation, header: str
) -> None:
    client = Client(headers={"authorization": header})
    assert client.get("/agent/v1/desired").status_code == 401
    assert post(client, "report", report())[0] == 401


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", b"Report"),
        (b"\xff\xfe", b"Report"),
        (b'{"zone": "local"', b"Report"),
        (b'{"zone": 1}', b"$.zone"),
        (report(protocol="allot-agent/9"), b"allot-agent/9"),
        (report(zone="elsewhere"), b"elsewhere"),
    ],
)
def test_a_message_that_cannot_be_read_is_answered_in_words_and_changes_nothing(
    agent_client: Client, body: bytes, said: bytes
) -> None:
    nodes = Node.objects.count()
    status, content = post(agent_client, "report", body)
    assert status == 400
    assert said in content
    assert Node.objects.count() == nodes


def test_a_report_registers_nodes_and_devices(agent_client: Client) -> None:
    node = simulated_node("sim-t4-9", gpus=2)
    assert post(agent_client, "report", report(nodes=[node]))[0] == 200
    assert post(agent_client, "report", report(nodes=[node]))[0] == 200
    assert Device.objects.filter(node__name="sim-t4-9").count() == 2


def test_an_unknown_kind_of_gpu_becomes_a_node_type_that_can_be_borrowed(
    agent_client: Client,
) -> None:
    post(agent_client, "report", report(nodes=[simulated_node("h200-1", kind="h200", gpus=2)]))
    node_type = NodeType.objects.get(name="h200")
    assert (node_type.capacity_gpu_milli, node_type.gpu_model) == (2000, "Tesla T4")
    assert not node_type.gpu_quotas.exists()


def test_a_device_that_is_gone_is_unhealthy_and_kept(agent_client: Client) -> None:
    post(agent_client, "report", report(nodes=[simulated_node("sim-t4-9", gpus=2)]))
    post(agent_client, "report", report(nodes=[simulated_node("sim-t4-9", gpus=1)]))
    healthy = Device.objects.filter(node__name="sim-t4-9").values_list("is_healthy", flat=True)
    assert list(healthy) == [True, False]


def test_the_desired_state_has_all_that_a_start_needs(
    organisation: Organisation, agent_client: Client
) -> None:
    session = submitted(session_spec(organisation.vision), organisation.vera)
    training = submitted(
        training_spec(organisation.language, num_devices=4, checkpoint_every_s=600),
        organisation.lena,
    )
    run_cycle()
    response = agent_client.get("/agent/v1/desired")
    desired = protocol.decode(response.content, protocol.Desired)
    by_name = {spec.name: spec for spec in desired.attempts}
    one = by_name[session.name]
    assert (one.tool, one.base_url) == ("jupyter", f"/s/{session.pk}/")
    assert one.session_secret == session.session_secret
    assert one.devices[0].memory_mib == 14917 * 333 // 1000
    other = by_name[training.name]
    assert other.command == ["python", "train.py"]
    assert (other.tool, other.session_secret) == ("", "")
    assert [device.gpu_milli for device in other.devices] == [1000] * 4
    assert other.checkpoint.every_s == 600.0


def test_samples_of_a_node_that_is_not_the_zones_are_refused(agent_client: Client) -> None:
    batch = protocol.SampleBatch(zone="local", node="elsewhere", batch_id="1", samples=[])
    status, content = post(agent_client, "samples", protocol.encode(batch))
    assert status == 422
    assert b"elsewhere" in content


def test_a_report_of_many_nodes_costs_the_queries_of_one(agent_client: Client) -> None:
    def num_queries(count: int) -> int:
        nodes = [simulated_node(f"sim-t4-{number}") for number in range(100, 100 + count)]
        post(agent_client, "report", report(nodes=nodes))
        with CaptureQueriesContext(connection) as queries:
            assert post(agent_client, "report", report(nodes=nodes))[0] == 200
        return len(queries)

    assert num_queries(30) == num_queries(1)
