"""Idle now: who is listed, who only appears as another project, and what is not judged."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from projects import tokens
from projects.models import NodeType, Project, Role, User
from scheduling.models import Attempt, Event, Node, Notice, Workload
from scheduling.services import notices
from scheduling.services.rules import AppliesTo, change_rule
from telemetry import partitions
from telemetry.models import Subject
from tests.factories import make_member, make_node_type, make_project
from tests.scheduling.history import Cluster, held, workload

pytestmark = pytest.mark.django_db

INSERT = """INSERT INTO telemetry_workload_minute
(subject_id, at, gpu_util_percent, cpu_cores, gpu_memory_mib, net_rx_bytes_per_s,
net_tx_bytes_per_s) VALUES (%s, %s, %s, %s, 7000, 0, 0)"""


def measured(work: Workload, gpu: float | None, cpu: float | None, *, again: bool = False) -> None:
    """The last forty minutes, all alike; `again` instead of what was measured before."""
    subject, _created = Subject.objects.get_or_create(kind="workload", name=str(work.pk))
    now = timezone.now().replace(second=0, microsecond=0)
    times = [now - timedelta(minutes=number) for number in range(1, 41)]
    partitions.ensure_days({at.date() for at in times}, partitions.MINUTE_TABLES)
    with connection.cursor() as cursor:
        if again:
            cursor.execute(
                "DELETE FROM telemetry_workload_minute WHERE subject_id = %s", [subject.pk]
            )
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


@pytest.mark.parametrize(
    ("applies_to", "change", "is_listed"),
    [
        (AppliesTo.NEW, {"idle_gpu_percent": 0.3}, True),
        (AppliesTo.RUNNING, {"idle_gpu_percent": 0.3}, False),
        (AppliesTo.NEW, {"idle_cpu_percent": 0.1, "idle_network_kib_s": 0.0}, True),
        (AppliesTo.RUNNING, {"idle_network_kib_s": 0.0}, False),
        (AppliesTo.NEW, {"idle_window_s": 7200}, False),
    ],
    ids=str,
)
def test_who_runs_already_is_judged_by_the_thresholds_that_it_keeps(
    world: World, applies_to: AppliesTo, change: dict[str, Any], is_listed: bool
) -> None:
    vision = world.idle.project
    change_rule(vision, change, applies_to=applies_to, actor=world.admin, channel="ui")
    assert ("sleeper" in halves(opened(world.admin))[0]) is is_listed


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
    # A cell that was short is in no minute's mean.
    just_now = (timezone.now() - timedelta(minutes=4)).timestamp()
    attempts.update(idle_signals={**quiet, "kernels_idle_since": just_now})
    assert "sleeper" not in halves(opened(world.admin))[0]


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


# ---------------------------------------------------------------- what can be done


def actions(response: Any) -> list[str]:
    """What is offered in the row of the idle one."""
    row = halves(response)[0].partition('data-idle="sleeper"')[2].partition("</tr>")[0]
    return [name for name in ("notify", "swap-out", "stop") if f"/{name}" in row]


@pytest.fixture
def session(world: World) -> Workload:
    """The idle one is a session that could be swapped out."""
    rows = Workload.objects.filter(pk=world.idle.pk)
    attempt = Attempt.objects.get(workload=world.idle)
    rows.update(kind="interactive", is_preemptible=False, current=attempt)
    since = timezone.now() - timedelta(hours=2)
    Attempt.objects.filter(pk=attempt.pk).update(
        phase="running", is_ready=True, idle_since=since, idle_seen_at=timezone.now()
    )
    Project.objects.update(lends_idle=True)
    NodeType.objects.update(swap_enabled=True)
    Node.objects.update(swap_mechanism="simulated")
    return rows.get()


def test_each_sees_the_actions_that_are_open_to_them(world: World, session: Workload) -> None:
    manager = make_member(session.project, "mila", Role.MANAGER)
    colleague = make_member(session.project, "max")
    for user in (world.admin, manager):
        assert actions(opened(user)) == ["notify", "swap-out", "stop"]
    assert actions(opened(world.vera)) == ["swap-out", "stop"], "nobody notifies oneself"
    assert actions(opened(colleague)) == []
    assert actions(opened(world.sergey)) == []
    Attempt.objects.update(lend_asked_at=timezone.now())
    assert actions(opened(manager)) == ["notify", "stop"], "it is asked for already"


def test_a_training_can_be_notified_of_and_stopped(world: World) -> None:
    assert actions(opened(world.admin)) == ["notify", "stop"]


def test_what_can_be_done_costs_no_query_per_row(world: World, session: Workload) -> None:
    def num_queries() -> int:
        with CaptureQueriesContext(connection) as queries:
            opened(world.admin)
        return len(queries)

    one = num_queries()
    measured(world.busy, 0.4, 0.01, again=True)
    assert num_queries() == one


def sent(user: User, work: Workload, action: str, language: str = "en") -> str:
    """The page after a button was pressed on it."""
    client = Client(headers={"Accept-Language": language})
    client.force_login(user)
    address = f"/workloads/{work.pk}/{action}"
    response = client.post(address, {"next": "/idle?project=vision"}, follow=True)
    assert response.redirect_chain[-1][0] == "/idle?project=vision"
    return str(response.content.decode())


@pytest.mark.parametrize(
    ("language", "done", "again", "asked"),
    [
        ("en", "The owner of “sleeper” is notified.", "at most once in 1", "asks whether it is"),
        ("ru", "Владелец «sleeper» уведомлён.", "не чаще раза в 1", "спрашивает, нужна ли"),
    ],
)
def test_the_owner_is_notified_on_the_page_and_by_mail_once_an_hour(
    world: World, session: Workload, language: str, done: str, again: str, asked: str
) -> None:
    User.objects.filter(pk=world.vera.pk).update(email="vera@example.org")
    Workload.objects.update(language=language)
    assert done in sent(world.admin, session, "notify", language)
    assert again in sent(world.admin, session, "notify", language)
    for address in ("/sessions", f"/workloads/{session.pk}"):
        page = opened(world.vera, address, language).content.decode()
        assert "data-idle-question" in page
        assert asked in page
    notices.send_due(timezone.now())
    (letter,) = mail.outbox
    assert letter.to == ["vera@example.org"]
    assert asked in letter.body
    Attempt.objects.update(idle_since=timezone.now() + timedelta(seconds=1))
    page = opened(world.vera, "/sessions", language).content.decode()
    assert "data-idle-question" not in page, "it was used since"


@pytest.mark.parametrize(
    ("language", "words"), [("en", "owner notified"), ("ru", "владелец уведомлён")]
)
def test_once_notified_the_list_says_when_and_offers_it_again_after_an_hour(
    world: World, session: Workload, language: str, words: str
) -> None:
    page = sent(world.admin, session, "notify", language)
    assert "data-notified" in page
    assert words in page
    manager = make_member(session.project, "mila", Role.MANAGER)
    assert actions(opened(manager)) == ["swap-out", "stop"]
    assert "data-notified" in opened(world.vera).content.decode(), "her own is asked for"
    Event.objects.update(at=timezone.now() - timedelta(minutes=61))
    response = opened(manager)
    assert actions(response) == ["notify", "swap-out", "stop"]
    assert "data-notified" not in response.content.decode()


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("en", "It is not idle by the rule of project Vision, so there is nothing to ask"),
        ("ru", "По правилу проекта Vision она не простаивает"),
    ],
)
def test_the_owner_of_what_is_not_idle_is_not_notified(
    world: World, session: Workload, language: str, words: str
) -> None:
    assert words in sent(world.admin, world.busy, "notify", language)
    # The page was open, and its owner is back.
    measured(session, 70.0, 3.0, again=True)
    assert words in sent(world.admin, session, "notify", language)
    assert not Event.objects.exists()
    assert not Notice.objects.exists()
    measured(session, 0.4, 0.01, again=True)
    sent(world.admin, session, "notify", language)
    assert Event.objects.filter(workload=session).count() == 1


def test_swapping_out_from_the_list_asks_for_a_loan(world: World, session: Workload) -> None:
    assert "is swapped out as soon as a training waits" in sent(world.admin, session, "swap-out")
    assert Attempt.objects.get(workload=session).lend_asked_at is not None


def test_stopping_from_the_list_asks_first_and_comes_back(world: World, session: Workload) -> None:
    row = halves(opened(world.admin, "/idle?project=vision"))[0]
    address = f"/workloads/{session.pk}/stop?next=/idle%3Fproject%3Dvision"
    assert f'href="{address}"' in row
    assert f'hx-get="{address}"' in row
    dialog = opened(world.admin, address).content.decode()
    assert "Variables of its kernels" in dialog
    assert 'href="/idle?project=vision" data-cancel autofocus' in dialog


@pytest.mark.parametrize("action", ["notify", "swap-out", "stop"])
def test_who_may_not_does_nothing(world: World, session: Workload, action: str) -> None:
    colleague = make_member(session.project, "max")
    client = Client()
    client.force_login(world.sergey)
    assert client.post(f"/workloads/{session.pk}/{action}").status_code == 403
    client.force_login(colleague)
    response = client.post(f"/workloads/{session.pk}/{action}", follow=True)
    assert response.status_code in (200, 403)
    if response.status_code == 200:
        assert "You may not change this workload." in response.content.decode()
    session.refresh_from_db()
    assert session.phase == "running"
    assert not Event.objects.filter(workload=session).exists()
    assert client.get(f"/workloads/{session.pk}/notify").status_code == 405


def test_the_api_notifies_too(world: World, session: Workload) -> None:
    def post(user: User) -> Any:  # a test client's answer
        secret = tokens.issue(user, name="tests").secret
        client = Client(headers={"Authorization": f"Bearer {secret}"})
        return client.post(f"/api/v1/workloads/{session.pk}/notify")

    assert post(world.admin).status_code == 200
    assert (post(world.admin).status_code, post(world.admin).json()["code"]) == (
        409,
        "notified_lately",
    )
    assert post(world.vera).json()["code"] == "own_work"
    assert post(make_member(session.project, "max")).status_code == 403
    assert post(world.sergey).status_code == 404
    Event.objects.all().delete()
    measured(session, 70.0, 3.0, again=True)
    assert (post(world.admin).status_code, post(world.admin).json()["code"]) == (409, "not_idle")
    Workload.objects.filter(pk=session.pk).update(phase="stopped")
    assert post(world.admin).json()["code"] == "not_running"


def test_the_overview_says_how_much_is_idle_and_leads_here(world: World) -> None:
    text = opened(world.vera, "/").content.decode()
    tile = text.partition('<a class="tile" href="/idle">')[2].partition("</a>")[0]
    assert '<span class="tile-value">0.5</span>' in tile


def test_nobody_sees_it_without_logging_in() -> None:
    assert Client().get("/idle").status_code == 302
    assert Client().get("/idle/csv").status_code == 302


@pytest.mark.parametrize("address", ["/idle", "/idle/csv"])
def test_hostile_choices_find_nothing(world: World, address: str) -> None:
    response = opened(world.admin, f"{address}?project=<script>")
    assert response.status_code == 422
    text = response.content.decode()
    assert "sleeper" not in text
    assert "<script>" not in text or address.endswith("csv"), "plain text"
    assert opened(world.admin, f"{address}?project=%00").status_code == 400
