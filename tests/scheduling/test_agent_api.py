"""The agent's side door: tokens, versions, and messages that cannot be understood."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from projects.models import NodeType, User
from scheduling.agent import protocol
from scheduling.cycle import run_cycle
from scheduling.models import Device, Node, Zone
from scheduling.services.claims import GIVEN_UP_AFTER_S, LOST_AFTER_S
from scheduling.services.idleness import watch_idle
from scheduling.services.zones import ensure_zone
from telemetry.models import Batch, NodeSample
from tests.factories import (
    AGENT_TOKEN,
    attempt_report,
    session_spec,
    simulated_node,
    submitted,
    training_spec,
)
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
    with translation.override("ru"):
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
    assert one.language == "ru"
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


def test_an_attempt_that_goes_on_as_before_costs_no_query(
    organisation: Organisation, agent_client: Client
) -> None:
    first = submitted(training_spec(organisation.language), organisation.lena)
    run_cycle()

    def num_queries(*rows: object) -> int:
        seen = [
            attempt_report(row, "running", started_at=1.7e9, checkpoints=[saved(row)])  # type: ignore[arg-type]
            for row in rows
        ]
        post(agent_client, "report", report(attempts=seen))
        with CaptureQueriesContext(connection) as queries:
            assert post(agent_client, "report", report(attempts=seen))[0] == 200
        return len(queries)

    def saved(row: object) -> protocol.CheckpointReport:
        return protocol.CheckpointReport(f"{row}", saved_at=1.7e9, size_bytes=1, sha256="0" * 64)

    of_one = num_queries(first)
    others = [submitted(training_spec(organisation.language), organisation.lena) for _ in "123"]
    run_cycle()
    assert num_queries(first, *others) == of_one
    first.refresh_from_db()
    assert first.phase == "running"


def test_a_first_checkpoint_is_recorded_though_nothing_else_is_new(
    organisation: Organisation, agent_client: Client
) -> None:
    row = submitted(training_spec(organisation.language), organisation.lena)
    run_cycle()
    seen = attempt_report(row, "running", started_at=1.7e9)
    post(agent_client, "report", report(attempts=[seen]))
    saved = protocol.CheckpointReport("k", saved_at=1.7e9, size_bytes=1, sha256="0" * 64)
    seen = attempt_report(row, "running", started_at=1.7e9, checkpoints=[saved])
    post(agent_client, "report", report(attempts=[seen]))
    assert row.checkpoints.count() == 1


@pytest.mark.parametrize("saved_at", [1.7e9, 1e15, -1e12])
@pytest.mark.parametrize("step", [None, -1, 10**30])
def test_what_a_program_says_of_its_checkpoints_stops_no_report(
    organisation: Organisation, agent_client: Client, saved_at: float, step: int | None
) -> None:
    """A name may hold any number, and a file have any time."""
    row = submitted(training_spec(organisation.language), organisation.lena)
    run_cycle()
    saved = protocol.CheckpointReport("k", saved_at, size_bytes=1, sha256="0" * 64, step=step)
    seen = attempt_report(row, "running", started_at=1.7e9, checkpoints=[saved])
    assert post(agent_client, "report", report(attempts=[seen]))[0] == 200
    kept = row.checkpoints.get()
    assert kept.step is None
    assert kept.saved_at.year >= 2023


def test_what_a_sessions_server_says_of_its_past_stops_no_report(
    organisation: Organisation, agent_client: Client
) -> None:
    row = submitted(session_spec(organisation.vision), organisation.vera)
    run_cycle()
    idle = protocol.IdleReport(1.7e9, 1.7e9, 1.7e9, kernels_idle_since=-1e12)
    seen = attempt_report(row, "running", started_at=1.7e9, is_ready=True, idle=idle)
    assert post(agent_client, "report", report(attempts=[seen]))[0] == 200
    watch_idle(timezone.now())


class TestTwoAgents:
    """One zone, or one node name, claimed by two."""

    def client(self, number: str, host: str, token: str = AGENT_TOKEN) -> Client:
        return Client(
            headers={"authorization": f"Bearer {token}", "allot-agent": f"{number} {host}"}
        )

    def silent_for(self, seconds: float, **changes: object) -> None:
        at = timezone.now() - timedelta(seconds=seconds)
        Zone.objects.filter(name="local").update(last_report_at=at, **changes)

    def test_the_second_of_a_zone_is_refused_in_words(self, organisation: Organisation) -> None:
        first, second = self.client("a", "alpha"), self.client("b", "beta")
        assert post(first, "report", report(relay_url="unix:/alpha"))[0] == 200
        status, said = post(second, "report", report(relay_url="unix:/beta"))
        assert status == 409
        assert b"alpha" in said
        assert b"beta" in said
        assert second.get("/agent/v1/desired").status_code == 409
        batch = protocol.SampleBatch(zone="local", node="sim-t4-1", batch_id="1", samples=[])
        assert post(second, "samples", protocol.encode(batch))[0] == 409
        assert Zone.objects.get(name="local").relay_url == "unix:/alpha"
        assert first.get("/agent/v1/desired").status_code == 200

    def test_a_copy_of_the_data_folder_on_another_machine_is_another(
        self, organisation: Organisation
    ) -> None:
        assert post(self.client("a", "alpha"), "report", report())[0] == 200
        assert post(self.client("a", "beta"), "report", report())[0] == 409
        assert post(self.client("a", "alpha"), "report", report())[0] == 200

    def test_after_a_long_silence_another_takes_over(self, organisation: Organisation) -> None:
        first, second = self.client("a", "alpha"), self.client("b", "beta")
        post(first, "report", report())
        self.silent_for(GIVEN_UP_AFTER_S - 5)
        assert post(second, "report", report())[0] == 409
        self.silent_for(GIVEN_UP_AFTER_S + 1)
        assert post(second, "report", report())[0] == 200
        assert post(first, "report", report())[0] == 409, "who comes back late is the second"

    def test_after_a_clean_stop_sooner(self, organisation: Organisation) -> None:
        first, second = self.client("a", "alpha"), self.client("b", "beta")
        post(first, "report", report(is_stopping=True))
        assert post(second, "report", report())[0] == 409
        self.silent_for(LOST_AFTER_S + 1)
        assert post(second, "report", report())[0] == 200

    def test_a_name_of_another_zones_node_is_refused_and_its_page_says_so(
        self, organisation: Organisation
    ) -> None:
        ensure_zone("far", "far-token")
        mine, other = self.client("a", "alpha"), self.client("b", "beta", "far-token")
        post(mine, "report", report(nodes=[simulated_node("gpu-1")]))
        nodes = [simulated_node("gpu-1", kind="v100"), simulated_node("gpu-2")]
        status, content = post(other, "report", report(zone="far", nodes=nodes))
        assert status == 200
        answer = protocol.decode(content, protocol.Acknowledged)
        assert answer.refused_nodes == ["gpu-1"]
        kept = Node.objects.get(name="gpu-1")
        assert (kept.zone.name, kept.labels) == ("local", {"allot/node-type": "t4"})
        assert Node.objects.get(name="gpu-2").zone.name == "far"
        viewer = Client()
        viewer.force_login(organisation.vera)
        page = viewer.get("/nodes/gpu-1").content.decode()
        assert "far, beta" in page
        assert "second agent" in page
        assert "second agent" not in viewer.get("/nodes/gpu-2").content.decode()

    @pytest.mark.parametrize("header", ["n" * 65 + " h", "n " + "h" * 254, "n a\tb"])
    def test_an_identity_that_cannot_be_is_refused(
        self, organisation: Organisation, header: str
    ) -> None:
        client = Client(headers={"authorization": f"Bearer {AGENT_TOKEN}", "allot-agent": header})
        assert post(client, "report", report())[0] == 400


def test_a_clock_that_differs_is_told_on_the_nodes_page_and_to_admins(
    organisation: Organisation, agent_client: Client
) -> None:
    nodes = [simulated_node("gpu-1")]
    post(agent_client, "report", report(nodes=nodes, sent_at=time.time() + 3.5))
    viewer, admin = Client(), Client()
    viewer.force_login(organisation.vera)
    admin.force_login(User.objects.create_superuser("root", password="x"))
    page = viewer.get("/nodes/gpu-1").content.decode()
    assert "differs from Allot’s by +3." in page
    assert "The clock of zone" not in page
    assert "The clock of zone local differs" in admin.get("/").content.decode()
    assert "clock +3." in viewer.get("/live").content.decode()
    post(agent_client, "report", report(nodes=nodes))
    assert "differs" not in viewer.get("/nodes/gpu-1").content.decode()


def test_a_batch_cut_in_the_middle_is_refused_and_nothing_of_it_stays(
    organisation: Organisation, agent_client: Client
) -> None:
    values: dict[str, float | None] = {"cpu_cores": 1.0}
    samples = [protocol.Sample("node:sim-t4-1", time.time() - s, values) for s in range(50)]
    batch = protocol.SampleBatch(zone="local", node="sim-t4-1", batch_id="1", samples=samples)
    whole = protocol.encode(batch)
    status, content = post(agent_client, "samples", whole[: len(whole) // 2])
    assert (status, b"ReceivedBatch" in content) == (400, True)
    assert not Batch.objects.exists()
    assert not NodeSample.objects.exists()
    assert post(agent_client, "samples", whole)[0] == 204
    assert NodeSample.objects.count() == 50
