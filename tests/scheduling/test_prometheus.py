"""`/metrics`: names and labels, what is absent, who may read it, and that it stays small."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from projects import tokens
from projects.models import User
from scheduling.cycle import run_cycle
from scheduling.models import Device, Workload
from scheduling.prometheus.exposition import Family, histogram, lines
from telemetry.ingestion import ingest
from telemetry.messages import Sample, SampleBatch
from telemetry.metrics import METRICS, Kind
from tests.factories import submitted, training_spec
from tests.scheduling.conftest import Organisation

SERIES = re.compile(r'^[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_]\w*="(\\.|[^"\\])*",?)*\})? \S+$')

# What the exporter of DCGM sends for a value that it does not have.
SENTINEL = 9223372036854775794.0


@pytest.fixture
def admin(db: None) -> User:
    return User.objects.create_superuser("root")


def scrape(user: User, path: str = "/metrics") -> list[str]:
    secret = tokens.issue(user, name="prometheus").secret
    answer = Client(headers={"Authorization": f"Bearer {secret}"}).get(path)
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    found = answer.content.decode().splitlines()
    for line in found:
        assert line.startswith("#") or SERIES.match(line), line
    return found


def one(found: list[str], start: str) -> str:
    (line,) = [line for line in found if line.startswith(start)]
    return line


def send(organisation: Organisation, **values: float | None) -> Device:
    device = Device.objects.order_by("node__name", "index")[0]
    sample = Sample(f"device:{device.uuid}", timezone.now().timestamp(), values)
    ingest(SampleBatch("local", device.node.name, "b", [sample]), nodes={device.node.name})
    return device


def test_devices_have_the_exporters_names_and_labels(
    organisation: Organisation, admin: User
) -> None:
    device = send(organisation, gpu_util_percent=41.0, memory_used_mib=900.0, power_w=60.5)
    found = scrape(admin)
    line = one(found, "DCGM_FI_DEV_GPU_UTIL{")
    assert line.endswith(" 41")
    for label in (
        'gpu="0"',
        f'UUID="{device.uuid}"',
        'device="nvidia0"',
        'modelName="Tesla T4"',
        'Hostname="sim-t4-1"',
        'node_type="t4"',
    ):
        assert label in line
    assert one(found, "DCGM_FI_DEV_FB_FREE{").endswith(f" {device.memory_mib - 900}")
    assert "# TYPE DCGM_FI_DEV_GPU_UTIL gauge" in found


def test_what_a_device_does_not_say_has_no_series(organisation: Organisation, admin: User) -> None:
    send(organisation, gpu_util_percent=None, temperature_c=SENTINEL, power_w=60.0)
    text = "\n".join(scrape(admin))
    assert "DCGM_FI_DEV_POWER_USAGE{" in text
    assert "DCGM_FI_DEV_GPU_UTIL{" not in text
    assert "DCGM_FI_DEV_GPU_TEMP" not in text


def test_an_old_sample_is_not_the_present(organisation: Organisation, admin: User) -> None:
    device = Device.objects.order_by("node__name", "index")[0]
    old = timezone.now() - timedelta(minutes=5)
    sample = Sample(f"device:{device.uuid}", old.timestamp(), {"gpu_util_percent": 41.0})
    ingest(SampleBatch("local", device.node.name, "b", [sample]), nodes={device.node.name})
    assert not any("GPU_UTIL" in line for line in scrape(admin))


def test_projects_queue_and_collectors(organisation: Organisation, admin: User) -> None:
    for _ in range(9):
        submitted(training_spec(organisation.vision), organisation.vera)
    run_cycle()
    send(organisation, gpu_util_percent=1.0)
    found = scrape(admin)
    held = one(found, 'allot_project_gpu_allocated{project="vision",node_type="t4",preemptible="t')
    assert held.endswith(" 8")
    assert one(found, 'allot_project_gpu_quota{project="vision"').endswith(" 1.5")
    assert one(found, 'allot_queue_depth{project="vision",node_type="t4"}').endswith(" 1")
    assert one(found, 'allot_workloads{project="vision",kind="training",phase="queued"}').endswith(
        " 1"
    )
    assert one(found, 'allot_queue_wait_seconds_count{project="vision"').endswith(" 8")
    ratios = [line for line in found if line.startswith("allot_gpu_allocated_ratio{")]
    assert len(ratios) == 8
    assert all(line.endswith(" 1") for line in ratios)
    assert one(found, 'allot_collector_last_sample_timestamp_seconds{node="sim-t4-1"}')
    assert one(found, 'allot_preemptions_total{reason="reclaimed"}').endswith(" 0")


def test_more_workloads_make_no_more_series(organisation: Organisation, admin: User) -> None:
    submitted(training_spec(organisation.vision), organisation.vera)
    before = len(scrape(admin))
    for _ in range(20):
        submitted(training_spec(organisation.vision), organisation.vera)
    assert Workload.objects.count() == 21
    assert len(scrape(admin)) == before


def test_workloads_have_an_address_of_their_own(organisation: Organisation, admin: User) -> None:
    work = submitted(training_spec(organisation.vision), organisation.vera)
    run_cycle()
    sample = Sample(f"workload:{work.pk}", timezone.now().timestamp(), {"gpu_util_percent": 7.0})
    ingest(SampleBatch("local", "sim-t4-1", "b", [sample]), nodes={"sim-t4-1"})
    line = one(scrape(admin, "/metrics/workloads"), "allot_workload_gpu_util_percent{")
    assert f'workload="{work.name}"' in line
    assert 'fraction="1"' in line


def test_only_admins_may_read_it(organisation: Organisation) -> None:
    assert Client().get("/metrics").status_code == 401
    secret = tokens.issue(organisation.vera, name="t").secret
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    assert client.get("/metrics").status_code == 403
    assert Client(headers={"Authorization": "Bearer nonsense"}).get("/metrics").status_code == 401


def test_label_values_are_escaped() -> None:
    family = Family("m", "gauge", "about")
    family.add(1.5, {"name": 'a"b\\c\nd'})
    assert list(lines([family]))[-1] == 'm{name="a\\"b\\\\c\\nd"} 1.5\n'


def test_buckets_of_a_histogram_add_up() -> None:
    family = Family("m", "histogram", "about")
    histogram(family, {}, (1.0, 5.0), {1.0: 2, float("inf"): 1}, total=12.5)
    assert list(lines([family]))[2:] == [
        'm_bucket{le="1"} 2\n',
        'm_bucket{le="5"} 2\n',
        'm_bucket{le="+Inf"} 3\n',
        "m_sum 12.5\n",
        "m_count 3\n",
    ]


SELECTOR = re.compile(r"\b((?:DCGM_FI|allot)_\w+)(?:\{([^}]*)\})?")
BY = re.compile(r"\bby \(([^)]*)\)")
# Metrics that NVIDIA's dashboard 12239 asks for, by the list in the product reference: it filters
# on `instance` (Prometheus's own) and `gpu`. PROF_ fields need DCGM itself.
OF_12239 = ("GPU_TEMP", "POWER_USAGE", "SM_CLOCK", "GPU_UTIL", "FB_USED")


def busy_cluster(organisation: Organisation) -> None:
    """Every device tells every value; workloads run, wait and have ended."""
    for _ in range(9):
        submitted(training_spec(organisation.vision), organisation.vera)
    run_cycle()
    ended = Workload.objects.filter(current__isnull=False)[0]
    organisation.agent.run(ended)
    organisation.agent.end(ended)
    for device in Device.objects.select_related("node"):
        values = {metric.name: 1.0 for metric in METRICS[Kind.DEVICE]}
        sample = Sample(f"device:{device.uuid}", timezone.now().timestamp(), dict(values))
        batch = SampleBatch("local", device.node.name, f"all-{device.pk}", [sample])
        ingest(batch, nodes={device.node.name})


def labels_by_name(found: list[str]) -> dict[str, set[str]]:
    """Label names of every series of an answer."""
    known: dict[str, set[str]] = {}
    for line in found:
        if match := re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+$", line):
            known.setdefault(match[1], set()).update(re.findall(r'(\w+)="', match[2] or ""))
    return known


def test_the_dashboard_asks_by_labels_that_series_have(
    organisation: Organisation, admin: User
) -> None:
    busy_cluster(organisation)
    known = labels_by_name(scrape(admin))
    board = json.loads((settings.BASE_DIR / "deploy" / "grafana" / "allot.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    checked = set()
    for text in asked:
        grouped = {name.strip() for names in BY.findall(text) for name in names.split(",")}
        for name, selector in SELECTOR.findall(text):
            if name not in known:
                continue
            wanted = set(re.findall(r"(\w+)\s*[=!]~?", selector)) | grouped
            assert wanted <= known[name], (text, name, known[name])
            checked.add(name)
    # What happens seldom (errors, idleness for half an hour, saving) has no series yet.
    assert len(checked) >= 13, checked


def test_nvidias_dashboard_finds_its_series_and_labels(
    organisation: Organisation, admin: User
) -> None:
    busy_cluster(organisation)
    known = labels_by_name(scrape(admin))
    for name in OF_12239:
        assert {"gpu", "UUID", "Hostname", "modelName", "device"} <= known[f"DCGM_FI_DEV_{name}"]


def test_a_device_has_a_bounded_number_of_series(organisation: Organisation, admin: User) -> None:
    busy_cluster(organisation)
    found = [line for line in scrape(admin) if line.startswith("DCGM_")]
    num_devices = Device.objects.count()
    assert len(found) == num_devices * (len(METRICS[Kind.DEVICE]) - 3 + 1)
    # A device of its own line in each, whatever runs on it: no label of a workload or person.
    labels = set().union(*labels_by_name(found).values())
    assert labels == {"gpu", "UUID", "device", "modelName", "Hostname", "node", "node_type"}
    busy = submitted(training_spec(organisation.speech), organisation.sergey)
    run_cycle()
    organisation.agent.run(busy)
    assert len([line for line in scrape(admin) if line.startswith("DCGM_")]) == len(found)
