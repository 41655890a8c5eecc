"""Idle now: who is listed, who only appears as another project, and what is not judged."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from projects.models import Project, User
from scheduling.models import Attempt, Workload
from telemetry import partitions
from telemetry.models import Subject
from tests.factories import make_member, make_node_type, make_project
from tests.scheduling.history import Cluster, held, workload

pytestmark = pytest.mark.django_db

INSERT = """INSERT INTO telemetry_workload_minute
(subject_id, at, gpu_util_percent, cpu_cores, gpu_memory_mib, net_rx_bytes_per_s,
net_tx_bytes_per_s) VALUES (%s, %s, %s, %s, 7000, 0, 0)"""


def measured(work: Workload, gpu: float | None, cpu: float | None) -> None:
    """The last forty minutes, all alike."""
    subject, _created = Subject.objects.get_or_create(kind="workload", name=str(work.pk))
    now = timezone.now().replace(second=0, microsecond=0)
    times = [now - timedelta(minutes=number) for number in range(1, 41)]
    partitions.ensure_days({at.date() for at in times}, partitions.MINUTE_TABLES)
    with connection.cursor() as cursor:
        cursor.executemany(INSERT, [(subject.pk, at, gpu, cpu) for at in times])


@dataclass(frozen=True, slots=True)
class World:
    idle: Workload
    busy: Workload
    blind: Workload
    silent: Workload
    vera: User
    sergey: User
    admin: User


@pytest.fixture
def world() -> World:
    """Vision's first is idle, its second works; of speech's two one lacks GPU data, one all."""
    t4 = make_node_type("t4", gpus=4)
    vision, speech = make_project("vision"), make_project("speech")
    vera, sergey = make_member(vision, "vera"), make_member(speech, "sergey")
    since = timezone.now() - timedelta(hours=3)
    node = Cluster(since=since).node(t4)
    works = []
    for number, (project, owner, name) in enumerate(
        (
            (vision, vera, "sleeper"),
            (vision, vera, "worker"),
            (speech, sergey, "blind"),
            (speech, sergey, "silent"),
        )
    ):
        work = workload(project, owner, name=name, phase="running")
        held(work, node, (since, None), devices=1, milli=500, first=number)
        works.append(work)
    measured(works[0], 0.4, 0.01)
    measured(works[1], 70.0, 3.0)
    measured(works[2], None, 0.01)
    idle, busy, blind, silent = works
    admin = User.objects.create_superuser("admin")
    return World(idle, busy, blind, silent, vera, sergey, admin)


def opened(user: User, address: str = "/idle", language: str = "en") -> Any:
    client = Client(headers={"Accept-Language": language})
    client.force_login(user)
    return client.get(address)


def halves(response: Any) -> tuple[str, str]:
    """What is listed as idle, and what is not judged."""
    idle, _title, unmeasured = response.content.decode().partition('id="unmeasured-title"')
    return idle, unmeasured


@pytest.mark.parametrize("language", ["en", "ru"])
def test_who_does_nothing_is_listed_with_time_and_cost(world: World, language: str) -> None:
    response = opened(world.admin, language=language)
    assert response.status_code == 200
    idle, _unmeasured = halves(response)
    assert "sleeper" in idle
    assert "worker" not in idle


@pytest.mark.parametrize(
    ("rule", "is_listed"),
    [
        ({}, True),
        ({"idle_window_s": 300}, True),
        ({"idle_window_s": 7200}, False),
        ({"idle_gpu_percent": 0.3}, False),
        ({"idle_gpu_percent": 0.5}, True),
        ({"idle_cpu_percent": 0.1}, False),
        ({"idle_may_lack_network": False}, True),
    ],
    ids=str,
)
def test_each_projects_rule_says_who_is_idle(
    world: World, rule: dict[str, Any], is_listed: bool
) -> None:
    Project.objects.filter(name="vision").update(**rule)
    idle, _unmeasured = halves(opened(world.admin))
    assert ("sleeper" in idle) is is_listed
    assert "worker" not in idle


def test_without_network_figures_the_projects_rule_decides(world: World) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE telemetry_workload_minute SET net_rx_bytes_per_s = NULL")
    assert "sleeper" in halves(opened(world.admin))[0]
    Project.objects.update(idle_may_lack_network=False)
    assert "sleeper" not in halves(opened(world.admin))[0]


def test_a_session_with_a_busy_kernel_is_at_work_though_it_uses_nothing(world: World) -> None:
    quiet = {f"{name}_idle_since": 1000.0 for name in ("gpu", "cpu", "network", "terminals")}
    Workload.objects.filter(pk=world.idle.pk).update(kind="interactive", is_preemptible=False)
    attempts = Attempt.objects.filter(workload=world.idle)
    attempts.update(idle_signals={**quiet, "kernels_idle_since": None})
    assert "sleeper" not in halves(opened(world.admin))[0]
    attempts.update(idle_signals={**quiet, "kernels_idle_since": 1000.0})
    assert "sleeper" in halves(opened(world.admin))[0]


def test_a_missing_signal_is_not_idle_and_says_so(world: World) -> None:
    idle, unmeasured = halves(opened(world.admin))
    assert "blind" not in idle
    assert "silent" not in idle
    assert unmeasured.index("blind") < unmeasured.index("signal missing: GPU<")
    assert unmeasured.index("silent") < unmeasured.index("signal missing: GPU and CPU")


def test_others_appear_without_names(world: World) -> None:
    text = opened(world.sergey).content.decode()
    assert "another project" in text
    for name in ("sleeper", "vera", "Vision"):
        assert name not in text


def test_only_who_may_see_cost_sees_it(world: World) -> None:
    def costs(user: User) -> list[str]:
        rows = list(csv.reader(io.StringIO(opened(user, "/idle/csv").content.decode())))
        return [row[-1] for row in rows[1:]]

    assert float(costs(world.vera)[0]) > 0
    assert costs(world.sergey) == [""]


def test_a_project_can_be_chosen(world: World) -> None:
    idle, unmeasured = halves(opened(world.admin, "/idle?project=speech"))
    assert "sleeper" not in idle
    assert "blind" in unmeasured
    assert "Nobody is idle" in idle


def test_buttons_do_something(world: World) -> None:
    """What would notify or stop comes with the rules; nothing is there that does nothing."""
    main = opened(world.admin).content.decode().partition("<main")[2].partition("</main")[0]
    assert main.count("<button") == 1


def test_the_overview_says_how_much_is_idle_and_leads_here(world: World) -> None:
    text = opened(world.vera, "/").content.decode()
    tile = text.partition('<a class="tile" href="/idle">')[2].partition("</a>")[0]
    assert '<span class="tile-value">0.5</span>' in tile


def test_nobody_sees_it_without_logging_in() -> None:
    assert Client().get("/idle").status_code == 302
    assert Client().get("/idle/csv").status_code == 302


def test_hostile_choices_find_nothing(world: World) -> None:
    assert opened(world.admin, "/idle?project=%00<script>").status_code == 200
    assert opened(world.admin, "/idle/csv?project=%00").status_code == 200
